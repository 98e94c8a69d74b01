"""Model folders: config, tokenizers and weights.

A folder is self-contained and has no pickles; each file is written atomically. All commands that
use a trained model load it here, or in `systems.engine_file`, which also reads engine files.

The names of files, of parameters and of config options are a format: `tests/old_models/test_old_models.py` loads
folders of earlier versions. See docs/decisions/0013-model-folders-and-checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig, SearchConfig
from rnnsearch.config.rules import check_model
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.systems.language import NEEDS_TRANSLATION_MODEL, LanguageSystem
from rnnsearch.systems.multiway import MultiwaySystem, require_one_direction
from rnnsearch.systems.system import System, Trainable
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.tokenizer import TOKENIZERS, Tokenizer, tokenizer_file
from rnnsearch.utils.files import MAX_TEXT_BYTES, is_inside, require_folder_file, write_text
from rnnsearch.utils.weights import copy_weights, named_weights, read_weights, require_shapes, save_weights

SYSTEMS: dict[str, type[Trainable[Any]]] = {
    system.kind: system for system in (TranslationSystem, LanguageSystem, MultiwaySystem)
}
"""Systems by `model.kind`."""

CONFIG = "config.toml"
"""The resolved run file."""
WEIGHTS = "model.safetensors"
"""Parameters by name."""
OLD_TOKENIZER_FILES = ("source.json", "target.json")
"""Tokenizers in the folders of early versions, which had exactly two languages."""


def save_system(folder: Path, system: System[Any], tensors: dict[str, Tensor] | None = None) -> None:
    """Write or overwrite a model folder; the weights are written last, so that a folder with weights is complete.

    Args:
        folder: The model folder.
        system: The system to save.
        tensors: Weights to write instead of the current ones of the model.
    """
    (folder / TOKENIZERS).mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, run_config.dump(system.config))
    for language, tokenizer in system.tokenizers.items():
        tokenizer.save(folder / tokenizer_file(language))
    save_weights(folder / WEIGHTS, named_weights(system.model) if tensors is None else tensors)


def require_complete(folder: Path) -> None:
    """Raise ModelError if a folder does not have the files that every model folder has."""
    if folder.is_file():
        raise ModelError(f"{folder}: must be a model folder; got a file")
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such model folder")
    is_old = any((folder / name).is_file() for name in OLD_TOKENIZER_FILES)
    required = [CONFIG, WEIGHTS, *OLD_TOKENIZER_FILES] if is_old else [CONFIG, WEIGHTS]
    missing = [name for name in required if not (folder / name).is_file()]
    if not is_old and not (folder / TOKENIZERS).is_dir():
        missing.append(TOKENIZERS)
    if missing:
        raise ModelError(f"{folder}: is not a complete model folder: missing {', '.join(missing)}")
    if not is_old and not is_inside(folder / TOKENIZERS, folder):
        raise ModelError(f"{folder}: its {TOKENIZERS} must be inside the folder; got a link to a folder outside")
    try:
        require_folder_file(folder / CONFIG, max_bytes=MAX_TEXT_BYTES)
    except OSError as error:
        raise ModelError(f"{folder / CONFIG}: cannot be read: {error.strerror}") from None


def load_translation_config(folder: Path, multiway: bool = False) -> RunConfig:
    """Return the config of a complete model folder, without reading the weights.

    Args:
        folder: The model folder.
        multiway: True if the model may have several directions.

    Raises:
        ModelError: If the folder is incomplete or of another version, or if the model is not a bilingual one.
    """
    require_complete(folder)
    try:
        config = run_config.load(folder / CONFIG)
    except ConfigError as error:
        raise _version_error(folder, error) from None
    if config.model.kind == LanguageSystem.kind:
        raise ModelError(f"{folder}: translating {NEEDS_TRANSLATION_MODEL}")
    if config.model.kind == MultiwaySystem.kind and not multiway:
        require_one_direction(folder)
    return config


def _version_error(folder: Path, error: ConfigError) -> ModelError:
    if error.missing:
        needed = ", ".join(error.missing)
        return ModelError(
            f"{folder}: needs the {needed}, which neither rnnsearch nor an installed package has; install the package "
            "that it was trained with (or update rnnsearch)"
        )
    return ModelError(f"{folder}: its {CONFIG} is not valid in this version of rnnsearch: {error.problems[0]}")


def _require_local_files(folder: Path, search: SearchConfig) -> None:
    """Raise ModelError if `[search]` names a file outside the folder: a folder may come from an untrusted source."""
    paths = [("dictionary", search.dictionary), ("language_model", search.language_model)]
    if search.ensemble is not None:
        paths += [("ensemble", member) for member in search.ensemble.members]
    for option, path in paths:
        if path is not None and not is_inside(folder / path, folder):
            raise ModelError(f"{folder}: its search.{option} must be inside the folder; got a path outside")
    if search.dictionary is not None and (folder / search.dictionary).exists():
        try:
            require_folder_file(folder / search.dictionary, folder)
        except OSError as error:
            raise ModelError(f"{folder / search.dictionary}: cannot be read: {error.strerror}") from None


def load_system(folder: Path, device: torch.device | str = "cpu", multiway: bool = False) -> System[Any]:
    """Load a model folder for evaluation.

    Args:
        folder: The model folder.
        device: Device of the weights.
        multiway: True if the system may have several directions.

    Raises:
        ModelError: If the folder is missing, incomplete, damaged or not a model folder; or if it has a multi-way model
            and `multiway` is False.
    """
    require_complete(folder)
    try:
        config = run_config.load(folder / CONFIG)
        if config.model.kind == MultiwaySystem.kind and not multiway:
            require_one_direction(folder)
        if faults := check_model(config):
            raise ConfigError(faults)
        # Before any other file is read.
        _require_local_files(folder, config.search)
        languages = config.data.text_languages
        files: Sequence[str] = OLD_TOKENIZER_FILES
        if (folder / TOKENIZERS).is_dir():
            files = [tokenizer_file(language) for language in languages]
        tokenizers = {language: Tokenizer.load(folder / file) for language, file in zip(languages, files, strict=True)}
        system_class = SYSTEMS[config.model.kind]
        # The shapes are compared before any memory is allocated: an untrusted config may have any sizes.
        with torch.device("meta"):
            require_shapes(folder / WEIGHTS, system_class.make(config, tokenizers, seed=None).model)
        system = system_class.make(config, tokenizers, seed=None)
    except ConfigError as error:
        raise _version_error(folder, error) from None
    # safetensors, not pickle: loading cannot run code.
    copy_weights(system.model, read_weights(folder / WEIGHTS))
    system.model.to(device).eval()
    return system
