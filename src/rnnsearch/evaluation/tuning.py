"""Tuning of search settings on a dev set (`rnnsearch tune`).

`Tuning` optimises one setting after another, each with the best values of the others so far, until nothing changes.
The models are loaded once; each trial only searches with other settings.

`write` changes `[search]` in the model's `config.toml`, writes `tuning.md` and may add `language-model/`. Names of
settings are keys of `[search]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnsearch import config as run_config
from rnnsearch.config import SearchConfig, override_search
from rnnsearch.errors import RnnsearchError, must_be_one_of
from rnnsearch.metrics.scores import SACREBLEU_NAMES, MetricName, make_metrics
from rnnsearch.systems.ensemble import EnsembleSystem, FusedSystem
from rnnsearch.systems.folder import CONFIG, load_system, save_system
from rnnsearch.text.several_sources import SourceText
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import locked, write_text
from rnnsearch.utils.tables import as_markdown

SettingValue = int | float
Settings = dict[str, SettingValue]
SettingValues = Mapping[str, Sequence[SettingValue]]

DEFAULT_VALUES: SettingValues = {
    "language_model_weight": (0.0, 0.05, 0.1, 0.2, 0.3),
    "length_penalty": (0.0, 0.4, 0.7, 1.0, 1.3),
    "coverage_penalty": (0.0, 0.1, 0.2, 0.4),
    "beam": (1, 2, 3, 5, 8, 12),
}
"""Settings of `[search]` in the order in which they are tuned, and the values to try."""
MEMBER_WEIGHT = "weight_{}"
"""Name of the setting for the weight of an ensemble's n-th model, n >= 2; the first model's weight is fixed."""
MEMBER_WEIGHT_VALUES = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Values to try for the weight of an ensemble's model."""
MAX_ROUNDS = 3
"""Limit of passes over all settings; a pass without a change ends tuning earlier."""
FUSION_SETTINGS = ("language_model", "language_model_weight")
"""Settings to reset if the best weight of the language model is 0."""
LANGUAGE_MODEL_FOLDER = "language-model"
"""Name of the language model inside a model folder."""
TABLE_FILE = "tuning.md"
"""Name of the table of all trials in a model folder."""


@dataclass(frozen=True)
class Trial:
    """Settings with their score on the dev set and the time of the search."""

    settings: Settings
    """Settings of the search."""
    score: float
    """BLEU or chrF; higher is better."""
    seconds: float
    """Time of the search."""


class Tuning:
    """A search for the best settings of one model."""

    def __init__(
        self,
        model: Path,
        sources: Sequence[SourceText],
        references: Sequence[str],
        metric: MetricName = "bleu",
        language_model: Path | None = None,
        device: str = "cpu",
        values: SettingValues | None = None,
    ) -> None:
        """Load the models and check the settings.

        Args:
            model: Model folder.
            sources: Source sentences of the dev set.
            references: Their reference translations.
            metric: Metric to maximise.
            language_model: Language model to tune the weight of; None uses the one in the model folder, if any.
            device: Device to translate on.
            values: Values to try per setting; None uses defaults for all settings that have an effect on this model.

        Raises:
            ModelError, ConfigError: See `load`; ConfigError also if a value is invalid for its setting.
            RnnsearchError: If there are no sentences, or a metric or setting is unknown or has no effect.
        """
        if metric not in SACREBLEU_NAMES:
            raise RnnsearchError(f"metric {must_be_one_of(SACREBLEU_NAMES, metric)}")
        if not sources:
            raise RnnsearchError("tuning needs sentences; got none")
        self.model = model
        self.language_model = language_model
        self.sources = list(sources)
        self.references = [list(references)]
        self.metric = metric
        load_options: dict[str, Any] = {}
        if language_model is not None:
            load_options["language_model_weight"] = 1.0  # any weight above 0 makes `load` load the language model
        # First, because it has the better message for a model that is not bilingual.
        search = load_system(model).config.search
        self._translator = load(model, device, language_model=language_model, **load_options)
        has_stored_weight = search.language_model is not None and language_model is None
        weight = search.language_model_weight if has_stored_weight else 0.0
        self._search = override_search(search, {"language_model_weight": weight})
        self.values = self._choose_values(search, values)
        for name, candidates in self.values.items():
            for value in candidates:
                self._search_config({name: value})  # raises ConfigError for an invalid value
        self.start: Settings = {name: _setting(self._search, name) for name in self.values}
        """Values before tuning."""
        self.trials: list[Trial] = []

    def _choose_values(self, search: SearchConfig, values: SettingValues | None) -> SettingValues:
        """Return the values to try per setting, in the order of tuning."""
        known: dict[str, Sequence[SettingValue]] = {}
        if search.ensemble is not None:
            for number in range(2, len(search.ensemble.members) + 2):
                known[MEMBER_WEIGHT.format(number)] = MEMBER_WEIGHT_VALUES
        known |= DEFAULT_VALUES
        without_effect: dict[str, str] = {}
        if not (self.language_model or search.language_model):
            without_effect["language_model_weight"] = "a language model"
        if not self._translator.attends:
            without_effect["coverage_penalty"] = "a model with attention"
        for name in values or ():
            if name not in known:
                raise RnnsearchError(f"a setting to tune {must_be_one_of(known, name)}")
            if name in without_effect:
                raise RnnsearchError(f"{name} has no effect without {without_effect[name]}; do not tune it")
        requested = known if values is None else values
        if self.language_model is not None and "language_model_weight" not in requested:
            raise RnnsearchError("a language model has no effect if language_model_weight is not tuned")
        return {name: requested[name] for name in known if requested.get(name) and name not in without_effect}

    @property
    def best(self) -> Trial:
        """The trial with the highest score; the first of several."""
        return max(self.trials, key=lambda trial: trial.score)

    def run(self, progress: Callable[[Trial], None] | None = None) -> Trial:
        """Optimise one setting after another until a pass over all changes nothing, and return the best trial."""

        def attempt(settings: Settings) -> None:
            if any(trial.settings == settings for trial in self.trials):
                return
            self.trials.append(self._try(settings))
            if progress is not None:
                progress(self.trials[-1])

        attempt(self.start)
        for _ in range(MAX_ROUNDS):
            best_before = self.best
            for name, values in self.values.items():
                settings = self.best.settings
                for value in values:
                    attempt({**settings, name: value})
            if self.best is best_before:
                break
        return self.best

    def _try(self, settings: Settings) -> Trial:
        translator = self._translator_with(self._search_config(settings))
        translator.prepare()
        start = time.perf_counter()
        texts = [translation.text for translation in translator.translate(self.sources)]
        seconds = time.perf_counter() - start
        metric = make_metrics(translator.languages[1])[SACREBLEU_NAMES[self.metric]]
        return Trial(settings, metric.corpus_score(texts, self.references).score, seconds)

    def _search_config(self, settings: Settings) -> SearchConfig:
        """Return the `[search]` table with these settings."""
        overrides: dict[str, Any] = dict(settings)
        ensemble = self._search.ensemble
        if ensemble is not None:
            weights = []
            for number, weight in enumerate(ensemble.weights, start=1):
                weights.append(float(overrides.pop(MEMBER_WEIGHT.format(number), weight)))
            overrides["ensemble"] = {**ensemble.model_dump(), "weights": weights}
        return override_search(self._search, overrides)

    def _translator_with(self, search: SearchConfig) -> Translator:
        """Return a translator with the loaded models and these settings."""
        loaded = self._translator
        system = loaded.system
        translation = system.translation if isinstance(system, FusedSystem) else system
        if isinstance(translation, EnsembleSystem) and search.ensemble is not None:
            translation = replace(translation, weights=tuple(search.ensemble.weights))
        if isinstance(system, FusedSystem) and search.language_model_weight > 0:
            system = replace(system, translation=translation, weight=search.language_model_weight)
        else:
            system = translation
        system = replace(system, config=system.config.model_copy(update={"search": search}))
        return Translator(system, loaded.unknown, loaded.candidates, loaded.aligner)

    def table(self) -> str:
        """Return all trials in order as a Markdown table; the best is bold."""
        rows = [[*self.values, SACREBLEU_NAMES[self.metric], "seconds"]]
        for trial in self.trials:
            score = f"{trial.score:.2f}"
            if trial is self.best:
                score = f"**{score}**"
            rows.append([*(f"{trial.settings[name]:g}" for name in self.values), score, f"{trial.seconds:.1f}"])
        return as_markdown(rows, left=())

    def write(self) -> None:
        """Write the table and the best settings to the model folder, with the language model if its weight is not 0.

        Raises:
            DataError: If the folder cannot be written.
        """
        search = self._search_config(self.best.settings)
        with locked(self.model):
            if search.language_model_weight == 0:
                defaults = {name: SearchConfig.model_fields[name].default for name in FUSION_SETTINGS}
                search = override_search(search, defaults)
            elif self.language_model is not None:
                save_system(self.model / LANGUAGE_MODEL_FOLDER, load_system(self.language_model))
                search = search.model_copy(update={"language_model": LANGUAGE_MODEL_FOLDER})
            config = run_config.load(self.model / CONFIG)
            write_text(self.model / TABLE_FILE, self.table())
            write_text(self.model / CONFIG, run_config.dump(config.model_copy(update={"search": search})))


def _setting(search: SearchConfig, name: str) -> SettingValue:
    """Return the value of a setting in a `[search]` table."""
    if search.ensemble is not None:
        for number, weight in enumerate(search.ensemble.weights, start=1):
            if name == MEMBER_WEIGHT.format(number):
                return weight
    value: SettingValue = getattr(search, name)
    return value
