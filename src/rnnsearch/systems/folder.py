"""The model folder: config, weights, tokenizers. Self-contained, no pickles, each file written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig, SearchConfig
from rnnsearch.config.rules import check_model
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.systems.language import NEEDS, LanguageSystem
from rnnsearch.systems.system import System, Trainable
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.tokenizer import TOKENIZERS, Tokenizer, tokenizer_file
from rnnsearch.utils.files import write_text
from rnnsearch.utils.weights import fill, read_weights, require_shapes, save_weights, weights

# The systems by kind.

SYSTEMS: dict[str, type[Trainable[Any]]] = {s.kind: s for s in (TranslationSystem, LanguageSystem)}


CONFIG, WEIGHTS = "config.toml", "model.safetensors"
TWO_SIDES = ("source.json", "target.json")
"""Where folders of versions that knew two sides alone keep their tokenizers."""


def save_system(folder: Path, system: System[Any], tensors: dict[str, Tensor] | None = None) -> None:
    """Write (or write over) a model folder, weights last, so that a folder with weights is whole.

    `tensors`: the weights, where they are not those that the system's model has now.
    """
    (folder / TOKENIZERS).mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, run_config.dump(system.config))
    for side, tokenizer in system.tokenizers.items():
        tokenizer.save(folder / tokenizer_file(side))
    save_weights(folder / WEIGHTS, weights(system.model) if tensors is None else tensors)


def require_whole(folder: Path) -> None:
    """Errors: ModelError where a folder lacks what every model has."""
    if not folder.is_dir():
        told = "is a file, and must be a model folder" if folder.is_file() else "there is no such model folder"
        raise ModelError(f"{folder}: {told}")
    old = any((folder / name).is_file() for name in TWO_SIDES)
    missing = [name for name in (CONFIG, WEIGHTS, *(TWO_SIDES if old else ())) if not (folder / name).is_file()]
    if not old and not (folder / TOKENIZERS).is_dir():
        missing.append(TOKENIZERS)
    if missing:
        raise ModelError(f"{folder}: is not a whole model folder: it lacks {', '.join(missing)}")


def translating_config(folder: Path) -> RunConfig:
    """The config of a whole model folder; its weights stay unread. Errors: ModelError for a model of another version,
    and for one that does not translate."""
    require_whole(folder)
    try:
        config = run_config.load(folder / CONFIG)
    except ConfigError as error:
        raise _of_another_version(folder, error) from None
    if config.model.kind == LanguageSystem.kind:
        raise ModelError(f"{folder}: translating {NEEDS}")
    return config


def _of_another_version(folder: Path, error: ConfigError) -> ModelError:
    return ModelError(f"{folder}: its {CONFIG} is not of this version of rnnsearch: {error.faults[0]}")


def _require_inside(folder: Path, search: SearchConfig) -> None:
    """A folder may come from anybody. Errors: ModelError where it names a file that is not in it."""
    named = [("dictionary", search.dictionary), ("language_model", search.language_model)]
    named += [("ensemble", member) for member in (search.ensemble.members if search.ensemble else ())]
    for name, path in named:
        if path is not None and not (folder / path).resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{folder}: its search.{name} must be in the folder itself; got another place")


def load_system(folder: Path, device: torch.device | str = "cpu") -> System[Any]:
    """Read a model folder, ready to be used.

    Errors: ModelError, one sentence, for a missing, incomplete, truncated or foreign folder.
    """
    require_whole(folder)
    try:
        config = run_config.load(folder / CONFIG)
        if faults := check_model(config):
            raise ConfigError(faults)
        _require_inside(folder, config.search)
        sides = config.data.languages
        files = [tokenizer_file(side) for side in sides] if (folder / TOKENIZERS).is_dir() else TWO_SIDES
        tokenizers = {side: Tokenizer.load(folder / file) for side, file in zip(sides, files, strict=True)}
        with torch.device("meta"):  # without memory: a config says what it likes
            require_shapes(folder / WEIGHTS, SYSTEMS[config.model.kind].make(config, tokenizers, seed=None).model)
        system = SYSTEMS[config.model.kind].make(config, tokenizers, seed=None)
    except ConfigError as error:
        raise _of_another_version(folder, error) from None
    fill(system.model, read_weights(folder / WEIGHTS))
    system.model.to(device).eval()
    return system
