"""Model folders as files for the engine: what translates without PyTorch (`runtime/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rnnsearch import config as run_config
from rnnsearch.accel import program_writer
from rnnsearch.accel.program_writer import CAN, written
from rnnsearch.accel.rnnsearch_search import NativeRNNsearch, arrays_of
from rnnsearch.config import RunConfig
from rnnsearch.engine import file
from rnnsearch.engine.structs import Kind
from rnnsearch.errors import ModelError, must_be_one_of
from rnnsearch.models.layers import Embedding
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.candidates import KEPT, read
from rnnsearch.search.ranking import ENGINE_NORMS
from rnnsearch.systems.card import load_scores, load_origin
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System
from rnnsearch.translator.confidence import CONFIDENCE

KINDS = {"int4": Kind.INT8, "int8": Kind.INT8, "bf16": Kind.BF16, "fp32": Kind.FP32}
"""What weights are stored in, and what products are then of: int4 is of embeddings and output alone."""
SEARCH = ("beam", "length_penalty", "length_norm", "coverage_penalty", "max_ratio", "max_extra", "batch_sentences")
"""Of `[search]`, what the engine follows."""
FACTS = ("licence", "attribution")
"""Of what is known of a model's corpus, what goes with the model wherever it goes."""


@torch.no_grad()
def export(folder: Path, path: Path, precision: str = "int8", candidates: int | None = None) -> int:
    """Write a model folder as one engine file; how many bytes it has.

    `candidates`: that many translations of each source symbol go along, of which alone the engine's translations are
    made (`rnnsearch candidates`); 0: none; as the model's own search has it, if not given.
    Errors: ModelError for a folder that is none, or has no lists, and for a model that the engine cannot run, with the
    reason.
    """
    if precision not in KINDS:
        raise ModelError(f"precision {must_be_one_of(KINDS, precision)}")
    if candidates is not None and not 0 <= candidates <= KEPT:
        raise ModelError(f"candidates must be between 0 and {KEPT}; got {candidates}")
    system = load_system(folder)
    if why := lacks(system.config, system.model):
        raise ModelError(f"{folder}: the engine cannot run it: {why}")
    about = described(folder, system) | {
        "tokenizers": [system.source.dumped, system.target.dumped],
        "config": run_config.dump(system.config),
    }
    if (calibration := folder / CONFIDENCE).is_file():
        about["calibration"] = calibration.read_text(encoding="utf-8")
    count, lists = system.config.search.candidates if candidates is None else candidates, None
    if count:
        about["candidates"] = count
        found = read(folder, count, len(system.source), len(system.target)).lists
        lists = found.translations, found.frequent
    own = arrays_of(system.model) if NativeRNNsearch.takes(system.model) else written(system.model)
    contents = file.Contents(about, own, KINDS[precision], lists)
    return file.write(path, contents, halved=precision == "int4")


def described(folder: Path, system: System[Any]) -> dict[str, Any]:
    """What goes with a model wherever it goes: languages, how to search, where it comes from, what it was measured
    at."""
    known, search = load_origin(folder), system.config.search.model_dump()
    return {
        "languages": [system.config.data.single_source, system.config.data.target],
        "search": {name: search[name] for name in SEARCH},
        "aligns_read_words": system.config.aligns_previous_word,
        "about": {name: known[name] for name in FACTS if name in known},
        "scores": load_scores(folder),
    }


def lacks(config: RunConfig, model: Any) -> str:
    """Why the engine cannot run a model; empty where it can."""
    if not isinstance(model, TranslationModel):
        return "it is no translation model"
    if not NativeRNNsearch.takes(model) and (why := program_writer.lacks(model)) is not None:
        return f"{why}; it can have {CAN}"
    if type(model.source_embedding) is not Embedding:
        return "its source words are made of characters"
    return unfollowed(config)


def unfollowed(config: RunConfig) -> str:
    """Which settings nothing but the whole package follows; empty where there are none."""
    search = config.search
    told = {
        f'search.length_norm = "{search.length_norm}"': search.length_norm not in ENGINE_NORMS,
        f'search.stop = "{search.stop}"': search.stop != "bound",
        "search.ensemble": search.ensemble is not None,
        "search.language_model": search.language_model is not None,
        "search.no_repeat_ngram": search.no_repeat_ngram > 0,
        "search.replace_unknown": search.replace_unknown != "none",
        "text.annotation": config.text.annotation is not None,
        "text.inline_terms": config.text.inline_terms is not None,
    }
    given = [name for name, is_given in told.items() if is_given]
    return f"it has no {' and no '.join(given)} yet" if given else ""
