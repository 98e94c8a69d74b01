"""Scores of one system as text and as JSON; optional parts appear only if their input is given."""

import json

import pytest

from rnnsearch.errors import DataError
from rnnsearch.evaluation.corpus_scores import evaluate, paper_table
from rnnsearch.metrics.alignment_error import AlignmentScores
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.utils.tables import as_markdown

REFERENCES = [f"the man number {n} sits on the red bench number {n}" for n in range(30)]
HYPOTHESES = [r.replace("red", "old") if n % 3 else r for n, r in enumerate(REFERENCES)]
SOURCES = [("wort " * (3 + n)).strip() for n in range(30)]


def test_evaluation_without_optional_parts():
    evaluation = evaluate(HYPOTHESES, REFERENCES, name="small")
    assert evaluation.bleu == corpus_bleu(HYPOTHESES, REFERENCES)
    assert evaluation.no_unk_bleu is None
    text = evaluation.to_text().splitlines()
    assert text[0].split() == ["all", "(30)", "signature"]
    assert text[1].split()[:2] == ["BLEU", f"{evaluation.bleu:.2f}"]
    assert len(text) == 4
    assert set(evaluation.as_dict()) == {"name", "sentences", "scores"}


def test_evaluation_with_all_parts():
    evaluation = evaluate(
        HYPOTHESES,
        REFERENCES,
        name="small",
        sources=SOURCES,
        no_unk=[None if n % 3 else reference for n, reference in enumerate(REFERENCES)],
        baseline=("rival", [r.replace("bench", "bank") for r in REFERENCES]),
        samples=40,
        alignment=AlignmentScores(0.25, 0.75, 0.8, 12),
    )
    assert evaluation.no_unk_sentences == 10
    assert evaluation.no_unk_bleu == 100.0
    values = json.loads(json.dumps(evaluation.as_dict()))
    assert values["no_unk"]["sentences"] == 10
    assert values["by_length"][0]["low"] == 1
    assert values["comparison"]["baseline"] == "rival"
    assert values["alignment"]["aer"] == 0.25
    text = evaluation.to_text()
    assert "no UNK (10)" in text
    assert "paired bootstrap, 40 resamples" in text
    assert "rival" in text
    assert "source words  sentences" in text
    assert "AER = 0.250" in text
    assert paper_table([evaluation]) == [
        ["Model", "All", "No UNK"],
        ["small", f"{evaluation.bleu:.2f}", "100.00"],
    ]


def test_no_scores_if_all_sentences_have_unknown_words():
    evaluation = evaluate(HYPOTHESES, REFERENCES, no_unk=[None] * 30)
    assert evaluation.no_unk_sentences == 0
    assert evaluation.no_unk_bleu is None
    assert evaluation.to_text().splitlines()[1].split()[2] == "-"
    assert paper_table([evaluation])[1][2] == "-"


def test_different_numbers_of_lines_are_rejected():
    with pytest.raises(DataError, match="one entry per reference; got 2 for 30"):
        evaluate(HYPOTHESES, REFERENCES, no_unk=HYPOTHESES[:2])
    with pytest.raises(DataError, match="got 29 and 30"):
        evaluate(HYPOTHESES[1:], REFERENCES)
    with pytest.raises(DataError, match=r"sources and references .*got 29 and 30"):
        evaluate(HYPOTHESES, REFERENCES, sources=SOURCES[1:])


def test_tokenised_references_get_a_note():
    tokenised = [f"{r} ." for r in REFERENCES]
    evaluation = evaluate(tokenised, tokenised)
    assert "look tokenised" in evaluation.to_text()
    assert "look tokenised" in evaluation.as_dict()["note"]
    assert "tokenised" not in evaluate(HYPOTHESES, REFERENCES).to_text()


def test_markdown_table():
    assert as_markdown([["Model", "All"], ["a|b", "1.00"]]) == "| Model | All |\n| --- | ---: |\n| a\\|b | 1.00 |\n"
