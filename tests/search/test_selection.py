"""The selected continuations equal NumPy's stable sort."""

import numpy as np
import pytest
import torch

from rnnsearch.search.topk import BLOCK_COLUMNS, MAX_SINGLE_PASS_SCORES, best_continuations


def expected(scores, log_probs, count):
    """Return the indices of the highest sums; in a tie, the lowest index comes first."""
    ahead = log_probs - log_probs.amax(1, keepdim=True)
    total = (scores + ahead[:, :, None]).flatten(1).numpy()
    return np.argsort(-total, axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("columns", [7, BLOCK_COLUMNS * 30, BLOCK_COLUMNS * 30 + 1, BLOCK_COLUMNS * 31 - 1])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 6, 24])
def test_best_is_a_stable_sort(columns, ties, count, device):
    random = torch.Generator().manual_seed(columns + count)
    scores = torch.randn(3, 4, columns, generator=random)
    log_probs = -torch.rand(3, 4, generator=random)
    if ties:
        scores, log_probs = scores.round(), (log_probs * 3).round()
    scores[1, 2, : columns // 2] = -torch.inf
    assert columns < BLOCK_COLUMNS or 4 * columns > MAX_SINGLE_PASS_SCORES
    found = best_continuations(scores.to(device), log_probs.to(device), count).cpu()
    np.testing.assert_array_equal(found, expected(scores, log_probs, count))


def test_empty_slots_are_chosen_last():
    scores, log_probs = torch.zeros(1, 2, BLOCK_COLUMNS * 40), torch.tensor([[-3.0, -torch.inf]])
    assert best_continuations(scores, log_probs, 50)[0].tolist() == list(range(50))


def test_allowed_continuations_come_first_and_are_distinct():
    scores = torch.full((1, 2, BLOCK_COLUMNS * 40 + 5), -torch.inf)
    scores[0, 1, 2561] = scores[0, 0, 9] = -1.0
    chosen = best_continuations(scores, torch.zeros(1, 2), 8)[0].tolist()
    assert chosen[:2] == [9, BLOCK_COLUMNS * 40 + 5 + 2561]
    assert len(set(chosen)) == 8


@pytest.mark.parametrize("columns", [9, BLOCK_COLUMNS * 80 + 3])
def test_nan_is_always_chosen(columns):
    scores = torch.zeros(2, 1, columns)
    scores[1, 0, columns - 2] = torch.nan
    assert best_continuations(scores, torch.zeros(2, 1), 1).tolist() == [[0], [columns - 2]]


def test_all_continuations_are_returned_if_too_few():
    assert best_continuations(torch.zeros(1, 1, 5), torch.zeros(1, 1), 12).tolist() == [[0, 1, 2, 3, 4]]


def test_long_hypotheses_keep_small_score_differences():
    scores = torch.tensor([[[-1.0, -0.9999999, -1.0]]])
    assert scores[0, 0, 1] - 4000 == scores[0, 0, 0] - 4000
    assert best_continuations(scores, torch.tensor([[-4000.0]]), 1).tolist() == [[1]]
