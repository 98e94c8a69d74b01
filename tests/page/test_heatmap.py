"""The heat map: opened, read cell by cell, zoomed, saved."""

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


def test_every_word_has_its_row_and_column(opened):
    labels = opened.page.locator("#map-scroll .map-label").all_text_contents()
    assert labels == [*opened.sentence.split(), *opened.translation.split()]
    cells = opened.page.eval_on_selector_all(
        "#map-scroll .map-cell",
        "all => all.map(c => [c.dataset.row, c.dataset.column, Number(c.getAttribute('fill-opacity'))])",
    )
    assert len(cells) == 36
    for row in range(6):
        weights = [weight for i, _, weight in cells if i == str(row)]
        assert 0 < sum(weights) <= 1.001  # the end of the sentence, which is no word, has the rest
    words = [opened.translation.split(), opened.sentence.split()]
    assert {(words[0][int(i)], words[1][int(j)]): weight for i, j, weight in cells} == opened.attention()


def test_a_cell_says_what_it_shows(opened):
    opened.page.locator('.map-cell[data-row="1"][data-column="1"]').hover()
    assert opened.page.inner_text("#map-status").startswith("Lehrer ← teacher: ")
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.inner_text("#map-status").startswith("malt ← paints: ")


def test_a_finger_taps_a_cell_for_its_number(phone):
    phone.translate(phone.sentence)
    phone.page.tap("#show-map")
    assert phone.page.inner_text("#map-status").endswith("Tap one for its number.")
    cell = phone.page.locator('#map-scroll .map-cell[data-row="1"][data-column="1"]')
    before = cell.bounding_box()
    cell.tap()
    assert phone.page.inner_text("#map-status").startswith("Lehrer ← teacher: ")
    assert cell.bounding_box() == before, "it does not move under the finger"


def test_the_scale_says_what_the_colours_mean(opened):
    assert opened.page.locator(".map-scale text").all_text_contents() == SCALE
    shares = opened.page.eval_on_selector_all(
        ".map-scale .map-cell", "all => all.map(c => Number(c.getAttribute('fill-opacity')))"
    )
    assert [f"{share:.0%}" for share in shares] == SCALE
    # it is there whatever the size of the map
    for _ in range(8):
        opened.page.keyboard.press("+")
    assert opened.page.evaluate("document.querySelector('.map-scale').getBoundingClientRect().bottom <= innerHeight")


def test_a_zoom_that_goes_no_further_says_so(opened):
    for _ in range(8):
        opened.page.keyboard.press("+")
    assert opened.unavailable_reason("#zoom-in") == "The map is as large as it can be"
    assert opened.page.evaluate("document.getElementById('map').contains(document.getElementById('toast'))")
    assert not opened.page.locator("#zoom-out[aria-disabled=true]").count()


def test_it_is_zoomed(opened):
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


def test_it_is_saved_as_svg(opened, tmp_path):
    with opened.page.expect_download() as download:
        opened.page.click("#save-svg")
    assert download.value.suggested_filename == "attention-en-de.svg"
    download.value.save_as(tmp_path / "map.svg")
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    assert root.tag == f"{SVG}svg"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == [*opened.sentence.split(), *opened.translation.split(), *SCALE]
    # it needs no style app
    assert all(part.get("fill", "").startswith("rgb") for part in root.iter(f"{SVG}rect"))
    assert not [part for part in root.iter() if part.get("class") and part.tag != f"{SVG}g"]


def test_it_is_saved_as_png(opened, tmp_path):
    with opened.page.expect_download() as download:
        opened.page.click("#save-png")
    assert download.value.suggested_filename == "attention-en-de.png"
    download.value.save_as(tmp_path / "map.png")
    from PIL import Image

    with Image.open(tmp_path / "map.png") as image:
        assert min(image.size) > 300
        colours = image.convert("RGB").getcolors(1 << 20)
    assert len(colours) > 20  # drawn, not blank


def test_none_without_attention(open_app):
    def without(route: Any) -> None:
        answer = route.fetch().json()
        for sentence in answer["translations"][0]["sentences"]:
            for best in sentence["best"]:
                best["attention"], best["alignment"] = None, []
        route.fulfill(json=answer)

    app = open_app(routes={"/v1/translate": without})
    assert app.translate(app.sentence) == app.translation
    assert app.unavailable_reason("#show-map") == "This translation has no attention to draw"
    assert not app.is_visible("#map")
    app.word("Haus").hover()
    assert app.highlighted("source-mirror") == {}
