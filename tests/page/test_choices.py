"""Other translations of the sentence, and other words for a word."""


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
