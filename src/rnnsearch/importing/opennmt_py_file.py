"""Checkpoints of OpenNMT-py 3 as plain data: read without running anything that is in them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rnnsearch.errors import ModelError
from rnnsearch.importing.pickles import is_whole, mapping_of, plain
from rnnsearch.importing.renaming import distinct

PARTS = {
    "model": "the weights (save_format must be pytorch, and lora_layers none)",
    "generator": "the output layer",
    "vocab": "the vocabularies",
    "opt": "the options",
}
"""What a checkpoint must hold."""
PLAIN = (str, int, float, list, dict, type(None))
"""What an option that is looked at may be; what else it is is none of the model's."""


class Checkpoint(NamedTuple):
    """tensors: by their names in the file, those of the output layer under `generator.`; vocabularies: the source's and
    the target's symbols by id; options: those it was trained with; start: the symbol before the first; updates: of
    training, None where it does not say."""

    tensors: dict[str, Tensor]
    vocabularies: tuple[list[str], list[str]]
    options: Mapping[str, Any]
    start: Any
    updates: int | None


def read(path: Path) -> Checkpoint:
    """A checkpoint. The file is a pickle of Python's, of which no more than tensors, plain values and an
    `argparse.Namespace` are made. Errors: ModelError for one that holds anything else, or is none of OpenNMT-py 3."""
    whole = plain(path, "OpenNMT-py 3")
    for name, what in PARTS.items():
        if whole.get(name) is None:
            raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; it lacks {name!r}, {what}")
    options = vars(whole["opt"]) if isinstance(whole["opt"], argparse.Namespace) else whole["opt"]
    vocab = whole["vocab"]
    found: dict[str, Tensor] = {}
    for prefix, part in (("", whole["model"]), ("generator.", whole["generator"])):
        if not mapping_of(part, is_whole):
            raise ModelError(
                f"{path}: must be a checkpoint of OpenNMT-py 3; its weights are no matrices and vectors by name"
            )
        found |= {f"{prefix}{name}": tensor for name, tensor in part.items()}
    if not mapping_of(options) or not mapping_of(vocab):
        raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; its options or vocabularies have another form")
    if vocab.get("src_feats"):
        raise ModelError(f"{path}: source features (n_src_feats) have no counterpart here")
    return Checkpoint(
        found,
        (_symbols(path, vocab, "src"), _symbols(path, vocab, "tgt")),
        {name: value for name, value in options.items() if isinstance(value, PLAIN)},
        vocab.get("decoder_start_token", "<s>"),
        _updates(whole.get("optim")),
    )


def _symbols(path: Path, vocab: Mapping[str, Any], side: str) -> list[str]:
    """A side's symbols. Errors: ModelError where they are none of version 3's, or one stands there twice."""
    symbols = vocab.get(side)
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; its vocabulary {side!r} is no list of symbols")
    return distinct(str(path), side, symbols)


def _updates(optimiser: Any) -> int | None:
    """`training_step` counts from 1."""
    step = optimiser.get("training_step") if isinstance(optimiser, Mapping) else None
    return step - 1 if isinstance(step, int) else None
