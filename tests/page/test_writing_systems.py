"""Right-to-left text, text without spaces, characters of two UTF-16 units, and input methods."""

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
def test_words_are_highlighted(open_app, case):
    source, target, separator = CASES[case]
    app = open_app(routes={"/v1/translate": translate_response(source, target, separator)})
    assert app.translate(separator.join(source)) == separator.join(target)
    assert app.page.locator("#target .word").all_inner_texts() == target
    assert app.page.locator("#source-mirror .word").all_inner_texts() == source
    for n, word in enumerate(target):
        app.page.locator("#target .word").nth(n).hover()
        if n < len(source):
            assert app.highlighted("source-mirror") == {source[n]: 0.9}, word


def test_right_to_left_translation_starts_at_right(open_app):
    source, target, _ = CASES["rtl"]
    app = open_app(routes={"/v1/translate": translate_response(source, target)})
    app.translate(" ".join(source))
    pane = app.page.locator("#target-pane").bounding_box()
    boxes = [app.page.locator("#target .word").nth(n).bounding_box() for n in range(4)]
    lefts = [box["x"] for box in boxes]
    assert lefts == sorted(lefts, reverse=True)
    assert pane["x"] + pane["width"] - (boxes[0]["x"] + boxes[0]["width"]) < 60
    # the left arrow moves to the next word
    app.page.locator("#target .word").first.focus()
    app.page.keyboard.press("ArrowLeft")
    assert app.focused().endswith(target[1])
    app.page.keyboard.press("ArrowRight")
    assert app.focused().endswith(target[0])


def test_paragraphs_have_separate_directions(open_app):
    source, target, _ = CASES["rtl"]
    app = open_app(routes={"/v1/translate": translate_response(source, target)})
    app.translate("The house is big")
    app.page.fill("#source", "hello\nשלום")
    styles = app.page.evaluate(
        "['source', 'source-mirror', 'target'].map(id => getComputedStyle(document.getElementById(id)).unicodeBidi)"
    )
    assert styles == ["plaintext"] * 3


def test_ghost_of_right_to_left_translation_starts_at_right(open_app):
    source, target, _ = CASES["rtl"]
    completion = {"text": " ".join(target), "rest": " ".join(target), "next": target[0], "score": -0.1}
    app = open_app(
        routes={"/v1/translate": translate_response(source, target), "/v1/complete": {"completions": [completion]}}
    )
    app.translate(" ".join(source))
    app.page.click("#show-writer")
    app.page.wait_for_selector(".ghost-next")
    assert app.page.get_attribute("#writer", "dir") == "rtl"
    app.page.keyboard.press("Tab")
    assert app.page.input_value("#writer") == target[0]


def test_unfinished_input_method_text_is_not_translated(app):
    texts: list[str] = []

    def record(route: Any) -> None:
        texts.append(route.request.post_data_json["text"])
        route.continue_()

    app.page.route("**/v1/translate", record)
    keyboard = app.page.context.new_cdp_session(app.page)
    app.page.click("#source")
    keyboard.send("Input.imeSetComposition", {"text": "ni", "selectionStart": 2, "selectionEnd": 2})
    app.page.wait_for_timeout(600)
    assert app.page.input_value("#source") == "ni"
    assert texts == []
    keyboard.send("Input.insertText", {"text": "你"})
    app.wait_until_translated()
    assert set(texts) == {"你"}
