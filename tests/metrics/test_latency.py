"""Average lagging, compared with values calculated by hand from Ma et al. (2019)."""

import pytest

from rnnsearch.metrics.latency import average_lagging, average_proportion


@pytest.mark.parametrize("k", [1, 3, 5])
def test_wait_k_lags_k_words_behind_a_source_of_the_same_length(k):
    delays = [min(t + k - 1, 8) for t in range(1, 9)]
    assert average_lagging(delays, 8) == pytest.approx(k)


def test_whole_sentences_lag_their_length():
    assert average_lagging([7, 7, 7, 7], 7) == 7


def test_longer_translation_has_a_higher_rate():
    # gamma = 2, tau = 5: (2 - 0) + (2 - 0.5) + (3 - 1) + (3 - 1.5) + (4 - 2) = 9
    assert average_lagging([2, 2, 3, 3, 4, 4, 4, 4], 4) == pytest.approx(9 / 5)


def test_translation_that_ends_before_its_source_counts_all_its_words():
    assert average_lagging([1, 2], 4) == pytest.approx(((1 - 0) + (2 - 2)) / 2)
    assert average_lagging([], 4) == 0.0


def test_average_proportion_is_the_mean_fraction_that_has_been_read():
    assert average_proportion([4, 4], 4) == 1.0
    assert average_proportion([1, 2, 3], 4) == pytest.approx((1 + 2 + 3) / 12)
    assert average_proportion([], 4) == 0.0
