"""Model folders as folders of ONNX graphs: what translates under any runtime of such graphs, beam outside."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rnnsearch.errors import ModelError
from rnnsearch.export import described, unfollowed
from rnnsearch.files import atomic_folder, write_bytes, write_json, write_text
from rnnsearch.onnx.graphs import graphs
from rnnsearch.onnx.parts import lacks
from rnnsearch.systems.folder import load_system
from rnnsearch.text.tokenizer import RARE, Tokenizer
from rnnsearch.text.vocabulary import BOS, EOS, PAD, UNK

FORMAT, VERSION = "rnnsearch-onnx", 1
ENCODER, STEP, MODEL = "encoder.onnx", "step.onnx", "model.json"
SYMBOLS = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}


def export(folder: Path, path: Path) -> int:
    """Write a model folder as a folder of two graphs, their tokenizers and `model.json`; how many bytes it has.

    Errors: ModelError for a folder that is none, for a model that two graphs cannot hold, with the reason, for a place
    where something else is, and where the package onnx is not installed.
    """
    if find_spec("onnx") is None:
        raise ModelError('format "onnx" needs the package onnx, which is not installed: pip install onnx')
    if path.exists() and not _exported(path):
        raise ModelError(f"{path}: is there, and no export to ONNX: name another folder")
    system = load_system(folder)
    if why := lacks(system.model) or unfollowed(system.config):
        raise ModelError(f"{folder}: cannot be two ONNX graphs: {why}")
    try:
        made = graphs(system.model)
    except ModelError as error:
        raise ModelError(f"{folder}: cannot be two ONNX graphs: {error}") from None
    with atomic_folder(path) as inside:
        write_bytes(inside / ENCODER, made.encoder.SerializeToString())
        write_bytes(inside / STEP, made.step.SerializeToString())
        write_text(inside / "source.json", _library(system.source))
        write_text(inside / "target.json", _library(system.target))
        about = {"symbols": SYMBOLS, **described(folder, system), "apart": _apart(system.source)}
        write_json(inside / MODEL, {"format": FORMAT, "version": VERSION, **about})
    return sum(file.stat().st_size for file in path.iterdir())


def _exported(path: Path) -> bool:
    """Whether such a folder is there already, which is written over."""
    try:
        found: Any = json.loads((path / MODEL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def _library(tokenizer: Tokenizer) -> str:
    """A tokenizer as the library itself reads it."""
    whole = json.loads(tokenizer.dumped)
    return json.dumps({name: part for name, part in whole.items() if name != RARE}, ensure_ascii=False)


def _apart(tokenizer: Tokenizer) -> dict[int, list[int]]:
    """The symbols that are taken apart again where they stand, which the library does not know of."""
    return {id: parts for id in range(len(tokenizer)) if (parts := tokenizer.apart([id])) != [id]}
