"""What a run has of trained models: weights to begin with in the place of drawn ones, those of a language model inside,
and a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rnnsearch.config import ModelConfig, RunConfig, dotted
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.system import System
from rnnsearch.utils.weights import fill, weights

FREE = ("dropout.", "init.", "language_model.")
"""Of `[model]`, what may be another than that of the model that a run begins from."""

INSIDE = "language_model.model."
"""What the tensors of a language model inside are called."""


def begin(system: System[Any]) -> list[str]:
    """Fill a new system's parameters from the folders that its config names; returns what to say of it.

    Errors: ConfigError and ModelError, where a folder's model is none of this one's parts.
    """
    config, said = system.config, []
    if config.training.begin_from is not None:
        said.append(_begin_from(system, config.base / config.training.begin_from))
    if isinstance(system.model, TranslationModel) and (inside := system.model.language_model) is not None:
        beside = language_model(config)
        _require_symbols("model.language_model", system, beside, [config.data.target])
        fill(inside.model, weights(beside.model))
        said.append(f"a language model inside, of {beside.parameters:,} parameters, which stay as they are")
    return said


def language_model(config: RunConfig) -> LanguageSystem:
    """The language model that `[model.language_model]` names. Errors: ModelError where its folder has none."""
    assert isinstance(config.model, ModelConfig)
    assert config.model.language_model is not None
    folder = config.base / config.model.language_model.folder
    found = load_system(folder)
    if not isinstance(found, LanguageSystem):
        raise ModelError(f"{folder}: must be a language model (model.language_model.folder); got a {found.kind} model")
    return found


def teacher(system: System[Any]) -> TranslationModel:
    """The model that `[objective.teacher]` names, which stays as it is.

    Errors: ModelError, where its folder is missing or has no such model; ConfigError, where it has other symbols
    or goes another way.
    """
    config, path = system.config, "objective.teacher.folder"
    assert config.objective.teacher is not None
    folder = config.base / config.objective.teacher.folder
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such model folder; the run needs its teacher ({path}) to the end")
    found = load_system(folder)
    if not isinstance(found.model, TranslationModel):
        raise ModelError(f"{folder}: must be a translation model ({path}); got a {found.kind} model")
    its = found.config.translation
    has = {
        "search.ensemble": found.config.search.ensemble is not None,
        "model.source_characters": its.source_characters is not None,
        "model.target_characters": its.target_characters is not None,
        "model.pointer or the copynet decoder": its.copies,
    }
    for option in (option for option, given in has.items() if given):
        raise ModelError(f"{folder}: must be one model that reads and writes symbols alone ({path}); got {option}")
    if found.direction != system.direction:  # two sides of one vocabulary have the same symbols in either
        want, got = (f"{', '.join(way.sources)} to {way.target}" for way in (system.direction, found.direction))
        raise ConfigError([f"{path}: must translate {want}, as this run; got a model of {got} in {folder}"])
    _require_symbols(path, system, found, config.data.languages)
    model: TranslationModel = found.model.requires_grad_(False)
    return model


def _begin_from(system: System[Any], folder: Path) -> str:
    """Fill all that a trained model has; the rest stays as it was drawn."""
    path, old = "training.begin_from", load_system(folder)
    if old.kind != system.kind:
        raise ConfigError([f"{path}: must be a {system.kind} model, as this one; got a {old.kind} model in {folder}"])
    _require_symbols(path, system, old, system.config.data.languages)
    _require_options(path, system, old, folder)
    own, given = weights(system.model), weights(old.model)
    for name, tensor in given.items():
        there = tuple(own[name].shape) if name in own else "no such parameter"
        if there != tuple(tensor.shape):
            raise ConfigError([f"{path}: {name} is {tuple(tensor.shape)} in {folder}, must be {there}"])
    fill(system.model, {**own, **given})
    drawn = sum(tensor.numel() for name, tensor in own.items() if name not in given and not name.startswith(INSIDE))
    return f"begins from {folder}" + (f"; {drawn:,} parameters that it has not are drawn" if drawn else "")


def _require_symbols(path: str, system: System[Any], other: System[Any], sides: Sequence[str]) -> None:
    """Errors: ConfigError where another model has other symbols on some side."""
    for side in sides:
        its = other.tokenizers.get(side)
        if its is None or its.fingerprint() != system.tokenizers[side].fingerprint():
            way = "train one with the tokenizers of the other (text.tokenizers)"
            raise ConfigError([f"{path}: must have the same symbols of {side}; it has others: {way}"])


def _require_options(path: str, system: System[Any], old: System[Any], folder: Path) -> None:
    """Errors: ConfigError where a trained model's `[model]` says something else than this one's."""
    here, there = (dotted(one.config.model.model_dump(mode="json", exclude_none=True)) for one in (system, old))
    others = sorted(
        option for option, value in there.items() if not option.startswith(FREE) and here.get(option) != value
    )
    if others:
        got = ", ".join(f"model.{option}" for option in others)
        raise ConfigError([f"{path}: needs the [model] of {folder}; got another {got}"])
