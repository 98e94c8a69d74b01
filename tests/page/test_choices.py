"""Other translations of the sentence, and other words for a word."""

from typing import Any

from tests.page.answers import answer


def test_another_translation_of_the_sentence_takes_its_place(translated):
    page = translated.page
    page.click("#show-alternatives")
    rows = page.locator("#alternatives-list .choice")
    rows.nth(1).wait_for()
    assert rows.count() >= 3
    assert rows.nth(0).get_attribute("aria-current") == "true"
    assert translated.translation in rows.nth(0).inner_text()
    wanted = rows.nth(1).locator("> span").first.inner_text()
    rows.nth(1).click()
    translated.becomes(wanted)
    assert rows.nth(1).get_attribute("aria-current") == "true"
    # the new words are aligned too
    page.locator("#target .word").first.hover()
    assert translated.lit("source-mirror")
    page.click("#undo")
    assert translated.target == translated.translation
    assert not translated.shows("#undo")


def test_alternatives_are_those_of_the_current_sentence(sheet):
    sheet.translate(f"{sheet.sentence} {sheet.other}")
    sheet.page.click("#show-alternatives")
    first = sheet.page.locator("#alternatives-list .choice > span").first
    first.wait_for()
    assert first.inner_text() == sheet.translation
    sheet.page.click("#sentence-after")
    sheet.page.wait_for_function(
        "want => document.querySelector('#alternatives-list .choice > span').innerText === want",
        arg=sheet.other_translation,
    )
    sheet.page.locator("#alternatives-list .choice").nth(1).click()
    sheet.page.wait_for_selector("#undo", state="visible")
    assert sheet.target.startswith(f"{sheet.translation} ")
    assert not sheet.target.endswith(sheet.other_translation)


def test_another_word_is_chosen_and_the_rest_is_found_anew(translated):
    page = translated.page
    translated.word("malt").click()
    items = page.locator("#word-menu .choice")
    items.first.wait_for()
    assert "malt" in page.inner_text("#word-menu h2")
    words = [text.split("\n")[0] for text in items.all_inner_texts()]
    assert "malt" not in words
    assert translated.focused().startswith(" choice")
    items.first.click()
    translated.changes()
    assert translated.target.split()[:3] == ["Unser", "Lehrer", words[0]]
    assert page.locator("#target .word").count() == len(translated.target.split())
    page.locator("#target .word").nth(2).hover()
    assert translated.lit("source-mirror")


def test_a_choice_outlives_further_typing(translated):
    page = translated.page
    translated.word("malt").click()
    page.locator("#word-menu .choice").first.click()
    page.wait_for_selector("#undo", state="visible")
    chosen = translated.target
    assert (
        translated.translate(f"{translated.sentence} {translated.other}") == f"{chosen} {translated.other_translation}"
    )


def test_escape_closes_the_words_and_leaves_the_focus(translated):
    translated.word("Lehrer").click()
    translated.page.locator("#word-menu .choice").first.wait_for()
    translated.page.keyboard.press("Escape")
    translated.page.wait_for_selector("#word-menu", state="hidden")
    assert translated.focused().endswith(" Lehrer")
    assert translated.target == translated.translation


def test_how_likely_another_translation_is_stands_in_words(open_page):
    """Next to the first choice, whose five symbols the scores are the mean of."""
    scores = {"Haus": -0.2, "Hause": -0.24, "Heim": -0.44, "Hof": -0.9, "Hut": -2.0}
    given = answer(["house"], ["Haus"])
    (sentence,) = given["translations"][0]["sentences"]
    sentence["best"] = [{**sentence["best"][0], "text": text, "score": score} for text, score in scores.items()]
    sheet = open_page(routes={"/v1/translate": given})
    sheet.translate("house")
    sheet.page.click("#show-alternatives")
    rows = sheet.page.locator("#alternatives-list .choice")
    rows.nth(4).wait_for()
    assert rows.locator(".note").all_inner_texts() == [
        "first choice", "nearly as likely (82%)", "less likely (30%)", "much less likely (3%)", "unlikely (<1%)",
    ]  # fmt: skip
    assert rows.nth(1).get_attribute("title") == "Log-probability normalised by length: -0.240"
    assert "next to the model's first choice" in sheet.page.inner_text("#alternatives > .note")


def test_what_the_reader_chose_is_compared_with_nothing(translated):
    translated.word("malt").click()
    translated.page.locator("#word-menu .choice").first.click()
    translated.changes()
    translated.page.route("**/v1/translate", lambda route: route.fulfill(json=answer(["x"], ["y"])))
    translated.page.click("#show-alternatives")
    rows = translated.page.locator("#alternatives-list .choice")
    rows.nth(1).wait_for()
    assert rows.nth(0).inner_text().split("\n") == [translated.target, "your choice"]
    assert not rows.nth(0).get_attribute("title")


def test_translations_of_another_sentence_cannot_be_chosen_for_this_one(sheet):
    sheet.translate(f"{sheet.sentence} {sheet.other}")
    sheet.page.click("#show-alternatives")
    sheet.page.locator("#alternatives-list .choice").nth(1).wait_for()
    sheet.page.route("**/v1/translate", lambda _: None)  # no answer comes
    sheet.page.click("#sentence-after")
    said = sheet.why_not("#alternatives-list li:nth-child(2) .choice")
    assert said == "The translations of this sentence are not there yet"
    sheet.page.click("#sentence-before")
    first = "#alternatives-list li:first-child .choice"
    sheet.page.wait_for_timeout(300)
    assert sheet.page.inner_text(f"{first} > span >> nth=0") == sheet.translation
    assert sheet.page.get_attribute(first, "aria-disabled") is None
    assert sheet.target == f"{sheet.translation} {sheet.other_translation}"


def test_a_choice_that_comes_late_is_not_taken_for_another_sentence(translated):
    held: list[Any] = []

    def hold_forced(route: Any) -> None:
        held.append(route) if "prefix" in route.request.post_data_json else route.continue_()

    page = translated.page
    page.route("**/v1/translate", hold_forced)
    translated.word("malt").click()
    page.locator("#word-menu .choice").first.click()
    assert translated.translate(translated.other) == translated.other_translation
    held[0].continue_()
    page.wait_for_timeout(500)
    assert translated.target == translated.other_translation
    assert not translated.shows("#undo")


def test_a_finger_sees_what_a_word_is_aligned_with_beside_the_words_for_its_place(phone):
    phone.translate(phone.sentence)
    phone.word("malt").tap()
    phone.page.locator("#word-menu .choice").first.wait_for()
    assert phone.page.inner_text("#word-menu .note >> nth=0").startswith("malt, ")
    assert phone.lit("source-mirror") == phone.aligned(target="malt")
