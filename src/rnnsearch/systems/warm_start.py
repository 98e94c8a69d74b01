"""Trained models that a training run uses: a warm start, a language model inside the model, and a teacher.

Training calls `load_initial_weights` for a new run, and `load_teacher` whenever a run with
`[objective.teacher]` starts or resumes.

Parameters are matched by name and must have equal shapes; `systems/transfer.py` assigns the rows of other tokens
(`[training.transfer]`), and `systems/language_transfer.py` the modules of multi-way models. Tests:
tests/training/test_teacher.py, tests/training/test_objectives.py, tests/commands/test_inside.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from rnnsearch.config import ModelConfig, RunConfig
from rnnsearch.data.batch import Direction
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.language_transfer import transfer_languages
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.system import System
from rnnsearch.systems.transfer import (
    copy_inherited,
    require_same_arrays,
    require_same_options,
    require_same_tokens,
    transfer_weights,
)
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.utils.weights import copy_weights, named_weights

AUXILIARY = "auxiliary."
"""Prefix of the names of parameters that only training reads."""
REWARD_NETWORKS = tuple(
    f"{AUXILIARY}{name}." for name in ("actor_critic", "state_critic", "reward_baseline", "agent_baseline")
)
"""Prefixes of the names of critics and baselines, which predict rewards."""


def load_initial_weights(system: System[Any]) -> list[str]:
    """Load the weights of `training.begin_from` and of a language model inside into a new system.

    Returns:
        A sentence for the log per model that was loaded.

    Raises:
        ConfigError, ModelError: If a folder has no suitable model.
    """
    config = system.config
    messages = []
    sequence = config.objective.sequence
    if config.training.begin_from is None and sequence is not None and sequence.needs_trained_model:
        messages.append(f"training.begin_from is not set, but {sequence.type} learns little from random translations")
    if config.training.begin_from is not None:
        messages.append(_load_begin_from(system, config.base / config.training.begin_from))
    if isinstance(system.model, TranslationModel) and system.model.language_model is not None:
        language_model = load_language_model(config)
        require_same_tokens("model.language_model", system, language_model, [config.data.target])
        # Words are not composed inside: only their ids are known.
        copy_weights(system.model.language_model.model, named_weights(language_model.search_model))
        messages.append(f"a language model inside, with {language_model.num_parameters:,} frozen parameters")
    return messages


def load_language_model(config: RunConfig) -> LanguageSystem:
    """Load the model in `model.language_model.folder`, or raise ModelError if it is no language model."""
    assert isinstance(config.model, ModelConfig)
    assert config.model.language_model is not None
    folder = config.base / config.model.language_model.folder
    system = load_system(folder)
    if not isinstance(system, LanguageSystem):
        raise ModelError(f"{folder}: must be a language model (model.language_model.folder); got a {system.kind} model")
    return system


def load_teacher(student: System[Any]) -> TranslationModel:
    """Load the model in `objective.teacher.folder`, frozen.

    Raises:
        ModelError: If the folder does not exist or has no single translation model over tokens.
        ConfigError: If the teacher has other tokens or languages than the student.
    """
    config = student.config
    path = "objective.teacher.folder"
    assert config.objective.teacher is not None
    folder = config.base / config.objective.teacher.folder
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such model folder; training needs the teacher until it ends ({path})")
    teacher = load_system(folder)
    if not isinstance(teacher.model, TranslationModel):
        raise ModelError(f"{folder}: must be a translation model ({path}); got a {teacher.kind} model")
    options = teacher.config.translation
    unsupported = {
        "search.ensemble": teacher.config.search.ensemble is not None,
        "model.source_characters": options.source_characters is not None,
        "model.target_characters": options.target_characters is not None,
        "model.pointer or the copynet decoder": options.copies,
    }
    for option, is_used in unsupported.items():
        if is_used:
            raise ModelError(f"{folder}: must be one model that reads and writes only tokens ({path}); got {option}")
    if "probabilities" in teacher.unsupported:
        raise ModelError(f"{folder}: cannot be a teacher ({path}): {teacher.unsupported['probabilities']}")
    # Checked in addition to the tokens, because both languages of a joint vocabulary have the same ones.
    if teacher.direction != student.direction:
        must = f"must translate {_direction_name(student.direction)}, like this run"
        raise ConfigError([f"{path}: {must}; got {_direction_name(teacher.direction)} in {folder}"])
    require_same_tokens(path, student, teacher, config.data.text_languages)
    require_same_arrays(path, student, teacher)
    model: TranslationModel = teacher.model.requires_grad_(False)
    return model


def _direction_name(direction: Direction) -> str:
    return f"{', '.join(direction.sources)} to {direction.target}"


def _load_begin_from(system: System[Any], folder: Path) -> str:
    """Load the parameters of a trained model; parameters that it does not have keep their random values."""
    path = "training.begin_from"
    trained = load_system(folder, multiway=system.kind == MultiwaySystem.kind)
    # A multi-way model can start from a bilingual one.
    kinds = [system.kind] if system.kind != MultiwaySystem.kind else [system.kind, TranslationSystem.kind]
    if trained.kind not in kinds:
        must = f"must be a {' or '.join(kinds)} model, like this one"
        raise ConfigError([f"{path}: {must}; got a {trained.kind} model in {folder}"])
    require_same_arrays(path, system, trained)
    _require_no_networks(system, trained, folder)
    if isinstance(system, MultiwaySystem):
        return transfer_languages(system, trained, folder)
    if system.config.training.transfer is not None:
        return transfer_weights(system, trained, folder)
    if system.config.data.tag != trained.config.data.tag:
        tag = "no tag" if trained.config.data.tag is None else f'"{trained.config.data.tag}"'
        raise ConfigError([f"data.tag: must be that of {folder}, {tag}; got {system.config.data.tag or 'none'}"])
    languages = system.config.data.text_languages
    require_same_tokens(path, system, trained, languages)
    require_same_options(path, system, trained, folder)
    return f"warm start from {folder}{copy_inherited(system, _inherited(system, trained), {}, folder)}"


def _require_no_networks(system: System[Any], trained: System[Any], folder: Path) -> None:
    """Raise ConfigError if a trained model has an actor or an agent and the new one has none."""
    for name, objective in (("actor", "greedy-actor"), ("agent", "read-write")):
        if getattr(trained.model, name, None) is not None and getattr(system.model, name, None) is None:
            has = f'has an {name} (objective.sequence.type = "{objective}"), which this run does not have'
            why = f"begin from the model that the {name} was trained on"
            raise ConfigError([f"training.begin_from: {folder} {has}; {why}"])


def _inherited(system: System[Any], trained: System[Any]) -> dict[str, Tensor]:
    """Return the parameters of a trained model that a new model starts from.

    Parameters that only training reads are left out if the new objective does not have them. Critics and baselines are
    left out if they have learned to predict another reward.
    """
    current = named_weights(system.model)
    has_same_reward = _reward_options(system.config) == _reward_options(trained.config)
    inherited = {}
    for name, tensor in named_weights(trained.model).items():
        is_unknown = name.startswith(AUXILIARY) and name not in current
        is_of_other_reward = name.startswith(REWARD_NETWORKS) and not has_same_reward
        if not (is_unknown or is_of_other_reward):
            inherited[name] = tensor
    return inherited


def _reward_options(config: RunConfig) -> dict[str, Any]:
    """Return the options that the parameters of critics and baselines depend on."""
    sequence = config.objective.sequence
    options = {} if sequence is None else sequence.model_dump()
    names = ("type", "reward", "baseline", "critic_size", "baseline_size", "wait_penalty", "target_wait")
    return {name: options.get(name) for name in (*names, "proportion_penalty", "target_proportion")}
