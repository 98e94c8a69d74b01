"""Engine files, as `rnnsearch export` writes them, read by the whole package, with all that it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rnnsearch import config as run_config
from rnnsearch.accel import program_writer
from rnnsearch.accel.rnnsearch_search import fill_from
from rnnsearch.config import RunConfig, override_search
from rnnsearch.config.rules import check_model
from rnnsearch.engine import file, stored
from rnnsearch.engine.rnnsearch import TABLES, Arrays, Weight
from rnnsearch.engine.structs import Array
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.candidates import Candidates
from rnnsearch.systems.folder import SYSTEMS, load_system
from rnnsearch.systems.system import System
from rnnsearch.text.tokenizer import Tokenizer


def load_model(path: Path, device: torch.device | str = "cpu") -> System[Any]:
    """What a model folder holds, or an engine file. Errors: ModelError, as in `load_system` and `load_exported`."""
    return load_exported(path, device) if path.is_file() else load_system(path, device)


def exported_config(path: Path, header: dict[str, Any]) -> RunConfig:
    """The config of an engine file's model; search is with the precision of its weights, and names no other file.

    Errors: ModelError where it is not of this version.
    """
    nothing = dict.fromkeys(("dictionary", "language_model", "ensemble"))
    own = {"precision": header.get("kind"), "candidates": header.get("candidates", 0), **nothing}
    try:
        config = run_config.parse(str(header["config"]), path)
        if faults := check_model(config):
            raise ConfigError(faults)
        return config.model_copy(update={"search": override_search(config.search, own)})
    except ConfigError as error:
        raise ModelError(f"{path}: its config is not of this version of rnnsearch: {error.faults[0]}") from None
    except KeyError:
        raise file.damaged(path) from None


def load_exported(path: Path, device: torch.device | str) -> System[Any]:
    """An engine file's model, ready to be used: as in search with the file's precision, so in the engine.

    Errors: ModelError, one sentence, for a missing, damaged or foreign file.
    """
    with file.opened(path) as (header, arrays, *_):
        weights = {name: _in_fp32(name, one) for name, one in arrays.weights.items()}
    config = exported_config(path, header)
    try:
        read = [Tokenizer.of(text, path) for text in map(str, header["tokenizers"])]
        tokenizers = dict(zip(config.data.languages, read, strict=True))
        with torch.device("meta"):  # without memory: a config says what it likes
            _filled(config, tokenizers, weights, arrays)
        system = _filled(config, tokenizers, weights, arrays)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError):
        raise file.damaged(path) from None
    system.model.to(device).eval()
    return system


def exported_lists(path: Path, count: int, target: Tokenizer) -> Candidates:
    """The candidate lists of an engine file. Errors: ModelError where it has none, or fewer translations."""
    with file.opened(path) as contents:
        found = contents.candidates
    if found is None or count > found[0].shape[1]:
        has = f"lists of {found[0].shape[1]} translations" if found else "no candidate lists"
        raise ModelError(f"{path}: has {has}; got {count}: export it with --candidates {count}")
    return Candidates(CandidateLists(*found, count, len(target), list(target.marks.values())))


def _filled(
    config: RunConfig, tokenizers: dict[str, Tokenizer], weights: dict[str, Array], arrays: file.Model
) -> System[Any]:
    """Errors: ValueError, KeyError, AssertionError where the config is of another model than the arrays."""
    system = SYSTEMS[config.model.kind].make(config, tokenizers, seed=None)
    assert isinstance(system.model, TranslationModel)
    if isinstance(arrays, Arrays):
        fill_from(system.model, weights, arrays)
    else:
        program_writer.fill(system.model, weights, arrays)
    return system


def _in_fp32(name: str, weight: Weight) -> Array:
    """A weight that native code rounds to the same bytes again. Tables are stored so."""
    if weight.scale is None or name in TABLES:
        return weight.all
    return Weight(weight.values, stored.readable(weight.scale)).all
