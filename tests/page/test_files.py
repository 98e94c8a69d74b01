"""Files are sent, translated with progress, and downloaded."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def files(sheet: Any) -> Any:
    sheet.page.click("#tab-files")
    return sheet


def test_progress_is_shown_meanwhile(open_page: Any) -> None:
    done = iter([0, 2, 4])

    def state(route: Any) -> None:
        n = next(done)
        kind = "queued" if n == 0 else "running" if n < 4 else "done"
        route.fulfill(json={"id": "x", "state": kind, "done": n, "segments": 4, "error": None})

    sent = {"id": "x", "name": "a.po", "segments": 4}
    sheet = open_page(routes={"/v1/files": lambda route: route.fulfill(status=202, json=sent), "/v1/files/x": state})
    sheet.page.click("#tab-files")
    sheet.page.set_input_files("#file", {"name": "a.po", "mimeType": "text/plain", "buffer": b"x"})
    said = sheet.page.locator(".job .note")
    sheet.page.wait_for_function("() => document.querySelector('.job .note').textContent === 'Waiting for its turn'")
    sheet.page.wait_for_function("() => document.querySelector('.job .note').textContent === '2 of 4 segments'")
    assert sheet.page.evaluate("document.querySelector('.job progress').value") == 0.5
    sheet.page.wait_for_function("() => document.querySelector('.job .note').textContent === '4 segments translated'")
    assert said.get_attribute("role") == "status"


def test_another_kind_of_file_is_refused_before_it_is_sent(files: Any) -> None:
    files.page.set_input_files("#file", {"name": "a.docx", "mimeType": "text/plain", "buffer": b"x"})
    files.page.wait_for_selector("#banner", state="visible")
    assert files.page.inner_text("#banner") == "A file must be .txt, .tsv, .tmx or .po; got a.docx."
    assert files.page.locator(".job").count() == 0
