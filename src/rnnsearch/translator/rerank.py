"""N-best reranking: the translations that a search found, put in the order of a weighted sum of what several models say
of each. Weights are learned from a dev set (`metrics.mert`, `metrics.pro`).

    score(y, x) = sum over k of w_k h_k(y, x)                                                       (Och 2003, eq. 2)
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
from rnnsearch.metrics.calibration import Numbers
from rnnsearch.metrics.reranking import Counts, NBest, mert, pro, spread
from rnnsearch.metrics.scores import GOALS, Goal
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.ensemble_folder import copy_model
from rnnsearch.translator.language_model import TextModel, load_text_model
from rnnsearch.translator.loading import load
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import atomic_folder, write_json
from rnnsearch.utils.tables import as_markdown

Method = Literal["mert", "pro"]
METHODS: dict[Method, Callable[[NBest], Numbers]] = {"mert": mert, "pro": pro}
RERANKER, REVERSE, LANGUAGE_MODEL = "reranker.json", "reverse", "language-model"
"""In a reranker's folder: its weights, and the models that it asks."""
USUAL = 10
"""Translations of a sentence to choose from."""
NEVER = -1e4
"""What the log-probability of the impossible counts as: a weight of 0 times -inf would be no number."""


@dataclass(frozen=True)
class Features:
    """What a sum is of: h_k(y, x)."""

    reverse: Translator | None = None
    """A model of the other direction."""
    language_model: TextModel | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """score: what the search ranks by. log_prob: log p(y|x), not divided by any length. reverse: log p(x|y).
        language_model: log p(y). symbols, words: how many y has, the end symbol among the symbols."""
        asked = [("reverse", self.reverse), ("language_model", self.language_model)]
        return ("score", "log_prob", *(name for name, model in asked if model is not None), "symbols", "words")

    def __call__(self, found: Sequence[Sequence[Translation]]) -> list[Numbers]:
        """Of each list of translations [translations, features]."""
        every = list(chain.from_iterable(found))
        values = {
            "score": [t.score for t in every],
            "log_prob": [t.log_prob for t in every],
            "symbols": [len(t.token_scores) for t in every],
            "words": [len(t.words) for t in every],
        }
        if self.reverse is not None:
            given = self.reverse.score([t.text for t in every], [t.source for t in every])
            values["reverse"] = [t.log_prob for t in given]
        if self.language_model is not None:
            values["language_model"] = [t.log_prob for t in self.language_model.score([t.text for t in every])]
        table = np.maximum(np.array([values[name] for name in self.names], dtype=np.float64).T, NEVER)
        ends = np.cumsum([len(own) for own in found])
        return np.split(table, ends[:-1]) if len(found) else []


@dataclass(frozen=True)
class Reranker:
    """Puts n-best lists in the order of the weighted sum."""

    languages: tuple[str, str]
    """The codes of source and target."""
    features: Features
    weights: tuple[float, ...]
    """One a feature."""
    n_best: int
    """How many translations of a sentence it has learned to choose from."""

    def require(self, translator: Translator) -> None:
        """Errors: ModelError for a translator of other languages."""
        if translator.languages != self.languages:
            told = " to ".join(self.languages), " to ".join(translator.languages)
            raise ModelError(f"the model must translate from {told[0]}, as the reranker does; it does from {told[1]}")

    def wide_enough(self, options: SearchOptions) -> SearchOptions:
        """Options with a beam that finds as many translations as it has learned to choose from."""
        wide = self.n_best if options.variant is None else options.variant.default_beam(options.beam, self.n_best)
        return replace(options, beam=max(options.beam, wide))

    def scores(self, found: Sequence[Sequence[Translation]]) -> list[Numbers]:
        """The weighted sums of each list's translations."""
        return [own @ np.array(self.weights) for own in self.features(found)]

    def ordered(self, found: Sequence[Sequence[Translation]]) -> list[list[Translation]]:
        """Each list, the best first; of equals the one that was before. As in search, a translation that was cut off
        comes after those that are finished."""
        return [
            [own[n] for n in sorted(range(len(own)), key=lambda n: (not own[n].finished, -sums[n]))]
            for own, sums in zip(found, self.scores(found), strict=True)
        ]

    def save(self, folder: Path, reverse: Path | None = None, language_model: Path | None = None) -> None:
        """Write a folder, or write it over, with copies of the models, which are read from theirs.

        Errors: RnnsearchError as in `require_free`, and where the folder cannot be written.
        """
        require_free(folder)
        with atomic_folder(folder) as temporary:
            for name, own in ((REVERSE, reverse), (LANGUAGE_MODEL, language_model)):
                if own is not None:
                    copy_model(own, temporary / name)
            weights = dict(zip(self.features.names, self.weights, strict=True))
            write_json(temporary / RERANKER, {"languages": self.languages, "n_best": self.n_best, "weights": weights})


def require_free(folder: Path) -> None:
    """Errors: RnnsearchError where something else than a reranker is."""
    if folder.exists() and not (folder / RERANKER).is_file():
        raise RnnsearchError(f"{folder}: there is something else than a reranker already; name another folder")


def load_reranker(folder: str | Path, device: str = "cpu") -> Reranker:
    """Read what `Reranker.save` wrote, its models onto `device`.

    Errors: ModelError, one sentence, for a missing, damaged or foreign folder, also of one of its models; ConfigError
    for a device this machine has not.
    """
    path = Path(folder) / RERANKER
    if not path.is_file():
        raise ModelError(f"{folder}: must be a folder that `rnnsearch reranker` has made; it lacks {RERANKER}")
    reverse, language_model = (path.parent / name for name in (REVERSE, LANGUAGE_MODEL))
    features = load_features(
        reverse if reverse.is_dir() else None, language_model if language_model.is_dir() else None, device
    )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        source, target = map(str, raw["languages"])
        weights = {str(name): float(weight) for name, weight in raw["weights"].items()}
        n_best = int(raw["n_best"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise ModelError(f"{path}: must be what `rnnsearch reranker` writes; got a damaged or foreign file") from None
    if set(weights) != set(features.names) or not all(map(math.isfinite, weights.values())) or n_best < 2:
        raise ModelError(f"{path}: is not of the models in its folder; learn the reranker again")
    return Reranker((source, target), features, tuple(weights[name] for name in features.names), n_best)


def load_features(reverse: Path | None = None, language_model: Path | None = None, device: str = "cpu") -> Features:
    """The features that these model folders give, and those that need none.

    Errors: as in `load` and `load_text_model`.
    """
    return Features(
        None if reverse is None else load(reverse, device),
        None if language_model is None else load_text_model(language_model, device),
    )


@dataclass(frozen=True)
class Learned:
    """A reranker, and how well it does on the dev set that it was learned from."""

    reranker: Reranker
    shares: tuple[float, ...]
    """Of each feature, its weight times its standard deviation within a list, their sizes summing to 1: how much it
    decides."""
    metric: str
    """As sacreBLEU calls it."""
    before: float
    """The dev set's score in the search's own order."""
    after: float
    """Reranked."""
    oracle: float
    """With the best of each list."""

    def table(self) -> str:
        """The weights and the scores, as two tables in Markdown."""
        each = zip(self.reranker.features.names, self.reranker.weights, self.shares, strict=True)
        weights = [["feature", "weight", "share"], *([name, f"{w:.4f}", f"{share:+.0%}"] for name, w, share in each)]
        told = (("as searched", self.before), ("reranked", self.after), ("the best of each list", self.oracle))
        scores = [["dev set", self.metric], *([name, f"{score:.2f}"] for name, score in told)]
        return as_markdown(weights) + "\n" + as_markdown(scores)


def learn(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    features: Features,
    method: Method = "mert",
    metric: Goal = "bleu",
    n_best: int = USUAL,
) -> Learned:
    """Learn a reranker of a translator's n best of a dev set; `metric` is what is to be best.

    Its beam grows to `n_best`, and all that it finds counts. Errors: RnnsearchError for an unknown method or metric,
    and an n_best below 2; DataError for no sentences, references that are not as many, and as in `pro`; ModelError for
    models of other languages.
    """
    if method not in METHODS:
        raise RnnsearchError(f"method {must_be_one_of(METHODS, method)}")
    if n_best < 2:
        raise RnnsearchError(f"n_best must be at least 2, to choose from; got {n_best}")
    if not sources or len(sources) != len(references):
        raise DataError(f"references must be one a sentence, and some; got {len(references)} for {len(sources)}")
    source, target = translator.languages
    _require_languages(features, source, target)
    options = translator.options(n_best=n_best)
    found = translator.n_best(sources, replace(options, n_best=options.beam))
    lists = [[t for t in own if t.finished] or own for own in found]
    values = features(lists)
    scale = spread(values)
    texts = [[t.text for t in own] for own in lists]
    candidates = NBest.of([own / scale for own in values], texts, references, metric, target)
    shares = METHODS[method](candidates)
    weights = shares / scale
    alone = np.eye(len(scale))[0]
    return Learned(
        Reranker((source, target), features, _shared(weights), n_best),
        _shared(shares),
        GOALS[metric],
        candidates.score(alone),
        candidates.score(shares),
        candidates.oracle,
    )


def _shared(weights: Numbers) -> tuple[float, ...]:
    """Weights whose sizes sum to 1, which puts translations in the same order."""
    return tuple(map(float, weights / max(float(np.abs(weights).sum()), 1e-30)))


def _require_languages(features: Features, source: str, target: str) -> None:
    """Errors: ModelError for models of other languages than those of a translator."""
    reverse, language_model = features.reverse, features.language_model
    if reverse is not None:
        reverse.require_reverse_of(source, target)
    if language_model is not None and language_model.config.data.target != target:
        told = language_model.config.data.target
        raise ModelError(f"the language model must be of {target}; it is of {told}")


class Closest:
    """Puts what is closest to a reference first: the choice of sequence-level interpolation (Kim & Rush 2016, section
    3.3), argmax over the beam of sim(y, reference), sim being BLEU of the sentence, smoothed (`metrics.n_best`)."""

    def __init__(self, language: str = "") -> None:
        """`language`: the target's code."""
        self._metric = Counts("bleu", language)

    def __call__(self, found: Sequence[Translation], reference: str) -> list[Translation]:
        """A sentence's translations, the others behind in their order; the search's best first if nothing is closer."""
        chosen = self._metric.closest([one.text for one in found], reference)
        return [found[chosen], *found[:chosen], *found[chosen + 1 :]]
