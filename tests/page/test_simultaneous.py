"""Translations that grow while a text is typed, by a model that does not read ahead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.page.conftest import App, OpenApp, Server, train_model

RUN_FILE = """
preset = "wait-k-small"
folder = "model"
data = { source = "en", target = "de", train = ["train.tsv"], dev_size = 16, test_size = 16, aligner = false }
text = { type = "words", vocabulary = 100 }
search = { max_ratio = 1.0, max_extra = 4 }

[model]
embedding = 24
tie = "none"
dropout = { embedding = 0, annotations = 0, readout = 0 }
encoder = { size = 32, layers = 1 }
attention = { size = 24, wait = 2 }
decoder = { size = 32, readout = 24 }

[training]
max_updates = 150
evaluate_every = 150
precision = "fp32"
label_smoothing = 0
threads = 1
batch = { tokens = 200 }
optimiser = { learning_rate = 0.01 }
schedule = { warmup = 10 }
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """Serve a wait-k model and an ordinary one."""
    folder = tmp_path_factory.mktemp("wait-k")
    wait_k = train_model(folder, RUN_FILE).rename(folder / "wait-k")
    server = Server(wait_k, folder / "log", str(model))
    yield server
    server.stop()


@pytest.fixture
def app(open_app: OpenApp, served: Server) -> App:
    app = open_app(address=served.address)
    # All texts that the page has shown, in their order.
    app.page.evaluate(
        """() => {
            window.shown = [];
            const pane = document.getElementById('target');
            new MutationObserver(() => shown.push(pane.innerText)).observe(pane, {childList: true});
        }"""
    )
    return app


def type_text(app: App, text: str, shown: str) -> None:
    """Type a text and wait until a translation is shown."""
    app.page.keyboard.type(text)
    app.wait_for_translation(shown)


def assert_grown(app: App) -> None:
    """Check that each text that was shown begins with the one before."""
    shown = app.page.evaluate("shown")
    for text, longer in pairwise(shown):
        assert longer.startswith(text), shown


def test_translation_grows_with_typed_words(app):
    app.page.click("#source")
    type_text(app, "Our", "")
    app.page.wait_for_selector("#target-empty", state="visible")
    type_text(app, " teacher paints ", "Unser Lehrer")
    assert "is-stale" not in (app.page.get_attribute("#target", "class") or "")
    assert "Ctrl+Enter" in app.page.inner_text("#word-details")
    type_text(app, "the old ", "Unser Lehrer malt das")
    type_text(app, "house.", app.translation)  # after a pause
    app.wait_until_translated()
    assert app.page.inner_text("#lag").endswith(" words behind on average")
    type_text(app, " A dog sees ", f"{app.translation} Ein Hund")
    assert_grown(app)


def complete_translation(app: App, text: str) -> str:
    """Return the server's translation of a complete text."""
    request = {"text": text, "complete": True, "model": "wait-k"}
    return str(app.page.request.post(f"{app.address}/v1/simultaneous", data=request).json()["text"])


def test_text_is_complete_on_ctrl_enter_and_when_the_field_is_left(app):
    text = "Our teacher paints the old house"
    app.page.click("#source")
    type_text(app, text, "Unser Lehrer malt das")
    app.page.keyboard.press("Control+Enter")
    assert app.wait_until_translated() == complete_translation(app, text)
    app.page.keyboard.press("Space")
    app.page.keyboard.type("sees")
    app.page.click("#target-pane", position={"x": 5, "y": 5})
    assert app.wait_until_translated() == complete_translation(app, f"{text} sees")
    app.page.focus("#source")
    app.page.keyboard.press("End")
    for _ in range(len(" paints the old house sees")):
        app.page.keyboard.press("Backspace")
    app.wait_for_translation("")
    type_text(app, " buys ", "Unser Lehrer")


def test_only_the_sentence_that_is_being_typed_is_sent(app):
    app.page.click("#source")
    type_text(app, f"{app.sentence} A dog ", f"{app.translation} Ein")
    sent = []
    app.page.on("request", lambda request: sent.append((request.url, request.post_data_json)))
    type_text(app, "sees two ", f"{app.translation} Ein Hund sieht")
    texts = [body["text"] for url, body in sent if url.endswith("/v1/simultaneous")]
    assert texts and all(text.startswith("A dog ") for text in texts)
    assert len(set(texts)) == len(texts)  # no request for each character
    type_text(app, "small birds.", f"{app.translation} {app.other_translation}")
    app.wait_until_translated()
    assert app.page.inner_text("#sentence-position") == "Sentence 1 of 2"
    app.word("Hund").hover()
    assert app.highlighted("source-mirror")
    assert_grown(app)


def test_chosen_translation_of_an_earlier_sentence_stays(app):
    app.page.click("#source")
    type_text(app, app.sentence, app.translation)
    app.wait_until_translated()
    app.word("malt").click()
    app.page.locator("#word-menu .choice").first.click()
    app.wait_for_other_translation()
    chosen = app.target_text
    app.page.focus("#source")
    app.page.keyboard.press("End")
    type_text(app, " A dog sees ", f"{chosen} Ein Hund")
    type_text(app, "two small birds.", f"{chosen} {app.other_translation}")


def test_pasted_text_and_text_for_other_models_are_translated_as_a_whole(app):
    paste = """text => {
        const field = document.getElementById('source');
        field.value = text;
        field.dispatchEvent(new InputEvent('input', {inputType: 'insertFromPaste'}));
    }"""
    app.page.evaluate(paste, app.sentence)
    assert app.wait_until_translated() == app.translation
    app.page.click("#simultaneous")
    assert app.page.get_attribute("#simultaneous", "aria-pressed") == "false"
    assert app.translate(app.other) == app.other_translation
    app.page.click("#simultaneous")
    app.page.select_option("#model", "model")
    assert not app.is_visible("#simultaneous")
    assert app.translate(app.sentence) == app.translation
    assert not [url for url in app.urls if url.endswith("/v1/simultaneous")]


def test_switch_translates_what_was_typed_as_a_whole(app):
    app.page.click("#source")
    type_text(app, "Our teacher paints ", "Unser Lehrer")
    routes: list[Any] = []
    app.page.on("request", lambda request: routes.append(request.url.rpartition("/")[2]))
    app.page.keyboard.press("Shift+Tab")  # leaves the field
    app.wait_until_translated()
    assert "simultaneous" in routes
    routes.clear()
    app.page.click("#simultaneous")
    app.wait_until_translated()
    assert routes == ["translate"]
