"""The heat map dialog: labels, cells, zoom and export."""

from typing import Any
from xml.etree import ElementTree

import pytest

SCALE = ["0%", "25%", "50%", "75%", "100%"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def opened(translated: Any) -> Any:
    translated.page.click("#show-map")
    translated.page.wait_for_selector("#map[open]")
    return translated


def test_heat_map_has_row_and_column_per_word(opened):
    labels = opened.page.locator("#map-scroll .map-label").all_text_contents()
    assert labels == [*opened.sentence.split(), *opened.translation.split()]
    cells = opened.page.eval_on_selector_all(
        "#map-scroll .map-cell",
        "all => all.map(c => [c.dataset.row, c.dataset.column, Number(c.getAttribute('fill-opacity'))])",
    )
    assert len(cells) == 36
    for row in range(6):
        weights = [weight for i, _, weight in cells if i == str(row)]
        assert 0 < sum(weights) <= 1.001  # the end symbol, which is no word, has the rest
    rows = opened.translation.split()
    columns = opened.sentence.split()
    assert {(rows[int(i)], columns[int(j)]): weight for i, j, weight in cells} == opened.attention()


def test_cell_shows_words_and_value(opened):
    opened.page.locator('.map-cell[data-row="1"][data-column="1"]').hover()
    assert opened.page.inner_text("#map-status").startswith("Lehrer ← teacher: ")
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.inner_text("#map-status").startswith("malt ← paints: ")


def test_tapped_cell_shows_value_and_does_not_move(phone):
    phone.translate(phone.sentence)
    phone.page.tap("#show-map")
    assert phone.page.inner_text("#map-status").endswith("Tap a cell to see its value.")
    cell = phone.page.locator('#map-scroll .map-cell[data-row="1"][data-column="1"]')
    before = cell.bounding_box()
    cell.tap()
    assert phone.page.inner_text("#map-status").startswith("Lehrer ← teacher: ")
    assert cell.bounding_box() == before


def test_colour_scale_is_visible_at_every_zoom(opened):
    assert opened.page.locator(".map-scale text").all_text_contents() == SCALE
    weights = opened.page.eval_on_selector_all(
        ".map-scale .map-cell", "all => all.map(c => Number(c.getAttribute('fill-opacity')))"
    )
    assert [f"{weight:.0%}" for weight in weights] == SCALE
    for _ in range(8):
        opened.page.keyboard.press("+")
    assert opened.page.evaluate("document.querySelector('.map-scale').getBoundingClientRect().bottom <= innerHeight")


def test_zoom_buttons_are_unavailable_at_limits(opened):
    for _ in range(8):
        opened.page.keyboard.press("+")
    assert opened.unavailable_reason("#zoom-in") == "Maximum zoom reached"
    assert opened.page.evaluate("document.getElementById('map').contains(document.getElementById('toast'))")
    assert not opened.page.locator("#zoom-out[aria-disabled=true]").count()


def test_zoom_by_button_and_key(opened):
    def width() -> float:
        return float(opened.page.locator("#map-scroll svg").bounding_box()["width"])

    fitted = width()
    opened.page.click("#zoom-in")
    assert width() == pytest.approx(1.25 * fitted, rel=0.01)
    opened.page.keyboard.press("-")
    opened.page.keyboard.press("-")
    assert width() == pytest.approx(fitted / 1.25, rel=0.01)
    opened.page.keyboard.press("0")
    assert width() == pytest.approx(fitted, rel=0.01)
    opened.page.keyboard.press("Escape")
    opened.page.wait_for_selector("#map[open]", state="detached")
    assert opened.focused().startswith("show-map ")


def test_heat_map_is_saved_as_standalone_svg(opened, tmp_path):
    with opened.page.expect_download() as download:
        opened.page.click("#save-svg")
    assert download.value.suggested_filename == "attention-en-de.svg"
    download.value.save_as(tmp_path / "map.svg")
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    assert root.tag == f"{SVG}svg"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == [*opened.sentence.split(), *opened.translation.split(), *SCALE]
    # no style sheet is needed
    assert all(rect.get("fill", "").startswith("rgb") for rect in root.iter(f"{SVG}rect"))
    assert not [shape for shape in root.iter() if shape.get("class") and shape.tag != f"{SVG}g"]


def test_heat_map_is_saved_as_png(opened, tmp_path):
    with opened.page.expect_download() as download:
        opened.page.click("#save-png")
    assert download.value.suggested_filename == "attention-en-de.png"
    download.value.save_as(tmp_path / "map.png")
    from PIL import Image

    with Image.open(tmp_path / "map.png") as image:
        assert min(image.size) > 300
        colours = image.convert("RGB").getcolors(1 << 20)
    assert len(colours) > 20  # not blank


def test_heat_map_is_unavailable_without_attention(open_app):
    def remove_attention(route: Any) -> None:
        response = route.fetch().json()
        for sentence in response["translations"][0]["sentences"]:
            for best in sentence["best"]:
                best["attention"] = None
                best["alignment"] = []
        route.fulfill(json=response)

    app = open_app(routes={"/v1/translate": remove_attention})
    assert app.translate(app.sentence) == app.translation
    assert app.unavailable_reason("#show-map") == "No attention weights for this translation"
    assert not app.is_visible("#map")
    app.word("Haus").hover()
    assert app.highlighted("source-mirror") == {}
