"""The page that `rnnsearch export --format web` writes, online, offline and on a phone."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.export.web_page import export_page, file_name
from rnnsearch.runtime import load
from tests.command_line import run
from tests.engines import require_native_code, require_web_engine
from tests.page.conftest import TIMEOUT, App

PHONE = {"width": 390, "height": 844}
SITE = "site"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Do not log requests."""


class Site:
    """A static web server for an exported page."""

    def __init__(self, folder: Path) -> None:
        handler = partial(QuietHandler, directory=str(folder.parent))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/{folder.name}"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    require_native_code()
    require_web_engine()
    exported = tmp_path_factory.mktemp("offline") / SITE
    result = run("export", model, exported, "--format", "web")
    assert result.code == 0, result.err
    assert re.search(r"site: a page of 0\.\d\d MB, and a model of 0\.\d MB, int8", result.out + result.err)
    return exported


@pytest.fixture
def site(folder):
    site = Site(folder)
    yield site
    site.stop()


@pytest.fixture
def visit(browser, site):
    """Return a function that opens the page.

    After the test, the console must have no errors, and all requests must be to the site.
    """
    apps: list[App] = []

    def open_(**options: Any) -> App:
        page = browser.new_context(**{"viewport": {"width": 1180, "height": 760}, **options}).new_page()
        app = App(page, site.address)
        apps.append(app)
        page.goto(f"{site.address}/")
        page.wait_for_function("() => document.getElementById('to').value")
        return app

    yield open_
    for app in apps:
        app.page.context.close()
        assert not app.console, app.console
        assert [url for url in app.urls if not url.startswith(f"{app.address}/")] == []


def test_text_is_translated_while_typing(visit):
    app = visit()
    assert app.translate(app.sentence) == app.translation
    app.page.locator("#source").press("End")
    app.page.keyboard.type(f" {app.other}")
    assert app.wait_until_translated() == f"{app.translation} {app.other_translation}"
    app.page.fill("#source", "")
    app.page.wait_for_function("() => !document.getElementById('target').innerText")


def test_translations_equal_those_of_the_runtime(visit, folder):
    app = visit()
    texts = ["Her boss paints", "The girl likes the last train. My uncle", "A dog\nThe child finds"]
    translator = load(folder / "models/model.rnn")
    for text in texts:
        sentences = re.split(r"(?<=\.) |\n", text)
        expected = [t.text for t in translator.translate(sentences)]
        assert app.translate(text).split() == " ".join(expected).split()


def test_text_that_the_model_cannot_read_is_noted(visit):
    app = visit()
    for text, note in {"Привет": "not in the script of English", "The qxqx vrmpf.": "does not know many words"}.items():
        app.page.fill("#source", text)
        app.page.wait_for_function("note => document.getElementById('notes').innerText.includes(note)", arg=note)
    app.translate(app.sentence)
    assert app.page.inner_text("#notes") == ""


def test_aligned_words_are_highlighted(visit):
    app = visit()
    app.translate(app.sentence)
    app.word("Haus").hover()
    assert "house." in app.highlighted("source-mirror")
    app.page.mouse.move(0, 0)
    assert app.highlighted("source-mirror") == {}
    app.page.locator("#target .word").first.focus()  # by keyboard
    assert app.highlighted("source-mirror")
    assert "confidence" in app.page.locator("#target .word").first.get_attribute("aria-label")


def test_prefix_is_completed(visit):
    app = visit()
    app.translate(app.sentence)
    app.page.click("#show-writer")
    app.page.wait_for_selector(".ghost-next")
    app.page.fill("#writer", "Unser Lehrer f")
    app.page.wait_for_function("() => document.querySelector('.ghost-next')?.textContent.startsWith('indet')")
    app.page.keyboard.press("Control+Enter")
    assert app.page.input_value("#writer").startswith("Unser Lehrer findet ")
    app.page.click("#writer-apply")
    app.page.wait_for_function("() => document.getElementById('target').innerText.startsWith('Unser Lehrer findet')")


def test_alternatives_for_word_and_sentence(visit):
    app = visit()
    app.translate(app.sentence)
    app.word("malt").click()
    app.page.wait_for_selector("#word-menu .choice")
    words = app.page.locator("#word-menu .choice > :first-child").all_inner_texts()
    assert words and "malt" not in words
    app.page.locator("#word-menu .choice").first.click()
    app.page.wait_for_function("word => document.getElementById('target').innerText.includes(word)", arg=words[0])
    app.page.click("#show-alternatives")
    app.page.wait_for_selector("#alternatives-list li")
    assert app.translation in app.page.inner_text("#alternatives-list")


def test_page_works_offline_after_first_visit(visit, site):
    app = visit()
    app.page.wait_for_function("() => document.getElementById('offline-status').textContent.includes('work offline')")
    site.stop()
    app.page.context.set_offline(True)
    app.page.reload()
    app.page.wait_for_function("() => document.getElementById('to').value")
    assert app.translate(app.sentence) == app.translation
    page = app.page.context.new_page()
    page.set_default_timeout(TIMEOUT)
    page.goto(f"{site.address}/index.html")
    page.fill("#source", app.sentence)
    page.wait_for_function("text => document.getElementById('target').innerText === text", arg=app.translation)


def test_page_fits_phone_and_is_installable(visit):
    app = visit(viewport=PHONE, screen=PHONE, has_touch=True, is_mobile=True)
    app.translate(app.sentence)
    assert app.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    panes = [app.page.locator(pane).bounding_box() for pane in ("#source", "#target-pane")]
    assert panes[0]["y"] + panes[0]["height"] <= panes[1]["y"] + 1
    manifest = json.loads(app.page.request.get(f"{app.address}/manifest.webmanifest").text())
    assert app.page.get_attribute("link[rel=manifest]", "href") == "manifest.webmanifest"
    assert manifest["display"] == "standalone" and manifest["icons"]
    icon = app.page.request.get(f"{app.address}/{manifest['icons'][0]['src']}")
    assert icon.ok and "svg" in icon.headers["content-type"]


def test_damaged_model_is_reported(browser, folder, tmp_path):
    damaged = tmp_path / SITE
    shutil.copytree(folder, damaged)
    file = damaged / "models/model.rnn"
    file.write_bytes(file.read_bytes()[:-1])
    site = Site(damaged)
    app = App(browser.new_context(service_workers="block").new_page(), site.address)
    app.page.goto(f"{site.address}/")
    app.page.fill("#source", app.sentence)
    assert app.banner().startswith("The engine file is truncated or was modified")
    app.page.context.close()
    site.stop()


def test_exported_files_are_small_and_self_contained(folder):
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert files["module/engine.wasm"].stat().st_size <= 300_000
    assert sum(path.stat().st_size for name, path in files.items() if not name.endswith(".rnn")) <= 1_000_000
    for name, path in files.items():
        if not name.endswith((".rnn", ".wasm")):
            text = path.read_text(encoding="utf-8")
            assert set(re.findall(r"https?://[^\s\"'`<>)]+", text)) <= {"http://www.w3.org/2000/svg"}, name
            assert text.count("\n") <= 300 or not name.endswith(".js"), name
    page = files["index.html"].read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'self' 'wasm-unsafe-eval'")
    assert page.index("Content-Security-Policy") < page.index("<script")
    assert '"/static' not in page
    cached = set(json.loads(re.search(r"FILES = (\[.*?\]);", files["sw.js"].read_text(), re.DOTALL)[1]))
    needed = {name for name in files if not name.endswith((".d.ts", "package.json"))}
    assert needed - {"sw.js"} == cached - {"./"}


def test_export_keeps_other_models(model, folder, tmp_path):
    other = tmp_path / "an other"
    page = tmp_path / SITE
    shutil.copytree(model, other)
    shutil.copytree(folder, page)
    export_page(other, page, "fp32")
    export_page(other, page)
    entries = json.loads((page / "models.json").read_text(encoding="utf-8"))
    assert [(entry["name"], entry["file"]) for entry in entries] == [
        ("an other", f"models/{file_name('an other')}"),
        ("model", "models/model.rnn"),
    ]
    service_worker = (page / "sw.js").read_text()
    assert all(f'"{entry["file"]}"' in service_worker for entry in entries)


def test_export_rejects_folder_with_other_files(model, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "letters.txt").write_text("mine")
    for path in (folder, folder / "letters.txt"):
        with pytest.raises(RnnsearchError, match="must be a new folder, or one that"):
            export_page(model, path)
    (folder / "models.json").write_text('[{"file": "models/../../x.rnn"}]')
    with pytest.raises(RnnsearchError, match="must be a new folder, or one that"):
        export_page(model, folder)
    assert (folder / "letters.txt").read_text() == "mine"
