"""Evaluation of a model on a test set: scores, search options and written files."""

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
IS_KNOWN = [True, True, False]


class CannedTranslator(Translator):
    """Returns fixed translations and records the requests."""

    def __init__(self, loaded: TranslationSystem, answers: dict[str, str]) -> None:
        super().__init__(loaded)
        self.answers = answers
        self.requests: list[tuple[list[str], SearchOptions]] = []

    def n_best(self, texts: Sequence[str], options: SearchOptions | None = None, *args: Any, **kwargs: Any) -> Any:
        self.requests.append((list(texts), options))
        scored = self.score(texts, [self.answers[text] for text in texts])
        return [[replace(t, text=self.answers[t.source])] for t in scored]


@pytest.fixture
def perfect() -> CannedTranslator:
    return CannedTranslator(untrained(BAHDANAU), dict(zip(SOURCES, REFERENCES, strict=True)))


def test_perfect_translations_score_100(perfect):
    assessment = assess(perfect, SOURCES, REFERENCES, "mine")
    assert (assessment.evaluation.name, assessment.evaluation.bleu) == ("mine", pytest.approx(100.0))
    assert assessment.evaluation.no_unk_sentences == 2
    assert [t.text for t in assessment.translations] == REFERENCES


def test_sentences_without_unknown_words_are_translated_again_without_unk(perfect):
    options = perfect.options(beam=7, length_penalty=0.5, max_length=30, no_repeat_ngram=3)
    assessment = assess(perfect, SOURCES, REFERENCES, options=options)
    (first, second) = perfect.requests
    assert first == (SOURCES, options)
    assert second[0] == [source for source, known in zip(SOURCES, IS_KNOWN, strict=True) if known]
    assert second[1] == replace(options, banned=perfect.target.unknown_ids), "only UNK is banned in addition"
    assert assessment.options == options
    assert assess(perfect, SOURCES[:2], REFERENCES[:2]).evaluation.no_unk_sentences is None
    assert len(perfect.requests) == 3, "without unknown words, nothing is translated twice"


def test_baseline_and_gold_links_are_scored(perfect):
    gold = [parse_pharaoh(line, "g") for line in ("0-0 1-1", "0-0 1p1", "")]
    assessment = assess(perfect, SOURCES, REFERENCES, baseline=("other", ["der"] * 3), gold=("g", gold))
    assert assessment.evaluation.baseline == "other"
    assert assessment.evaluation.comparison is not None
    pairs = perfect.score(SOURCES, REFERENCES)
    assert assessment.evaluation.alignment.links == sum(len(pair.alignment) for pair in pairs)


def test_gold_links_need_alignments():
    translator = CannedTranslator(untrained(RNNENCDEC), dict(zip(SOURCES, REFERENCES, strict=True)))
    with pytest.raises(ModelError, match="this needs an aligner, which the model does not have"):
        assess(translator, SOURCES, REFERENCES, gold=("g", [parse_pharaoh("0-0", "g")] * 3))
    assert translator.requests == []


def test_written_files(perfect, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.toml").write_text("[search]\nbeam = 5\n")
    perfect.answers[SOURCES[1]] = "Ein\nVogel"
    assessment = assess(perfect, SOURCES, REFERENCES, options=perfect.options(beam=9))
    page = write_assessment(tmp_path / "new" / "report", perfect, model, assessment, "a & b")
    assert page == tmp_path / "new" / "report" / "report.html"
    lines = (page.parent / "translations.txt").read_text(encoding="utf-8").split("\n")
    assert lines == [REFERENCES[0], "Ein Vogel", REFERENCES[2], ""]
    assert "beam 9, length penalty 1" in page.read_text(encoding="utf-8")
    assert not record(model, assessment, "a & b")
    assert sorted(path.name for path in model.iterdir()) == ["config.toml"], (
        "a model that rnnsearch did not train has no card"
    )


def test_report_of_model_without_attention(tmp_path):
    translator = CannedTranslator(untrained(RNNENCDEC), dict(zip(SOURCES, REFERENCES, strict=True)))
    (tmp_path / "config.toml").write_text("")
    page = write_assessment(tmp_path / "report", translator, tmp_path, assess(translator, SOURCES, REFERENCES), "test")
    assert REFERENCES[0] in page.read_text(encoding="utf-8")
    assert list(page.parent.glob("attention-*")) == []
