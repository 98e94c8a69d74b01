"""A model on a test set: what is scored, with which search, and what is written."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rnnsearch.errors import ModelError
from rnnsearch.evaluation.assess import assess, record
from rnnsearch.evaluation.report import write_assessment
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.alignments import parse_pharaoh
from rnnsearch.translator.translator import Translator
from tests.untrained import BAHDANAU, RNNENCDEC, untrained

SOURCES = ["the cat sees the dog", "a bird", "the zebra sees a bird"]
REFERENCES = ["die Katze sieht den Hund", "Ein Vogel", "das Zebra sieht einen Vogel"]
KNOWN = [True, True, False]


class Canned(Translator):
    """Answers with given translations, and records how it was asked."""

    def __init__(self, loaded: TranslationSystem, answers: dict[str, str]) -> None:
        super().__init__(loaded)
        self.answers = answers
        self.asked: list[tuple[list[str], SearchOptions]] = []

    def n_best(self, texts: Sequence[str], options: SearchOptions | None = None, *args: Any, **rest: Any) -> Any:
        self.asked.append((list(texts), options))
        known = self.score(texts, [self.answers[text] for text in texts])
        return [[replace(t, text=self.answers[t.source])] for t in known]


@pytest.fixture
def perfect() -> Canned:
    return Canned(untrained(BAHDANAU), dict(zip(SOURCES, REFERENCES, strict=True)))


def test_a_perfect_system_scores_100(perfect):
    found = assess(perfect, SOURCES, REFERENCES, "mine")
    assert (found.evaluation.name, found.evaluation.bleu) == ("mine", pytest.approx(100.0))
    assert found.evaluation.no_unk_sentences == 2
    assert [t.text for t in found.translations] == REFERENCES


def test_the_second_column_translates_known_sentences_anew_without_unk(perfect):
    options = perfect.options(beam=7, length_penalty=0.5)
    found = assess(perfect, SOURCES, REFERENCES, options=options)
    (first, second) = perfect.asked
    assert first == (SOURCES, options)
    assert second[0] == [source for source, known in zip(SOURCES, KNOWN, strict=True) if known]
    assert (second[1].beam, second[1].length_penalty) == (7, 0.5)
    assert second[1].banned, "UNK is banned"
    assert found.options == options
    assert assess(perfect, SOURCES[:2], REFERENCES[:2]).evaluation.no_unk_sentences is None
    assert len(perfect.asked) == 3, "without unknown words there is one column"


def test_a_baseline_and_gold_links(perfect):
    gold = [parse_pharaoh(line, "g") for line in ("0-0 1-1", "0-0 1p1", "")]
    found = assess(perfect, SOURCES, REFERENCES, baseline=("other", ["der"] * 3), gold=("g", gold))
    assert found.evaluation.baseline == "other"
    assert found.evaluation.comparison is not None
    pairs = perfect.score(SOURCES, REFERENCES)
    assert found.evaluation.alignment.links == sum(len(pair.alignment) for pair in pairs)


def test_gold_links_need_attention_before_anything_is_translated():
    without = Canned(untrained(RNNENCDEC), dict(zip(SOURCES, REFERENCES, strict=True)))
    with pytest.raises(ModelError, match="this needs an aligner, which the model has not"):
        assess(without, SOURCES, REFERENCES, gold=("g", [parse_pharaoh("0-0", "g")] * 3))
    assert without.asked == []


def test_what_is_written(perfect, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.toml").write_text("[search]\nbeam = 5\n")
    perfect.answers[SOURCES[1]] = "Ein\nVogel"
    found = assess(perfect, SOURCES, REFERENCES, options=perfect.options(beam=9))
    page = write_assessment(tmp_path / "new" / "report", perfect, model, found, "a & b")
    assert page == tmp_path / "new" / "report" / "report.html"
    lines = (page.parent / "translations.txt").read_text(encoding="utf-8").split("\n")
    assert lines == [REFERENCES[0], "Ein Vogel", REFERENCES[2], ""]
    assert "beam 9, length penalty 1" in page.read_text(encoding="utf-8")
    assert not record(model, found, "a & b")
    assert sorted(path.name for path in model.iterdir()) == ["config.toml"], "it was not trained here: no card"


def test_a_report_of_a_model_without_attention(tmp_path):
    without = Canned(untrained(RNNENCDEC), dict(zip(SOURCES, REFERENCES, strict=True)))
    (tmp_path / "config.toml").write_text("")
    page = write_assessment(tmp_path / "report", without, tmp_path, assess(without, SOURCES, REFERENCES), "test")
    assert REFERENCES[0] in page.read_text(encoding="utf-8")
    assert list(page.parent.glob("attention-*")) == []


def test_the_names_that_scripts_know():
    import rnnsearch.assess
    import rnnsearch.reporting

    assert rnnsearch.assess.assess is assess
    assert rnnsearch.reporting.write_assessment is write_assessment
