"""`rnnsearch filter`: dual conditional cross-entropy of sentence pairs, and what is kept by it."""

import json
import math

import numpy as np
import pytest

from rnnsearch.cli import translate_lines
from rnnsearch.evaluation.filtering import PairScores, adequacy, kept
from tests.untrained import BAHDANAU, RNNENCDEC, write_model

PAIRS = [
    ("the small cat sees the dog.", "die kleine Katze sieht den Hund."),
    ("the dog sees a big bird.", ""),
    ("A bird sees the cat!", "Ein Vogel sieht die Katze!"),
    ("the bird " * 30, "der Vogel"),
    ("Is it red?", "der Hund sieht"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a model from English to German, and of another kind from German to English."""
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "en-de", BAHDANAU), write_model(folder / "de-en", RNNENCDEC, languages=("de", "en"))


@pytest.fixture
def text(tmp_path):
    """The two files of `PAIRS`, many times."""
    paths = tmp_path / "noisy.en", tmp_path / "noisy.de"
    for path, lines in zip(paths, zip(*PAIRS, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines * 30), encoding="utf-8")
    return paths


def entropies(cli, model, source, target):
    """-log p / symbols of each pair, by `rnnsearch score`."""
    rows = map(json.loads, cli("score", model, source, target, "--format", "json").lines)
    return [-row["log_prob"] / len(row["tokens"]) for row in rows]


def test_scores_are_those_of_the_paper(cli, models, text, tmp_path):
    """Junczys-Dowmunt (2018), eq. 1 and 2, a pair at a time."""
    out = tmp_path / "scores"
    asked = ["filter", *text, "--scores", out, "--precision", "fp32", "--max-symbols", "60"]
    there, back = (entropies(cli, m, *files) for m, files in zip(models, (text, text[::-1]), strict=True))
    assert cli(*asked, "--forward", models[0], "--reverse", models[1]).code == 0
    both = list(map(float, out.read_text().splitlines()))
    assert len(both) == len(PAIRS) * 30
    for n, (one, other) in enumerate(zip(there, back, strict=True)):
        wanted = 0.0 if n % 5 in (1, 3) else math.exp(-(abs(one - other) + (one + other) / 2))
        assert both[n] == pytest.approx(wanted, rel=1e-4), n
    assert 0 < both[0] < 1 and len(set(both[:5])) == 4
    for option, model, alone in (("--forward", models[0], there), ("--reverse", models[1], back)):
        assert cli(*asked, option, model).code == 0
        of_one = list(map(float, out.read_text().splitlines()))
        assert of_one[4] == pytest.approx(math.exp(-alone[4]), rel=1e-4)
        assert of_one[1] == of_one[3] == 0


def test_what_is_kept(cli, models, text, tmp_path):
    out, kept_files = tmp_path / "scores", (tmp_path / "kept.en", tmp_path / "kept.de")
    asked = ["filter", *text, "--scores", out, "-o", *kept_files]
    result = cli(*asked, "--forward", models[0], "--reverse", models[1], "--max-symbols", "60", "--share", "0.25")
    assert result.code == 0, result.err
    assert "38 of 150 pairs kept, with scores of " in result.err
    scores, lines = list(map(float, out.read_text().splitlines())), [path.read_text().splitlines() for path in text]
    best = sorted(sorted(range(150), key=lambda n: -scores[n])[:38])
    for path, own in zip(kept_files, lines, strict=True):
        assert path.read_text().splitlines() == [own[n] for n in best]
    least = sorted({score for score in scores if score > 0})[1]
    again = cli(*asked, "--threshold", least)  # by the scores that are there
    assert again.code == 0 and "60 of 150 pairs kept" in again.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.de", "kept.en", "noisy.de", "noisy.en", "scores"]


def test_scoring_goes_on(cli, models, text, tmp_path, monkeypatch):
    monkeypatch.setattr(translate_lines, "CHUNK_BATCHES", 1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    asked = ["filter", *text, "--forward", models[0], "--reverse", models[1], "--scores"]
    assert cli(*asked, whole).code == 0
    portions, score = [], PairScores.__call__

    def dies(self, *texts):
        portions.append(len(texts[0]))
        if len(portions) == 3:
            raise KeyboardInterrupt
        return score(self, *texts)

    with monkeypatch.context() as patched:
        patched.setattr(PairScores, "__call__", dies)
        assert cli(*asked, broken).code == 130
    assert not broken.exists() and portions[0] < 75
    result = cli(*asked, broken)
    assert result.code == 0 and f"goes on after {2 * portions[0]} of 150 pairs" in result.err
    assert broken.read_bytes() == whole.read_bytes()


def test_faults(fault, models, text, tmp_path):
    short, out = tmp_path / "short", ["-o", tmp_path / "a", tmp_path / "b", "--share", "1"]
    short.write_text("0.5\n")
    said = fault("filter", *text, "--scores", short, *out)
    assert said == f"{text[0]} and {short} must have the same number of lines; got 150 and 1"
    assert "got 150 and 1" in fault("filter", text[0], short, "--scores", tmp_path / "s", "--forward", models[0])
    short.write_text("0.5\nhalf\n")
    assert fault("filter", *text, "--scores", short, *out) == f'{short}:2: must be a number; got "half"'
    swapped = ["--forward", models[0], "--reverse", models[0]]
    said = fault("filter", *text, "--scores", tmp_path / "s", *swapped)
    assert said == "the reverse model must translate from de to en; it does from en to de"
    assert not (tmp_path / "a").exists()


def test_a_score_is_lower_where_directions_differ():
    scores = adequacy([[1.0, 0.5, 2.0, 0.0], [1.0, 1.5, 2.0, 0.0]])
    assert scores == pytest.approx([math.exp(-1), math.exp(-2), math.exp(-2), 1.0])


def test_of_equal_scores_the_first_are_kept():
    scores = np.array([0.5, 0.0, 0.5, 0.9, 0.5])
    assert kept(scores, share=0.6).tolist() == [True, False, True, True, False]
    assert kept(scores, share=1.0).tolist() == [True, False, True, True, True]
    assert kept(scores, threshold=0.6).tolist() == [False, False, False, True, False]
    assert kept(scores, share=0.4, threshold=0.6).tolist() == [False, False, False, True, False]
    assert not kept(scores, share=0.0).any()
