"""Low confidence and text that the model cannot read are shown without being requested."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.contrast import contrast
from tests.page.responses import translate_response
from tests.page.test_appearance import AA_GRAPHIC, parse_colour

LOW = "Words with a wavy line have less than 30% confidence."


def notes(app: Any) -> list[str]:
    return list(app.page.locator("#notes li").all_inner_texts())


def respond(confidences: list[float]) -> Any:
    return translate_response(["old", "house", "door"], ["altes", "Haus", "Tor"], confidences=confidences)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_with_low_confidence_are_underlined(open_app, theme):
    app = open_app(routes={"/v1/translate": respond([0.9, 0.1, 0.9])}, color_scheme=theme)
    app.translate("old house door")
    assert notes(app) == [LOW]
    page = app.page
    line = "e => { const s = getComputedStyle(e); return [s.textDecorationLine, s.textDecorationStyle]; }"
    assert app.word("Haus").evaluate(line) == ["underline", "wavy"]
    assert app.word("altes").evaluate(line)[0] == "none"
    # the line is visible on the card and on all shades, and shades differ from the card and each other
    page.click("#show-confidence")
    ink = parse_colour(app.word("Haus").evaluate("e => getComputedStyle(e).textDecorationColor"))
    card = parse_colour(page.eval_on_selector("#panes", "e => getComputedStyle(e).backgroundColor"))
    swatches = [page.locator(f"#legend [data-uncertainty='{level}']") for level in range(1, 5)]
    shades = [card, *(parse_colour(e.evaluate("e => getComputedStyle(e).backgroundColor")) for e in swatches)]
    assert min(contrast(ink, shade) for shade in shades) >= AA_GRAPHIC
    steps = [contrast(shade, card) for shade in shades]
    assert steps == sorted(steps)
    assert min(b / a for a, b in pairwise(steps)) > 1.1
    assert contrast(shades[-1], card) >= 2.4


def test_sentence_with_low_confidence_is_marked(open_app):
    app = open_app(routes={"/v1/translate": respond([0.4, 0.35, 0.35])})
    app.translate("old house door")
    assert notes(app) == ["Low confidence in this translation: check it before you use it."]
    style = "e => getComputedStyle(e).textDecorationStyle"
    assert app.word("altes").evaluate(style) == "dotted"


def test_models_without_calibration_have_no_marks(translated):
    assert notes(translated) == []
    assert translated.page.locator("#target .is-doubtful").count() == 0


def test_text_in_another_script_is_noted(app):
    app.translate("Привет, мир")
    [note] = notes(app)
    assert note.startswith("The text is not in the script of English, so the translation is probably wrong.")
    assert app.page.get_attribute("#notes", "role") == "status"
    app.translate(app.sentence)
    assert notes(app) == []


def test_unknown_words_are_noted(app):
    app.translate("Our teacher xqzt brflk vrmpf.")
    assert [note[:39] for note in notes(app)] == ["The model does not know many words or c"]


@pytest.mark.parametrize(("text", "note"), [(" \u200b\n", "There is nothing"), ("12 + 3", "The text has no letters")])
def test_text_without_words_is_noted(app, text, note):
    app.page.fill("#source", text)
    app.page.locator("#notes li").wait_for()
    assert notes(app)[0].startswith(note)
