"""BLEU against a plain loop over the paper's formula; the edges that corpora really have."""

import math
from collections import Counter

import pytest

from rnnsearch.errors import DataError
from rnnsearch.metrics.scores import bleu_tokeniser, corpus_bleu, corpus_scores, looks_tokenised, sentence_chrf

HYPOTHESES = [
    "the cat sat on the mat in the house",
    "a man rides a red horse along the beach",
    "it rains in the spring and in the autumn too",
]
REFERENCES = [
    "the cat sat on a mat in the old house",
    "a man is riding a red horse along the beach",
    "it rains in spring and in the autumn",
]


def plain_bleu(hypotheses: list[str], *sets: list[str]) -> float:
    """Papineni et al. (2002): brevity penalty times the geometric mean of the n-gram precisions, clipped by the
    greatest count in any reference; each sentence's reference length is the one nearest to its own."""
    logs = []
    for order in range(1, 5):
        matched = total = 0
        for hypothesis, *references in zip(hypotheses, *sets, strict=True):
            found = Counter(zip(*[hypothesis.split()[n:] for n in range(order)], strict=False))
            there = Counter[tuple[str, ...]]()
            for reference in references:
                there |= Counter(zip(*[reference.split()[n:] for n in range(order)], strict=False))
            matched += sum((found & there).values())
            total += sum(found.values())
        logs.append(math.log(matched / total))
    made = sum(len(h.split()) for h in hypotheses)
    wanted = 0
    for hypothesis, *references in zip(hypotheses, *sets, strict=True):
        length = len(hypothesis.split())
        wanted += min((len(r.split()) for r in references), key=lambda own: (abs(own - length), own))
    return 100 * min(1.0, math.exp(1 - wanted / made)) * math.exp(sum(logs) / 4)


def test_bleu_equals_the_formula() -> None:
    assert corpus_bleu(HYPOTHESES, REFERENCES) == pytest.approx(plain_bleu(HYPOTHESES, REFERENCES))


def test_several_references_are_supported() -> None:
    others = [
        "the cat sat on the rug",
        "a man rides along the beach on his red horse",
        "in spring it rains, in autumn too",
    ]
    expected = plain_bleu(HYPOTHESES, REFERENCES, others)
    assert expected > plain_bleu(HYPOTHESES, REFERENCES)
    assert corpus_bleu(HYPOTHESES, REFERENCES, more_references=[others]) == pytest.approx(expected)
    scores = corpus_scores(HYPOTHESES, REFERENCES, more_references=[others, HYPOTHESES])
    assert [score.value for score in scores] == [100.0, 100.0, 0.0]
    assert all(score.signature.startswith("nrefs:3|") for score in scores)
    with pytest.raises(DataError, match="further references and references must have the same number of lines"):
        corpus_bleu(HYPOTHESES, REFERENCES, more_references=[others[1:]])


def test_a_short_translation_is_penalised() -> None:
    short = [" ".join(r.split()[:6]) for r in REFERENCES]
    assert corpus_bleu(short, REFERENCES) == pytest.approx(plain_bleu(short, REFERENCES))
    assert corpus_bleu(short, REFERENCES) < 65


def test_corpus_scores_carry_signatures() -> None:
    scores = {score.name: score for score in corpus_scores(HYPOTHESES, REFERENCES)}
    assert list(scores) == ["BLEU", "chrF2", "TER"]
    assert scores["BLEU"].value == corpus_bleu(HYPOTHESES, REFERENCES)
    assert "case:mixed" in scores["BLEU"].signature
    assert "tok:13a" in scores["BLEU"].signature
    assert "nc:6" in scores["chrF2"].signature
    assert scores["TER"].lower_is_better
    assert not scores["BLEU"].lower_is_better
    assert str(scores["BLEU"]).startswith(f"BLEU = {scores['BLEU'].value:.2f} (nrefs:1|")


def test_perfect_corpus_has_perfect_scores() -> None:
    values = [score.value for score in corpus_scores(REFERENCES, REFERENCES)]
    assert values == [100.0, 100.0, 0.0]


def test_empty_lines_are_scored() -> None:
    with_empty = corpus_scores([*HYPOTHESES, ""], [*REFERENCES, ""])
    without = corpus_scores(HYPOTHESES, REFERENCES)
    assert [s.value for s in with_empty] == pytest.approx([s.value for s in without])
    assert [s.value for s in corpus_scores([""], ["a b c d"])] == [0.0, 0.0, 100.0]


def test_different_numbers_of_lines_raise_data_error() -> None:
    with pytest.raises(DataError, match=r"hypotheses and references must have the same number.*got 2 and 3"):
        corpus_scores(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(DataError, match="got 2 and 3"):
        corpus_bleu(HYPOTHESES[:2], REFERENCES)


def test_no_lines_raise_data_error() -> None:
    with pytest.raises(DataError, match="at least one sentence to score; got none"):
        corpus_bleu([], [])


def test_languages_without_spaces_are_split() -> None:
    assert bleu_tokeniser("zh_CN") == "zh"
    assert bleu_tokeniser("ja") == "char"
    assert bleu_tokeniser("jam") == "13a"
    hypothesis, reference = ["私は学生でした。"], ["私は学生です。"]
    assert corpus_bleu(hypothesis, reference) == 0.0
    assert corpus_bleu(hypothesis, reference, "ja") > 40
    scores = {s.name: s for s in corpus_scores(hypothesis, reference, "ja")}
    assert "tok:char" in scores["BLEU"].signature
    assert "asian:yes" in scores["TER"].signature
    assert scores["TER"].value < 100


def test_sentence_scores() -> None:
    assert sentence_chrf(REFERENCES[0], REFERENCES[0]) == 100.0
    assert sentence_chrf("zzz", REFERENCES[0]) == 0.0
    assert 0 < sentence_chrf(HYPOTHESES[0], REFERENCES[0]) < 100


def test_tokenised_text_is_detected(caplog: pytest.LogCaptureFixture) -> None:
    tokenised = [f"a house {n} ." for n in range(120)]
    assert looks_tokenised(tokenised)
    assert not looks_tokenised([line.replace(" .", ".") for line in tokenised])
    assert not looks_tokenised(tokenised[:3])
    corpus_scores(tokenised, tokenised)
    assert not caplog.records
