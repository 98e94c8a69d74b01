"""Reranking of n-best lists by a weighted sum of features from several models (Och 2003).

    score(y, x) = sum over k of w_k h_k(y, x)                                                       (Och 2003, eq. 2)

`learn` finds the weights on a dev set (`rnnsearch reranker`); a `Reranker` orders n-best lists by the sum
(`rnnsearch translate --reranker`). `Closest` orders them by similarity to a reference, for distillation.

Folder format: `reranker.json` (`languages`, `n_best`, `weights` by feature name), and the models in `reverse/` and
`language-model/`. A renamed feature makes existing folders unreadable. Tests: tests/commands/test_distil.py (Closest).

Notation: x is the source, y a translation, k the index of a feature.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from rnnsearch.errors import DataError, ModelError, RnnsearchError, must_be_one_of
from rnnsearch.metrics.calibration import Floats
from rnnsearch.metrics.reranking import MetricStatistics, NBestLists, feature_deviations, mert, pro
from rnnsearch.metrics.scores import SACREBLEU_NAMES, MetricName
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.ensemble_folder import copy_model
from rnnsearch.translator.language_model import TextModel, load_text_model
from rnnsearch.translator.loading import load
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import JSON_ERRORS, atomic_folder, complete_folder, read_folder_text, write_json
from rnnsearch.utils.tables import as_markdown

Method = Literal["mert", "pro"]
METHODS: dict[Method, Callable[[NBestLists], Floats]] = {"mert": mert, "pro": pro}
"""Function by name of `Method`; names are values of `rnnsearch reranker --method`."""

# In the folder of a reranker: its weights and its models.
RERANKER_FILE = "reranker.json"
REVERSE_FOLDER = "reverse"
LANGUAGE_MODEL_FOLDER = "language-model"

DEFAULT_N_BEST = 10
MIN_LOG_PROB = -1e4  # replaces -inf, because a weight of 0 times -inf is NaN


@dataclass(frozen=True)
class Features:
    """The features h_k(y, x) of translations.

    - score: what the search ranks by
    - log_prob: log p(y|x), not normalised by length
    - reverse: log p(x|y) of a model of the other direction, if there is one
    - language_model: log p(y), if there is a language model
    - symbols: number of tokens of y, EOS included
    - words: number of words of y
    """

    reverse: Translator | None = None
    """Model of the other direction, if there is one."""
    language_model: TextModel | None = None
    """Language model of the target language, if there is one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, in the order of their weights."""
        models = {"reverse": self.reverse, "language_model": self.language_model}
        return ("score", "log_prob", *(name for name, model in models.items() if model is not None), "symbols", "words")

    def __call__(self, n_best_lists: Sequence[Sequence[Translation]]) -> list[Floats]:
        """Return the features of each list's translations, [translations, features]."""
        if not n_best_lists:
            return []
        translations = list(chain.from_iterable(n_best_lists))
        texts = [translation.text for translation in translations]
        values = {
            "score": [translation.score for translation in translations],
            "log_prob": [translation.log_prob for translation in translations],
            "symbols": [len(translation.token_scores) for translation in translations],
            "words": [len(translation.words) for translation in translations],
        }
        if self.reverse is not None:
            sources = [translation.source for translation in translations]
            values["reverse"] = [scored.log_prob for scored in self.reverse.score(texts, sources)]
        if self.language_model is not None:
            values["language_model"] = [scored.log_prob for scored in self.language_model.score(texts)]
        columns = np.array([values[name] for name in self.names], dtype=np.float64)
        table = np.maximum(columns.T, MIN_LOG_PROB)  # [all translations, features]
        ends = np.cumsum([len(translations) for translations in n_best_lists])
        return np.split(table, ends[:-1])


@dataclass(frozen=True)
class Reranker:
    """Orders n-best lists by the weighted sum of features."""

    languages: tuple[str, str]
    """Codes of the source and target language."""
    features: Features
    """Features, in the order of the weights."""
    weights: tuple[float, ...]
    """One weight per feature."""
    n_best: int
    """Number of translations per sentence in training."""

    def require_languages(self, translator: Translator) -> None:
        """Raise ModelError if a translator has other languages."""
        if translator.languages != self.languages:
            expected = " to ".join(self.languages)
            actual = " to ".join(translator.languages)
            raise ModelError(f"the model must translate from {expected}, like the reranker; got {actual}")

    def wide_enough(self, options: SearchOptions) -> SearchOptions:
        """Return options whose beam finds as many translations as the reranker was trained with."""
        beam = self.n_best if options.variant is None else options.variant.default_beam(options.beam, self.n_best)
        return replace(options, beam=max(options.beam, beam))

    def scores(self, n_best_lists: Sequence[Sequence[Translation]]) -> list[Floats]:
        """Return the weighted sums of each list's translations."""
        return [features @ np.array(self.weights) for features in self.features(n_best_lists)]

    def ordered(self, n_best_lists: Sequence[Sequence[Translation]]) -> list[list[Translation]]:
        """Return each list ordered by score; as in search, translations that were cut off come last."""
        ordered_lists = []
        for translations, scores in zip(n_best_lists, self.scores(n_best_lists), strict=True):
            keys = [(not translation.finished, -score) for translation, score in zip(translations, scores, strict=True)]
            order = sorted(range(len(translations)), key=keys.__getitem__)
            ordered_lists.append([translations[index] for index in order])
        return ordered_lists

    def save(self, folder: Path, reverse: Path | None = None, language_model: Path | None = None) -> None:
        """Write or replace the folder of a reranker.

        Args:
            folder: The folder.
            reverse: Folder of the reverse model, which is copied.
            language_model: Folder of the language model, which is copied.

        Raises:
            RnnsearchError: The folder contains something else, or cannot be written.
        """
        require_reranker_or_new(folder)
        with atomic_folder(folder) as temporary:
            if reverse is not None:
                copy_model(reverse, temporary / REVERSE_FOLDER)
            if language_model is not None:
                copy_model(language_model, temporary / LANGUAGE_MODEL_FOLDER)
            weights = dict(zip(self.features.names, self.weights, strict=True))
            contents = {"languages": self.languages, "n_best": self.n_best, "weights": weights}
            write_json(temporary / RERANKER_FILE, contents)


def require_reranker_or_new(folder: Path) -> None:
    """Raise RnnsearchError if a folder exists that is not a reranker."""
    if folder.exists() and not (folder / RERANKER_FILE).is_file():
        raise RnnsearchError(f"{folder}: exists and is not a reranker; choose another folder")


def load_reranker(folder: str | Path, device: str = "cpu") -> Reranker:
    """Load the folder of a reranker and its models.

    Raises:
        ModelError: The folder or one of its models is missing or damaged, or is something else.
        ConfigError: The device is not available.
    """
    path = complete_folder(Path(folder)) / RERANKER_FILE
    if not path.is_file():
        raise ModelError(f"{folder}: must be a folder written by `rnnsearch reranker`; it has no {RERANKER_FILE}")
    reverse = path.parent / REVERSE_FOLDER
    language_model = path.parent / LANGUAGE_MODEL_FOLDER
    features = load_features(
        reverse if reverse.is_dir() else None, language_model if language_model.is_dir() else None, device
    )
    try:
        contents = json.loads(read_folder_text(path))
        source, target = map(str, contents["languages"])
        weights = {str(name): float(weight) for name, weight in contents["weights"].items()}
        n_best = int(contents["n_best"])
    except JSON_ERRORS:
        raise ModelError(f"{path}: must be a file written by `rnnsearch reranker`; it is damaged") from None
    # `float` reads NaN and infinity, too, which JSON files may contain.
    if set(weights) != set(features.names) or not all(map(math.isfinite, weights.values())) or n_best < 2:
        raise ModelError(f"{path}: does not fit the models in its folder; learn the reranker again")
    return Reranker((source, target), features, tuple(weights[name] for name in features.names), n_best)


def load_features(reverse: Path | None = None, language_model: Path | None = None, device: str = "cpu") -> Features:
    """Load the models of features from their folders, if there are any.

    Raises:
        RnnsearchError: As in `load` and `load_text_model`.
    """
    return Features(
        None if reverse is None else load(reverse, device),
        None if language_model is None else load_text_model(language_model, device),
    )


@dataclass(frozen=True)
class LearnedReranker:
    """A reranker and its scores on the dev set."""

    reranker: Reranker
    """Reranker with the learned weights."""
    influences: tuple[float, ...]
    """Influence of each feature: its weight times its standard deviation within a list; absolute values sum to 1."""
    metric: str
    """Name of the metric, as sacreBLEU calls it."""
    before: float
    """Score in the order of the search."""
    after: float
    """Score in the order of the reranker."""
    oracle: float
    """Score of the best translation of each list."""

    def table(self) -> str:
        """Return the weights and the scores as two Markdown tables."""
        weights = [["feature", "weight", "share"]]
        for name, weight, influence in zip(
            self.reranker.features.names, self.reranker.weights, self.influences, strict=True
        ):
            weights.append([name, f"{weight:.4f}", f"{influence:+.0%}"])
        scores = [
            ["dev set", self.metric],
            ["as searched", f"{self.before:.2f}"],
            ["reranked", f"{self.after:.2f}"],
            ["the best of each list", f"{self.oracle:.2f}"],
        ]
        return as_markdown(weights) + "\n" + as_markdown(scores)


def learn(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    features: Features,
    method: Method = "mert",
    metric: MetricName = "bleu",
    n_best: int = DEFAULT_N_BEST,
) -> LearnedReranker:
    """Learn a reranker from a translator's n-best lists of a dev set.

    Args:
        translator: The translator, whose beam grows to `n_best`; all translations that it finds are used.
        sources: Source sentences.
        references: Their references.
        features: The features.
        method: Learning method.
        metric: Metric to maximise.
        n_best: Number of translations per sentence.

    Raises:
        RnnsearchError: The method or metric is unknown, or `n_best` is below 2.
        DataError: There are no sentences, or not as many references, and as in `pro`.
        ModelError: A model of the features has other languages.
    """
    if method not in METHODS:
        raise RnnsearchError(f"method {must_be_one_of(METHODS, method)}")
    if n_best < 2:
        raise RnnsearchError(f"n_best must be at least 2, to have a choice; got {n_best}")
    if not sources or len(sources) != len(references):
        raise DataError(
            "there must be sentences and one reference per sentence; "
            f"got {len(references)} references for {len(sources)} sentences"
        )
    source, target = translator.languages
    _check_languages(features, source, target)
    options = translator.options(n_best=n_best)
    lists = []
    for translations in translator.n_best(sources, replace(options, n_best=options.beam)):
        finished = [translation for translation in translations if translation.finished]
        # Translations that were cut off would only teach the reranker to avoid them; search ranks them last anyway.
        lists.append(finished or translations)
    values = features(lists)
    scale = feature_deviations(values)  # [features], standard deviations within a list
    texts = [[translation.text for translation in translations] for translations in lists]
    # Features are scaled to equal deviations, because learning searches all directions alike.
    candidates = NBestLists.from_texts([rows / scale for rows in values], texts, references, metric, target)
    influences = METHODS[method](candidates)
    search_score_only = np.eye(len(scale))[0]  # the first feature is the score of the search
    return LearnedReranker(
        # Back to the unscaled features: (w / s) h = w (h / s).
        Reranker((source, target), features, _normalised(influences / scale), n_best),
        _normalised(influences),
        SACREBLEU_NAMES[metric],
        before=candidates.score(search_score_only),
        after=candidates.score(influences),
        oracle=candidates.oracle,
    )


def _normalised(weights: Floats) -> tuple[float, ...]:
    """Return weights divided by the sum of their absolute values; the order of translations stays the same."""
    return tuple(map(float, weights / max(float(np.abs(weights).sum()), 1e-30)))


def _check_languages(features: Features, source: str, target: str) -> None:
    """Raise ModelError if a model of the features does not fit a translator's languages."""
    if features.reverse is not None:
        features.reverse.require_reverse_of(source, target)
    if features.language_model is not None and features.language_model.config.data.target != target:
        language = features.language_model.config.data.target
        raise ModelError(f"the language model must be of {target}; got {language}")


class Closest:
    """Puts the translation closest to a reference first, as sequence-level interpolation does (Kim & Rush 2016).

    This is argmax over the beam of sim(y, reference) (section 3.3), where sim is smoothed sentence-level BLEU.
    """

    def __init__(self, language: str = "") -> None:
        """Make the order for a target language, given by its code."""
        self._metric = MetricStatistics("bleu", language)

    def __call__(self, translations: Sequence[Translation], reference: str) -> list[Translation]:
        """Return a sentence's translations, the closest first and the others in their order.

        Of equally close translations, the best of the search is first.
        """
        closest = self._metric.closest([translation.text for translation in translations], reference)
        return [translations[closest], *translations[:closest], *translations[closest + 1 :]]
