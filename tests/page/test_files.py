"""File translation: upload, progress and download."""

from typing import Any

import pytest


@pytest.fixture
def files(app: Any) -> Any:
    app.page.click("#tab-files")
    return app


def test_text_file_is_translated(files, tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text(f"{files.sentence}\n\n{files.other}\n", encoding="utf-8")
    files.page.set_input_files("#file", file)
    download = files.page.get_by_role("button", name="Download translation of letter.txt")
    download.wait_for()
    assert "translated" in files.page.inner_text(".job .note")
    with files.page.expect_download() as result:
        download.click()
    assert result.value.suggested_filename.endswith(".txt")
    result.value.save_as(tmp_path / "result.txt")
    text = (tmp_path / "result.txt").read_text(encoding="utf-8")
    assert text == f"{files.translation}\n\n{files.other_translation}\n"


def test_progress_is_shown(open_app):
    done = iter([0, 2, 4])

    def status(route: Any) -> None:
        count = next(done)
        state = {0: "queued", 2: "running", 4: "done"}[count]
        route.fulfill(json={"id": "x", "state": state, "done": count, "segments": 4, "error": None})

    created = {"id": "x", "name": "a.po", "segments": 4}
    app = open_app(routes={"/v1/files": lambda route: route.fulfill(status=202, json=created), "/v1/files/x": status})
    app.page.click("#tab-files")
    app.page.set_input_files("#file", {"name": "a.po", "mimeType": "text/plain", "buffer": b"x"})
    app.page.wait_for_function("() => document.querySelector('.job .note').textContent === 'Queued'")
    app.page.wait_for_function("() => document.querySelector('.job .note').textContent === '2 of 4 segments'")
    assert app.page.evaluate("document.querySelector('.job progress').value") == 0.5
    app.page.wait_for_function("() => document.querySelector('.job .note').textContent === '4 segments translated'")
    assert app.page.get_attribute(".job .note", "role") == "status"


def test_rejected_files_keep_their_messages(files):
    """Each file has its own message, which stays when other files are added and translated."""
    documents = [
        {"name": "a.docx", "mimeType": "text/plain", "buffer": b"x"},
        {"name": "b.txt", "mimeType": "text/plain", "buffer": files.sentence.encode()},
    ]
    files.page.set_input_files("#file", documents)
    files.page.get_by_role("button", name="Download translation of b.txt").wait_for()
    supported = ".txt, .tsv, .tmx, .xliff, .po, .html, .srt and .vtt"
    rows = files.page.locator(".job")
    assert rows.locator(".note").all_inner_texts() == [
        "1 segment translated",
        f"Unsupported file type. Supported types are {supported}.",
    ]
    files.page.get_by_role("button", name="Remove a.docx").click()
    assert rows.locator(".file-name").all_inner_texts() == ["b.txt"]


def test_files_wait_for_the_api_key(open_app):
    def require_key(route: Any) -> None:
        if route.request.headers.get("x-api-key") == "sesame":
            route.continue_()
        else:
            route.fulfill(status=403, json={"error": "an API key is required"})

    app = open_app(routes={"/v1/files": require_key})
    app.errors_expected = True
    app.page.click("#tab-files")
    for name in ("a.txt", "b.txt"):
        app.page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": app.sentence.encode()})
    waiting = (
        "() => [...document.querySelectorAll('.job .note')].every(e => e.textContent === 'Waiting for the API key…')"
    )
    app.page.wait_for_function(f"() => document.querySelectorAll('.job').length === 2 && ({waiting})()")
    app.page.fill("#key", "sesame")
    app.page.keyboard.press("Enter")
    for name in ("a.txt", "b.txt"):
        app.page.get_by_role("button", name=f"Download translation of {name}").wait_for()


def test_invalid_file_shows_error(files):
    files.errors_expected = True  # the console reports the rejected request
    files.page.set_input_files("#file", {"name": "bad.tmx", "mimeType": "text/xml", "buffer": b"<tmx><body"})
    files.page.wait_for_selector(".job .is-error")
    assert files.page.inner_text(".job .is-error").startswith("Must be TMX; got ")
    files.page.get_by_role("button", name="Remove bad.tmx").click()
    assert files.page.locator(".job").count() == 0
