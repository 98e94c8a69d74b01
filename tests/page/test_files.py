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


def test_unsupported_file_type_is_rejected_before_upload(files):
    files.page.set_input_files("#file", {"name": "a.docx", "mimeType": "text/plain", "buffer": b"x"})
    supported = ".txt, .tsv, .tmx, .xliff, .po, .html, .srt and .vtt"
    assert files.banner() == f"Unsupported file type: a.docx. Supported types are {supported}."
    assert files.page.locator(".job").count() == 0


def test_invalid_file_shows_error(files):
    files.errors_expected = True  # the console reports the rejected request
    files.page.set_input_files("#file", {"name": "bad.tmx", "mimeType": "text/xml", "buffer": b"<tmx><body"})
    files.page.wait_for_selector(".job .is-error")
    assert len(files.page.inner_text(".job .is-error")) > 10
    files.page.get_by_role("button", name="Remove bad.tmx").click()
    assert files.page.locator(".job").count() == 0
