"""Typing gives a translation, and words that belong together light up."""

import re
from typing import Any

import pytest

from tests.page.responses import translate_response


def test_a_text_is_translated_as_it_is_typed(app):
    app.page.click("#source")
    app.page.keyboard.type(app.sentence)
    app.wait_for_translation(app.translation)
    assert app.page.inner_text("#count") == f"{len(app.sentence)} characters"
    # what is announced to a screen reader is the translation, once it is settled
    app.wait_until_translated()
    assert app.page.inner_text("#live") == app.translation
    assert app.page.get_attribute("#live", "aria-live") == "polite"


def test_layout_is_kept_and_each_sentence_is_one(app):
    got = app.translate(f"{app.sentence}\n\n{app.other} {app.sentence}")
    assert got == f"{app.translation}\n\n{app.other_translation} {app.translation}"
    assert app.page.inner_text("#sentence-position") == "Sentence 1 of 3"
    app.page.click("#next-sentence")
    assert app.page.inner_text("#sentence-position") == "Sentence 2 of 3"


def test_an_emptied_field_empties_the_translation(translated):
    translated.page.click("#clear")
    translated.page.wait_for_selector("#target-empty", state="visible")
    assert translated.target_text == ""
    assert not translated.is_visible("#toolbar")
    assert translated.focused().startswith("source ")


def test_only_the_newest_text_is_shown(open_app):
    """An answer that comes late belongs to a text that is no longer there."""
    held: list[Any] = []

    def hold_first(route: Any) -> None:
        if held or "dog" not in route.request.post_data:
            route.continue_()
        else:
            held.append(route)

    app = open_app(routes={"/v1/translate": hold_first})
    app.page.fill("#source", app.other)
    app.page.wait_for_timeout(400)
    assert len(held) == 1
    assert app.translate(app.sentence) == app.translation
    assert app.page.inner_text("#target") == app.translation


def test_pointing_at_a_translated_word_lights_its_source(translated):
    translated.word("Haus.").hover()
    lit = translated.highlighted("source-mirror")
    assert lit == translated.expected_highlight(target="Haus.")
    strongest = max(lit, key=lit.__getitem__)
    said = translated.page.inner_text("#word-details")
    assert said.startswith("Haus., ")
    shown = re.search(rf"· from {re.escape(strongest)} (\d+)%", said)
    assert int(shown[1]) == pytest.approx(100 * lit[strongest], abs=0.501), "rounded, a half to either side"
    colour = translated.page.eval_on_selector_all(
        "#source-mirror .word", "spans => spans.map(s => [s.textContent, getComputedStyle(s).backgroundColor])"
    )
    assert {word for word, painted in colour if painted != "rgba(0, 0, 0, 0)"} == set(lit)
    translated.page.hover("#help-open")
    assert translated.highlighted("source-mirror") == {}


def test_an_aligners_links_light_whole_words(open_app):
    def with_aligner(route):
        answer = route.fetch().json()
        route.fulfill(json={"models": [{**row, "aligner": True} for row in answer["models"]]})

    app = open_app(routes={"/v1/models": with_aligner})
    app.translate(app.sentence)
    app.word("Haus.").hover()
    weights = app.expected_highlight(target="Haus.")
    strongest = max(weights, key=lambda word: weights[word].expected)
    assert app.highlighted("source-mirror") == {strongest: 1.0}
    assert app.page.inner_text("#word-details").endswith(f" · from {strongest}")


def test_a_word_that_took_an_unknown_words_place_says_so(open_app):
    given = translate_response(["Zebra", "dog"], ["Zebra", "Hund"])
    words = given["translations"][0]["sentences"][0]["best"][0]["words"]
    words[0]["replaced"], words[1]["replaced"] = "copy", "dictionary"
    app = open_app(routes={"/v1/translate": given})
    app.translate("Zebra dog")
    for word, said in (("Zebra", "Zebra, 80% sure, copied · "), ("Hund", "Hund, 80% sure, from the dictionary · ")):
        app.page.hover(f"#target .word:has-text('{word}')")
        assert app.page.inner_text("#word-details").startswith(said)


def test_pointing_at_a_source_word_lights_its_translation(translated):
    box = translated.page.locator("#source-mirror .word", has_text="teacher").bounding_box()
    translated.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert translated.highlighted("target") == translated.expected_highlight(source="teacher")
    assert "teacher" in translated.page.inner_text("#word-details")


@pytest.mark.parametrize(("key", "word"), [("Home", "Our"), ("End", "house.")])
def test_the_caret_lights_as_the_mouse_does(translated, key, word):
    translated.page.focus("#source")
    translated.page.keyboard.press(key)
    translated.page.keyboard.press("ArrowRight" if key == "Home" else "ArrowLeft")
    assert translated.highlighted("target") == translated.expected_highlight(source=word)
    assert translated.page.inner_text("#source-mirror .is-active") == word


def test_words_lie_under_the_letters_of_the_field(translated):
    """The mirror breaks its lines where the field does: both are as high, with a long text too."""
    translated.translate(" ".join([translated.sentence] * 12))
    heights = translated.page.evaluate(
        "['source', 'source-mirror'].map(id => document.getElementById(id)).map(e => [e.scrollHeight, e.clientWidth])"
    )
    assert heights[0] == heights[1]
    assert heights[0][0] > 200


def test_confidence_is_shown_by_shade_with_a_legend(translated):
    page = translated.page
    assert not translated.is_visible("#legend")
    page.click("#show-confidence")
    assert translated.is_visible("#legend")
    assert page.get_attribute("#show-confidence", "aria-pressed") == "true"
    levels = page.eval_on_selector_all("#target .word", "words => words.map(w => w.dataset.uncertainty)")
    assert len(levels) == 6
    assert set(levels) <= set("01234")
    swatches = page.eval_on_selector_all("#legend .swatch", "all => all.map(s => getComputedStyle(s).backgroundColor)")
    assert len(set(swatches)) == 5
    page.evaluate("document.querySelector('#target .word').dataset.uncertainty = '4'")
    shade = page.evaluate("getComputedStyle(document.querySelector('#target .word')).backgroundColor")
    assert shade == swatches[4]
    page.click("#show-confidence")
    assert page.evaluate("getComputedStyle(document.querySelector('#target .word')).backgroundColor") != shade


def test_the_translation_is_copied(app):
    app.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    app.translate(app.sentence)
    app.page.click("#copy")
    app.page.wait_for_selector("#toast", state="visible")
    assert app.page.inner_text("#toast") == "Copied"
    assert app.page.evaluate("navigator.clipboard.readText()") == app.translation


def test_languages_are_swapped_where_a_model_goes_the_other_way(open_app):
    row = {"attention": True, "score": None, "loaded": True}
    there = {"name": "there", "source": "en", "target": "de", "source_name": "English", "target_name": "German", **row}
    back = {"name": "back", "source": "de", "target": "en", "source_name": "German", "target_name": "English", **row}
    asked: list[Any] = []

    def translate(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(json=translate_response([asked[-1]["text"]], [f"[{asked[-1]['model']}]"]))

    app = open_app(routes={"/v1/models": {"models": [there, back]}, "/v1/translate": translate})
    assert app.translate("house") == "[there]"
    app.page.click("#swap")
    app.wait_for_translation("[back]")
    assert app.page.input_value("#source") == "[there]"
    assert (app.page.input_value("#from"), app.page.input_value("#to")) == ("de", "en")
    assert app.page.get_attribute("#target", "lang") == "en"


def test_no_swap_without_a_model_for_it(translated):
    assert translated.unavailable_reason("#swap") == "No model here translates German into English"
    translated.page.keyboard.press("Alt+x")
    assert translated.page.input_value("#from") == "en"


def test_the_model_s_measure_is_explained_to_keys_and_fingers(open_app):
    row = {"name": "m", "source": "en", "target": "de", "source_name": "English", "target_name": "German",
           "attention": True, "loaded": True}  # fmt: skip
    app = open_app(routes={"/v1/models": {"models": [{**row, "score": 37.14}]}}, has_touch=True)
    assert app.page.inner_text("#model-score") == "BLEU 37.1 on text kept aside"
    app.page.tap("#model-score")
    assert app.is_visible("#model-score-help")
    app.page.keyboard.press("Escape")
    assert not app.is_visible("#model-score-help")
    app.page.focus("#model-score")
    app.page.keyboard.press("Enter")
    assert "Compare it only between models measured on the same text" in app.page.inner_text("#model-score-help")


def test_a_model_that_was_not_measured_says_nothing_of_it(open_app):
    row = {"name": "m", "source": "en", "target": "de", "source_name": "English", "target_name": "German",
           "attention": True, "loaded": True}  # fmt: skip
    app = open_app(routes={"/v1/models": {"models": [{**row, "score": None}]}})
    assert not app.is_visible("#model-score")


def test_the_first_and_the_last_sentence_say_that_they_are(app):
    app.translate(f"{app.sentence} {app.other}")
    assert app.unavailable_reason("#previous-sentence") == "This is the first sentence"
    app.page.click("#next-sentence")
    assert app.unavailable_reason("#next-sentence") == "This is the last sentence"
    assert app.page.get_attribute("#previous-sentence", "title") == "Sentence before"
