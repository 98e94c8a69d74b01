"""Scores of single sentences, between 0 and 1 with 1 the best: smoothed BLEU, chrF, 1 - TER, or a user's function.

Training computes them in worker processes, so this module must not import torch. Tests:
tests/metrics/test_sentence_scores.py.

Axes: N pairs of hypothesis and reference, T texts, L words of a text, G n-grams of all texts.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from numbers import Real

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.ter import TER

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.scores import sentence_chrf

Scores = NDArray[np.float64]
"""[N], one score per pair."""
SentenceFunction = Callable[[str, str], float]
"""Returns the score of a hypothesis, given its reference."""

MAX_ORDER = 4
"""Maximum length of the n-grams that BLEU counts."""


def smoothed_bleu(hypotheses: Sequence[str], references: Sequence[str], *, brevity_penalty: bool = True) -> Scores:
    """Return BLEU of each pair with 1 added to matches and totals of n-grams of two or more words (Lin & Och 2004).

        BLEU = min(1, e^(1 - r / c)) (prod_n p_n)^(1/4),  p_1 = m_1 / t_1,  p_n = (m_n + 1) / (t_n + 1)

    for c words of the hypothesis, r of the reference, m_n matching n-grams (each at most as often as in the reference)
    of t_n. Words are separated by spaces. `brevity_penalty = False` leaves the first factor out.
    """
    if not hypotheses:
        return np.zeros(0)
    index = {text: number for number, text in enumerate(dict.fromkeys([*hypotheses, *references]))}
    words, lengths = _word_ids(list(index))  # [T, L], [T]
    hypothesis_rows = np.array([index[text] for text in hypotheses])  # [N], rows of `words`
    reference_rows = np.array([index[text] for text in references])
    length = lengths[hypothesis_rows].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A hypothesis without words has no matches, and a precision of 0.
        log_brevity = np.minimum(0.0, 1.0 - lengths[reference_rows] / length)
        log_precision = np.zeros(len(hypotheses))
        grams = words
        for n in range(1, MAX_ORDER + 1):
            if n > 1:
                grams = _extend(grams, words[:, n - 1 :])
            matches = _matches(grams, hypothesis_rows, reference_rows) + (n > 1)
            totals = np.maximum(length - (n - 1), 0.0) + (n > 1)
            log_precision += np.log(matches / totals) / MAX_ORDER
        values = np.exp(log_precision + log_brevity * brevity_penalty)
    return np.where(length > 0, values, 0.0)


def _word_ids(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the words of each text as numbers [T, L], padded with -1, and the number of words [T]."""
    numbers: dict[str, int] = {}
    rows = [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in texts]
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), max(MAX_ORDER, lengths.max())), -1)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = [number for row in rows for number in row]
    return ids, lengths


def _extend(grams: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers of the n-grams [T, L - n + 1] that consist of (n - 1)-grams [T, L - n + 2] and the next word.

    A number is -1 if the n-gram reaches beyond the text.
    """
    grams = grams[:, : words.shape[1]]
    is_real = words >= 0
    _, numbers = np.unique(grams[is_real] * (words.max(initial=0) + 1) + words[is_real], return_inverse=True)
    extended = np.full(words.shape, -1)
    extended[is_real] = numbers
    return extended


def _matches(
    grams: NDArray[np.int64], hypothesis_rows: NDArray[np.int64], reference_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the number [N] of n-grams of each hypothesis that match the reference, each at most as often as there."""
    text, column = (grams >= 0).nonzero()
    num_grams = grams.max(initial=0) + 1
    keys, counts = np.unique(text * num_grams + grams[text, column], return_counts=True)  # [G], in the order of texts
    first = np.searchsorted(keys, np.arange(len(grams) + 1) * num_grams)  # of each text
    sizes = np.diff(first)[hypothesis_rows]  # [N], different n-grams of each hypothesis
    pair = np.repeat(np.arange(len(hypothesis_rows)), sizes)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    position = first[hypothesis_rows][pair] + within  # in `keys`, of each n-gram of each hypothesis
    wanted = keys[position] % max(num_grams, 1) + reference_rows[pair] * num_grams
    found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    common = np.minimum(counts[position], counts[found]) * (keys[found] == wanted)
    return np.bincount(pair, weights=common, minlength=len(hypothesis_rows)).astype(np.float64)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Return chrF2 of each pair, from 0 to 1."""
    return np.array([sentence_chrf(*pair) / 100 for pair in zip(hypotheses, references, strict=True)])


def inverse_ter(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Return 1 - TER of each pair, or 0 if TER is above 1 (Snover et al. 2006)."""
    metric = TER()
    values = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        values.append(max(0.0, 1.0 - metric.sentence_score(hypothesis, [reference]).score / 100))
    return np.array(values)


def user_scores(name: str, hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Return the values of the function `module:name` for each pair.

    Raises:
        RnnsearchError: The function cannot be imported, fails, or does not return a finite number.
    """
    function = import_function(name)
    values: list[float] = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        try:
            value = function(hypothesis, reference)
        except Exception as error:  # a user's function may raise anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            raise RnnsearchError(f"{name} failed with {type(error).__name__}: {error} ({where})") from error
        if not isinstance(value, Real) or not math.isfinite(value):
            raise RnnsearchError(f"{name} must return a finite number; got {value!r} for {hypothesis!r}")
        values.append(float(value))
    return np.array(values)


@lru_cache(maxsize=8)
def import_function(name: str) -> SentenceFunction:
    """Return the function `module:name`, or raise RnnsearchError if it cannot be imported."""
    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise RnnsearchError(
            f"{name} must be importable; got {type(error).__name__}: {error} "
            "(install its package, or add its folder to PYTHONPATH)"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        result = "nothing of this name in the module" if function is None else type(function).__name__
        raise RnnsearchError(f"{name} must be a function; got {result}")
    imported: SentenceFunction = function
    return imported
