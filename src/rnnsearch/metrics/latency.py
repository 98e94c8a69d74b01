"""Latency of simultaneous translation: how far a translation is behind its source.

Torch-free. Tests: tests/metrics/test_latency.py.
"""

from collections.abc import Sequence


def average_proportion(delays: Sequence[int], source_length: int) -> float:
    """Return the average proportion d = 1 / (|x| |y|) sum_t g(t) (Cho & Esipova 2016), 0 for an empty translation.

    It is 1 if the whole source is read first. The arguments are those of `average_lagging`.
    """
    return sum(delays) / (source_length * len(delays)) if delays else 0.0


def average_lagging(delays: Sequence[int], source_length: int) -> float:
    """Return the average lagging AL in source words (Ma et al. 2019, eq. 8-9), 0 for an empty translation.

        AL = 1 / tau sum_{t=1}^{tau} (g(t) - (t - 1) / gamma),  gamma = |y| / |x|

    g(t) is the number of source words that had been read when target word t was written, and tau is the first t with
    g(t) = |x|. It is the mean number of source words by which the translation is behind an ideal one, which writes at
    the rate of the source without any delay. With k words before the first target word, one per target word, and texts
    of the same length, it is k. It can be negative for a translation that is longer than its source.

    Args:
        delays: g(t) for each target word.
        source_length: Number of source words |x|.
    """
    if not delays:
        return 0.0
    rate = len(delays) / source_length  # gamma
    total = 0.0
    for t, delay in enumerate(delays, start=1):
        total += delay - (t - 1) / rate
        if delay >= source_length:
            return total / t
    # The translation ended before the source.
    return total / len(delays)
