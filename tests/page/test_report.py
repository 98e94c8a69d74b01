"""The report in a real browser: words and dots answer pointer and keyboard, and without a script all is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rnnsearch.evaluation.page import Example, Report, write_report
from rnnsearch.evaluation.projection import Grouped, project
from tests.translations import translation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SOURCE, TARGET = ("ein", "roter", "Ball"), ("a", "red", "ball")
WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]], dtype=np.float32)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report."""
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    shown = translation(SOURCE, TARGET, WEIGHTS, ((0, 0), (1, 1), (2, 2)))
    example = Example("best", 90.0, shown, "a red ball")
    sentences = [Grouped(f"sentence {n}", f"group {n % 2}") for n in range(4)]
    states = np.random.default_rng(1).normal(size=(4, 6))
    write_report(path, Report("A run", "de", "en", examples=[example], projection=project(sentences, states)))
    return path.as_uri()


@pytest.fixture
def page(browser: Browser, report: str) -> Iterator[Page]:
    """The report, opened; what the console says and what is asked for must be nothing."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    opened, said, asked = context.new_page(), [], []
    opened.on("console", lambda note: said.append(note.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(report)
    yield opened
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [report], "it asks for nothing"
    context.close()


def lit(page: Page, side: str) -> dict[str, str]:
    """The words of a side that are lit, and how much."""
    return dict(
        page.locator(f".word.{side}").evaluate_all(
            "words => words.filter(w => w.style.getPropertyValue('--w')).map(w => [w.textContent, "
            "w.style.getPropertyValue('--w')])"
        )
    )


def readout(page: Page, part: str) -> str:
    return page.locator(f"{part} .readout").inner_text()


def test_a_word_under_the_pointer_lights_what_it_is_aligned_with(page):
    assert "Point at a word" in readout(page, "article")
    page.locator(".word.t", has_text="red").hover()
    assert lit(page, "s") == {"roter": "70%", "ein": "20%", "Ball": "10%"}
    assert readout(page, "article") == "red ← roter 70 %, ein 20 %, Ball 10 %"
    page.locator(".word.s", has_text="ein").hover()
    assert lit(page, "t") == {"a": "90%", "red": "20%"}
    assert lit(page, "s") == {}
    page.locator("h1").hover()
    assert (lit(page, "s"), lit(page, "t")) == ({}, {})


def test_the_keyboard_goes_from_word_to_word(page):
    page.locator(".word.t").first.focus()
    page.keyboard.press("ArrowRight")
    assert readout(page, "article").startswith("red ←")
    page.keyboard.press("End")
    assert readout(page, "article") == "ball ← Ball 100 %"
    assert page.locator(".word[tabindex='0']").count() == 2, "one stop a sentence"
    page.keyboard.press("Home")
    assert lit(page, "s") == {"ein": "90%", "roter": "10%"}


def test_a_cell_of_the_heat_map_names_its_words(page):
    page.locator(".heat tbody tr").nth(1).locator("td").nth(0).hover()
    assert readout(page, "article") == "red ← ein 20 %"
    assert page.locator(".heat th.at").all_inner_texts() == ["ein", "red"]


def test_a_dot_tells_its_sentence_and_its_group_stands_out(page):
    page.locator(".point").nth(2).focus()
    assert readout(page, ".plane") == "sentence 2 (group 0)"
    assert page.locator(".point.dim").count() == 2
    page.keyboard.press("ArrowRight")
    assert readout(page, ".plane") == "sentence 3 (group 1)"
    page.locator("h1").click()
    page.locator(".key").first.hover()
    dimmed: Any = page.locator(".point.dim").evaluate_all("points => points.map(p => p.dataset.group)")
    assert dimmed == ["1", "1"]


@pytest.mark.parametrize("width", [1000, 360])
def test_without_a_script_nothing_is_missing(browser, report, width):
    context = browser.new_context(java_script_enabled=False, viewport={"width": width, "height": 900})
    opened = context.new_page()
    opened.goto(report)
    assert opened.locator(".pair").first.inner_text().split() == ["a", "ein"], "a word over the one it is linked to"
    assert opened.locator(".heat td.link").count() == 3
    assert opened.locator(".readout").count() == 0
    assert opened.locator("main").bounding_box()["width"] <= width
    opened.locator("summary", has_text="The sentences").click()
    assert opened.get_by_role("listitem").filter(has_text="sentence 3").is_visible()
    context.close()
