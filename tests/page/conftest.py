"""Fixtures: a browser, and `rnnsearch serve` with a small trained model."""

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
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

INSTALL = "apt-get install chromium && pip install playwright"
TIMEOUT = 120_000
"""Milliseconds, generous because test machines may be busy."""

SUBJECTS = (("A dog", "Ein Hund"), ("The child", "Das Kind"), ("Our teacher", "Unser Lehrer"),
            ("The girl", "Das Mädchen"), ("My uncle", "Mein Onkel"), ("Her boss", "Ihr Chef"))  # fmt: skip
VERBS = (("sees", "sieht"), ("finds", "findet"), ("paints", "malt"), ("buys", "kauft"), ("likes", "mag"))
OBJECTS = (("a red ball.", "einen roten Ball."), ("the old house.", "das alte Haus."),
           ("two small birds.", "zwei kleine Vögel."), ("the green door.", "die grüne Tür."),
           ("the last train.", "den letzten Zug."), ("a warm coat.", "einen warmen Mantel."))  # fmt: skip

RUN_FILE = """
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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of a file in one worker, so that they share a server and a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that has learned a small regular language."""
    return train_model(tmp_path_factory.mktemp("page"), RUN_FILE)


def train_model(folder: Path, run_file: str) -> Path:
    """Train a model on sentences of a subject, a verb and an object, and return its folder."""
    lines = [f"{s} {v} {o}\t{t} {w} {p}\n" for (s, t), (v, w), (o, p) in product(SUBJECTS, VERBS, OBJECTS)]
    (folder / "train.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "run.toml").write_text(run_file, encoding="utf-8")
    command = [sys.executable, "-m", "rnnsearch", "train", str(folder / "run.toml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return folder / "model"


class Server:
    """A process of `rnnsearch serve`."""

    def __init__(self, model: Path, log: Path, *options: str, port: int = 0) -> None:
        self.port = port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._log = log
        command = [sys.executable, "-m", "rnnsearch", "serve", str(model), "--port", str(self.port), *options]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT / 1000
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        self.stop()
        pytest.fail(f"the server did not start; its log:\n{self._log.read_text()}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(model, tmp_path_factory.mktemp("server") / "log")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start headless Chromium. If it is not installed, skip the test, or fail in CI."""
    give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        give_up(f"needs Chromium; install: {INSTALL}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        give_up(f"needs Playwright; install: {INSTALL}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class App:
    """The translation page in a browser tab."""

    sentence = "Our teacher paints the old house."
    translation = "Unser Lehrer malt das alte Haus."
    other = "A dog sees two small birds."
    other_translation = "Ein Hund sieht zwei kleine Vögel."

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.console: list[str] = []  # errors and warnings
        self.urls: list[str] = []  # of all requests
        self.errors_expected = False
        page.set_default_timeout(TIMEOUT)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", lambda request: self.urls.append(request.url))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.console.append(message.text)

    def translate(self, text: str) -> str:
        """Enter a text and return its translation."""
        self.page.fill("#source", text)
        return self.wait_until_translated()

    def wait_until_translated(self) -> str:
        """Wait until the text in the field is translated; return the translation."""
        self.page.wait_for_function(
            """() => document.getElementById('busy').hidden && !document.querySelector('#target.is-stale')
                && document.querySelectorAll('#source-mirror .word').length > 0"""
        )
        return self.target_text

    def wait_for_translation(self, translation: str) -> None:
        """Wait until this translation is shown."""
        self.page.wait_for_function("text => document.getElementById('target').innerText === text", arg=translation)

    def wait_for_other_translation(self) -> None:
        """Wait until a translation of `sentence` other than the model's is shown."""
        self.page.wait_for_function(
            "text => document.getElementById('target').innerText !== text", arg=self.translation
        )

    @property
    def target_text(self) -> str:
        """The displayed translation."""
        return self.page.inner_text("#target").strip()

    def word(self, text: str) -> Locator:
        """Return a word of the translation."""
        return self.page.locator("#target .word", has_text=text).first

    def attention(self) -> dict[tuple[str, str], float]:
        """Return the server's attention weights for `sentence` by (target word, source word)."""
        request = {"text": self.sentence, "attention": True}
        response = self.page.request.post(f"{self.address}/v1/translate", data=request).json()
        best = response["translations"][0]["sentences"][0]["best"][0]
        weights = {}
        for word, row in zip(best["words"], best["attention"], strict=True):
            for source, weight in zip(best["source_words"], row, strict=True):
                weights[word["text"], source["text"]] = weight
        return weights

    def expected_highlight(self, target: str | None = None, source: str | None = None) -> dict[str, Any]:
        """Return what `highlighted` must return while a target word or a source word is active."""
        min_weight = 0.04
        return {
            s if target else t: pytest.approx(weight, abs=0.001)
            for (t, s), weight in self.attention().items()
            if target in (None, t) and source in (None, s) and weight >= min_weight
        }

    def highlighted(self, pane: str) -> dict[str, float]:
        """Return the highlighted words of a pane ("source-mirror" or "target") and their weights."""
        spans = self.page.eval_on_selector_all(
            f"#{pane} .is-aligned",
            "spans => spans.map(s => [s.textContent, Number(s.style.getPropertyValue('--weight'))])",
        )
        return dict(spans)

    def banner(self) -> str:
        """Wait for the banner and return its message."""
        self.page.wait_for_selector("#banner", state="visible")
        return str(self.page.inner_text("#banner"))

    def is_visible(self, selector: str) -> bool:
        return self.page.is_visible(selector)

    def unavailable_reason(self, selector: str) -> str:
        """Return why a button is unavailable; its title and the toast shown when it is pressed must both say so."""
        button = self.page.locator(selector)
        assert button.get_attribute("aria-disabled") == "true"
        button.focus()
        assert button.evaluate("button => button === document.activeElement")
        self.page.keyboard.press("Enter")
        reason = self.page.inner_text("#toast")
        assert self.page.get_attribute("#toast", "role") == "status"
        assert button.get_attribute("title") == reason
        return reason

    def focused(self) -> str:
        """Return id, class and text of the focused element."""
        return str(
            self.page.evaluate(
                "(({id, className, textContent: t}) => `${id} ${className} ${t}`)(document.activeElement)"
            )
        )


OpenApp = Callable[..., App]


@pytest.fixture
def open_app(browser: Browser, server: Server) -> Iterator[OpenApp]:
    """Return a function that opens the page in a new browser context.

    Its argument `routes` maps paths to responses (or route handlers) that replace the server's; further options are
    those of the context. After the test, the console must have no errors, and all requests must be to the server.
    """
    apps: list[App] = []

    def open_(routes: dict[str, Any] | None = None, address: str = server.address, **options: Any) -> App:
        options = {"viewport": {"width": 1180, "height": 760}, "reduced_motion": "reduce", **options}
        page = browser.new_context(**options).new_page()
        app = App(page, address)
        apps.append(app)
        for path, response in (routes or {}).items():
            page.route(f"{address}{path}", response if callable(response) else json_handler(response))
        page.goto(address)
        page.wait_for_function("() => document.getElementById('to').value")
        return app

    yield open_
    for app in apps:
        app.page.context.close()
        assert app.errors_expected or not app.console, app.console
        allowed = (f"{app.address}/", f"blob:{app.address}/")
        assert [url for url in app.urls if not url.startswith(allowed)] == []


def json_handler(response: Any) -> Callable[[Any], None]:
    return lambda route: route.fulfill(json=response)


@pytest.fixture
def app(open_app: OpenApp) -> App:
    """Open the page on a desktop, in the light theme."""
    return open_app(color_scheme="light")


@pytest.fixture
def phone(open_app: OpenApp) -> App:
    """Open the page on a phone with a touch screen."""
    size = {"width": 390, "height": 844}
    return open_app(viewport=size, screen=size, has_touch=True, is_mobile=True)


@pytest.fixture
def translated(app: App) -> App:
    """Open the page with a translated sentence."""
    assert app.translate(app.sentence) == app.translation
    return app
