"""Verdicts on a run at its end."""

import pytest

from rnnsearch.training.summary import verdicts


def rows(dev, train=None, every=1.0):
    train = train or [3.0 - n / 10 for n in range(len(dev))]
    return [
        {"epoch": every * n, "dev_nll_per_word": d, "train_nll_per_word": t, "best": True}
        for n, (d, t) in enumerate(zip(dev, train, strict=True), 1)
    ]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (rows([4.0, 3.0, 2.94]), "the dev NLL was still falling at the end, by 2.0% per epoch: a longer run would be"),
        (rows([4.0, 3.0, 2.96, 2.94], every=0.5), "the dev NLL was still falling at the end, by 2.0% per epoch"),
        (rows([4.0, 3.0, 2.94], every=5.0), "the dev NLL hardly falls any more (0.4% per epoch): this run has"),
        (rows([4.0, 3.0, 2.99]), "the dev NLL hardly falls any more (0.3% per epoch): this run has converged"),
        (
            rows([4.0, 3.0, 3.1, 3.3]),
            "overfitted since epoch 2: the dev NLL has risen by 10.0% since; the model has the best",
        ),
        (rows([4.0, 3.0, 3.1, 3.3, 3.2], [3.0] * 5), "the dev NLL no longer falls (its best was after epoch 2): this"),
        (
            rows([4.0, 3.0, 3.01]),
            "the dev NLL fell by 25.0% per epoch until epoch 2, but not in the 1 evaluation since: a longer",
        ),
        (rows([5.0, 4.5, 4.1, 3.8, 3.6, 3.603], every=0.2), "the dev NLL fell by 35.0% per epoch until epoch 1, but"),
        (rows([4.0, 3.0, 3.01, 3.0, 3.02]), "the dev NLL no longer falls (its best was after epoch 2): this run has"),
        (rows([4.0, 3.0, 2.99, 2.995]), "the dev NLL no longer falls (its best was after epoch 3): this run has"),
        (rows([4.0, float("nan"), 3.0, 2.7]), "the dev NLL was still falling at the end, by 10.0% per epoch"),
    ],
)
def test_verdict_depends_on_dev_scores(history, expected):
    [verdict] = verdicts(history, {"en": 0.0, "de": 0.01}, "dev set")
    assert verdict.startswith(expected)
    averaged = {**history[-1], "averaged": 4, "dev_nll_per_word": 99.0}
    assert verdicts([*history, averaged], {}, "dev set") == [verdict], (
        "averaged weights are not an evaluation of the run"
    )


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (
            [4.0, 3.0, 2.99],
            "the dev NLL hardly falls any more (0.3% per epoch) at a learning rate that was still to be",
        ),
        ([4.0, 3.0, 2.99, 2.992], "the dev NLL no longer falls (its best was after epoch 3) at a learning rate that"),
        ([4.0, 3.0, 2.94], "the dev NLL was still falling at the end"),
        ([4.0, 3.0, 3.01], "the dev NLL fell by 25.0% per epoch until epoch 2, but not in the 1 evaluation since"),
        (
            [4.0, 3.0, 3.01, 3.0, 3.02],
            "the dev NLL no longer falls (its best was after epoch 2) at a learning rate that",
        ),
    ],
)
def test_no_convergence_before_the_rate_is_lowered(scores, expected):
    [verdict] = verdicts(rows(scores), {}, "dev set", early=True)
    assert verdict.startswith(expected)


def test_no_verdict_on_the_nll_of_a_frozen_model():
    assert verdicts([{**row, "dev_reward": 0.5} for row in rows([4.0, 4.0, 4.0, 4.0])], {}, "dev set") == []


def test_no_verdict_with_too_few_evaluations():
    assert verdicts(rows([4.0, 3.0]), {}, "dev set") == []
    assert verdicts([], {}, "dev set") == []


def test_many_unknown_words_are_reported():
    [verdict] = verdicts([], {"en": 0.01, "de": 0.124}, "dev set")
    assert verdict == '12% of the dev set in de are unknown words: use text.type = "bpe"'


def test_run_ends_with_verdict(learn):
    recorder = learn(optimiser={"type": "sgd", "learning_rate": 0.5}, evaluate_every=2, max_updates=8)
    ended = next(n for n, message in enumerate(recorder.messages) if message.startswith("training ended"))
    assert any("the dev NLL" in message for message in recorder.messages[ended + 1 :])
