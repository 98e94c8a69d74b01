"""A real browser and a real `rnnsearch serve` of a small trained model, for all tests of the page in a process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

HOW = "apt-get install chromium && pip install playwright"
PATIENCE = 120_000
"""Milliseconds that a busy machine may take over anything."""

SUBJECTS = (("A dog", "Ein Hund"), ("The child", "Das Kind"), ("Our teacher", "Unser Lehrer"),
            ("The girl", "Das Mädchen"), ("My uncle", "Mein Onkel"), ("Her boss", "Ihr Chef"))  # fmt: skip
VERBS = (("sees", "sieht"), ("finds", "findet"), ("paints", "malt"), ("buys", "kauft"), ("likes", "mag"))
OBJECTS = (("a red ball.", "einen roten Ball."), ("the old house.", "das alte Haus."),
           ("two small birds.", "zwei kleine Vögel."), ("the green door.", "die grüne Tür."),
           ("the last train.", "den letzten Zug."), ("a warm coat.", "einen warmen Mantel."))  # fmt: skip

RUN = """
preset = "small"
folder = "model"
data = { source = "en", target = "de", train = ["train.tsv"], dev_size = 16, test_size = 16, aligner = false }
text = { type = "words", vocabulary = 100 }
search = { max_ratio = 1.0, max_extra = 4 }

[model]
embedding = 24
tie = "none"
dropout = { embedding = 0, annotations = 0, readout = 0 }
encoder = { size = 24 }
attention = { size = 24 }
decoder = { size = 32, maxout = 24 }

[training]
max_updates = 90
evaluate_every = 90
precision = "fp32"
label_smoothing = 0
threads = 1
batch = { tokens = 200 }
optimiser = { learning_rate = 0.01 }
schedule = { warmup = 10 }
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all of a file, whose tests may share a server; each worker has a browser (before xdist reads the
    marks)."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that has learned a regular little language."""
    folder = tmp_path_factory.mktemp("page")
    pairs = [(f"{s} {v} {o}", f"{t} {w} {p}") for (s, t), (v, w), (o, p) in product(SUBJECTS, VERBS, OBJECTS)]
    (folder / "train.tsv").write_text("".join(f"{en}\t{de}\n" for en, de in pairs), encoding="utf-8")
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    run = [sys.executable, "-m", "rnnsearch", "train", str(folder / "run.toml")]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "model"


class Server:
    """`rnnsearch serve` in a process of its own."""

    def __init__(self, model: Path, log: Path, *options: str, port: int = 0) -> None:
        self.port = port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._log = log
        command = [sys.executable, "-m", "rnnsearch", "serve", str(model), "--port", str(self.port), *options]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        self._await()

    def _await(self) -> None:
        end = time.monotonic() + PATIENCE / 1000
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        self.stop()
        pytest.fail(f"the server does not answer; it said:\n{self._log.read_text()}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(model, tmp_path_factory.mktemp("server") / "log")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium. Where there is none: skipped, but a failure under CI."""
    missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        missing(f"needs Chromium; install: {HOW}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing(f"needs Playwright; install: {HOW}")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


class Sheet:
    """The page in a browser, with what every test of it does."""

    sentence, translation = "Our teacher paints the old house.", "Unser Lehrer malt das alte Haus."
    other, other_translation = "A dog sees two small birds.", "Ein Hund sieht zwei kleine Vögel."

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.said: list[str] = []
        """The console's errors and warnings."""
        self.asked: list[str] = []
        """The address of every request."""
        self.faults_expected = False
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda note: self.said.append(note.text) if note.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def translate(self, text: str) -> str:
        """Type a text and wait until its translation is there, which is returned."""
        self.page.fill("#source", text)
        return self.settled()

    def attention(self) -> dict[tuple[str, str], float]:
        """What the server says of `sentence`: the attention of each (target word, source word)."""
        asked = {"text": self.sentence, "attention": True}
        answer = self.page.request.post(f"{self.address}/v1/translate", data=asked).json()
        best = answer["translations"][0]["sentences"][0]["best"][0]
        words, sources = ([word["text"] for word in best[side]] for side in ("words", "source_words"))
        return {
            (w, s): a
            for w, row in zip(words, best["attention"], strict=True)
            for s, a in zip(sources, row, strict=True)
        }

    def aligned(self, target: str | None = None, source: str | None = None) -> dict[str, float]:
        """What must be lit when a target word or a source word is pointed at, as `lit` gives it."""
        shown = 0.04  # less attention than this is not shown
        return {
            s if target else w: pytest.approx(a, abs=0.001)
            for (w, s), a in self.attention().items()
            if target in (None, w) and source in (None, s) and a >= shown
        }

    def becomes(self, translation: str) -> None:
        """Wait until this translation is shown."""
        self.page.wait_for_function("want => document.getElementById('target').innerText === want", arg=translation)

    def changes(self) -> None:
        """Wait until another translation than that of `sentence` is shown."""
        self.page.wait_for_function("was => document.getElementById('target').innerText !== was", arg=self.translation)

    def banner(self) -> str:
        """What is said to be wrong, once it is."""
        self.page.wait_for_selector("#banner", state="visible")
        return str(self.page.inner_text("#banner"))

    def settled(self) -> str:
        """Wait until what the field holds is translated."""
        self.page.wait_for_function(
            """() => document.getElementById('busy').hidden && !document.querySelector('#target.is-stale')
                && document.querySelectorAll('#source-mirror .word').length > 0"""
        )
        return self.target

    @property
    def target(self) -> str:
        """The translation that is shown."""
        return self.page.inner_text("#target").strip()

    def word(self, text: str) -> Locator:
        """A word of the translation."""
        return self.page.locator("#target .word", has_text=text).first

    def lit(self, side: str) -> dict[str, float]:
        """The words that are lit on a side ("source-mirror", "target") and how strongly."""
        found = self.page.eval_on_selector_all(
            f"#{side} .is-lit", "spans => spans.map(s => [s.textContent, Number(s.style.getPropertyValue('--weight'))])"
        )
        return dict(found)

    def shows(self, selector: str) -> bool:
        return self.page.is_visible(selector)

    def why_not(self, selector: str) -> str:
        """Why a greyed button cannot be used: the same as its title and, pressed by key or finger, for all to see."""
        button = self.page.locator(selector)
        assert button.get_attribute("aria-disabled") == "true"
        button.focus()
        assert button.evaluate("button => button === document.activeElement")
        self.page.keyboard.press("Enter")
        said = self.page.inner_text("#toast")
        assert self.page.get_attribute("#toast", "role") == "status"
        assert button.get_attribute("title") == said
        return said

    def focused(self) -> str:
        """The id, class and text of what has the focus."""
        return str(
            self.page.evaluate(
                "(({id, className, textContent: t}) => `${id} ${className} ${t}`)(document.activeElement)"
            )
        )


Open = Callable[..., Sheet]


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Open]:
    """Opens the page in a fresh context. After the test: no fault in the console, no request to anywhere else.

    `routes`: answers, by path, that are given in place of the server's. Other options are the context's.
    """
    opened: list[Sheet] = []

    def open_(routes: dict[str, Any] | None = None, address: str = server.address, **options: Any) -> Sheet:
        options = {"viewport": {"width": 1180, "height": 760}, "reduced_motion": "reduce", **options}
        page = browser.new_context(**options).new_page()
        sheet = Sheet(page, address)
        opened.append(sheet)
        for path, answer in (routes or {}).items():
            page.route(f"{address}{path}", answer if callable(answer) else answering(answer))
        page.goto(address)
        page.wait_for_function("() => document.getElementById('to').value")
        return sheet

    yield open_
    for sheet in opened:
        sheet.page.context.close()
        assert sheet.faults_expected or not sheet.said, sheet.said
        own = (f"{sheet.address}/", f"blob:{sheet.address}/")
        assert [url for url in sheet.asked if not url.startswith(own)] == []


def answering(answer: Any) -> Callable[[Any], None]:
    return lambda route: route.fulfill(json=answer)


@pytest.fixture
def sheet(open_page: Open) -> Sheet:
    """The page as it opens on a desk, in the light theme."""
    return open_page(color_scheme="light")


@pytest.fixture
def phone(open_page: Open) -> Sheet:
    """The page on a phone, where a finger taps."""
    size = {"width": 390, "height": 844}
    return open_page(viewport=size, screen=size, has_touch=True, is_mobile=True)


@pytest.fixture
def translated(sheet: Sheet) -> Sheet:
    """The page with one sentence and its translation."""
    assert sheet.translate(sheet.sentence) == sheet.translation
    return sheet
