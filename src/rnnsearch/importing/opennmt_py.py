"""A checkpoint of OpenNMT-py 3 as a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rnnsearch.importing import opennmt_py_file as file
from rnnsearch.importing import opennmt_py_options as options
from rnnsearch.importing import opennmt_py_weights as weights
from rnnsearch.importing.folder import Found, Imported, all_of, import_from
from rnnsearch.importing.opennmt_py_options import Parts
from rnnsearch.importing.renaming import Taken, depth, order


def import_opennmt_py(checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write the recurrent model of an OpenNMT-py 3 checkpoint as a model folder, which translates as `onmt_translate`.

    source, target: the languages' codes, which a checkpoint does not say. Errors: ModelError for a file that is none,
    for an option without a counterpart, by its name, and where something stands at `output`; ConfigError for codes that
    are none.
    """
    return import_from(_found, checkpoint, output, source, target)


def _found(path: Path) -> Found:
    """What is in the file."""
    where, given = str(path), file.read(path)
    parts = options.parts(where, given.options, given.start)
    orders = [order(where, symbols, weights.SPECIALS) for symbols in given.vocabularies]
    taken = Taken(where, given.tensors)
    found = all_of(taken, weights.every(taken, parts, orders))
    source, target = (
        [symbols[id] for id in rows[4:]] for symbols, rows in zip(given.vocabularies, orders, strict=True)
    )
    return Found(
        "OpenNMT-py",
        found,
        (source, target),
        _model(parts, found),
        options.training(given.options, given.updates),
        options.search(),
        options.files(given.options),
        given.updates,
    )


def _model(parts: Parts, found: Mapping[str, Tensor]) -> dict[str, Any]:
    """`[model]`, in the sizes that the weights have."""
    unit = found["encoder.layers.0.forward_cell.recurrent.weight"].shape[1]
    size = found["decoder.stack.cells.0.recurrent.weight"].shape[1]
    depths = [depth(found, "encoder.layers."), depth(found, "decoder.stack.cells.")]
    encoder = {
        "type": "stacked",
        "cell": parts.cell,
        "size": unit,
        "layers": depths[0],
        "direction": "both" if parts.both_ways else "forward",
        "reads_end": False,
    }
    bridge = "rectified" if parts.bridge else "copy"
    decoder: dict[str, Any] = {"cell": parts.cell, "size": size, "layers": depths[1], "bridge": bridge}
    if parts.score is None:
        decoder["type"] = "sutskever"
    else:
        decoder |= {"type": "luong-input-feeding" if parts.feeds else "luong", "readout": size}
        decoder["attentional"] = "linear" if parts.score == "additive-bias" else "tanh"
    dropout = {"embedding": parts.dropout, "readout": parts.dropout}
    if max(depths) > 1:
        dropout["layers"] = parts.dropout
    made = {
        "embedding": found["target_embedding.weight"].shape[1],
        "encoder": encoder,
        "decoder": decoder,
        "dropout": dropout,
    }
    if parts.tied:
        made["tie"] = "target"
    if parts.score is not None:
        attention: dict[str, Any] = {"score": parts.score, "normaliser": "sparsemax" if parts.sparse else "softmax"}
        if parts.score == "additive-bias":
            attention["size"] = len(found["decoder.attention.score.vector"])
        made["attention"] = attention
    return made
