"""What search says of each word of a translation, which words a reference has, and what is plainly wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.engine import file
from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.calibration import Bin, Calibration, bins, calibrate
from rnnsearch.text.alignments import words
from rnnsearch.translator.translation import Translation

CONFIDENCE = "confidence.json"
"""The calibration's name in a model folder."""
FEATURES = (
    *("word", "weakest symbol", "word before", "word after", "word's log p", "sentence's log p"),
    *("attention entropy", "attention peak", "source use", "length", "replaced"),
)
MOST_REPEATED = 4
"""Words of a phrase whose repetitions are looked for."""
UNREAD, READ = 0.2, 0.5
"""A source word that gets less attention than the first in all is unread; a translation reads its source where at least
the second share of it is not."""


def features(t: Translation) -> npt.NDArray[np.float64]:
    """[words, FEATURES]: the log-odds of the word, of its weakest symbol and of its neighbours; the log-probabilities
    of word and sentence, means of their symbols; entropy of the word's attention over the logarithm of the number of
    source words, its peak, and how much attention the source word at the peak gets in all (0 without attention); the
    logarithm of target words a source word; whether the word took the place of an unknown one."""
    found = np.zeros((len(t.words), len(FEATURES)))
    if not t.words:
        return found
    scores = [own or [0.0] for own in t.word_token_scores]
    means = np.array([sum(own) / len(own) for own in scores])
    odds = _log_odds(means)
    found[:, 0], found[:, 1] = odds, _log_odds(np.array([min(own) for own in scores]))
    found[1:, 2], found[:-1, 3] = odds[:-1], odds[1:]
    found[:, 4], found[:, 5] = means, t.log_prob / max(1, len(t.token_scores))
    if t.word_attention is not None and t.word_attention.shape[1]:
        weights = t.word_attention.astype(np.float64)
        shares = weights / np.maximum(weights.sum(1, keepdims=True), 1e-9)
        entropy = -(shares * np.log(np.maximum(shares, 1e-9))).sum(1)
        found[:, 6] = entropy / np.log(max(2, weights.shape[1]))
        found[:, 7] = weights.max(1)
        found[:, 8] = np.minimum(weights.sum(0)[weights.argmax(1)], 3.0)
    found[:, 9] = np.log(len(t.words) / max(1, len(t.source_words)))
    found[:, 10] = [by is not None for by in t.word_replaced]
    return found


def _log_odds(log_p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log(p / (1 - p)) of log p, within 7 on either side."""
    p = np.clip(np.exp(log_p), 1e-3, 1 - 1e-3)
    odds: npt.NDArray[np.float64] = np.log(p / (1 - p))
    return odds


def right_words(found: Sequence[str], reference: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which words a longest common subsequence with the reference's has; punctuation at their ends does not count."""
    a, b = ([word.strip(".,;:!?\"'()[]«»„“”‚‘’–—-…¿¡") or word for word in side] for side in (found, reference))
    best = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int64)
    for i, word in enumerate(a):
        for j, other in enumerate(b):
            best[i + 1, j + 1] = best[i, j] + 1 if word == other else max(best[i, j + 1], best[i + 1, j])
    right, i, j = np.zeros(len(a), dtype=bool), len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            right[i - 1], i, j = True, i - 1, j - 1
        elif best[i - 1, j] >= best[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return right


def learned(translations: Sequence[Translation], references: Sequence[str]) -> Calibration:
    """A calibration from translations and references of the same sentences.

    Errors: RnnsearchError where they are not as many; DataError for too few words."""
    right = _right(translations, references)
    sentence = np.repeat(np.arange(len(right)), [len(own) for own in right])
    x = np.concatenate([np.zeros((0, len(FEATURES))), *(features(t) for t in translations)])
    return calibrate(FEATURES, x, np.concatenate([np.zeros(0, dtype=bool), *right]), sentence)


def came_true(translations: Sequence[Translation], references: Sequence[str]) -> list[Bin]:
    """The words of a calibrated model's translations by how sure it was of them; none of another model's.

    Errors: RnnsearchError where references are not as many."""
    sure = [p for t in translations for p in t.word_confidence or ()]
    return bins(np.array(sure), np.concatenate(_right(translations, references))) if sure else []


def _right(translations: Sequence[Translation], references: Sequence[str]) -> list[npt.NDArray[np.bool_]]:
    """`right_words` of each."""
    if len(translations) != len(references):
        raise RnnsearchError(f"references must be one a sentence ({len(translations)}); got {len(references)}")
    return [right_words(t.words, words(reference)) for t, reference in zip(translations, references, strict=True)]


def read_calibration(folder: Path) -> Calibration | None:
    """That of a model folder, or of an engine file, if it has one. Errors: ModelError for a damaged one."""
    if folder.is_file():
        return calibration_in(file.header_of(folder), folder)
    path = folder / CONFIDENCE
    return Calibration.load(path, FEATURES) if path.is_file() else None


def calibration_in(header: dict[str, Any], path: Path) -> Calibration | None:
    """That of an engine file, if it has one. Errors: as in `read_calibration`."""
    text = header.get("calibration")
    return None if text is None else Calibration.of(str(text), path, FEATURES)


def sure(t: Translation, calibration: Calibration) -> Translation:
    """A translation that says how sure to be of its words."""
    return replace(t, word_confidence=tuple(map(float, calibration(features(t)))))


def warnings(t: Translation) -> tuple[str, ...]:
    """What is plainly wrong with a translation, if anything: blocked, cut, long, repeated, detached, dropped."""
    if t.blocked:
        return ("blocked",)
    found = []
    if not t.finished:
        found.append("cut")
    if len(t.words) > 3 * len(t.source_words) + 10:
        found.append("long")
    if repeats(t.words) > repeats(t.source_words):
        found.append("repeated")
    if t.word_attention is not None and t.rationale is None and t.words and len(t.source_words) > 2:
        read = t.word_attention.sum(0) >= UNREAD
        if read.mean() < READ:
            found.append("detached" if len(t.words) >= len(t.source_words) // 2 else "dropped")
    return tuple(found)


def repeats(text: Sequence[str]) -> int:
    """How often the phrase is said, of `MOST_REPEATED` words at most, that is said most often in a row: a word three
    times at least, several words twice; else 1."""
    most = 1
    for size in range(1, MOST_REPEATED + 1):
        start = 0
        while start + 2 * size <= len(text):
            times, phrase = 1, text[start : start + size]
            while text[start + times * size : start + (times + 1) * size] == phrase:
                times += 1
            if times > 2 or (times == 2 and size > 1):
                most = max(most, times)
            start += max(1, (times - 1) * size)
    return most
