"""Translation of typed text, highlighting of aligned words, and the language bar."""

import re
from typing import Any

import pytest

from tests.page.responses import translate_response


def test_text_is_translated_while_typing(app):
    app.page.click("#source")
    app.page.keyboard.type(app.sentence)
    app.wait_for_translation(app.translation)
    assert app.page.inner_text("#count") == f"{len(app.sentence)} characters"
    # screen readers announce the final translation
    app.wait_until_translated()
    assert app.page.inner_text("#live") == app.translation
    assert app.page.get_attribute("#live", "aria-live") == "polite"


def test_paragraphs_and_sentences_are_kept(app):
    translation = app.translate(f"{app.sentence}\n\n{app.other} {app.sentence}")
    assert translation == f"{app.translation}\n\n{app.other_translation} {app.translation}"
    assert app.page.inner_text("#sentence-position") == "Sentence 1 of 3"
    app.page.click("#next-sentence")
    assert app.page.inner_text("#sentence-position") == "Sentence 2 of 3"


def test_clearing_text_clears_translation(translated):
    translated.page.click("#clear")
    translated.page.wait_for_selector("#target-empty", state="visible")
    assert translated.target_text == ""
    assert not translated.is_visible("#toolbar")
    assert translated.focused().startswith("source ")


def test_late_response_for_older_text_is_ignored(open_app):
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


def test_pointing_at_target_word_highlights_source_words(translated):
    translated.word("Haus.").hover()
    highlighted = translated.highlighted("source-mirror")
    assert highlighted == translated.expected_highlight(target="Haus.")
    strongest = max(highlighted, key=highlighted.__getitem__)
    details = translated.page.inner_text("#word-details")
    assert details.startswith("Haus., ")
    match = re.search(rf"· aligned with {re.escape(strongest)} (\d+)%", details)
    assert int(match[1]) == pytest.approx(100 * highlighted[strongest], abs=0.501)
    backgrounds = translated.page.eval_on_selector_all(
        "#source-mirror .word", "spans => spans.map(s => [s.textContent, getComputedStyle(s).backgroundColor])"
    )
    assert {word for word, colour in backgrounds if colour != "rgba(0, 0, 0, 0)"} == set(highlighted)
    translated.page.hover("#help-open")
    assert translated.highlighted("source-mirror") == {}


def test_links_of_aligner_take_precedence_over_attention(open_app):
    def with_aligner(route):
        answer = route.fetch().json()
        route.fulfill(json={"models": [{**row, "aligner": True} for row in answer["models"]]})

    app = open_app(routes={"/v1/models": with_aligner})
    app.translate(app.sentence)
    app.word("Haus.").hover()
    weights = app.expected_highlight(target="Haus.")
    strongest = max(weights, key=lambda word: weights[word].expected)
    assert app.highlighted("source-mirror") == {strongest: 1.0}
    assert app.page.inner_text("#word-details").endswith(f" · aligned with {strongest}")


def test_replaced_unknown_words_are_described(open_app):
    response = translate_response(["Zebra", "dog"], ["Zebra", "Hund"])
    words = response["translations"][0]["sentences"][0]["best"][0]["words"]
    words[0]["replaced"] = "copy"
    words[1]["replaced"] = "dictionary"
    app = open_app(routes={"/v1/translate": response})
    app.translate("Zebra dog")
    for word, origin in (("Zebra", "copied from the source"), ("Hund", "from the dictionary")):
        app.page.hover(f"#target .word:has-text('{word}')")
        assert app.page.inner_text("#word-details").startswith(f"{word}, 80% confidence, {origin} · ")


def test_pointing_at_source_word_highlights_target_words(translated):
    box = translated.page.locator("#source-mirror .word", has_text="teacher").bounding_box()
    translated.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert translated.highlighted("target") == translated.expected_highlight(source="teacher")
    assert "teacher" in translated.page.inner_text("#word-details")


@pytest.mark.parametrize(("key", "word"), [("Home", "Our"), ("End", "house.")])
def test_word_at_caret_is_highlighted(translated, key, word):
    translated.page.focus("#source")
    translated.page.keyboard.press(key)
    translated.page.keyboard.press("ArrowRight" if key == "Home" else "ArrowLeft")
    assert translated.highlighted("target") == translated.expected_highlight(source=word)
    assert translated.page.inner_text("#source-mirror .is-active") == word


def test_mirror_has_the_size_of_the_text_area(translated):
    """Equal heights of a long text imply equal line breaks."""
    translated.translate(" ".join([translated.sentence] * 12))
    sizes = translated.page.evaluate(
        "['source', 'source-mirror'].map(id => document.getElementById(id)).map(e => [e.scrollHeight, e.clientWidth])"
    )
    assert sizes[0] == sizes[1]
    assert sizes[0][0] > 200


def test_confidence_shades_words_and_shows_legend(translated):
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


def test_copy_button_copies_translation(app):
    app.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    app.translate(app.sentence)
    app.page.click("#copy")
    app.page.wait_for_selector("#toast", state="visible")
    assert app.page.inner_text("#toast") == "Copied"
    assert app.page.evaluate("navigator.clipboard.readText()") == app.translation


def test_swap_uses_model_of_reverse_direction(open_app):
    common = {"attention": True, "score": None, "loaded": True}
    forward = {"name": "forward", "source": "en", "source_name": "English", "target": "de", "target_name": "German"}
    reverse = {"name": "reverse", "source": "de", "source_name": "German", "target": "en", "target_name": "English"}

    def translate(route: Any) -> None:
        request = route.request.post_data_json
        route.fulfill(json=translate_response([request["text"]], [f"[{request['model']}]"]))

    app = open_app(routes={"/v1/models": {"models": [forward | common, reverse | common]}, "/v1/translate": translate})
    assert app.translate("house") == "[forward]"
    app.page.click("#swap")
    app.wait_for_translation("[reverse]")
    assert app.page.input_value("#source") == "[forward]"
    assert (app.page.input_value("#from"), app.page.input_value("#to")) == ("de", "en")
    assert app.page.get_attribute("#target", "lang") == "en"


def test_targets_name_the_language_through_which_two_models_translate(open_app):
    common = {"attention": True, "score": None, "loaded": True, "source": "de", "source_name": "German"}
    direct = {"name": "de-en", "target": "en", "target_name": "English", "pivot": None, "pivot_name": None}
    pivot = {"name": "de-en+en-fr", "target": "fr", "target_name": "French", "pivot": "en", "pivot_name": "English"}

    def translate(route: Any) -> None:
        request = route.request.post_data_json
        route.fulfill(json=translate_response([request["text"]], [f"[{request['model']}]"]))

    app = open_app(routes={"/v1/models": {"models": [direct | common, pivot | common]}, "/v1/translate": translate})
    assert app.page.locator("#to option").all_inner_texts() == ["English", "French (via English)"]
    app.page.select_option("#to", "fr")
    assert app.translate("Haus") == "[de-en+en-fr]"


def test_swap_is_unavailable_without_reverse_model(translated):
    assert translated.unavailable_reason("#swap") == "No model translates German into English"
    translated.page.keyboard.press("Alt+x")
    assert translated.page.input_value("#from") == "en"


def test_model_score_is_explained_by_tap_and_key(open_app):
    row = {"name": "m", "source": "en", "target": "de", "source_name": "English", "target_name": "German",
           "attention": True, "loaded": True}  # fmt: skip
    app = open_app(routes={"/v1/models": {"models": [{**row, "score": 37.14}]}}, has_touch=True)
    assert app.page.inner_text("#model-score") == "BLEU 37.1 on the dev set"
    app.page.tap("#model-score")
    assert app.is_visible("#model-score-help")
    app.page.keyboard.press("Escape")
    assert not app.is_visible("#model-score-help")
    app.page.focus("#model-score")
    app.page.keyboard.press("Enter")
    assert "Compare scores only between models measured on the same text" in app.page.inner_text("#model-score-help")


def test_model_without_score_shows_none(open_app):
    row = {"name": "m", "source": "en", "target": "de", "source_name": "English", "target_name": "German",
           "attention": True, "loaded": True}  # fmt: skip
    app = open_app(routes={"/v1/models": {"models": [{**row, "score": None}]}})
    assert not app.is_visible("#model-score")


def test_stepper_is_unavailable_at_first_and_last_sentence(app):
    app.translate(f"{app.sentence} {app.other}")
    assert app.unavailable_reason("#previous-sentence") == "This is the first sentence"
    app.page.click("#next-sentence")
    assert app.unavailable_reason("#next-sentence") == "This is the last sentence"
    assert app.page.get_attribute("#previous-sentence", "title") == "Previous sentence"
