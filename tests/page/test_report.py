"""The report in a browser: words and dots react to pointer and keyboard, and nothing is missing without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rnnsearch.evaluation.page import Example, Report, write_report
from rnnsearch.evaluation.projection import GroupedSentence, project
from tests.translations import translation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SOURCE, TARGET = ("ein", "roter", "Ball"), ("a", "red", "ball")
WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]], dtype=np.float32)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a report."""
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    translated = translation(SOURCE, TARGET, WEIGHTS, ((0, 0), (1, 1), (2, 2)))
    example = Example("best", 90.0, translated, "a red ball")
    sentences = [GroupedSentence(f"sentence {n}", f"group {n % 2}") for n in range(4)]
    states = np.random.default_rng(1).normal(size=(4, 6))
    write_report(path, Report("A run", "de", "en", examples=[example], projection=project(sentences, states)))
    return path.as_uri()


@pytest.fixture
def page(browser: Browser, report: str) -> Iterator[Page]:
    """Open the report. After the test, the console must be empty, and the report must not have made requests."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    console: list[str] = []
    urls: list[str] = []
    page.on("console", lambda message: console.append(message.text))
    page.on("pageerror", lambda error: console.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    page.goto(report)
    yield page
    assert console == []
    assert [url for url in urls if not url.startswith("data:")] == [report]
    context.close()


def highlighted(page: Page, side: str) -> dict[str, str]:
    """Return the highlighted words of a side ("source" or "target") and their weights."""
    return dict(
        page.locator(f".word.{side}").evaluate_all(
            "words => words.filter(w => w.style.getPropertyValue('--weight')).map(w => [w.textContent, "
            "w.style.getPropertyValue('--weight')])"
        )
    )


def status(page: Page, container: str) -> str:
    return page.locator(f"{container} .status").inner_text()


def test_word_under_pointer_highlights_aligned_words(page):
    assert "Point at a word" in status(page, "article")
    page.locator(".word.target", has_text="red").hover()
    assert highlighted(page, "source") == {"roter": "70%", "ein": "20%", "Ball": "10%"}
    assert status(page, "article") == "red ← roter 70%, ein 20%, Ball 10%"
    page.locator(".word.source", has_text="ein").hover()
    assert highlighted(page, "target") == {"a": "90%", "red": "20%"}
    assert highlighted(page, "source") == {}
    page.locator("h1").hover()
    assert (highlighted(page, "source"), highlighted(page, "target")) == ({}, {})


def test_arrow_keys_move_between_words(page):
    page.locator(".word.target").first.focus()
    page.keyboard.press("ArrowRight")
    assert status(page, "article").startswith("red ←")
    page.keyboard.press("End")
    assert status(page, "article") == "ball ← Ball 100%"
    assert page.locator(".word[tabindex='0']").count() == 2  # one tab stop per sentence
    page.keyboard.press("Home")
    assert highlighted(page, "source") == {"ein": "90%", "roter": "10%"}


def test_heat_map_cell_shows_its_words(page):
    page.locator(".heat-map tbody tr").nth(1).locator("td").nth(0).hover()
    assert status(page, "article") == "red ← ein 20%"
    assert page.locator(".heat-map th.is-active").all_inner_texts() == ["ein", "red"]


def test_dot_shows_sentence_and_dims_other_groups(page):
    page.locator(".point").nth(2).focus()
    assert status(page, ".scatter-plot") == "sentence 2 (group 0)"
    assert page.locator(".point.is-dimmed").count() == 2
    page.keyboard.press("ArrowRight")
    assert status(page, ".scatter-plot") == "sentence 3 (group 1)"
    page.locator("h1").click()
    page.locator(".legend-item").first.hover()
    dimmed: Any = page.locator(".point.is-dimmed").evaluate_all("points => points.map(p => p.dataset.group)")
    assert dimmed == ["1", "1"]


@pytest.mark.parametrize("width", [1000, 360])
def test_report_is_complete_without_javascript(browser, report, width):
    context = browser.new_context(java_script_enabled=False, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(report)
    assert page.locator(".pair").first.inner_text().split() == ["a", "ein"]
    assert page.locator(".heat-map td.link").count() == 3
    assert page.locator(".status").count() == 0
    assert page.locator("main").bounding_box()["width"] <= width
    page.locator("summary", has_text="Sentences").click()
    assert page.get_by_role("listitem").filter(has_text="sentence 3").is_visible()
    context.close()
