"""Right-to-left text, text without spaces, and characters that the browser counts as two."""

from typing import Any

import pytest

from tests.page.answers import answer

CASES = {
    "rtl": (["The", "house", "is", "big"], ["הבית", "הוא", "גדול", "מאוד"], " "),
    "from rtl": (["البيت", "كبير", "جدا"], ["The", "house", "big"], " "),
    "cjk": (["我", "喜欢", "猫"], ["私は", "猫が", "好き"], ""),
    "emoji": (["I", "😀", "love", "𠮷", "cats"], ["Ich", "😀", "liebe", "𠮷", "Katzen"], " "),
}


@pytest.mark.parametrize("case", CASES)
def test_every_word_can_be_pointed_at(open_page, case):
    source, target, space = CASES[case]
    sheet = open_page(routes={"/v1/translate": answer(source, target, space)})
    assert sheet.translate(space.join(source)) == space.join(target)
    assert sheet.page.locator("#target .word").all_inner_texts() == target
    assert sheet.page.locator("#source-mirror .word").all_inner_texts() == source
    for n, word in enumerate(target):
        sheet.page.locator("#target .word").nth(n).hover()
        if n < len(source):
            assert sheet.lit("source-mirror") == {source[n]: 0.9}, word


def test_right_to_left_text_begins_at_the_right(open_page):
    source, target, _ = CASES["rtl"]
    sheet = open_page(routes={"/v1/translate": answer(source, target)})
    sheet.translate(" ".join(source))
    pane = sheet.page.locator("#target-pane").bounding_box()
    boxes = [sheet.page.locator("#target .word").nth(n).bounding_box() for n in range(4)]
    lefts = [box["x"] for box in boxes]
    assert lefts == sorted(lefts, reverse=True)
    assert pane["x"] + pane["width"] - (boxes[0]["x"] + boxes[0]["width"]) < 60
    # the arrow that points to the next word goes to it
    sheet.page.locator("#target .word").first.focus()
    sheet.page.keyboard.press("ArrowLeft")
    assert sheet.focused().endswith(target[1])
    sheet.page.keyboard.press("ArrowRight")
    assert sheet.focused().endswith(target[0])


def test_each_paragraph_has_its_own_direction(open_page):
    source, target, _ = CASES["rtl"]
    sheet = open_page(routes={"/v1/translate": answer(source, target)})
    sheet.translate("The house is big")
    sheet.page.fill("#source", "hello\nשלום")
    styles = sheet.page.evaluate(
        "['source', 'source-mirror', 'target'].map(id => getComputedStyle(document.getElementById(id)).unicodeBidi)"
    )
    assert styles == ["plaintext"] * 3


def test_the_ghost_of_a_right_to_left_translation_begins_at_the_right(open_page):
    source, target, _ = CASES["rtl"]
    done = {"text": " ".join(target), "rest": " ".join(target), "next": target[0], "score": -0.1}
    sheet = open_page(routes={"/v1/translate": answer(source, target), "/v1/complete": {"completions": [done]}})
    sheet.translate(" ".join(source))
    sheet.page.click("#show-writer")
    sheet.page.wait_for_selector(".ghost-next")
    assert sheet.page.get_attribute("#writer", "dir") == "rtl"
    sheet.page.keyboard.press("Tab")
    assert sheet.page.input_value("#writer") == target[0]


def test_what_an_input_method_composes_is_not_translated_before_it_is_text(sheet):
    """Latin letters on their way to a character are no text yet, and Tab and Enter are the input method's."""
    asked: list[str] = []

    def note(route: Any) -> None:
        asked.append(route.request.post_data_json["text"])
        route.continue_()

    sheet.page.route("**/v1/translate", note)
    keyboard = sheet.page.context.new_cdp_session(sheet.page)
    sheet.page.click("#source")
    keyboard.send("Input.imeSetComposition", {"text": "ni", "selectionStart": 2, "selectionEnd": 2})
    sheet.page.wait_for_timeout(600)
    assert sheet.page.input_value("#source") == "ni"
    assert asked == []
    keyboard.send("Input.insertText", {"text": "你"})
    sheet.settled()
    assert set(asked) == {"你"}
