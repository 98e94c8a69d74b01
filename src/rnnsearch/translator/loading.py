"""`load`: a `Translator` from model folders and engine files: one model, an ensemble, or with a language model.

Behind `rnnsearch.load` and most commands. Arguments override `[search]` of the model; a new override needs an option in
`cli/options.py` and in `cli/translate_lines.py`. Folders are untrusted: they are read without pickles, and their config
cannot name files outside. Tests: tests/test_ensemble.py, tests/test_fusion.py, tests/stress/folders.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig, override_search
from rnnsearch.config.rules import check_unknown_words
from rnnsearch.data.batch import Direction
from rnnsearch.errors import ConfigError, ModelError, must_be_one_of
from rnnsearch.ops.device import choose_device
from rnnsearch.search.candidates import MAX_CANDIDATES, Candidates, load_candidates
from rnnsearch.search.ensemble import Mean
from rnnsearch.search.unknown_words import unknown_word_replacer
from rnnsearch.systems.engine_file import engine_file_candidates, load_model
from rnnsearch.systems.ensemble import EnsembleSystem, FusedSystem, require_single_model
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System, choose_direction
from rnnsearch.text.normalization import LEVELS, Normalization
from rnnsearch.translator.confidence import load_calibration
from rnnsearch.translator.multiway import MultiwayTranslator
from rnnsearch.translator.translator import Translator


def load(
    folder: str | Path | Sequence[str | Path],
    device: str = "cpu",
    replace_unknown: str | None = None,
    dictionary: str | Path | None = None,
    candidates: int | None = None,
    precision: str | None = None,
    weights: Sequence[float] | None = None,
    mean: Mean | None = None,
    language_model: str | Path | None = None,
    language_model_weight: float | None = None,
    attended_word: str | None = None,
    normalize: str | None = None,
    source: str | None = None,
    target: str | None = None,
    averaging: str | None = None,
) -> Translator:
    """Load a model folder or an engine file; several of them make an ensemble.

    A multi-way model is loaded with all its directions, of which `Translator.select` returns one, or with only one
    direction if `source` or `target` is given.

    Options that are omitted default to the `[search]` table of the model, of an ensemble to that of its first model.

    Args:
        folder: The folder or file, or a list of them. A folder may itself be an ensemble (`rnnsearch ensemble`).
        device: auto, cpu, cuda or cuda:N.
        replace_unknown: How to replace unknown words: none, copy or dictionary.
        dictionary: A TSV file; implies `replace_unknown="dictionary"`.
        candidates: Size of the candidate lists per source token; 0 for the whole vocabulary.
        precision: Precision of matrix products: auto, fp32, bf16 or int8.
        weights: Weights of the models of an ensemble.
        mean: How an ensemble combines distributions: geometric (the default) or arithmetic.
        language_model: Folder of a language model with the same target tokens, whose scores count in search.
        language_model_weight: Weight of its scores; 0 disables the model's own language model, too.
        attended_word: Word that attention refers to: predicted or read.
        normalize: Normalisation of the text to translate: none, standard or punctuation. A model that was trained
            without may gain from it.
        source: Source language of a multi-way model.
        target: Target language of a multi-way model.
        averaging: How a model with several sources combines them: early, late or both.

    Raises:
        ModelError: A model is missing, damaged or does not translate, or the models do not fit together.
        ConfigError: The device is not available, or the model has no unknown words, or no attention to replace them.
        DataError: The dictionary is invalid.
    """
    folders = [Path(folder)] if isinstance(folder, str | Path) else [Path(item) for item in folder]
    if not folders:
        raise ModelError("there must be a model folder to load; got none")
    first_folder = folders[0]
    torch_device = choose_device(device, "device")
    if normalize is not None and normalize not in LEVELS:
        raise ConfigError([f"normalize {must_be_one_of(LEVELS, normalize)}"])
    whole_system = load_model(first_folder, torch_device, multiway=True)
    whole_system.require("translate")
    settings: dict[str, Any] = {
        "candidates": candidates,
        "precision": precision,
        "language_model": None if language_model is None else str(Path(language_model).absolute()),
        "language_model_weight": language_model_weight,
        "attended_word": attended_word,
        "averaging": averaging,
    }
    # None means the model's own setting.
    overrides = {name: value for name, value in settings.items() if value is not None}
    overrides |= _unknown_word_overrides(replace_unknown, dictionary)

    def load_direction(direction: Direction) -> Translator:
        system = _normalizing(whole_system.select(direction), normalize)
        translator = _make_translator(system, folders, overrides, weights, mean, torch_device, normalize)
        if len(whole_system.directions) > 1:
            translator.folder = None  # it has more than this direction
        return translator

    if len(whole_system.directions) > 1 and source is None and target is None:
        _require_some_direction(whole_system, overrides)
        return MultiwayTranslator(whole_system.directions, load_direction, whole_system.num_parameters)
    return load_direction(choose_direction(whole_system.directions, source, target))


def _require_some_direction(system: System[Any], overrides: dict[str, Any]) -> None:
    """Raise the error of the first direction if settings of `[search]` are valid for no direction of a system."""
    errors = []
    for direction in system.directions:
        try:
            _override_search(system.select(direction), overrides)
        except (ConfigError, ModelError) as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _make_translator(
    system: System[Any],
    folders: Sequence[Path],
    overrides: dict[str, Any],
    weights: Sequence[float] | None,
    mean: Mean | None,
    device: torch.device,
    normalize: str | None,
) -> Translator:
    """Return the translator of one direction; see `load` for the arguments.

    Args:
        system: System of the first folder.
        folders: All folders.
        overrides: Settings of `[search]` to replace.
        weights: Weights of an ensemble.
        mean: Mean of an ensemble.
        device: Device of the models.
        normalize: Normalisation of the text to translate.
    """
    first_folder = folders[0]
    config = _override_search(system, overrides)
    search = config.search
    # From the first model: all members of an ensemble have its target vocabulary.
    candidate_lists = _load_candidates(first_folder, search.candidates, system)
    system = _combine(replace(system, config=config), folders, weights, mean, device, normalize)
    if search.language_model is not None and search.language_model_weight > 0:
        language_system = _normalizing(load_system(config.base / search.language_model, device), normalize)
        system = FusedSystem.combine(system, language_system, search.language_model_weight)
    # A calibration is only valid for the translations of the folder as it is, be it an ensemble.
    is_as_calibrated = len(folders) == 1 and weights is None and mean is None and "language_model" not in overrides
    calibration = load_calibration(first_folder) if is_as_calibrated else None
    replacer = unknown_word_replacer(config)
    translator = Translator(system, replacer, candidate_lists, Aligner.find(first_folder), calibration)
    if is_as_calibrated and first_folder.is_dir():
        translator.folder = first_folder
    return translator


AnySystem = TypeVar("AnySystem", bound=System[Any])


def _normalizing(system: AnySystem, level: str | None) -> AnySystem:
    """Return a system that normalises text in another way, or the same one without a level."""
    if level is None:
        return system
    tokenizers = {}
    for language, tokenizer in system.tokenizers.items():
        tokenizers[language] = tokenizer.normalizing(Normalization.of_language(level, language))
    return replace(system, tokenizers=tokenizers)


def _unknown_word_overrides(replace_unknown: str | None, dictionary: str | Path | None) -> dict[str, Any]:
    """Return the settings of `[search]` for replacing unknown words."""
    if dictionary is not None:
        return {"replace_unknown": replace_unknown or "dictionary", "dictionary": str(Path(dictionary).absolute())}
    if replace_unknown is None:
        return {}
    if replace_unknown == "dictionary":  # that of the model
        return {"replace_unknown": replace_unknown}
    return {"replace_unknown": replace_unknown, "dictionary": None}


def _override_search(system: System[Any], overrides: dict[str, Any]) -> RunConfig:
    """Return the config of a system with some settings of `[search]` replaced.

    Raises:
        ConfigError: A setting is invalid, or the model has no unknown words, or no attention to replace them.
        ModelError: The model has no attention at the position after a word, and a setting needs it.
    """
    if overrides.get("candidates", 0) > MAX_CANDIDATES:
        raise ConfigError([f"candidates: must be at most {MAX_CANDIDATES}; got {overrides['candidates']}"])
    search = override_search(system.config.search, overrides)
    if "language_model_weight" in overrides and search.language_model is None:
        raise ConfigError(["language_model_weight: has no effect without a language model; name one"])
    if search.attended_word == "read":
        system.require("read")
    if search.averaging != "early" and not system.has_several_texts:
        raise ConfigError([f'averaging: "{search.averaging}" needs a model with several sources; this one has one'])
    config: RunConfig = system.config.model_copy(update={"search": search})
    if problems := check_unknown_words(config):
        raise ConfigError(problems)
    return config


def _load_candidates(folder: Path, count: int, system: System[Any]) -> Candidates | None:
    """Return a model's candidate lists of a size, or None for size 0.

    Raises:
        ModelError: The model has no such lists.
    """
    if count == 0:
        return None
    if system.config.translation.sources is not None:
        raise ModelError("candidate lists need a model with one source; this one has several")
    if folder.is_file():
        return engine_file_candidates(folder, count, system.target)
    return load_candidates(
        folder, count, len(system.source), len(system.target), list(system.target.annotation_ids.values())
    )


def _combine(
    first: System[Any],
    folders: Sequence[Path],
    weights: Sequence[float] | None,
    mean: Mean | None,
    device: torch.device,
    normalize: str | None,
) -> System[Any]:
    """Return the ensemble of several folders, or of the one folder that is an ensemble, or a single model's system.

    Raises:
        ModelError: The models do not fit together, or the options are for an ensemble and there is only one model.
    """
    ensemble = first.config.search.ensemble
    other_folders = list(folders[1:])
    if other_folders:
        require_single_model(first, 1)
    elif ensemble is not None:
        other_folders = [first.config.base / member for member in ensemble.members]
        weights = weights or ensemble.weights
        mean = mean or ensemble.mean
    elif mean is not None:
        raise ModelError(f"{folders[0]}: is one model; a mean needs several")
    # A weight for a single model makes an ensemble of one, which then checks the number of weights.
    elif weights is None:
        return first
    systems = [first]
    for other in other_folders:
        system = load_model(other, device, multiway=True)
        if len(system.directions) > 1:
            (source,) = first.direction.sources
            system = system.select(choose_direction(system.directions, source, first.direction.target))
        systems.append(_normalizing(system, normalize))
    return EnsembleSystem.combine(systems, weights, mean or "geometric")
