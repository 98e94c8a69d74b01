"""Interactive completion: the user types the start of a translation, the model suggests the rest."""

from typing import Any

import pytest


@pytest.fixture
def writing(translated: Any) -> Any:
    translated.page.click("#show-writer")
    translated.page.wait_for_selector("#writer", state="visible")
    return translated


def wait_for_ghost(app: Any, text: str) -> None:
    """Wait until the ghost text is this."""
    app.page.wait_for_function(
        "text => [...document.querySelectorAll('.ghost')].map(g => g.textContent).join('').trim() === text", arg=text
    )


def test_tab_accepts_next_word(writing):
    page = writing.page
    assert page.input_value("#writer") == ""
    wait_for_ghost(writing, writing.translation)
    page.keyboard.press("Tab")
    assert page.input_value("#writer") == "Unser"
    page.keyboard.press("Tab")
    assert page.input_value("#writer") == "Unser Lehrer"
    wait_for_ghost(writing, "malt das alte Haus.")
    page.keyboard.press("Control+Enter")
    assert page.input_value("#writer") == writing.translation
    page.keyboard.press("Enter")
    page.wait_for_selector("#writing", state="hidden")
    assert writing.target_text == writing.translation
    assert not writing.is_visible("#undo")


def test_typed_prefix_is_completed(writing):
    page = writing.page
    with page.expect_response(
        lambda r: r.url.endswith("/v1/complete") and r.request.post_data_json["prefix"] == "Unser Lehrer m"
    ) as response:
        page.keyboard.type("Unser Lehrer m")
    best = response.value.json()["completions"][0]
    wait_for_ghost(writing, best["rest"].strip())
    page.keyboard.press("Tab")
    written = page.input_value("#writer")
    assert best["text"].startswith(written)  # the started word is completed
    assert len(written.split()) == 3
    with page.expect_response(
        lambda r: r.url.endswith("/v1/complete") and r.request.post_data_json["prefix"] == "Unser Lehrer kauft"
    ) as response:
        page.fill("#writer", "Unser Lehrer kauft")
    rest = response.value.json()["completions"][0]["rest"]
    wait_for_ghost(writing, rest.strip())
    page.click("#writer-accept-word")
    assert len(page.input_value("#writer").split()) == 4
    page.fill("#writer", "Unser Lehrer kauft das Haus")
    page.click("#writer-apply")
    page.wait_for_selector("#writing", state="hidden")
    assert writing.target_text == "Unser Lehrer kauft das Haus"
    assert page.locator("#target .word").all_inner_texts() == ["Unser", "Lehrer", "kauft", "das", "Haus"]
    page.locator("#target .word").nth(1).hover()
    # "Unser Lehrer" is also the start of the model's translation
    assert writing.highlighted("source-mirror") == writing.expected_highlight(target="Lehrer")


def test_ghost_remains_while_typing_along_it(writing):
    """Until the next response, the ghost shows what is left of it."""
    wait_for_ghost(writing, writing.translation)
    writing.page.route("**/v1/complete", lambda _: None)  # no response
    writing.page.keyboard.type("Uns")
    wait_for_ghost(writing, writing.translation.removeprefix("Uns"))
    writing.page.keyboard.type("x")
    wait_for_ghost(writing, "")


def test_escape_leaves_field_so_that_tab_moves_focus(writing):
    """Tab accepts words in the field, so another key must leave it (WCAG 2.1.2)."""
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


def test_tab_leaves_field_without_suggestion(writing):
    writing.page.route("**/v1/complete", lambda route: route.fulfill(json={"completions": []}))
    writing.page.fill("#writer", "Unser")
    wait_for_ghost(writing, "")
    writing.page.wait_for_timeout(300)
    writing.page.keyboard.press("Tab")
    assert not writing.focused().startswith("writer ")


def test_alternative_completion_is_inserted(writing):
    others = writing.page.locator("#completions .choice")
    others.first.wait_for()
    others.first.click()
    written = writing.page.input_value("#writer")
    assert written != writing.translation
    assert len(written.split()) >= 2
    assert writing.focused().startswith("writer ")


def test_changing_sentence_keeps_written_text(app):
    page = app.page
    app.translate(f"{app.sentence} {app.other}")
    page.click("#show-writer")
    page.fill("#writer", "Unser Lehrer kauft das Haus")
    page.click("#next-sentence")
    assert page.inner_text("#writing-source") == app.other
    assert page.input_value("#writer") == ""
    page.click("#writer-cancel")
    app.wait_for_translation(f"Unser Lehrer kauft das Haus {app.other_translation}")


def test_unavailable_buttons_explain_why(writing):
    writing.page.wait_for_selector("#completions .choice")
    assert writing.unavailable_reason("#writer-apply") == "Type or accept a word first"
    writing.page.route("**/v1/complete", lambda route: route.fulfill(json={"completions": []}))
    writing.page.fill("#writer", "Unser")
    wait_for_ghost(writing, "")
    for button in ("#writer-accept-word", "#writer-accept-all"):
        assert writing.unavailable_reason(button) == "No suggestion"
    assert writing.page.get_attribute("#writer-apply", "aria-disabled") == "false"


def test_buttons_accept_word_or_all_on_touch_screen(phone):
    phone.translate(phone.sentence)
    phone.page.tap("#show-writer")
    wait_for_ghost(phone, phone.translation)
    phone.page.tap("#writer-accept-word")
    assert phone.page.input_value("#writer") == "Unser"
    wait_for_ghost(phone, phone.translation.removeprefix("Unser "))
    phone.page.tap("#writer-accept-all")
    assert phone.page.input_value("#writer") == phone.translation
    phone.page.tap("#writer-apply")
    phone.page.wait_for_selector("#writing", state="hidden")
    assert phone.target_text == phone.translation
