"""`rnnsearch filter`: dual conditional cross-entropy of sentence pairs, and selection by it."""

import json
import math

import numpy as np
import pytest

from rnnsearch.cli import pairs
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
    """Return model folders from English to German, and with another architecture from German to English."""
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "en-de", BAHDANAU), write_model(folder / "de-en", RNNENCDEC, languages=("de", "en"))


@pytest.fixture
def text(tmp_path):
    """Return two files that contain `PAIRS` many times."""
    paths = tmp_path / "noisy.en", tmp_path / "noisy.de"
    for path, lines in zip(paths, zip(*PAIRS, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines * 30), encoding="utf-8")
    return paths


def entropies(cli, model, source, target):
    """Return -log p / tokens of each pair, from `rnnsearch score`."""
    rows = map(json.loads, cli("score", model, source, target, "--format", "json").lines)
    return [-row["log_prob"] / len(row["tokens"]) for row in rows]


def test_scores_equal_the_equations_of_the_paper(cli, models, text, tmp_path):
    """See Junczys-Dowmunt (2018), eq. 1 and 2."""
    out = tmp_path / "scores"
    command = ["filter", *text, "--scores", out, "--precision", "fp32", "--max-symbols", "60"]
    forward, backward = (entropies(cli, m, *files) for m, files in zip(models, (text, text[::-1]), strict=True))
    assert cli(*command, "--forward", models[0], "--reverse", models[1]).code == 0
    scores = list(map(float, out.read_text().splitlines()))
    assert len(scores) == len(PAIRS) * 30
    for n, (one, other) in enumerate(zip(forward, backward, strict=True)):
        expected = 0.0 if n % 5 in (1, 3) else math.exp(-(abs(one - other) + (one + other) / 2))
        assert scores[n] == pytest.approx(expected, rel=1e-4), n
    assert 0 < scores[0] < 1 and len(set(scores[:5])) == 4
    for option, model, entropies_of_model in (("--forward", models[0], forward), ("--reverse", models[1], backward)):
        assert cli(*command, option, model).code == 0
        scores_of_model = list(map(float, out.read_text().splitlines()))
        assert scores_of_model[4] == pytest.approx(math.exp(-entropies_of_model[4]), rel=1e-4)
        assert scores_of_model[1] == scores_of_model[3] == 0


def test_best_pairs_are_selected(cli, models, text, tmp_path):
    out = tmp_path / "scores"
    best_files = (tmp_path / "best.en", tmp_path / "best.de")
    command = ["filter", *text, "--scores", out, "-o", *best_files]
    result = cli(*command, "--forward", models[0], "--reverse", models[1], "--max-symbols", "60", "--share", "0.25")
    assert result.code == 0, result.err
    assert "38 of 150 pairs selected, with scores of " in result.err
    scores = list(map(float, out.read_text().splitlines()))
    lines = [path.read_text().splitlines() for path in text]
    best = sorted(sorted(range(150), key=lambda n: -scores[n])[:38])
    for path, side in zip(best_files, lines, strict=True):
        assert path.read_text().splitlines() == [side[n] for n in best]
    threshold = sorted({score for score in scores if score > 0})[1]
    result_of_threshold = cli(*command, "--threshold", threshold)  # reads the scores
    assert result_of_threshold.code == 0 and "60 of 150 pairs selected" in result_of_threshold.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.de", "best.en", "noisy.de", "noisy.en", "scores"]


def test_killed_scoring_is_resumed(cli, models, text, tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "BATCHES_PER_CHUNK", 1)
    expected_file = tmp_path / "whole"
    output = tmp_path / "broken"
    command = ["filter", *text, "--forward", models[0], "--reverse", models[1], "--scores"]
    assert cli(*command, expected_file).code == 0
    chunk_sizes = []
    score = PairScores.__call__

    def interrupt(self, *texts):
        chunk_sizes.append(len(texts[0]))
        if len(chunk_sizes) == 3:
            raise KeyboardInterrupt
        return score(self, *texts)

    with monkeypatch.context() as patched:
        patched.setattr(PairScores, "__call__", interrupt)
        assert cli(*command, output).code == 130
    assert not output.exists() and chunk_sizes[0] < 75
    result = cli(*command, output)
    assert result.code == 0 and f"resuming after {2 * chunk_sizes[0]} of 150 pairs" in result.err
    assert output.read_bytes() == expected_file.read_bytes()


def test_errors(user_error, models, text, tmp_path):
    short = tmp_path / "short"
    out = ["-o", tmp_path / "a", tmp_path / "b", "--share", "1"]
    short.write_text("0.5\n")
    message = user_error("filter", *text, "--scores", short, *out)
    assert message == f"{text[0]} and {short} must have the same number of lines; got 150 and 1"
    assert "got 150 and 1" in user_error("filter", text[0], short, "--scores", tmp_path / "s", "--forward", models[0])
    short.write_text("0.5\nhalf\n")
    assert user_error("filter", *text, "--scores", short, *out) == f'{short}:2: must be a number; got "half"'
    swapped = ["--forward", models[0], "--reverse", models[0]]
    message = user_error("filter", *text, "--scores", tmp_path / "s", *swapped)
    assert message == "the reverse model must translate from de to en; got en to de"
    assert not (tmp_path / "a").exists()


def test_score_is_lower_if_directions_differ():
    scores = adequacy([[1.0, 0.5, 2.0, 0.0], [1.0, 1.5, 2.0, 0.0]])
    assert scores == pytest.approx([math.exp(-1), math.exp(-2), math.exp(-2), 1.0])


def test_first_of_equal_scores_are_selected():
    scores = np.array([0.5, 0.0, 0.5, 0.9, 0.5])
    assert kept(scores, share=0.6).tolist() == [True, False, True, True, False]
    assert kept(scores, share=1.0).tolist() == [True, False, True, True, True]
    assert kept(scores, threshold=0.6).tolist() == [False, False, False, True, False]
    assert kept(scores, share=0.4, threshold=0.6).tolist() == [False, False, False, True, False]
    assert not kept(scores, share=0.0).any()
