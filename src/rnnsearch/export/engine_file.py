"""Export of a model folder as one file for the engine, which translates without PyTorch (`runtime`).

Before it writes a file, it compares the engine with the model's definition (`_engine_problem`). The keys of the header
are read by `runtime/translator.py`, `systems/engine_file.py` and the JavaScript module (`web/module/engine-file.js`);
the format is in `engine/file.py`. Tests: tests/runtime/test_runtime.py, tests/runtime/test_other_families.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rnnsearch import config as run_config
from rnnsearch.accel import program_writer
from rnnsearch.accel.program_writer import SUPPORTED, write_program
from rnnsearch.accel.rnnsearch_search import NativeRNNsearch, export_arrays
from rnnsearch.accel.verification import search_problem
from rnnsearch.config import RunConfig
from rnnsearch.data.batch import Stream
from rnnsearch.engine import file
from rnnsearch.engine.recurrent import AnyEngine, RecurrentEngine
from rnnsearch.engine.rnnsearch import RNNsearchEngine
from rnnsearch.engine.structs import DType, PackedMatrix
from rnnsearch.errors import ModelError, must_be_one_of
from rnnsearch.models.layers import ArrayProjection, Embedding
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.native.library import library
from rnnsearch.search.candidates import MAX_CANDIDATES, load_candidates
from rnnsearch.search.ranking import ENGINE_NORMS
from rnnsearch.systems.card import load_origin, load_scores
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System
from rnnsearch.translator.confidence import CALIBRATION_FILE

# Type of the matrix products by precision. With int4, only embeddings and the output layer are stored in 4 bits.
MATRIX_TYPES = {"int4": DType.INT8, "int8": DType.INT8, "bf16": DType.BF16, "fp32": DType.FP32}
# Settings of `[search]` that the engine supports.
SEARCH_SETTINGS = (
    "beam",
    "length_penalty",
    "length_norm",
    "coverage_penalty",
    "max_ratio",
    "max_extra",
    "batch_sentences",
)
# Facts about the training corpus that must be passed on with a model.
ORIGIN_FACTS = ("licence", "attribution")


@torch.no_grad()
def export(folder: Path, path: Path, precision: str = "int8", candidates: int | None = None) -> int:
    """Write a model folder as one engine file, and return its size in bytes.

    Args:
        folder: The model folder.
        path: The file to write.
        precision: int4, int8, bf16 or fp32.
        candidates: Size of the candidate lists to include (`rnnsearch candidates`), which restrict the engine's
            vocabulary; 0 for none. By default, that of the model's `[search]`.

    Raises:
        ModelError: The folder is not a model or has no candidate lists, or the engine does not support the model.
    """
    if precision not in MATRIX_TYPES:
        raise ModelError(f"precision {must_be_one_of(MATRIX_TYPES, precision)}")
    if candidates is not None and not 0 <= candidates <= MAX_CANDIDATES:
        raise ModelError(f"candidates must be between 0 and {MAX_CANDIDATES}; got {candidates}")
    system = load_system(folder)
    if reason := unsupported_reason(system.config, system.model):
        raise ModelError(f"{folder}: the engine does not support it: {reason}")
    header = model_header(folder, system) | {
        "tokenizers": [system.source.json, system.target.json],
        "config": run_config.dump(system.config),
    }
    calibration = folder / CALIBRATION_FILE
    if calibration.is_file():
        header["calibration"] = calibration.read_text(encoding="utf-8")
    count = system.config.search.candidates if candidates is None else candidates
    candidate_arrays = None
    if count:
        header["candidates"] = count
        lists = load_candidates(folder, count, len(system.source), len(system.target)).lists
        candidate_arrays = lists.translations, lists.frequent
    is_rnnsearch = NativeRNNsearch.supports(system.model)
    model = export_arrays(system.model) if is_rnnsearch else write_program(system.model)
    contents = file.Contents(header, model, MATRIX_TYPES[precision], candidate_arrays)
    return file.write(path, contents, int4=precision == "int4")


def model_header(folder: Path, system: System[Any]) -> dict[str, Any]:
    """Return the description of a model for an exported file: languages, search, origin and scores."""
    origin = load_origin(folder)
    search = system.config.search.model_dump()
    return {
        "languages": [system.config.data.single_source, system.config.data.target],
        "search": {name: search[name] for name in SEARCH_SETTINGS},
        "aligns_read_words": system.config.aligns_previous_word,
        "about": {name: origin[name] for name in ORIGIN_FACTS if name in origin},
        "scores": load_scores(folder),
    }


def unsupported_reason(config: RunConfig, model: Any) -> str:
    """Return why the engine does not support a model, or "" if it does."""
    if not isinstance(model, TranslationModel):
        return "it is not a translation model"
    if not NativeRNNsearch.supports(model):
        reason = program_writer.unsupported_reason(model)
        if reason is not None:
            return f"{reason}; it can have {SUPPORTED}"
    if type(model.source_embedding) is not Embedding:
        is_array = isinstance(model.source_embedding, ArrayProjection)
        return "its source is an array" if is_array else "its source words are made of characters"
    return unsupported_settings(config) or _engine_problem(model) or ""


def _engine_problem(model: TranslationModel) -> str | None:
    """Return why the engine must not run a model, or None if it equals the definition.

    The engine has its own equations, which do not follow a change of those in `models`.
    """
    return None if library() is None else search_problem(model, _EngineSearch, "the engine")


class _EngineSearch:
    """The engine with tensors, for the comparison with the definition."""

    def __init__(self, model: TranslationModel, dtype: DType) -> None:
        native = library()
        assert native is not None
        self._engine: AnyEngine
        if NativeRNNsearch.supports(model):
            self._engine = RNNsearchEngine(native, export_arrays(model), dtype)
        else:
            self._engine = RecurrentEngine(native, write_program(model), dtype)
        self.output = self._engine.output

    def encode(self, sources: Mapping[str, Stream]) -> Any:
        (source,) = sources.values()
        return self._engine.encode(self._engine.embed(source.ids.numpy()), source.mask.sum(1).numpy())

    def start(self, memory: Any) -> Tensor:
        if isinstance(self._engine, RNNsearchEngine):
            return torch.from_numpy(self._engine.start(memory))
        return torch.from_numpy(memory.state)

    def step(self, memory: Any, state: Tensor, y: Tensor, output: PackedMatrix) -> list[Tensor]:
        return [torch.from_numpy(result) for result in self._engine.step(memory, state.numpy(), y.numpy(), output)]


def unsupported_settings(config: RunConfig) -> str:
    """Return which settings are only supported by the full package, or "" if there are none."""
    search = config.search
    is_unsupported = {
        f'search.length_norm = "{search.length_norm}"': search.length_norm not in ENGINE_NORMS,
        f'search.stop = "{search.stop}"': search.stop != "bound",
        "scores that are not normalised (objective.sequence)": not config.objective.normalises_scores,
        "search.ensemble": search.ensemble is not None,
        "search.language_model": search.language_model is not None,
        "search.no_repeat_ngram": search.no_repeat_ngram > 0,
        "search.replace_unknown": search.replace_unknown != "none",
        "data.tag": config.data.tag is not None,
        "text.annotation": config.text.annotation is not None,
        "text.inline_terms": config.text.inline_terms is not None,
    }
    unsupported = [setting for setting, applies in is_unsupported.items() if applies]
    return f"it uses {' and '.join(unsupported)}, which exports do not support" if unsupported else ""
