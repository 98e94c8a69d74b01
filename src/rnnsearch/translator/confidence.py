"""Confidence of words and warnings about translations.

`rnnsearch calibrate` learns, from features of the search, how probable it is that a reference contains a word
(`learn_calibration`). A translator with a calibration adds the confidence to its translations (`with_confidence`).
`warnings` and `unknown_rate` need no calibration.

The runtime imports this module, so it must not import torch. `confidence.json` in a model folder, and the same JSON in
the header of an engine file, stores the names in `FEATURES` with their weights: changed features need a new
calibration. The names of warnings are part of the output of `--format json` and of `/v1/translate`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.engine import file
from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.calibration import Bin, Calibration, calibrate, calibration_bins
from rnnsearch.text.alignments import words
from rnnsearch.text.vocabulary import SPACE_MARKER, SPECIALS, UNK
from rnnsearch.translator.translation import Translation

CALIBRATION_FILE = "confidence.json"
# Names of the columns of `word_features`; stored with a calibration, so they must not change.
FEATURES = (
    *("word", "weakest symbol", "word before", "word after", "word's log p", "sentence's log p"),
    *("attention entropy", "attention peak", "source use", "length", "replaced"),
)
MAX_SOURCE_USE = 3.0
PUNCTUATION = ".,;:!?\"'()[]«»„“”‚‘’–—-…¿¡"

MISSING_TERMS = "missing terms"
"""Warning about terms of a glossary that could not be placed."""
_NON_ASCII_BYTE = re.compile("<0x[89A-F][0-9A-F]>")  # in the tokens of unknown characters

MAX_PHRASE_WORDS = 4  # longest phrase whose repetitions are counted
MIN_WORD_ATTENTION = 0.2  # a source word with less attention in total was not read
MIN_READ_FRACTION = 0.5  # of the source words, without a warning


def learn_calibration(translations: Sequence[Translation], references: Sequence[str]) -> Calibration:
    """Learn a calibration from translations of a dev set and its references.

    Raises:
        RnnsearchError: Their numbers differ.
        DataError: There are too few words.
    """
    labels = _label_words(translations, references)
    sentence = np.repeat(np.arange(len(labels)), [len(sentence_labels) for sentence_labels in labels])
    # Without translations, `concatenate` would have nothing to concatenate.
    no_features = np.zeros((0, len(FEATURES)))
    x = np.concatenate([no_features, *(word_features(translation) for translation in translations)])
    y = np.concatenate([np.zeros(0, dtype=bool), *labels])
    return calibrate(FEATURES, x, y, sentence)


def reliability_bins(translations: Sequence[Translation], references: Sequence[str]) -> list[Bin]:
    """Return the words of translations in bins of confidence; no bins for a model that is not calibrated.

    Raises:
        RnnsearchError: The number of references differs.
    """
    confidences = [p for translation in translations for p in translation.word_confidence or ()]
    if not confidences:
        return []
    return calibration_bins(np.array(confidences), np.concatenate(_label_words(translations, references)))


def _label_words(translations: Sequence[Translation], references: Sequence[str]) -> list[npt.NDArray[np.bool_]]:
    """Return which words of each translation are correct (see `correct_words`)."""
    if len(translations) != len(references):
        raise RnnsearchError(f"references must be one per sentence ({len(translations)}); got {len(references)}")
    pairs = zip(translations, references, strict=True)
    return [correct_words(translation.words, words(reference)) for translation, reference in pairs]


def correct_words(translation: Sequence[str], reference: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return, for each word, True if it is in a longest common subsequence with the reference.

    Punctuation at the ends of words is ignored.
    """
    a = [word.strip(PUNCTUATION) or word for word in translation]
    b = [word.strip(PUNCTUATION) or word for word in reference]
    length = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int64)  # of the subsequence of the first i and j words
    for i, word in enumerate(a):
        for j, other in enumerate(b):
            if word == other:
                length[i + 1, j + 1] = length[i, j] + 1
            else:
                length[i + 1, j + 1] = max(length[i, j + 1], length[i + 1, j])
    is_correct = np.zeros(len(a), dtype=bool)
    i = len(a)
    j = len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            i -= 1
            j -= 1
            is_correct[i] = True
        # Backtracking; on a tie, the translation's word is skipped.
        elif length[i - 1, j] >= length[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return is_correct


def word_features(translation: Translation) -> npt.NDArray[np.float64]:
    """Return [words, FEATURES], the features that the confidence of words depends on.

    - log-odds of the word (mean over its tokens), of its weakest token, and of the words before and after it
    - mean log-probability of the word's tokens and of the sentence's
    - entropy of the word's attention, relative to the maximum; its peak; and the total attention that the source word
      at the peak gets (all 0 without attention)
    - logarithm of the number of target words per source word
    - 1 if the word replaced an unknown word
    """
    features = np.zeros((len(translation.words), len(FEATURES)))
    if not translation.words:
        return features
    # A word without tokens counts as certain.
    token_scores = [scores or [0.0] for scores in translation.word_token_scores]
    means = np.array([sum(scores) / len(scores) for scores in token_scores])
    odds = _log_odds(means)
    features[:, 0] = odds
    features[:, 1] = _log_odds(np.array([min(scores) for scores in token_scores]))
    features[1:, 2] = odds[:-1]
    features[:-1, 3] = odds[1:]
    features[:, 4] = means
    features[:, 5] = translation.log_prob / max(1, len(translation.token_scores))
    if translation.word_attention is not None and translation.word_attention.shape[1]:
        weights = translation.word_attention.astype(np.float64)  # [words, source words]
        # The weights of a word need not sum to 1: EOS and punctuation are left out.
        p = weights / np.maximum(weights.sum(1, keepdims=True), 1e-9)
        # p log p is 0 for p = 0, where log p is -inf.
        entropy = -(p * np.log(np.maximum(p, 1e-9))).sum(1)
        features[:, 6] = entropy / np.log(max(2, weights.shape[1]))
        features[:, 7] = weights.max(1)
        features[:, 8] = np.minimum(weights.sum(0)[weights.argmax(1)], MAX_SOURCE_USE)
    features[:, 9] = np.log(len(translation.words) / max(1, len(translation.source_words)))
    features[:, 10] = [replaced is not None for replaced in translation.word_replaced]
    return features


def _log_odds(log_p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return log(p / (1 - p)) of log p, limited to +-7."""
    # Finite odds, also for probabilities of 0 and 1.
    p = np.clip(np.exp(log_p), 1e-3, 1 - 1e-3)
    odds: npt.NDArray[np.float64] = np.log(p / (1 - p))
    return odds


def load_calibration(path: Path) -> Calibration | None:
    """Return the calibration of a model folder or engine file, or None if it has none.

    Raises:
        ModelError: The calibration is damaged.
    """
    if path.is_file():
        return calibration_from_header(file.read_header(path), path)
    calibration_path = path / CALIBRATION_FILE
    return Calibration.load(calibration_path, FEATURES) if calibration_path.is_file() else None


def calibration_from_header(header: dict[str, Any], path: Path) -> Calibration | None:
    """Return the calibration in the header of an engine file, or None if it has none.

    Raises:
        ModelError: The calibration is damaged; `path` is named in the message.
    """
    text = header.get("calibration")
    return None if text is None else Calibration.from_json(str(text), path, FEATURES)


def with_confidence(translation: Translation, calibration: Calibration) -> Translation:
    """Return a translation with the confidence of its words."""
    return replace(translation, word_confidence=tuple(map(float, calibration(word_features(translation)))))


def unknown_rate(translation: Translation) -> float:
    """Return the fraction of the source tokens that are not in the vocabulary.

    These are unknown words and characters; adjacent unknown characters count as one token.
    """
    num_known = 0
    num_unknown = 0
    follows_byte = False
    for token in translation.source_tokens[:-1]:  # without EOS
        is_byte = _NON_ASCII_BYTE.fullmatch(token) is not None
        if is_byte or token == SPECIALS[UNK]:
            num_unknown += not (is_byte and follows_byte)
        else:
            num_known += token != SPACE_MARKER
        follows_byte = is_byte
    return num_unknown / max(num_known + num_unknown, 1)


def warnings(translation: Translation) -> tuple[str, ...]:
    """Return what looks wrong: blocked, untranslated, cut, pieces, long, repeated, detached, dropped, missing terms.

    A text of several sentences has the warnings of all of them.
    """
    if translation.sentences:
        return tuple(dict.fromkeys(chain.from_iterable(map(warnings, translation.sentences))))
    missing_terms = (MISSING_TERMS,) if translation.missing_terms else ()
    if translation.blocked:
        return ("blocked", *missing_terms)
    if translation.fallback == "source":
        # `cli/translate_documents.py` reads the count of this warning by its name.
        return ("untranslated", *missing_terms)
    source_words: Sequence[str] = translation.source_words
    # Of several sources, the longest: the first may be missing.
    for text in translation.source_texts.values():
        source_words = max(source_words, words(text), key=len)
    target_words = translation.words
    found = []
    if not translation.finished:
        found.append("cut")
    if translation.fallback == "pieces":
        found.append("pieces")
    # The number of words does not depend on that of the regions of an image, or the frames of speech.
    is_text = translation.by_attention.source.is_text
    if is_text and len(target_words) > 3 * len(source_words) + 10:
        found.append("long")
    if repeats_more(target_words, source_words):
        found.append("repeated")
    # A model with a rationale is meant to read only some words, one with several sources some of each; most regions of
    # an image may be empty.
    attention = translation.word_attention
    if translation.rationale is not None or translation.sources or not is_text:
        attention = None
    if attention is not None and target_words and len(source_words) > 2:
        is_read = attention.sum(0) >= MIN_WORD_ATTENTION
        if is_read.mean() < MIN_READ_FRACTION:
            found.append("detached" if len(target_words) >= len(source_words) // 2 else "dropped")
    return (*found, *missing_terms)


def repeats_more(target: Sequence[str], source: Sequence[str]) -> bool:
    """Return True if a phrase is repeated in succession more often in a translation than in its source."""
    repetitions = max_repetitions(target)
    return repetitions > 1 and repetitions > max_repetitions(source)


def max_repetitions(text: Sequence[str]) -> int:
    """Return how often a phrase is repeated in succession, at most, or 1 if none is.

    A single word counts from three occurrences on, a phrase of 2 to `MAX_PHRASE_WORDS` words from two.
    """
    max_count = 1
    for size in range(1, MAX_PHRASE_WORDS + 1):
        start = 0
        while start + 2 * size <= len(text):
            phrase = text[start : start + size]
            count = 1
            while text[start + count * size : start + (count + 1) * size] == phrase:
                count += 1
            if count > 2 or (count == 2 and size > 1):
                max_count = max(max_count, count)
            start += max(1, (count - 1) * size)
    return max_count
