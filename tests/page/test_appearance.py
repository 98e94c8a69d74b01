"""Light and dark, contrast, phone width, and that nothing is asked from anywhere else."""

from itertools import pairwise
from typing import Any

import pytest

from tests.contrast import contrast, lightness, luminance

AA_TEXT, AA_GRAPHIC = 4.5, 3.0


def test_the_theme_follows_the_system_until_it_is_chosen(open_app):
    app = open_app(color_scheme="dark")
    dark = ground(app)
    assert luminance(dark) < 0.05
    app.page.emulate_media(color_scheme="light")
    assert luminance(ground(app)) > 0.8
    app.page.emulate_media(color_scheme="dark")
    app.page.wait_for_selector("#theme[aria-pressed=true]")  # the page is told of it with its next frame
    app.page.click("#theme")
    assert luminance(ground(app)) > 0.8
    assert app.page.get_attribute("#theme", "aria-pressed") == "false"
    app.page.reload()
    app.page.wait_for_function("() => document.getElementById('to').value")
    assert luminance(ground(app)) > 0.8  # remembered


def ground(app: Any) -> tuple[float, ...]:
    return colour(app.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def colour(css: str) -> tuple[float, ...]:
    """`rgb(1, 2, 3)` as fractions."""
    assert css.startswith("rgb("), css
    return tuple(int(part) / 255 for part in css[4:-1].split(", "))


MEASURE = """() => {
  // Every visible element that has text of its own: its colour and what it is painted upon, each as 8-bit sRGB.
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const pixels = (...layers) => {
    context.clearRect(0, 0, 1, 1);
    for (const layer of layers) { context.fillStyle = layer; context.fillRect(0, 0, 1, 1); }
    return `rgb(${[...context.getImageData(0, 0, 1, 1).data].slice(0, 3).join(', ')})`;
  };
  const grounds = (e) => e ? [...grounds(e.parentElement), getComputedStyle(e).backgroundColor] : [];
  const dimmed = (e) => e.closest('[aria-disabled=true]');  // WCAG 1.4.3 leaves out what cannot be used
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const field = e.matches('textarea, select, input:not([type=file])');
    const unseen = 'option, script, title, .mirror, .mirror *:not(.ghost), .visually-hidden, .skip-link';
    if (!(own || field) || e.matches(unseen) || dimmed(e)) continue;
    if (!e.checkVisibility({visibilityProperty: true})) continue;
    const top = document.querySelector('dialog[open]');
    if (top && !top.contains(e)) continue;
    const under = grounds(e);
    const style = getComputedStyle(e);
    const ink = e instanceof SVGElement ? style.fill : style.color;
    found.push([e.tagName + '.' + (e.id || e.className.baseVal || e.className) + ' ' + e.textContent.slice(0, 20),
                pixels(...under, ink), pixels(...under)]);
    if (field && e.placeholder) {
      found.push(['placeholder', pixels(...under, getComputedStyle(e, '::placeholder').color), pixels(...under)]);
    }
  }
  return found;
}"""


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest, open_app: Any) -> Any:
    return open_app(color_scheme=request.param)


def check(app: Any, least: int, where: str) -> None:
    measured = app.page.evaluate(MEASURE)
    assert len(measured) >= least, where
    low = [(name, round(contrast(colour(ink), colour(paper)), 2)) for name, ink, paper in measured
           if contrast(colour(ink), colour(paper)) < AA_TEXT]  # fmt: skip
    assert low == [], where


def test_all_text_has_contrast_aa(theme):
    page = theme.page
    check(theme, 6, "empty")
    theme.translate(f"{theme.sentence} {theme.other}")
    page.click("#show-confidence")
    page.click("#show-alternatives")
    page.locator("#alternatives-list .choice").nth(1).wait_for()
    page.click("#model-score")
    check(theme, 40, "the model's measure")
    # every shade of doubt, and light of every strength, wherever a real answer would put them
    page.evaluate("document.querySelectorAll('#target .word').forEach((w, n) => w.dataset.uncertainty = n % 5)")
    check(theme, 40, "translated")
    for weight in ("0.25", "0.5", "0.75", "1"):
        page.evaluate(
            "w => document.querySelectorAll('#target .word').forEach(s => {"
            " s.style.setProperty('--weight', w); s.classList.add('is-aligned'); })",
            weight,
        )
        check(theme, 40, f"lit by {weight}")
    theme.word("Haus").click()
    page.locator("#word-menu .choice").first.wait_for()
    check(theme, 40, "words")
    page.keyboard.press("Escape")
    page.click("#show-writer")
    page.locator(".ghost-next").wait_for()
    check(theme, 40, "writing")
    page.click("#writer-cancel")
    page.click("#show-map")
    check(theme, 15, "map")
    page.keyboard.press("Escape")
    page.click("#help-open")
    check(theme, 40, "help")
    page.keyboard.press("Escape")
    page.click("#tab-files")
    page.set_input_files("#file", {"name": "a.docx", "mimeType": "text/plain", "buffer": b"x"})
    check(theme, 8, "files and a fault")


def test_focus_and_marks_can_be_seen(theme):
    """What is not text but must be seen has 3:1 (WCAG 1.4.11)."""
    theme.translate(theme.sentence)
    theme.page.keyboard.press("Tab")
    outline = theme.page.evaluate(
        "(({outlineStyle, outlineWidth, outlineColor}) => [outlineStyle, outlineWidth, outlineColor])"
        "(getComputedStyle(document.activeElement))"
    )
    assert outline[:2] == ["solid", "2px"]
    card = colour(theme.page.evaluate("getComputedStyle(document.getElementById('panes')).backgroundColor"))
    assert contrast(colour(outline[2]), card) >= AA_GRAPHIC
    assert contrast(colour(outline[2]), ground(theme)) >= AA_GRAPHIC
    theme.page.focus("#source")
    ring = theme.page.evaluate("getComputedStyle(document.querySelector('.pane'), '::after').borderTopColor")
    assert contrast(colour(ring), card) >= AA_GRAPHIC


def test_the_heat_map_s_colours_are_in_order(theme):
    """The same step of lightness for the same step of attention, from a cell that is seen on its ground."""
    theme.translate(theme.sentence)
    theme.page.click("#show-map")
    cells = theme.page.locator(".map-scale .map-cell")
    shares = [float(cells.nth(n).get_attribute("fill-opacity")) for n in range(cells.count())]
    none, full = (
        colour(theme.page.eval_on_selector(f".map-scale {part}", "part => getComputedStyle(part).fill"))
        for part in (".map-cell-background", ".map-cell")
    )
    card = colour(theme.page.evaluate("getComputedStyle(document.getElementById('map')).backgroundColor"))
    painted = [tuple(a + (b - a) * share for a, b in zip(none, full, strict=True)) for share in shares]
    assert contrast(none, card) >= 1.25
    assert contrast(full, card) >= AA_GRAPHIC
    away = [abs(lightness(one) - lightness(card)) for one in painted]
    steps = [b - a for a, b in pairwise(away)]
    assert min(steps) > 0.08
    assert max(steps) < 1.5 * min(steps)


def test_the_keys_fit_a_screen_of_800_pixels(open_app):
    app = open_app(viewport={"width": 1280, "height": 800})
    app.page.click("#help-open")
    box = app.page.locator("#help").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 800
    assert app.page.eval_on_selector("#help-body", "body => body.scrollHeight <= body.clientHeight"), "all of it"


@pytest.mark.parametrize(("width", "height"), [(320, 480), (390, 844), (740, 360)])
def test_on_a_small_screen_the_keys_scroll_below_their_close_button(open_app, width, height):
    app = open_app(viewport={"width": width, "height": height})
    app.page.click("#help-open")
    app.page.eval_on_selector("#help-body", "body => body.scrollTo(0, body.scrollHeight)")
    last, close = (app.page.locator(f"#help {what}").bounding_box() for what in ("tr >> nth=-1", "[data-close]"))
    for box in (last, close):
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
    app.page.click("#help [data-close]")
    assert not app.is_visible("#help")


def test_a_phone_reads_tap(phone):
    """Nothing there can be clicked, pointed at or hovered over, and no key pressed that a phone has not."""
    page = phone.page
    phone.translate(f"{phone.sentence} {phone.other}")
    said = [page.inner_text("#word-details")]
    page.tap("#show-writer")
    page.wait_for_selector("#completions .choice")
    said.append(page.inner_text("#view-text"))
    page.tap("#show-map")
    said.append(page.inner_text("#map"))
    page.tap("#map [data-close]")
    page.tap("#tab-files")
    said.append(page.inner_text("#view-files"))
    assert all(words in said[n] for n, words in ((0, "Tap a word"), (2, "Tap one")))
    for word in ("click", "hover", "point at", "drop it", "Tab takes", "Ctrl"):
        assert not [text for text in said if word.lower() in text.lower()], word


LONG = "\n\n".join([" ".join(["Our teacher paints the old house. A dog sees two small birds."] * 3)] * 40)
"""240 sentences."""


def in_view(app: Any, selector: str) -> bool:
    """Whether an element lies in the part of its pane that is seen."""
    inside = """word => {
        const [box, pane] = [word, word.closest('.scroll-area')].map((e) => e.getBoundingClientRect());
        return box.top >= pane.top - 1 && box.bottom <= pane.bottom + 1;
    }"""
    return bool(app.page.eval_on_selector(selector, inside))


@pytest.mark.parametrize("kind", ["app", "phone"])
def test_a_long_text_scrolls_in_its_pane(request, kind):
    app = request.getfixturevalue(kind)
    page = app.page
    app.translate(LONG)
    height = page.viewport_size["height"]
    assert page.evaluate("document.documentElement.scrollHeight") < 1.5 * height
    for n in range(2):
        assert page.locator(".pane").nth(n).bounding_box()["height"] <= height
    inner = page.eval_on_selector_all("#panes .scroll-area", "all => all.map(e => e.scrollHeight - e.clientHeight)")
    assert min(inner[:2]) > 1000
    # where the caret is (at the end of what was put in), there the translation is
    assert in_view(app, "#target .sentence:last-child .word")
    page.evaluate("document.querySelectorAll('.scroll-area').forEach(e => e.scrollTop = 0)")
    assert not in_view(app, "#target .sentence:last-child .word")


def test_the_aligned_word_comes_into_view_in_its_pane_alone(app):
    page = app.page
    app.translate(LONG)
    page.evaluate("document.getElementById('source').blur()")
    page.evaluate("document.querySelectorAll('.scroll-area').forEach(e => e.scrollTop = 0)")
    last = '[data-sentence="239"][data-word="5"]'
    page.evaluate("s => document.querySelector(s).scrollIntoView({block: 'center'})", f"#target {last}")
    above = page.evaluate("scrollY")
    assert not in_view(app, f"#source-mirror {last}")
    page.locator(f"#target {last}").hover()
    assert in_view(app, "#source-mirror .is-aligned")
    assert page.evaluate("scrollY") == above
    # and the other way round by the caret, although the pane then moves below the pointer
    page.focus("#source")
    page.keyboard.press("Control+Home")
    for _ in range(4):
        page.keyboard.press("Control+ArrowRight")
    page.wait_for_timeout(300)
    assert page.inner_text("#source-mirror .is-active") == "the"
    assert in_view(app, "#target .is-aligned")


def test_going_from_sentence_to_sentence_shows_it_in_both_panes(app):
    app.translate(LONG)
    app.page.evaluate("document.querySelectorAll('.scroll-area').forEach(e => e.scrollTop = 1e6)")
    app.page.click("#next-sentence")
    for side in ("source-mirror", "target"):
        assert in_view(app, f'#{side} [data-sentence="1"]')


def overflow(app: Any) -> int:
    return int(app.page.evaluate("Math.max(document.documentElement.scrollWidth, innerWidth) - screen.width"))


def test_a_phone_needs_no_sideways_scrolling(open_app):
    size = {"width": 360, "height": 740}
    app = open_app(viewport=size, screen=size, has_touch=True, is_mobile=True)
    page = app.page
    assert overflow(app) <= 0
    app.translate(f"{app.sentence} {app.other} Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen")
    assert overflow(app) <= 0
    panes = [page.locator(".pane").nth(n).bounding_box() for n in range(2)]
    assert panes[1]["y"] >= panes[0]["y"] + panes[0]["height"] - 1  # one below the other
    for button in ("#show-confidence", "#show-alternatives", "#show-writer"):
        page.tap(button)
        assert overflow(app) <= 0, button
    page.locator("#alternatives-list .choice").first.wait_for()
    assert overflow(app) <= 0
    page.tap("#writer-cancel")
    page.locator("#target .word").first.tap()
    page.locator("#word-menu .choice").first.wait_for()
    menu = page.locator("#word-menu").bounding_box()
    assert menu["x"] >= 0
    assert menu["x"] + menu["width"] <= 360
    page.keyboard.press("Escape")
    for opener in ("#show-map", "#help-open"):
        page.tap(opener)
        assert overflow(app) <= 0, opener
        dialog = page.locator("dialog[open]").bounding_box()
        assert dialog["x"] >= 0
        assert dialog["x"] + dialog["width"] <= 360
        page.keyboard.press("Escape")
    page.tap("#tab-files")
    assert overflow(app) <= 0


def test_what_is_pressed_is_large_enough(open_app):
    """24 by 24 CSS pixels at least (WCAG 2.5.8)."""
    app = open_app(viewport={"width": 360, "height": 740})
    app.translate(f"{app.sentence} {app.other}")
    small = app.page.evaluate(
        "[...document.querySelectorAll('button, select, .button')].filter(e => e.checkVisibility())"
        ".map(e => [e.id, e.getBoundingClientRect()])"
        ".filter(([, box]) => Math.min(box.width, box.height) < 24).map(([id]) => id)"
    )
    assert small == []


def test_nothing_is_asked_from_anywhere_else(open_app):
    """Checked after every test of the page; here that the page's own rules would forbid it too."""
    app = open_app()
    app.errors_expected = True
    app.translate(app.sentence)
    assert {url.rsplit("/", 1)[0] for url in app.urls} == {
        app.address, f"{app.address}/static", f"{app.address}/v1",
    }  # fmt: skip
    refused = app.page.evaluate("fetch('http://127.0.0.2:9/').then(() => 'went', e => e.name)")
    assert refused == "TypeError"
    assert any("Content Security Policy" in text for text in app.console)
    app.urls.clear()
