"""Model folders, or engine files, as a Translator: one, or several as an ensemble, with a language model or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rnnsearch.align.aligner import Aligner
from rnnsearch.config import SearchConfig, override_search
from rnnsearch.config.rules import check_unknown_words
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.ops.device import choose_device
from rnnsearch.search.candidates import KEPT, Candidates, read
from rnnsearch.search.unknown_words import unknown_words
from rnnsearch.systems.engine_file import exported_lists, load_model
from rnnsearch.systems.ensemble import EnsembleSystem, FusedSystem, require_one_model
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System
from rnnsearch.translator.confidence import read_calibration
from rnnsearch.translator.translator import Translator


def load(
    folder: str | Path | Sequence[str | Path],
    device: str = "cpu",
    replace_unknown: str | None = None,
    dictionary: str | Path | None = None,
    candidates: int | None = None,
    precision: str | None = None,
    weights: Sequence[float] | None = None,
    mean: str | None = None,
    language_model: str | Path | None = None,
    language_model_weight: float | None = None,
    attended_word: str | None = None,
) -> Translator:
    """A model folder or engine file as a Translator on `device` (auto, cpu, cuda, cuda:N); several as one, an ensemble.

    `replace_unknown` (none, copy, dictionary) and `dictionary`, a TSV file, take the place of the model's own
    `[search]` options; a dictionary alone means "dictionary". So do `candidates`, of which 0 means the whole
    vocabulary, `precision` (auto, fp32, bf16, int8) and `attended_word` (predicted, read).
    An ensemble takes everything but its models from the first folder; `weights`, one a model, and `mean` (geometric,
    the default, or arithmetic) say how their distributions become one (see `search.ensemble`). So they do of a folder
    that is an ensemble by itself (`rnnsearch ensemble`).
    `language_model`, the folder of one with the same target symbols, counts in search by its weight (see
    `systems.fusion`); a weight of 0 leaves out the one that the first folder may bring.
    Errors: ModelError, one sentence, also for a system that cannot translate and models that do not go together;
    ConfigError for a device this machine has not, or where the model has no unknown words or no attention to replace
    them by; DataError for an unfit dictionary.
    """
    folders = [Path(folder)] if isinstance(folder, str | Path) else [Path(one) for one in folder]
    if not folders:
        raise ModelError("there must be a model folder to load; got none")
    on = choose_device(device, "device")
    system, own = load_model(folders[0], on), folders[0]
    system.require("translate")
    asked = {"candidates": candidates, "precision": precision, "language_model_weight": language_model_weight}
    asked["attended_word"] = attended_word
    if language_model is not None:
        asked["language_model"] = str(Path(language_model).absolute())
    given = {name: value for name, value in asked.items() if value is not None}
    search = _searching(system.config.search, given | _replacing(replace_unknown, dictionary))
    config = system.config.model_copy(update={"search": search})
    if search.attended_word == "read":
        system.require("read")
    if faults := check_unknown_words(config):
        raise ConfigError(faults)
    lists = _candidates(own, search.candidates, system)
    # A calibration is of what its folder gives by itself, be it several models.
    as_calibrated = len(folders) == 1 and weights is None and mean is None and language_model is None
    system = _together(replace(system, config=config), folders, weights, mean, on)
    if search.language_model is not None and search.language_model_weight > 0:
        language = load_system(config.base / search.language_model, on)
        system = FusedSystem.of(system, language, search.language_model_weight)
    calibration = read_calibration(own) if as_calibrated else None
    return Translator(system, unknown_words(config), lists, Aligner.find(own), calibration)


def _replacing(replace_unknown: str | None, dictionary: str | Path | None) -> dict[str, Any]:
    """What takes the place of unknown words, as `[search]` says it."""
    if replace_unknown is None and dictionary is None:
        return {}
    if dictionary is None:
        kept = {} if replace_unknown == "dictionary" else {"dictionary": None}
        return {"replace_unknown": replace_unknown, **kept}
    return {"replace_unknown": replace_unknown or "dictionary", "dictionary": str(Path(dictionary).absolute())}


def _searching(own: SearchConfig, given: dict[str, Any]) -> SearchConfig:
    """The model's own `[search]` with what is given in its place. Errors: ConfigError."""
    if given.get("candidates", 0) > KEPT:
        raise ConfigError([f"candidates: must be at most {KEPT}; got {given['candidates']}"])
    search = override_search(own, given)
    if "language_model_weight" in given and search.language_model is None:
        raise ConfigError(["language_model_weight: has no effect without a language model; name one"])
    return search


def _candidates(folder: Path, count: int, system: System[Any]) -> Candidates | None:
    """The candidate lists of a folder, of so many a source symbol; None where none are wanted.

    Errors: ModelError where there are none.
    """
    if count == 0:
        return None
    if folder.is_file():
        return exported_lists(folder, count, system.target)
    return read(folder, count, len(system.source), len(system.target), list(system.target.marks.values()))


def _together(
    first: System[Any], folders: Sequence[Path], weights: Sequence[float] | None, mean: str | None, on: torch.device
) -> System[Any]:
    """The system of the first folder with those of the others, or of the ensemble that it is by itself.

    Errors: ModelError.
    """
    own, others = first.config.search.ensemble, folders[1:]
    if others:
        require_one_model(first, 1)
    elif own is not None:
        others = [first.config.base / member for member in own.members]
        weights, mean = weights or own.weights, mean or own.mean
    elif mean is not None:
        raise ModelError(f"{folders[0]}: is one model; a mean is of several")
    elif weights is None:
        return first
    return EnsembleSystem.of([first, *(load_model(other, on) for other in others)], weights, mean or "geometric")
