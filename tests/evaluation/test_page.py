"""The report page: one file that makes no requests, escapes all text, and omits missing parts."""

import base64
import hashlib
import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest

from rnnsearch.errors import DataError
from rnnsearch.evaluation.corpus_scores import evaluate
from rnnsearch.evaluation.page import Example, Report, choose_examples, to_html, write_report
from rnnsearch.evaluation.projection import GroupedSentence, project, scatter
from rnnsearch.metrics.alignment_error import AlignmentScores
from rnnsearch.metrics.calibration import Bin
from rnnsearch.metrics.plots.figures import DARK, LIGHT
from rnnsearch.systems.card import LearningStatistics
from tests.contrast import contrast
from tests.translations import translation

EVIL = "<script>alert('x')</script> & \"co\""
VOID = {"meta", "img", "source", "link", "br"}
SVG_VOID = {"circle", "rect", "path"}
"""SVG elements that the templates write as self-closing."""


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails on a tag that is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG_VOID
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def headings(self) -> list[str]:
        return [attributes["id"] or "" for tag, attributes in self.tags if tag == "section"]


def full_report() -> Report:
    references = [f"the man number {n} sits on the red bench {EVIL}" for n in range(24)]
    hypotheses = [r.replace("red", "old") if n % 3 else r for n, r in enumerate(references)]
    sources = [f"{'wort ' * (n + 1)}{EVIL}" for n in range(24)]
    evaluation = evaluate(
        hypotheses,
        references,
        name=f"RNNsearch {EVIL}",
        sources=sources,
        no_unk=references,
        baseline=(f"rival {EVIL}", references),
        samples=40,
        alignment=AlignmentScores(0.25, 0.75, 0.8, 1200),
        counts={"the": 2000, "sits": 3},
        confidence=[Bin(30, 0.25, 0.2), Bin(10, 0.75, 0.85)],
    )
    attention = np.array([[0.8, 0.1, 0.1], [0.0, 0.0, 1.0]], dtype=np.float32)
    shown = translation((EVIL, "b", "c"), (EVIL, "y"), attention, ((0, 0), (1, 1), (2, 1)))
    example = Example("best", 61.2, shown, f"R {EVIL}")
    return Report(
        title=f"A run {EVIL}",
        source_language="de",
        target_language="en",
        facts={f"Corpus {EVIL}": f"Tatoeba {EVIL}"},
        evaluations=[evaluation, evaluate(references, references, name="other", sources=sources)],
        log=[{"update": n, "train_nll": 50.0 - n, "dev_nll": 51.0 - n, "dev_bleu": n} for n in range(5)],
        statistics=[LearningStatistics(f"small {EVIL}", 5, 1.0, 0.1, f"CPU {EVIL}", 45.0, 46.0)],
        examples=[example],
        projection=project([GroupedSentence(f"{n} {EVIL}", f"g{n % 2} {EVIL}") for n in range(4)], np.eye(4, 6)),
        cleaning={f"too long {EVIL}": 1200, "empty": 3},
        pairs_read=5000,
        pairs_kept=3700,
        config=f"[data]\ntrain = '{EVIL}'\n",
    )


@pytest.fixture(scope="module")
def html() -> str:
    return to_html(full_report())


@pytest.fixture
def page(html: str) -> Page:
    return Page(html)


def test_full_report_has_all_sections(page):
    assert page.headings() == [
        "scores",
        "bleu-by-sentence-length",
        "rare-words",
        "examples",
        "encoder-states",
        "training",
        "model",
        "corpus-cleaning",
        "settings",
    ]
    for text in (
        "nrefs:1|case:mixed",
        "No UNK",
        "Word confidence (expected calibration error 6.2%)",
        "Paired bootstrap, 40 resamples",
        "AER",
        "0.250",
    ):
        assert text in page.text
    assert "removed in all1,20324.1 %held out for dev and test971.9 %trained on3,70074.0 %" in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == 3
    targets = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert targets == {f"#{anchor}" for anchor in page.headings()}


def test_all_text_is_escaped(html, page):
    assert html.count("<script>") == html.count("</script>") == 1, "only the page's own script"
    assert page.text.count(EVIL) >= 15
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_page_makes_no_requests(html, page):
    loaded = [v for _, a in page.tags for k, v in a.items() if k in {"src", "srcset", "href"} and v]
    assert loaded
    assert all(value.startswith(("data:image/svg+xml;base64,", "#")) for value in loaded)
    assert "url(" not in html
    assert "@import" not in html
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    script = html.partition("<script>")[2].partition("</script>")[0]
    assert "roving" in script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.endswith(f"; script-src 'sha256-{digest}'"), "no other script runs"
    assert not re.search(r"fetch|XMLHttp|import|https?:|innerHTML|eval|new Function", script)


def test_heat_map_frames_links(html, page):
    cells = [a for tag, a in page.tags if tag == "td" and ("style" in a or a.get("class") == "link")]
    assert [a.get("class") for a in cells] == ["link", None, None, "link", "link"]
    assert cells[0]["style"] == "background:#cccccc"
    assert cells[-1]["title"] == "y ← c 1.00"
    assert '<span class="aligned" dir="auto">b c</span>' in html


def test_words_have_attention_weights(html, page):
    [article] = [a for tag, a in page.tags if tag == "article"]
    assert article["data-attention"] == "80 10 10;0 0 100"
    classes = [a.get("class") for tag, a in page.tags if tag == "span"]
    assert (classes.count("word source"), classes.count("word target")) == (3, 2)
    assert '<noscript><p class="pairs"' in html, "without JavaScript, links are text"


def test_points_have_tooltips(page):
    points = [a for tag, a in page.tags if tag == "g"]
    assert [a["data-group"] for a in points] == ["0", "1", "0", "1"]
    assert [a["class"] for a in points] == ["point c0", "point c1", "point c0", "point c1"]
    positions = [tuple(map(float, re.findall(r"-?[\d.]+", a["transform"] or ""))) for a in points]
    assert all(0 < x < 640 and 0 < y < 400 for x, y in positions)
    assert len(set(positions)) == 4
    assert page.text.count(f"3 {EVIL} (g1 {EVIL})") == 1
    assert page.text.count(f"3 {EVIL}") == 3, "in the tooltip, in the (shortened) caption, and in the list"


def test_missing_parts_are_omitted():
    page = Page(to_html(Report("Bare", log=[{"update": 1, "train_nll": 1.0}])))
    assert not {"table", "section", "nav", "img", "article", "dl", "details"} & {tag for tag, _ in page.tags}
    assert Page(to_html(Report("Facts", facts={"Pair": "de-en"}))).headings() == ["model"]
    minimal = Report("Minimal", examples=[Example("best", 1.0, translation(["Quelle"], ["target"]), "")])
    text = Page(to_html(minimal)).text
    assert "Reference" not in text
    assert '<table class="heat' not in to_html(minimal)
    assert "removed in all3" in Page(to_html(Report("Few", cleaning={"empty": 3}))).text
    nothing = evaluate(["a b"], ["a b"], counts={})
    assert Page(to_html(Report("Scores", evaluations=[nothing]))).headings() == ["scores"]


def css_contrast(a: str, b: str) -> float:
    """Return the contrast of two colours, each #rgb or #rrggbb."""
    colours = []
    for colour in (a, b):
        digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
        colours.append(tuple(value / 255 for value in bytes.fromhex(digits)))
    return contrast(*colours)


def test_text_has_enough_contrast_in_both_themes():
    css = (resources.files("rnnsearch.evaluation") / "templates" / "report.css").read_text(encoding="utf-8")
    themes = [dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)]
    assert len(themes) == 2
    for theme in themes:
        for text in ("text", "muted", "accent"):
            assert min(css_contrast(theme[text], theme[back]) for back in ("background", "panel")) >= 4.5
        assert css_contrast(theme["link"], "#000000") >= 3
        assert css_contrast(theme["text"], theme["highlight"]) >= 4.5
        for n in range(6):
            assert min(css_contrast(theme[f"c{n}"], theme[back]) for back in ("background", "panel")) >= 4.5
    for plot in (LIGHT, DARK):
        assert min(css_contrast(c, plot.background) for c in (plot.text, plot.muted, *plot.series)) >= 4.5
    assert [LIGHT.background, DARK.background] == ["#ffffff", themes[1]["background"]]


def test_write_report(tmp_path):
    write_report(tmp_path / "report" / "index.html", Report("Größe"))
    assert "<title>Größe</title>" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (
            [
                ("w w w w", "a b c d", "a b c d"),
                ("w", "yes", "yes"),
                ("w w w w", "the red cat runs", "the red dog runs"),
                ("w w", "zzz", "a cat"),
                ("w w w w w w", "one two three for fife six", "one two three four five six"),
            ],
            {"best": 0, "median": 4, "worst": 3, "longest": 2},
        ),
        ([("w", "x", "x"), ("", "", "")], {"best": 0}),
        ([("", "", "")], {}),
    ],
)
def test_choose_examples(rows, chosen):
    translations = [translation(source.split(), text.split()) for source, text, _ in rows]
    references = [reference for *_, reference in rows]
    examples = choose_examples(translations, references)
    assert {example.label: translations.index(example.translation) for example in examples} == chosen
    with pytest.raises(DataError, match=f"got {len(rows)} and {len(rows) + 1}"):
        choose_examples(translations, [*references, "more"])


def test_pyplot_is_not_imported():
    code = "import sys, rnnsearch.evaluation.page; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_captions_do_not_overlap():
    rng = np.random.default_rng(2)
    spread = scatter(project([GroupedSentence(f"sentence {n}") for n in range(6)], rng.normal(size=(6, 5))))
    assert all(dot.caption for dot in spread)
    near = rng.normal(size=(12, 5)) * 0.01
    near[0] += 10.0
    crowded = scatter(project([GroupedSentence(f"a crowd, number {n}") for n in range(12)], near))
    captioned = [dot for dot in crowded if dot.caption]
    assert 1 < len(captioned) < 12, "there is no space for some"
    heights = sorted(dot.y + dot.caption.down for dot in captioned if dot.caption and dot.x < 320)
    assert all(b - a >= 15 for a, b in itertools.pairwise(heights))
    many = scatter(project([GroupedSentence(f"{n}") for n in range(13)], rng.normal(size=(13, 5))))
    assert not any(dot.caption for dot in many), "many dots have only tooltips"
