"""The search settings that translate a dev set best: one after another, each at the best of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnsearch import config as run_config
from rnnsearch.config import SearchConfig, override_search
from rnnsearch.errors import RnnsearchError, must_be_one_of
from rnnsearch.metrics.scores import GOALS, Goal, make_metrics
from rnnsearch.systems.ensemble import EnsembleSystem, FusedSystem
from rnnsearch.systems.folder import CONFIG, load_system, save_system
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import locked, write_text
from rnnsearch.utils.tables import as_markdown

Number = int | float
Values = Mapping[str, Sequence[Number]]
USUAL: Values = {
    "language_model_weight": (0.0, 0.05, 0.1, 0.2, 0.3),
    "length_penalty": (0.0, 0.4, 0.7, 1.0, 1.3),
    "coverage_penalty": (0.0, 0.1, 0.2, 0.4),
    "beam": (1, 2, 3, 5, 8, 12),
}
"""Settings of `[search]`, in the order in which they are tried, and their values."""
WEIGHT, WEIGHTS = "weight_{}", (0.5, 0.75, 1.0, 1.5, 2.0)
"""The setting that is the weight of a further model of an ensemble, by its number from 2 on; and its usual values."""
ROUNDS = 3
"""Over all settings, at most: a round that changes nothing is the last."""
FUSION = ("language_model", "language_model_weight")
"""The settings that say nothing where no language model counts."""
LANGUAGE_MODEL, TABLE = "language-model", "tuning.md"
"""In a model folder: the language model that search reads, and what was tried."""

Settings = dict[str, Number]


@dataclass(frozen=True)
class Tried:
    """Some settings, what they score on the dev set, and how long it took."""

    settings: Settings
    score: float
    seconds: float


class Tuning:
    """What settings score, tried one by one."""

    def __init__(
        self,
        model: Path,
        sources: Sequence[str],
        references: Sequence[str],
        metric: Goal = "bleu",
        language_model: Path | None = None,
        device: str = "cpu",
        values: Values | None = None,
    ) -> None:
        """`language_model`: to be tried, instead of the one that the folder may have. `values`: of each setting to try
        (default: the usual ones of all that do something for this model).

        Errors: ModelError and ConfigError as in `load`; RnnsearchError for no sentences, an unknown metric, and a
        setting that is unknown or does nothing for this model; ConfigError for a value that a setting cannot have.
        """
        if metric not in GOALS:
            raise RnnsearchError(f"metric {must_be_one_of(GOALS, metric)}")
        if not sources:
            raise RnnsearchError("tuning needs sentences; got none")
        self.model, self.language_model = model, language_model
        self.sources, self.references, self.metric = list(sources), [list(references)], metric
        # The language model's weight here is never used: it must be above 0 for `load` to bring it.
        beside: dict[str, Any] = {} if language_model is None else {"language_model_weight": 1.0}
        self._translator = load(model, device, language_model=language_model, **beside)
        own = load_system(model).config.search
        weight = own.language_model_weight if own.language_model is not None and language_model is None else 0.0
        self._search = override_search(own, {"language_model_weight": weight})
        members = [] if own.ensemble is None else [WEIGHT.format(n + 2) for n in range(len(own.ensemble.members))]
        known: Values = {**dict.fromkeys(members, WEIGHTS), **USUAL}
        needs = {
            "language_model_weight": (language_model or own.language_model, "a language model"),
            "coverage_penalty": (self._translator.attends, "a model with attention"),
        }
        idle = {name: needed for name, (has, needed) in needs.items() if not has}
        for name in values or ():
            if name not in known:
                raise RnnsearchError(f"a setting to tune {must_be_one_of(known, name)}")
            if name in idle:
                raise RnnsearchError(f"{name} has no effect without {idle[name]}; do not tune it")
        wanted = known if values is None else values
        if language_model is not None and "language_model_weight" not in wanted:
            raise RnnsearchError("a language model has no effect where language_model_weight is not tuned")
        self.values = {name: wanted[name] for name in known if wanted.get(name) and name not in idle}
        for name, some in self.values.items():
            for value in some:
                self._with({name: value})
        self.start: Settings = {name: _value(self._search, name) for name in self.values}
        self.tried: list[Tried] = []

    def _with(self, settings: Settings) -> SearchConfig:
        """`[search]` with these settings."""
        given: dict[str, Any] = dict(settings)
        ensemble = self._search.ensemble
        if ensemble is not None:
            named = enumerate(ensemble.weights, start=1)
            weights = [float(given.pop(WEIGHT.format(n), weight)) for n, weight in named]
            given["ensemble"] = {**ensemble.model_dump(), "weights": weights}
        return override_search(self._search, given)

    def _translator_with(self, search: SearchConfig) -> Translator:
        """The models that are loaded, searching so."""
        own, system = self._translator, self._translator.system
        translation = system.translation if isinstance(system, FusedSystem) else system
        if isinstance(translation, EnsembleSystem) and search.ensemble is not None:
            translation = replace(translation, weights=tuple(search.ensemble.weights))
        if isinstance(system, FusedSystem) and search.language_model_weight > 0:
            system = replace(system, translation=translation, weight=search.language_model_weight)
        else:
            system = translation
        system = replace(system, config=system.config.model_copy(update={"search": search}))
        return Translator(system, own.unknown, own.candidates, own.aligner)

    @property
    def best(self) -> Tried:
        """Of the best, the first."""
        return max(self.tried, key=lambda tried: tried.score)

    def run(self, progress: Callable[[Tried], None] | None = None) -> Tried:
        """Try each setting's values at the best of the others, until a round of all changes nothing: the best."""

        def attempt(settings: Settings) -> None:
            if all(tried.settings != settings for tried in self.tried):
                self.tried.append(self._try(settings))
                if progress is not None:
                    progress(self.tried[-1])

        attempt(self.start)
        for _ in range(ROUNDS):
            before = self.best
            for name, values in self.values.items():
                others = self.best.settings
                for value in values:
                    attempt({**others, name: value})
            if self.best is before:
                break
        return self.best

    def _try(self, settings: Settings) -> Tried:
        translator = self._translator_with(self._with(settings))
        translator.prepare()
        began = time.perf_counter()
        found = [translation.text for translation in translator.translate(self.sources)]
        seconds = time.perf_counter() - began
        metric = make_metrics(translator.languages[1])[GOALS[self.metric]]
        return Tried(settings, metric.corpus_score(found, self.references).score, seconds)

    def table(self) -> str:
        """What was tried, in order, as Markdown; the best is marked."""
        rows = [[*self.values, GOALS[self.metric], "seconds"]]
        for tried in self.tried:
            score = f"{tried.score:.2f}"
            shown = f"**{score}**" if tried is self.best else score
            rows.append([*(f"{tried.settings[name]:g}" for name in self.values), shown, f"{tried.seconds:.1f}"])
        return as_markdown(rows, left=())

    def write(self) -> None:
        """Put the best settings into the model folder, with the language model if it has a weight, and the table.

        Errors: DataError where the folder cannot be written.
        """
        search = self._with(self.best.settings)
        with locked(self.model):
            if search.language_model_weight == 0:
                search = override_search(search, {name: SearchConfig.model_fields[name].default for name in FUSION})
            elif self.language_model is not None:
                save_system(self.model / LANGUAGE_MODEL, load_system(self.language_model))
                search = search.model_copy(update={"language_model": LANGUAGE_MODEL})
            config = run_config.load(self.model / CONFIG)
            write_text(self.model / TABLE, self.table())
            write_text(self.model / CONFIG, run_config.dump(config.model_copy(update={"search": search})))


def _value(search: SearchConfig, name: str) -> Number:
    """What a setting is."""
    if search.ensemble is not None:
        weights = {WEIGHT.format(n): weight for n, weight in enumerate(search.ensemble.weights, start=1)}
        if name in weights:
            return weights[name]
    found: Number = getattr(search, name)
    return found
