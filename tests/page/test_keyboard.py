"""Everything can be done without a mouse."""

from typing import Any


def test_word_is_replaced_by_keyboard_only(app):
    page = app.page
    keys = page.keyboard
    assert app.focused().startswith("source ")  # the initial focus
    keys.type(app.sentence)
    keys.press("Control+Enter")
    app.wait_until_translated()
    tab_to(app, "Unser")
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    assert app.focused().endswith(" malt")
    assert app.highlighted("source-mirror") == app.expected_highlight(target="malt")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("malt, ")
    keys.press("Enter")
    page.locator("#word-menu .choice").first.wait_for()
    assert " choice" in app.focused()
    keys.press("Enter")
    app.wait_for_other_translation()
    page.wait_for_function("() => document.activeElement.dataset.word === '2'")
    keys.press("End")
    assert app.focused().split()[-1] == app.target_text.split()[-1]


def tab_to(app: Any, ending: str) -> None:
    for _ in range(12):
        if app.focused().endswith(ending):
            return
        app.page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {ending!r}")


def test_shortcuts_work(translated):
    page = translated.page
    keys = page.keyboard
    keys.press("Alt+a")
    assert translated.is_visible("#alternatives")
    keys.press("Alt+a")
    assert not translated.is_visible("#alternatives")
    keys.press("Alt+p")
    assert translated.is_visible("#legend")
    keys.press("Alt+m")
    assert translated.is_visible("#map")
    keys.press("Alt+a")  # ignored while a dialog is open
    keys.press("Escape")
    assert not translated.is_visible("#map")
    assert not translated.is_visible("#alternatives")
    keys.press("Alt+w")
    assert translated.is_visible("#writing")
    keys.press("Alt+w")
    assert not translated.is_visible("#writing")
    before = page.get_attribute("#theme", "aria-pressed")
    keys.press("Alt+l")
    assert page.get_attribute("#theme", "aria-pressed") != before
    keys.press("Alt+c")
    page.wait_for_selector("#toast", state="visible")
    page.focus("#source")
    keys.press("?")
    assert page.input_value("#source").endswith("?")  # in a field it is typed
    page.focus("#help-open")
    keys.press("?")
    assert translated.is_visible("#help")
    help_text = page.inner_text("#help-body")
    assert all(f"Alt {key}" in help_text.replace("\xa0", " ") for key in "AMWPCXL")
    keys.press("Escape")
    assert translated.focused().startswith("help-open ")


def test_tab_cycles_through_page(translated):
    """Every control is reached once."""
    page = translated.page
    page.focus(".skip-link")
    visited: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        visited.append(translated.focused())
    ids = [entry.split()[0] for entry in visited if not entry.startswith(" ")]
    assert len(ids) == len(set(ids))
    expected = {"tab-text", "help-open", "theme", "from", "swap", "to", "source", "clear", "copy",
              "show-alternatives", "show-map", "show-writer", "show-confidence"}  # fmt: skip
    assert expected <= set(ids)
    assert sum("word" in entry.split()[:1] for entry in visited) == 1  # all words are one tab stop


def test_focusable_elements_have_accessible_names(translated):
    unnamed = translated.page.evaluate(
        """() => [...document.querySelectorAll('button, select, textarea, input, a, [role=button], [tabindex="0"]')]
            .filter((e) => e.checkVisibility() && !(e.getAttribute('aria-label') || e.textContent.trim()
              || e.labels?.[0]?.textContent.trim() || e.getAttribute('aria-labelledby'))).map((e) => e.outerHTML)"""
    )
    assert unnamed == []


def test_arrow_keys_switch_tabs(app):
    app.page.focus("#tab-text")
    app.page.keyboard.press("ArrowRight")
    assert app.is_visible("#view-files")
    assert not app.is_visible("#view-text")
    assert app.page.get_attribute("#tab-files", "aria-selected") == "true"
    app.page.keyboard.press("Tab")
    app.page.keyboard.press("ArrowLeft")
    assert app.focused()
