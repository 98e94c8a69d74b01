"""Themes, contrast, small screens, scrolling, and that no other server is contacted."""

from itertools import pairwise
from typing import Any

import pytest

from tests.contrast import contrast, lightness, luminance

AA_TEXT = 4.5
AA_GRAPHIC = 3.0


def test_theme_follows_system_until_chosen(open_app):
    app = open_app(color_scheme="dark")
    assert luminance(background(app)) < 0.05
    app.page.emulate_media(color_scheme="light")
    assert luminance(background(app)) > 0.8
    app.page.emulate_media(color_scheme="dark")
    app.page.wait_for_selector("#theme[aria-pressed=true]")  # updated with the next frame
    app.page.click("#theme")
    assert luminance(background(app)) > 0.8
    assert app.page.get_attribute("#theme", "aria-pressed") == "false"
    app.page.reload()
    app.page.wait_for_function("() => document.getElementById('to').value")
    assert luminance(background(app)) > 0.8  # the choice is stored


def background(app: Any) -> tuple[float, ...]:
    return parse_colour(app.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def parse_colour(css: str) -> tuple[float, ...]:
    """Return `rgb(1, 2, 3)` as fractions."""
    assert css.startswith("rgb("), css
    return tuple(int(part) / 255 for part in css[4:-1].split(", "))


MEASURE = """() => {
  // Returns [description, text colour, background] of every visible element with text, colours as 8-bit sRGB.
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const blend = (...layers) => {
    context.clearRect(0, 0, 1, 1);
    for (const layer of layers) { context.fillStyle = layer; context.fillRect(0, 0, 1, 1); }
    return `rgb(${[...context.getImageData(0, 0, 1, 1).data].slice(0, 3).join(', ')})`;
  };
  const backgrounds = (e) => e ? [...backgrounds(e.parentElement), getComputedStyle(e).backgroundColor] : [];
  const dimmed = (e) => e.closest('[aria-disabled=true]');  // exempt by WCAG 1.4.3
  const measured = [];
  for (const e of document.querySelectorAll('body *')) {
    const hasText = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const field = e.matches('textarea, select, input:not([type=file])');
    const invisible = 'option, script, title, .mirror, .mirror *:not(.ghost), .visually-hidden, .skip-link';
    if (!(hasText || field) || e.matches(invisible) || dimmed(e)) continue;
    if (!e.checkVisibility({visibilityProperty: true})) continue;
    const dialog = document.querySelector('dialog[open]');
    if (dialog && !dialog.contains(e)) continue;
    const under = backgrounds(e);
    const style = getComputedStyle(e);
    const ink = e instanceof SVGElement ? style.fill : style.color;
    measured.push([e.tagName + '.' + (e.id || e.className.baseVal || e.className) + ' ' + e.textContent.slice(0, 20),
                   blend(...under, ink), blend(...under)]);
    if (field && e.placeholder) {
      const ink = getComputedStyle(e, '::placeholder').color;
      measured.push(['placeholder', blend(...under, ink), blend(...under)]);
    }
  }
  return measured;
}"""


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest, open_app: Any) -> Any:
    return open_app(color_scheme=request.param)


def check_contrast(app: Any, min_elements: int, state: str) -> None:
    """Check the contrast of all visible text; `state` names the state of the page in failures."""
    measured = app.page.evaluate(MEASURE)
    assert len(measured) >= min_elements, state
    too_low = []
    for name, ink, paper in measured:
        ratio = contrast(parse_colour(ink), parse_colour(paper))
        if ratio < AA_TEXT:
            too_low.append((name, round(ratio, 2)))
    assert too_low == [], state


def test_text_has_aa_contrast(theme):
    page = theme.page
    check_contrast(theme, 6, "empty")
    theme.translate(f"{theme.sentence} {theme.other}")
    page.click("#show-confidence")
    page.click("#show-alternatives")
    page.locator("#alternatives-list .choice").nth(1).wait_for()
    page.click("#model-score")
    check_contrast(theme, 40, "model score")
    # all levels of uncertainty, and highlights of several weights
    page.evaluate("document.querySelectorAll('#target .word').forEach((w, n) => w.dataset.uncertainty = n % 5)")
    check_contrast(theme, 40, "translated")
    for weight in ("0.25", "0.5", "0.75", "1"):
        page.evaluate(
            "w => document.querySelectorAll('#target .word').forEach(s => {"
            " s.style.setProperty('--weight', w); s.classList.add('is-aligned'); })",
            weight,
        )
        check_contrast(theme, 40, f"highlighted with weight {weight}")
    theme.word("Haus").click()
    page.locator("#word-menu .choice").first.wait_for()
    check_contrast(theme, 40, "word menu")
    page.keyboard.press("Escape")
    page.click("#show-writer")
    page.locator(".ghost-next").wait_for()
    check_contrast(theme, 40, "writing")
    page.click("#writer-cancel")
    page.click("#show-map")
    check_contrast(theme, 15, "heat map")
    page.keyboard.press("Escape")
    page.click("#help-open")
    check_contrast(theme, 40, "help")
    page.keyboard.press("Escape")
    page.click("#tab-files")
    page.set_input_files("#file", {"name": "a.docx", "mimeType": "text/plain", "buffer": b"x"})
    check_contrast(theme, 8, "files with an error")


def test_focus_indicators_have_aa_contrast(theme):
    """Graphics need a contrast of 3:1 (WCAG 1.4.11)."""
    theme.translate(theme.sentence)
    theme.page.keyboard.press("Tab")
    outline = theme.page.evaluate(
        "(({outlineStyle, outlineWidth, outlineColor}) => [outlineStyle, outlineWidth, outlineColor])"
        "(getComputedStyle(document.activeElement))"
    )
    assert outline[:2] == ["solid", "2px"]
    card = parse_colour(theme.page.evaluate("getComputedStyle(document.getElementById('panes')).backgroundColor"))
    assert contrast(parse_colour(outline[2]), card) >= AA_GRAPHIC
    assert contrast(parse_colour(outline[2]), background(theme)) >= AA_GRAPHIC
    theme.page.focus("#source")
    ring = theme.page.evaluate("getComputedStyle(document.querySelector('.pane'), '::after').borderTopColor")
    assert contrast(parse_colour(ring), card) >= AA_GRAPHIC


def test_heat_map_colours_are_perceptually_uniform(theme):
    """Equal steps of attention are equal steps of lightness, and cells of weight 0 are visible."""
    theme.translate(theme.sentence)
    theme.page.click("#show-map")
    cells = theme.page.locator(".map-scale .map-cell")
    weights = [float(cells.nth(n).get_attribute("fill-opacity")) for n in range(cells.count())]
    empty, full = (
        parse_colour(theme.page.eval_on_selector(f".map-scale {cell}", "cell => getComputedStyle(cell).fill"))
        for cell in (".map-cell-background", ".map-cell")
    )
    card = parse_colour(theme.page.evaluate("getComputedStyle(document.getElementById('map')).backgroundColor"))
    colours = [tuple(a + (b - a) * weight for a, b in zip(empty, full, strict=True)) for weight in weights]
    assert contrast(empty, card) >= 1.25
    assert contrast(full, card) >= AA_GRAPHIC
    differences = [abs(lightness(colour) - lightness(card)) for colour in colours]
    steps = [b - a for a, b in pairwise(differences)]
    assert min(steps) > 0.08
    assert max(steps) < 1.5 * min(steps)


def test_help_fits_screen_of_800_pixels(open_app):
    app = open_app(viewport={"width": 1280, "height": 800})
    app.page.click("#help-open")
    box = app.page.locator("#help").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 800
    assert app.page.eval_on_selector("#help-body", "body => body.scrollHeight <= body.clientHeight")


@pytest.mark.parametrize(("width", "height"), [(320, 480), (390, 844), (740, 360)])
def test_help_scrolls_on_small_screens(open_app, width, height):
    app = open_app(viewport={"width": width, "height": height})
    app.page.click("#help-open")
    app.page.eval_on_selector("#help-body", "body => body.scrollTo(0, body.scrollHeight)")
    last, close = (app.page.locator(f"#help {item}").bounding_box() for item in ("tr >> nth=-1", "[data-close]"))
    for box in (last, close):
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
    app.page.click("#help [data-close]")
    assert not app.is_visible("#help")


def test_touch_screen_texts_mention_no_mouse_or_keys(phone):
    page = phone.page
    phone.translate(f"{phone.sentence} {phone.other}")
    texts = [page.inner_text("#word-details")]
    page.tap("#show-writer")
    page.wait_for_selector("#completions .choice")
    texts.append(page.inner_text("#view-text"))
    page.tap("#show-map")
    texts.append(page.inner_text("#map"))
    page.tap("#map [data-close]")
    page.tap("#tab-files")
    texts.append(page.inner_text("#view-files"))
    assert "Tap a word" in texts[0]
    assert "Tap a cell" in texts[2]
    for word in ("click", "hover", "point at", "drop them", "Tab accepts", "Ctrl"):
        assert not [text for text in texts if word.lower() in text.lower()], word


PARAGRAPH = " ".join(["Our teacher paints the old house. A dog sees two small birds."] * 3)
LONG_TEXT = "\n\n".join([PARAGRAPH] * 40)  # 240 sentences


def in_view(app: Any, selector: str) -> bool:
    """Return True if an element is in the visible part of its pane."""
    inside = """word => {
        const [box, pane] = [word, word.closest('.scroll-area')].map((e) => e.getBoundingClientRect());
        return box.top >= pane.top - 1 && box.bottom <= pane.bottom + 1;
    }"""
    return bool(app.page.eval_on_selector(selector, inside))


@pytest.mark.parametrize("device", ["app", "phone"])
def test_long_text_scrolls_in_its_pane(request, device):
    app = request.getfixturevalue(device)
    page = app.page
    app.translate(LONG_TEXT)
    height = page.viewport_size["height"]
    assert page.evaluate("document.documentElement.scrollHeight") < 1.5 * height
    for n in range(2):
        assert page.locator(".pane").nth(n).bounding_box()["height"] <= height
    overflows = page.eval_on_selector_all("#panes .scroll-area", "all => all.map(e => e.scrollHeight - e.clientHeight)")
    assert min(overflows[:2]) > 1000
    # the target pane has scrolled to the sentence at the caret, which is the last one
    assert in_view(app, "#target .sentence:last-child .word")
    page.evaluate("document.querySelectorAll('.scroll-area').forEach(e => e.scrollTop = 0)")
    assert not in_view(app, "#target .sentence:last-child .word")


def test_aligned_word_scrolls_into_view_in_its_pane(app):
    page = app.page
    app.translate(LONG_TEXT)
    page.evaluate("document.getElementById('source').blur()")
    page.evaluate("document.querySelectorAll('.scroll-area').forEach(e => e.scrollTop = 0)")
    last = '[data-sentence="239"][data-word="5"]'
    page.evaluate("s => document.querySelector(s).scrollIntoView({block: 'center'})", f"#target {last}")
    page_scroll = page.evaluate("scrollY")
    assert not in_view(app, f"#source-mirror {last}")
    page.locator(f"#target {last}").hover()
    assert in_view(app, "#source-mirror .is-aligned")
    assert page.evaluate("scrollY") == page_scroll
    # the target pane follows the caret, although it then moves under the pointer
    page.focus("#source")
    page.keyboard.press("Control+Home")
    for _ in range(4):
        page.keyboard.press("Control+ArrowRight")
    page.wait_for_timeout(300)
    assert page.inner_text("#source-mirror .is-active") == "the"
    assert in_view(app, "#target .is-aligned")


def test_stepper_scrolls_both_panes(app):
    app.translate(LONG_TEXT)
    app.page.evaluate("document.querySelectorAll('.scroll-area').forEach(e => e.scrollTop = 1e6)")
    app.page.click("#next-sentence")
    for pane in ("source-mirror", "target"):
        assert in_view(app, f'#{pane} [data-sentence="1"]')


def overflow(app: Any) -> int:
    """Return by how many pixels the page is wider than the screen."""
    return int(app.page.evaluate("Math.max(document.documentElement.scrollWidth, innerWidth) - screen.width"))


def test_phone_needs_no_horizontal_scrolling(open_app):
    size = {"width": 360, "height": 740}
    app = open_app(viewport=size, screen=size, has_touch=True, is_mobile=True)
    page = app.page
    assert overflow(app) <= 0
    app.translate(f"{app.sentence} {app.other} Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen")
    assert overflow(app) <= 0
    panes = [page.locator(".pane").nth(n).bounding_box() for n in range(2)]
    assert panes[1]["y"] >= panes[0]["y"] + panes[0]["height"] - 1  # stacked
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


def test_controls_are_large_enough(open_app):
    """At least 24 by 24 CSS pixels (WCAG 2.5.8)."""
    app = open_app(viewport={"width": 360, "height": 740})
    app.translate(f"{app.sentence} {app.other}")
    too_small = app.page.evaluate(
        "[...document.querySelectorAll('button, select, .button')].filter(e => e.checkVisibility())"
        ".map(e => [e.id, e.getBoundingClientRect()])"
        ".filter(([, box]) => Math.min(box.width, box.height) < 24).map(([id]) => id)"
    )
    assert too_small == []


def test_requests_to_other_servers_are_blocked(open_app):
    """The fixture checks for such requests after every test; this tests that the policy forbids them."""
    app = open_app()
    app.errors_expected = True
    app.translate(app.sentence)
    assert {url.rsplit("/", 1)[0] for url in app.urls} == {
        app.address, f"{app.address}/static", f"{app.address}/v1",
    }  # fmt: skip
    result = app.page.evaluate("fetch('http://127.0.0.2:9/').then(() => 'sent', e => e.name)")
    assert result == "TypeError"
    assert any("Content Security Policy" in text for text in app.console)
    app.urls.clear()
