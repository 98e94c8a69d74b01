"""Typing gives a translation, and words that belong together light up."""

import re
from typing import Any

import pytest

from tests.page.answers import answer


def test_a_text_is_translated_as_it_is_typed(sheet):
    sheet.page.click("#source")
    sheet.page.keyboard.type(sheet.sentence)
    sheet.becomes(sheet.translation)
    assert sheet.page.inner_text("#count") == f"{len(sheet.sentence)} characters"
    # what is announced to a screen reader is the translation, once it is settled
    sheet.settled()
    assert sheet.page.inner_text("#live") == sheet.translation
    assert sheet.page.get_attribute("#live", "aria-live") == "polite"


def test_layout_is_kept_and_each_sentence_is_one(sheet):
    got = sheet.translate(f"{sheet.sentence}\n\n{sheet.other} {sheet.sentence}")
    assert got == f"{sheet.translation}\n\n{sheet.other_translation} {sheet.translation}"
    assert sheet.page.inner_text("#sentence-at") == "Sentence 1 of 3"
    sheet.page.click("#sentence-after")
    assert sheet.page.inner_text("#sentence-at") == "Sentence 2 of 3"


def test_an_emptied_field_empties_the_translation(translated):
    translated.page.click("#clear")
    translated.page.wait_for_selector("#target-empty", state="visible")
    assert translated.target == ""
    assert not translated.shows("#tools")
    assert translated.focused().startswith("source ")


def test_only_the_newest_text_is_shown(open_page):
    """An answer that comes late belongs to a text that is no longer there."""
    held: list[Any] = []

    def hold_first(route: Any) -> None:
        if held or "dog" not in route.request.post_data:
            route.continue_()
        else:
            held.append(route)

    sheet = open_page(routes={"/v1/translate": hold_first})
    sheet.page.fill("#source", sheet.other)
    sheet.page.wait_for_timeout(400)
    assert len(held) == 1
    assert sheet.translate(sheet.sentence) == sheet.translation
    assert sheet.page.inner_text("#target") == sheet.translation


def test_pointing_at_a_translated_word_lights_its_source(translated):
    translated.word("Haus.").hover()
    lit = translated.lit("source-mirror")
    assert lit == translated.aligned(target="Haus.")
    strongest = max(lit, key=lit.__getitem__)
    said = translated.page.inner_text("#detail")
    assert said.startswith("Haus., ")
    shown = re.search(rf"· from {re.escape(strongest)} (\d+)%", said)
    assert int(shown[1]) == pytest.approx(100 * lit[strongest], abs=0.501), "rounded, a half to either side"
    colour = translated.page.eval_on_selector_all(
        "#source-mirror .word", "spans => spans.map(s => [s.textContent, getComputedStyle(s).backgroundColor])"
    )
    assert {word for word, painted in colour if painted != "rgba(0, 0, 0, 0)"} == set(lit)
    translated.page.hover("#help-open")
    assert translated.lit("source-mirror") == {}


def test_an_aligners_links_light_whole_words(open_page):
    def with_aligner(route):
        answer = route.fetch().json()
        route.fulfill(json={"models": [{**row, "aligner": True} for row in answer["models"]]})

    sheet = open_page(routes={"/v1/models": with_aligner})
    sheet.translate(sheet.sentence)
    sheet.word("Haus.").hover()
    weights = sheet.aligned(target="Haus.")
    strongest = max(weights, key=lambda word: weights[word].expected)
    assert sheet.lit("source-mirror") == {strongest: 1.0}
    assert sheet.page.inner_text("#detail").endswith(f" · from {strongest}")


def test_a_word_that_took_an_unknown_words_place_says_so(open_page):
    given = answer(["Zebra", "dog"], ["Zebra", "Hund"])
    words = given["translations"][0]["sentences"][0]["best"][0]["words"]
    words[0]["replaced"], words[1]["replaced"] = "copy", "dictionary"
    sheet = open_page(routes={"/v1/translate": given})
    sheet.translate("Zebra dog")
    for word, said in (("Zebra", "Zebra, 80% sure, copied · "), ("Hund", "Hund, 80% sure, from the dictionary · ")):
        sheet.page.hover(f"#target .word:has-text('{word}')")
        assert sheet.page.inner_text("#detail").startswith(said)


def test_pointing_at_a_source_word_lights_its_translation(translated):
    box = translated.page.locator("#source-mirror .word", has_text="teacher").bounding_box()
    translated.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert translated.lit("target") == translated.aligned(source="teacher")
    assert "teacher" in translated.page.inner_text("#detail")


@pytest.mark.parametrize(("key", "word"), [("Home", "Our"), ("End", "house.")])
def test_the_caret_lights_as_the_mouse_does(translated, key, word):
    translated.page.focus("#source")
    translated.page.keyboard.press(key)
    translated.page.keyboard.press("ArrowRight" if key == "Home" else "ArrowLeft")
    assert translated.lit("target") == translated.aligned(source=word)
    assert translated.page.inner_text("#source-mirror .is-pointed") == word


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
    assert not translated.shows("#legend")
    page.click("#show-confidence")
    assert translated.shows("#legend")
    assert page.get_attribute("#show-confidence", "aria-pressed") == "true"
    levels = page.eval_on_selector_all("#target .word", "words => words.map(w => w.dataset.doubt)")
    assert len(levels) == 6
    assert set(levels) <= set("01234")
    swatches = page.eval_on_selector_all("#legend .swatch", "all => all.map(s => getComputedStyle(s).backgroundColor)")
    assert len(set(swatches)) == 5
    page.evaluate("document.querySelector('#target .word').dataset.doubt = '4'")
    shade = page.evaluate("getComputedStyle(document.querySelector('#target .word')).backgroundColor")
    assert shade == swatches[4]
    page.click("#show-confidence")
    assert page.evaluate("getComputedStyle(document.querySelector('#target .word')).backgroundColor") != shade


def test_the_translation_is_copied(sheet):
    sheet.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sheet.translate(sheet.sentence)
    sheet.page.click("#copy")
    sheet.page.wait_for_selector("#toast", state="visible")
    assert sheet.page.inner_text("#toast") == "Copied"
    assert sheet.page.evaluate("navigator.clipboard.readText()") == sheet.translation


def test_languages_are_swapped_where_a_model_goes_the_other_way(open_page):
    row = {"attention": True, "score": None, "loaded": True}
    there = {"name": "there", "source": "en", "target": "de", "source_name": "English", "target_name": "German", **row}
    back = {"name": "back", "source": "de", "target": "en", "source_name": "German", "target_name": "English", **row}
    asked: list[Any] = []

    def translate(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(json=answer([asked[-1]["text"]], [f"[{asked[-1]['model']}]"]))

    sheet = open_page(routes={"/v1/models": {"models": [there, back]}, "/v1/translate": translate})
    assert sheet.translate("house") == "[there]"
    sheet.page.click("#swap")
    sheet.becomes("[back]")
    assert sheet.page.input_value("#source") == "[there]"
    assert (sheet.page.input_value("#from"), sheet.page.input_value("#to")) == ("de", "en")
    assert sheet.page.get_attribute("#target", "lang") == "en"


def test_no_swap_without_a_model_for_it(translated):
    assert translated.why_not("#swap") == "No model here translates German into English"
    translated.page.keyboard.press("Alt+x")
    assert translated.page.input_value("#from") == "en"


def test_the_model_s_measure_is_explained_to_keys_and_fingers(open_page):
    row = {"name": "m", "source": "en", "target": "de", "source_name": "English", "target_name": "German",
           "attention": True, "loaded": True}  # fmt: skip
    sheet = open_page(routes={"/v1/models": {"models": [{**row, "score": 37.14}]}}, has_touch=True)
    assert sheet.page.inner_text("#model-note") == "BLEU 37.1 on text kept aside"
    sheet.page.tap("#model-note")
    assert sheet.shows("#model-said")
    sheet.page.keyboard.press("Escape")
    assert not sheet.shows("#model-said")
    sheet.page.focus("#model-note")
    sheet.page.keyboard.press("Enter")
    assert "Compare it only between models measured on the same text" in sheet.page.inner_text("#model-said")


def test_a_model_that_was_not_measured_says_nothing_of_it(open_page):
    row = {"name": "m", "source": "en", "target": "de", "source_name": "English", "target_name": "German",
           "attention": True, "loaded": True}  # fmt: skip
    sheet = open_page(routes={"/v1/models": {"models": [{**row, "score": None}]}})
    assert not sheet.shows("#model-note")


def test_the_first_and_the_last_sentence_say_that_they_are(sheet):
    sheet.translate(f"{sheet.sentence} {sheet.other}")
    assert sheet.why_not("#sentence-before") == "This is the first sentence"
    sheet.page.click("#sentence-after")
    assert sheet.why_not("#sentence-after") == "This is the last sentence"
    assert sheet.page.get_attribute("#sentence-before", "title") == "Sentence before"
