"""How translations and translators look in a console and in a notebook."""

import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rnnsearch
from rnnsearch.systems.card import add_scores

MODEL = Path(__file__).parent / "old_models" / "words"


@pytest.fixture(scope="module")
def translator():
    return rnnsearch.load(MODEL)


@pytest.fixture(scope="module")
def translation(translator):
    return translator.translate("the dog sees a cat")


def test_repr_is_one_short_line(translation):
    assert repr(translation) == f"Translation({translation.text!r}, score={translation.score:.2f})"
    long = repr(replace(translation, text="word " * 100, word_confidence=(0.5, 1.0)))
    assert long.endswith(f"…', score={translation.score:.2f}, confidence=0.75)")
    assert len(long) < 120
    assert "\n" not in repr(replace(translation, text="two\nlines"))


def test_html_shows_the_aligned_source_words_below_each_word(translation):
    document = ElementTree.fromstring(translation._repr_html_())
    words, sources = ([cell.text or "" for cell in row] for row in document.find("table"))
    assert words == list(translation.words)
    for target, linked in enumerate(sources):
        expected = [translation.source_words[i] for i, j in sorted(translation.alignment) if j == target]
        assert linked.split() == expected


def test_html_escapes_text(translation):
    words = ("<b>",) * len(translation.words)
    html = replace(translation, source="<script>", words=words)._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html


def test_plot_without_a_path_is_displayed_by_notebooks(translation, tmp_path):
    plot = translation.plot()
    assert "<svg" in plot._repr_svg_()
    assert "plot(path)" in repr(plot)
    assert translation.plot(tmp_path / "a.svg") == tmp_path / "a.svg"


def test_translator_shows_languages_size_and_bleu(translator, tmp_path):
    plain = f"<Translator en to de, {translator.parameters / 1e6:.1f} million parameters>"
    assert repr(translator) == plain
    folder = tmp_path / "scored"
    shutil.copytree(MODEL, folder)
    (folder / "training.json").unlink()  # the card would need all scores
    scores = [{"name": "BLEU", "value": 12.34, "signature": ""}]
    add_scores(folder, {"scores": scores, "set": "test.de", "text": "", "search": ""})
    assert repr(rnnsearch.load(folder)) == f"{plain[:-1]}, BLEU 12.3 on test.de>"
    assert repr(rnnsearch.load([folder, MODEL])).endswith("million parameters>")
    (folder / "scores.json").write_text("[1]")
    assert repr(rnnsearch.load(folder)) == plain
