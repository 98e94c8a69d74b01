"""Files are sent, translated with progress, and downloaded."""

from typing import Any

import pytest


@pytest.fixture
def files(app: Any) -> Any:
    app.page.click("#tab-files")
    return app


def test_a_text_file_is_translated_and_downloaded(files, tmp_path):
    given = tmp_path / "letter.txt"
    given.write_text(f"{files.sentence}\n\n{files.other}\n", encoding="utf-8")
    files.page.set_input_files("#file", given)
    download = files.page.get_by_role("button", name="Download letter.txt, translated")
    download.wait_for()
    assert "translated" in files.page.inner_text(".job .note")
    with files.page.expect_download() as got:
        download.click()
    assert got.value.suggested_filename.endswith(".txt")
    got.value.save_as(tmp_path / "got.txt")
    assert (tmp_path / "got.txt").read_text(encoding="utf-8") == f"{files.translation}\n\n{files.other_translation}\n"


def test_progress_is_shown_meanwhile(open_app):
    done = iter([0, 2, 4])

    def state(route: Any) -> None:
        n = next(done)
        kind = "queued" if n == 0 else "running" if n < 4 else "done"
        route.fulfill(json={"id": "x", "state": kind, "done": n, "segments": 4, "error": None})

    sent = {"id": "x", "name": "a.po", "segments": 4}
    app = open_app(routes={"/v1/files": lambda route: route.fulfill(status=202, json=sent), "/v1/files/x": state})
    app.page.click("#tab-files")
    app.page.set_input_files("#file", {"name": "a.po", "mimeType": "text/plain", "buffer": b"x"})
    said = app.page.locator(".job .note")
    app.page.wait_for_function("() => document.querySelector('.job .note').textContent === 'Waiting for its turn'")
    app.page.wait_for_function("() => document.querySelector('.job .note').textContent === '2 of 4 segments'")
    assert app.page.evaluate("document.querySelector('.job progress').value") == 0.5
    app.page.wait_for_function("() => document.querySelector('.job .note').textContent === '4 segments translated'")
    assert said.get_attribute("role") == "status"


def test_another_kind_of_file_is_refused_before_it_is_sent(files):
    files.page.set_input_files("#file", {"name": "a.docx", "mimeType": "text/plain", "buffer": b"x"})
    assert files.banner() == "A file must be .txt, .tsv, .tmx or .po; got a.docx."
    assert files.page.locator(".job").count() == 0


def test_a_file_at_fault_says_so(files):
    files.errors_expected = True  # the browser's console names the refused request
    files.page.set_input_files("#file", {"name": "bad.tmx", "mimeType": "text/xml", "buffer": b"<tmx><body"})
    files.page.wait_for_selector(".job .is-error")
    assert len(files.page.inner_text(".job .is-error")) > 10
    files.page.get_by_role("button", name="Remove bad.tmx").click()
    assert files.page.locator(".job").count() == 0
