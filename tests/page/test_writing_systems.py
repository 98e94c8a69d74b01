"""Right-to-left text, text without spaces, and characters that the browser counts as two."""

from typing import Any

import pytest

from tests.page.responses import translate_response

CASES = {
    "rtl": (["The", "house", "is", "big"], ["הבית", "הוא", "גדול", "מאוד"], " "),
    "from rtl": (["البيت", "كبير", "جدا"], ["The", "house", "big"], " "),
    "cjk": (["我", "喜欢", "猫"], ["私は", "猫が", "好き"], ""),
    "emoji": (["I", "😀", "love", "𠮷", "cats"], ["Ich", "😀", "liebe", "𠮷", "Katzen"], " "),
}


@pytest.mark.parametrize("case", CASES)
def test_every_word_can_be_pointed_at(open_app, case):
    source, target, space = CASES[case]
    app = open_app(routes={"/v1/translate": translate_response(source, target, space)})
    assert app.translate(space.join(source)) == space.join(target)
    assert app.page.locator("#target .word").all_inner_texts() == target
    assert app.page.locator("#source-mirror .word").all_inner_texts() == source
    for n, word in enumerate(target):
        app.page.locator("#target .word").nth(n).hover()
        if n < len(source):
            assert app.highlighted("source-mirror") == {source[n]: 0.9}, word


def test_right_to_left_text_begins_at_the_right(open_app):
    source, target, _ = CASES["rtl"]
    app = open_app(routes={"/v1/translate": translate_response(source, target)})
    app.translate(" ".join(source))
    pane = app.page.locator("#target-pane").bounding_box()
    boxes = [app.page.locator("#target .word").nth(n).bounding_box() for n in range(4)]
    lefts = [box["x"] for box in boxes]
    assert lefts == sorted(lefts, reverse=True)
    assert pane["x"] + pane["width"] - (boxes[0]["x"] + boxes[0]["width"]) < 60
    # the arrow that points to the next word goes to it
    app.page.locator("#target .word").first.focus()
    app.page.keyboard.press("ArrowLeft")
    assert app.focused().endswith(target[1])
    app.page.keyboard.press("ArrowRight")
    assert app.focused().endswith(target[0])


def test_each_paragraph_has_its_own_direction(open_app):
    source, target, _ = CASES["rtl"]
    app = open_app(routes={"/v1/translate": translate_response(source, target)})
    app.translate("The house is big")
    app.page.fill("#source", "hello\nשלום")
    styles = app.page.evaluate(
        "['source', 'source-mirror', 'target'].map(id => getComputedStyle(document.getElementById(id)).unicodeBidi)"
    )
    assert styles == ["plaintext"] * 3


def test_the_ghost_of_a_right_to_left_translation_begins_at_the_right(open_app):
    source, target, _ = CASES["rtl"]
    done = {"text": " ".join(target), "rest": " ".join(target), "next": target[0], "score": -0.1}
    app = open_app(routes={"/v1/translate": translate_response(source, target), "/v1/complete": {"completions": [done]}})
    app.translate(" ".join(source))
    app.page.click("#show-writer")
    app.page.wait_for_selector(".ghost-next")
    assert app.page.get_attribute("#writer", "dir") == "rtl"
    app.page.keyboard.press("Tab")
    assert app.page.input_value("#writer") == target[0]


def test_what_an_input_method_composes_is_not_translated_before_it_is_text(app):
    """Latin letters on their way to a character are no text yet, and Tab and Enter are the input method's."""
    asked: list[str] = []

    def note(route: Any) -> None:
        asked.append(route.request.post_data_json["text"])
        route.continue_()

    app.page.route("**/v1/translate", note)
    keyboard = app.page.context.new_cdp_session(app.page)
    app.page.click("#source")
    keyboard.send("Input.imeSetComposition", {"text": "ni", "selectionStart": 2, "selectionEnd": 2})
    app.page.wait_for_timeout(600)
    assert app.page.input_value("#source") == "ni"
    assert asked == []
    keyboard.send("Input.insertText", {"text": "你"})
    app.wait_until_translated()
    assert set(asked) == {"你"}
