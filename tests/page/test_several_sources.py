"""Models that read a sentence in several languages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.translator.loading import load
from tests.page.conftest import App, OpenApp, Server
from tests.untrained import BAHDANAU, write_model

ENGLISH, FRENCH = "the small cat sees the dog.", "le petit chat voit le chien."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = BAHDANAU | {"sources": {"type": "mean"}}
    return write_model(tmp_path_factory.mktemp("several") / "en-fr-de", model, "bpe", ("en", "fr", "de"))


@pytest.fixture(scope="module")
def several_server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(folder, tmp_path_factory.mktemp("server") / "log")
    yield server
    server.stop()


@pytest.fixture
def several(open_app: OpenApp, several_server: Server) -> App:
    """Open the page of a model with two sources."""
    return open_app(address=several_server.address)


def fill(app: App, **texts: str) -> str:
    """Enter the text in each language and return the translation."""
    for code, text in texts.items():
        app.page.fill("#source" if code == "en" else f"#source-{code}", text)
    app.page.wait_for_function(
        "() => document.getElementById('busy').hidden && !document.querySelector('#target.is-stale')"
        " && document.querySelectorAll('#target .word').length > 0"
    )
    return app.target_text


def test_page_translates_the_texts_in_all_languages(several: App, folder: Path) -> None:
    translator = load(folder)
    assert several.page.inner_text(".more-source label") == "French"
    one, both, other = translator.translate([(ENGLISH, None), (ENGLISH, FRENCH), (None, FRENCH)])
    assert len({one.text, both.text, other.text}) == 3
    assert fill(several, en=ENGLISH) == one.text
    assert fill(several, fr=FRENCH) == both.text
    assert fill(several, en="") == other.text
    assert not several.page.locator("#notes li").all_inner_texts()


def test_words_of_all_languages_are_named(several: App, folder: Path) -> None:
    fill(several, en=ENGLISH, fr=FRENCH)
    translation = load(folder).translate((ENGLISH, FRENCH))
    target, source = next((t, s) for s, t in translation.alignments["fr"] if t < len(translation.words))
    several.page.locator(f'#target .word[data-word="{target}"]').hover()
    details = several.page.inner_text("#word-details")
    assert " · aligned with " in details
    assert FRENCH.split()[source] in details.split(" · French: ")[1].split(", ")


def test_alternatives_are_those_of_all_languages(several: App, folder: Path) -> None:
    fill(several, en=ENGLISH, fr=FRENCH)
    several.page.click("#show-alternatives")
    several.page.wait_for_selector("#alternatives-list button")
    translator = load(folder)
    [n_best] = translator.n_best([(ENGLISH, FRENCH)], translator.options(n_best=6))
    shown = several.page.locator("#alternatives-list .choice > span:first-child").all_inner_texts()
    assert shown == [translation.text for translation in n_best]
    several.page.locator("#alternatives-list button").nth(1).click()
    several.wait_for_translation(n_best[1].text)


def test_suggestions_need_one_language(several: App) -> None:
    fill(several, en=ENGLISH)
    assert several.page.get_attribute("#show-writer", "aria-disabled") == "false"
    fill(several, fr=FRENCH)
    assert several.unavailable_reason("#show-writer") == "Suggestions need a sentence in one language"
    several.page.locator("#target .word").first.click()
    assert "need a sentence in one language" in several.page.inner_text("#word-menu")


def test_other_models_have_one_field(open_app: OpenApp) -> None:
    common: dict[str, Any] = {"attention": True, "score": None, "loaded": True, "target": "de", "target_name": "German"}
    several = {"name": "several", "source": "en", "source_name": "English", "sources": ["en", "fr"]}
    single = {"name": "single", "source": "es", "source_name": "Spanish", "sources": []}
    app = open_app(routes={"/v1/models": {"models": [several | common, single | common]}})
    assert app.is_visible("#source-fr")
    app.page.select_option("#from", "es")
    assert app.page.locator("#source-fr").count() == 0
