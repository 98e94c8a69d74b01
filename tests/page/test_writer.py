"""Interactive completion: the reader writes the beginning, Tab takes the model's next word."""

from typing import Any

import pytest


@pytest.fixture
def writing(translated: Any) -> Any:
    translated.page.click("#show-writer")
    translated.page.wait_for_selector("#writer", state="visible")
    return translated


def ghost(app: Any, wanted: str) -> None:
    """Wait until the ghost text is this."""
    app.page.wait_for_function(
        "want => [...document.querySelectorAll('.ghost')].map(g => g.textContent).join('').trim() === want", arg=wanted
    )


def test_tab_takes_word_after_word(writing):
    page = writing.page
    assert page.input_value("#writer") == ""
    ghost(writing, writing.translation)
    page.keyboard.press("Tab")
    assert page.input_value("#writer") == "Unser"
    page.keyboard.press("Tab")
    assert page.input_value("#writer") == "Unser Lehrer"
    ghost(writing, "malt das alte Haus.")
    page.keyboard.press("Control+Enter")
    assert page.input_value("#writer") == writing.translation
    page.keyboard.press("Enter")
    page.wait_for_selector("#writing", state="hidden")
    assert writing.target_text == writing.translation
    assert not writing.is_visible("#undo")


def test_a_beginning_of_ones_own_is_completed(writing):
    page = writing.page
    with page.expect_response(
        lambda r: r.url.endswith("/v1/complete") and r.request.post_data_json["prefix"] == "Unser Lehrer m"
    ) as answer:
        page.keyboard.type("Unser Lehrer m")
    best = answer.value.json()["completions"][0]
    ghost(writing, best["rest"].strip())
    page.keyboard.press("Tab")
    written = page.input_value("#writer")
    assert best["text"].startswith(written)  # the half word is completed
    assert len(written.split()) == 3
    with page.expect_response(
        lambda r: r.url.endswith("/v1/complete") and r.request.post_data_json["prefix"] == "Unser Lehrer kauft"
    ) as answer:
        page.fill("#writer", "Unser Lehrer kauft")
    rest = answer.value.json()["completions"][0]["rest"]
    ghost(writing, rest.strip())
    page.click("#writer-accept-word")
    assert len(page.input_value("#writer").split()) == 4
    page.fill("#writer", "Unser Lehrer kauft das Haus")
    page.click("#writer-apply")
    page.wait_for_selector("#writing", state="hidden")
    assert writing.target_text == "Unser Lehrer kauft das Haus"
    assert page.locator("#target .word").all_inner_texts() == ["Unser", "Lehrer", "kauft", "das", "Haus"]
    page.locator("#target .word").nth(1).hover()
    assert writing.highlighted("source-mirror") == writing.expected_highlight(target="Lehrer")  # what went before it is the same


def test_typing_along_keeps_the_ghost(writing):
    """The ghost does not vanish between a letter that fits it and the next answer."""
    ghost(writing, writing.translation)
    writing.page.route("**/v1/complete", lambda _: None)  # no answer comes
    writing.page.keyboard.type("Uns")
    ghost(writing, writing.translation.removeprefix("Uns"))
    writing.page.keyboard.type("x")
    ghost(writing, "")


def test_escape_leaves_the_field_and_tab_goes_on(writing):
    """Tab takes words in the field, so Esc must lead out of it (WCAG 2.1.2)."""
    page = writing.page
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    assert writing.focused().startswith("writer-apply ")
    page.keyboard.press("Tab")
    assert writing.focused().startswith("writer-accept-word ")
    page.keyboard.press("Tab")
    assert writing.focused().startswith("writer-accept-all ")
    page.keyboard.press("Tab")
    assert writing.focused().startswith("writer-cancel ")
    page.keyboard.press("Enter")
    assert not writing.is_visible("#writing")
    assert writing.target_text == writing.translation


def test_tab_leaves_where_there_is_nothing_to_take(writing):
    writing.page.route("**/v1/complete", lambda route: route.fulfill(json={"completions": []}))
    writing.page.fill("#writer", "Unser")
    ghost(writing, "")
    writing.page.wait_for_timeout(300)
    writing.page.keyboard.press("Tab")
    assert not writing.focused().startswith("writer ")


def test_another_way_to_go_on_is_taken(writing):
    others = writing.page.locator("#completions .choice")
    others.first.wait_for()
    others.first.click()
    written = writing.page.input_value("#writer")
    assert written != writing.translation
    assert len(written.split()) >= 2
    assert writing.focused().startswith("writer ")


def test_going_to_another_sentence_keeps_what_was_written(app):
    page = app.page
    app.translate(f"{app.sentence} {app.other}")
    page.click("#show-writer")
    page.fill("#writer", "Unser Lehrer kauft das Haus")
    page.click("#next-sentence")
    assert page.inner_text("#writing-source") == app.other
    assert page.input_value("#writer") == ""
    page.click("#writer-cancel")
    app.wait_for_translation(f"Unser Lehrer kauft das Haus {app.other_translation}")


def test_buttons_without_anything_to_take_say_why(writing):
    writing.page.wait_for_selector("#completions .choice")
    assert writing.unavailable_reason("#writer-apply") == "Write or take a word first"
    writing.page.route("**/v1/complete", lambda route: route.fulfill(json={"completions": []}))
    writing.page.fill("#writer", "Unser")
    ghost(writing, "")
    for button in ("#writer-accept-word", "#writer-accept-all"):
        assert writing.unavailable_reason(button) == "The model offers no more words here"
    assert writing.page.get_attribute("#writer-apply", "aria-disabled") == "false"


def test_a_finger_takes_word_or_all(phone):
    phone.translate(phone.sentence)
    phone.page.tap("#show-writer")
    ghost(phone, phone.translation)
    phone.page.tap("#writer-accept-word")
    assert phone.page.input_value("#writer") == "Unser"
    ghost(phone, phone.translation.removeprefix("Unser "))
    phone.page.tap("#writer-accept-all")
    assert phone.page.input_value("#writer") == phone.translation
    phone.page.tap("#writer-apply")
    phone.page.wait_for_selector("#writing", state="hidden")
    assert phone.target_text == phone.translation
