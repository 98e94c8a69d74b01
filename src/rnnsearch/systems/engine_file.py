"""Loading of engine files (`rnnsearch export`) as systems, so that every command can use them like model folders.

The server (`serve/registry.py`) reads only the header (`engine_file_config`). The weights are those of the file's
precision, converted to fp32. The format is in `engine/file.py`, the header is written by `export/engine_file.py`; files
of format 1 must still load. Tests: tests/runtime/test_runtime.py, tests/properties/test_written_models.py,
tests/stress/engine_files.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rnnsearch import config as run_config
from rnnsearch.accel import program_writer
from rnnsearch.accel.rnnsearch_search import import_arrays
from rnnsearch.config import RunConfig, override_search
from rnnsearch.config.rules import check_model
from rnnsearch.engine import file, stored
from rnnsearch.engine.rnnsearch import TABLES, RNNsearchModel, Weight
from rnnsearch.engine.structs import Array
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.candidates import Candidates
from rnnsearch.systems.folder import SYSTEMS, load_system
from rnnsearch.systems.system import System
from rnnsearch.text.tokenizer import Tokenizer


def load_model(path: Path, device: torch.device | str = "cpu", multiway: bool = False) -> System[Any]:
    """Load a model folder or an engine file; raise ModelError like `load_system` and `load_engine_file`."""
    return load_engine_file(path, device) if path.is_file() else load_system(path, device, multiway)


def engine_file_config(path: Path, header: dict[str, Any]) -> RunConfig:
    """Return the config in the header of an engine file.

    Its `[search]` has the precision of the file's weights and refers to no other files.

    Raises:
        ModelError: If the config is not valid in this version.
    """
    search_options = {
        "precision": header.get("kind"),
        "candidates": header.get("candidates", 0),
        "dictionary": None,
        "language_model": None,
        "ensemble": None,
    }
    try:
        config = run_config.parse(str(header["config"]), path)
        # The file may come from anyone; the model is only built from a valid config.
        if faults := check_model(config):
            raise ConfigError(faults)
        return config.model_copy(update={"search": override_search(config.search, search_options)})
    except ConfigError as error:
        raise ModelError(f"{path}: its config is not valid in this version of rnnsearch: {error.problems[0]}") from None
    except KeyError:
        raise file.damaged_error(path) from None


def load_engine_file(path: Path, device: torch.device | str) -> System[Any]:
    """Load an engine file for evaluation. Search in the file's precision gives the same results as the engine.

    Raises:
        ModelError: If the file is missing, damaged or not an engine file.
    """
    with file.open_file(path) as (header, arrays, *_):
        weights = {name: _to_fp32(name, weight) for name, weight in arrays.weights.items()}
    config = engine_file_config(path, header)
    try:
        texts = [str(text) for text in header["tokenizers"]]
        languages = config.data.languages
        tokenizers = {
            language: Tokenizer.from_json(text, path) for language, text in zip(languages, texts, strict=True)
        }
        # The shapes are compared before any memory is allocated: an untrusted config may have any sizes.
        with torch.device("meta"):
            _make_system(config, tokenizers, weights, arrays)
        system = _make_system(config, tokenizers, weights, arrays)
    except ModelError:
        raise
    # Any value of the header may have a wrong type.
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError):
        raise file.damaged_error(path) from None
    system.model.to(device).eval()
    return system


def engine_file_candidates(path: Path, count: int, target: Tokenizer) -> Candidates:
    """Return the candidate lists of an engine file with `count` translations per token.

    Raises:
        ModelError: If the file has no candidate lists, or shorter ones.
    """
    with file.open_file(path) as contents:
        lists = contents.candidates
    if lists is None or count > lists[0].shape[1]:
        stored = f"lists of {lists[0].shape[1]} translations" if lists else "no candidate lists"
        raise ModelError(f"{path}: has {stored}; got {count}: export it with --candidates {count}")
    return Candidates(CandidateLists(*lists, count, len(target), list(target.annotation_ids.values())))


def _make_system(
    config: RunConfig, tokenizers: dict[str, Tokenizer], weights: dict[str, Array], arrays: file.EngineModel
) -> System[Any]:
    """Return a system with the weights of an engine file.

    Raises:
        ValueError, KeyError, AssertionError: If the weights do not fit the config.
    """
    system = SYSTEMS[config.model.kind].make(config, tokenizers, seed=None)
    assert isinstance(system.model, TranslationModel)
    if isinstance(arrays, RNNsearchModel):
        import_arrays(system.model, weights, arrays)
    else:
        program_writer.load_arrays(system.model, weights, arrays)
    return system


def _to_fp32(name: str, weight: Weight) -> Array:
    """Return a weight in fp32 that native code rounds to the bytes of the file; tables are stored in fp32."""
    if weight.scale is None or name in TABLES:
        return weight.fp32
    # Packing computes scales from fp32 weights; with these, it finds those of the file.
    return Weight(weight.values, stored.reproducible_scales(weight.scale)).fp32
