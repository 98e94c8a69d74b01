"""The n-best list of a sentence, and the menu of alternatives for a word."""

from typing import Any

from tests.page.responses import translate_response


def test_chosen_alternative_replaces_translation(translated):
    page = translated.page
    page.click("#show-alternatives")
    rows = page.locator("#alternatives-list .choice")
    rows.nth(1).wait_for()
    assert rows.count() >= 3
    assert rows.nth(0).get_attribute("aria-current") == "true"
    assert translated.translation in rows.nth(0).inner_text()
    alternative = rows.nth(1).locator("> span").first.inner_text()
    rows.nth(1).click()
    translated.wait_for_translation(alternative)
    assert rows.nth(1).get_attribute("aria-current") == "true"
    # the words of the alternative are aligned, too
    page.locator("#target .word").first.hover()
    assert translated.highlighted("source-mirror")
    page.click("#undo")
    assert translated.target_text == translated.translation
    assert not translated.is_visible("#undo")


def test_alternatives_follow_current_sentence(app):
    app.translate(f"{app.sentence} {app.other}")
    app.page.click("#show-alternatives")
    first = app.page.locator("#alternatives-list .choice > span").first
    first.wait_for()
    assert first.inner_text() == app.translation
    app.page.click("#next-sentence")
    app.page.wait_for_function(
        "text => document.querySelector('#alternatives-list .choice > span').innerText === text",
        arg=app.other_translation,
    )
    app.page.locator("#alternatives-list .choice").nth(1).click()
    app.page.wait_for_selector("#undo", state="visible")
    assert app.target_text.startswith(f"{app.translation} ")
    assert not app.target_text.endswith(app.other_translation)


def test_chosen_word_changes_rest_of_translation(translated):
    page = translated.page
    translated.word("malt").click()
    items = page.locator("#word-menu .choice")
    items.first.wait_for()
    assert "malt" in page.inner_text("#word-menu h2")
    words = [text.split("\n")[0] for text in items.all_inner_texts()]
    assert "malt" not in words
    assert translated.focused().startswith(" choice")
    items.first.click()
    translated.wait_for_other_translation()
    assert translated.target_text.split()[:3] == ["Unser", "Lehrer", words[0]]
    assert page.locator("#target .word").count() == len(translated.target_text.split())
    page.locator("#target .word").nth(2).hover()
    assert translated.highlighted("source-mirror")


def test_choice_survives_further_typing(translated):
    page = translated.page
    translated.word("malt").click()
    page.locator("#word-menu .choice").first.click()
    page.wait_for_selector("#undo", state="visible")
    chosen = translated.target_text
    translation = translated.translate(f"{translated.sentence} {translated.other}")
    assert translation == f"{chosen} {translated.other_translation}"


def test_escape_closes_word_menu_and_restores_focus(translated):
    translated.word("Lehrer").click()
    translated.page.locator("#word-menu .choice").first.wait_for()
    translated.page.keyboard.press("Escape")
    translated.page.wait_for_selector("#word-menu", state="hidden")
    assert translated.focused().endswith(" Lehrer")
    assert translated.target_text == translated.translation


def test_alternatives_have_likelihood_relative_to_first(open_app):
    """Scores are means over the five tokens of the first choice (log_prob -1.0, score -0.2)."""
    scores = {"Haus": -0.2, "Hause": -0.24, "Heim": -0.44, "Hof": -0.9, "Hut": -2.0}
    response = translate_response(["house"], ["Haus"])
    (sentence,) = response["translations"][0]["sentences"]
    sentence["best"] = [{**sentence["best"][0], "text": text, "score": score} for text, score in scores.items()]
    app = open_app(routes={"/v1/translate": response})
    app.translate("house")
    app.page.click("#show-alternatives")
    rows = app.page.locator("#alternatives-list .choice")
    rows.nth(4).wait_for()
    assert rows.locator(".note").all_inner_texts() == [
        "first choice", "nearly as likely (82%)", "less likely (30%)", "much less likely (3%)", "unlikely (<1%)",
    ]  # fmt: skip
    assert rows.nth(1).get_attribute("title") == "Length-normalised log-probability: -0.240"
    assert "compared with the model's first choice" in app.page.inner_text("#alternatives > .note")


def test_own_choice_has_no_likelihood(translated):
    translated.word("malt").click()
    translated.page.locator("#word-menu .choice").first.click()
    translated.wait_for_other_translation()
    translated.page.route("**/v1/translate", lambda route: route.fulfill(json=translate_response(["x"], ["y"])))
    translated.page.click("#show-alternatives")
    rows = translated.page.locator("#alternatives-list .choice")
    rows.nth(1).wait_for()
    assert rows.nth(0).inner_text().split("\n") == [translated.target_text, "your choice"]
    assert not rows.nth(0).get_attribute("title")


def test_alternatives_of_previous_sentence_are_unavailable_while_loading(app):
    app.translate(f"{app.sentence} {app.other}")
    app.page.click("#show-alternatives")
    app.page.locator("#alternatives-list .choice").nth(1).wait_for()
    app.page.route("**/v1/translate", lambda _: None)  # no response
    app.page.click("#next-sentence")
    reason = app.unavailable_reason("#alternatives-list li:nth-child(2) .choice")
    assert reason == "Alternatives are still loading"
    app.page.click("#previous-sentence")
    first = "#alternatives-list li:first-child .choice"
    app.page.wait_for_timeout(300)
    assert app.page.inner_text(f"{first} > span >> nth=0") == app.translation
    assert app.page.get_attribute(first, "aria-disabled") is None
    assert app.target_text == f"{app.translation} {app.other_translation}"


def test_late_choice_does_not_affect_new_text(translated):
    held: list[Any] = []

    def hold_forced_decoding(route: Any) -> None:
        if "prefix" in route.request.post_data_json:
            held.append(route)
        else:
            route.continue_()

    page = translated.page
    page.route("**/v1/translate", hold_forced_decoding)
    translated.word("malt").click()
    page.locator("#word-menu .choice").first.click()
    assert translated.translate(translated.other) == translated.other_translation
    held[0].continue_()
    page.wait_for_timeout(500)
    assert translated.target_text == translated.other_translation
    assert not translated.is_visible("#undo")


def test_word_menu_shows_alignment_on_touch_screen(phone):
    phone.translate(phone.sentence)
    phone.word("malt").tap()
    phone.page.locator("#word-menu .choice").first.wait_for()
    assert phone.page.inner_text("#word-menu .note >> nth=0").startswith("malt, ")
    assert phone.highlighted("source-mirror") == phone.expected_highlight(target="malt")
