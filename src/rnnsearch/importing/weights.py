"""Weights of OpenNMT-py 3 by the names that they have here.

| OpenNMT-py                          | here                                                          |
|-------------------------------------|---------------------------------------------------------------|
| ids: unknown, padding, BOS, EOS     | rows of tables and output as ours: padding, unknown, BOS, EOS |
| `nn.LSTM`: i, f, candidate, o       | i, f, o, candidate; two biases of a gate are one, their sum   |
| `nn.GRU`: r, z, candidate           | the cell `torch-gru`, as it is                                |
| decoder's W of [word; h~]           | the bottom cell's W, and `feeding`                            |
| `bridge`, a direction at a time     | `rectified`: its matrix for each direction, zeros elsewhere   |
| `linear_in` (general), of the query | `key`, of the annotation: its transpose                       |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rnnsearch.errors import ModelError
from rnnsearch.importing.options import Parts

SPECIALS = ("<blank>", "<unk>", "<s>", "</s>")
"""OpenNMT-py's names of the special symbols, in the order of ours."""
TABLES = {"source": "encoder", "target": "decoder"}
DIRECTIONS = {"forward": "", "backward": "_reverse"}


class Taken:
    """Tensors, each taken by its name; what nobody has taken is told."""

    def __init__(self, where: str, tensors: Mapping[str, Tensor]) -> None:
        self.where = where
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, *names: str) -> Tensor:
        """The tensor of the first of these names that is there, in fp32. Errors: ModelError where none is."""
        for name in names:
            if name in self._left:
                found, axes = self._left.pop(name).float(), 1 if "bias" in name else 2
                if found.dim() == axes:
                    return found
                raise ModelError(f"{self.where}: {name} must have {axes} axes; got {found.dim()}")
        raise ModelError(f"{self.where}: must have the weights of its options; it lacks {names[0]}")

    def require_empty(self) -> None:
        """Errors: ModelError where something is left."""
        for name in sorted(self._left):
            raise ModelError(f"{self.where}: {name} has no counterpart here")


def order(where: str, symbols: Sequence[str]) -> list[int]:
    """The ids of a vocabulary in the order that they have here: the special ones first.
    Errors: ModelError for one without these."""
    places = {symbol: id for id, symbol in enumerate(symbols)}
    for special in SPECIALS:
        if special not in places:
            raise ModelError(f"{where}: its vocabularies must have {', '.join(SPECIALS)}; one lacks {special}")
    return [*(places[name] for name in SPECIALS), *(id for name, id in places.items() if name not in SPECIALS)]


def embeddings(taken: Taken, orders: Sequence[list[int]]) -> dict[str, Tensor]:
    """The two tables. Errors: ModelError where they have other rows than the vocabularies or are not of one size."""
    found = {}
    for (side, part), rows in zip(TABLES.items(), orders, strict=True):
        table = taken.take(f"{part}.embeddings.make_embedding.emb_luts.0.weight")
        if len(table) != len(rows):
            raise ModelError(f"{taken.where}: must have {len(rows)} embeddings of {side} symbols; got {len(table)}")
        found[f"{side}_embedding.weight"] = table[rows]
    sizes = [table.shape[1] for table in found.values()]
    if sizes[0] != sizes[1]:
        fault = f"src_word_vec_size = {sizes[0]} and tgt_word_vec_size = {sizes[1]} have no counterpart here"
        raise ModelError(f"{taken.where}: {fault}; both must be one")
    return found


def encoder(taken: Taken, parts: Parts) -> Iterator[tuple[str, Tensor]]:
    """The recurrent layers, as many as there are."""
    directions = dict(list(DIRECTIONS.items())[: 1 + parts.both_ways])
    layer = 0
    while layer == 0 or f"encoder.rnn.weight_ih_l{layer}" in taken:
        for name, ending in directions.items():
            names = [f"encoder.rnn.{w}_l{layer}{ending}" for w in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            weights = [taken.take(one) for one in names]
            yield from cell(f"encoder.layers.{layer}.{name}_cell", parts.cell, *weights)
        layer += 1


def decoder(taken: Taken, parts: Parts, embedding: int) -> Iterator[tuple[str, Tensor]]:
    """The stack, what feeds back into it, the bridge, and attention with the layer behind it."""
    form = "decoder.rnn.layers.{1}.{0}" if parts.feeds else "decoder.rnn.{0}_l{1}"
    layer = 0
    while layer == 0 or form.format("weight_ih", layer) in taken:
        names = [form.format(w, layer) for w in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        W, U, b, b_U = (taken.take(name) for name in names)
        if layer == 0 and parts.feeds:
            yield "decoder.feeding.weight", gates(parts.cell, W[:, embedding:])
            W = W[:, :embedding]
        yield from cell(f"decoder.stack.cells.{layer}", parts.cell, W, U, b, b_U)
        layer += 1
    if parts.bridge:
        for number in range(2 if parts.cell == "lstm" else 1):
            once = taken.take(f"encoder.bridge.{number}.weight"), taken.take(f"encoder.bridge.{number}.bias")
            times = 1 + parts.both_ways
            yield f"decoder.bridge.layers.{number}.weight", torch.block_diag(*[once[0]] * times)
            yield f"decoder.bridge.layers.{number}.bias", once[1].repeat(times)
    if parts.score is not None:
        yield from attention(taken, parts.score)


def attention(taken: Taken, score: str) -> Iterator[tuple[str, Tensor]]:
    """The score, and W_c (with `mlp` a bias, too)."""
    ours, theirs = "decoder.attention.score", "decoder.attn"
    if score == "general":
        yield f"{ours}.key.weight", taken.take(f"{theirs}.linear_in.weight").t()
    if score == "additive-bias":
        yield f"{ours}.key.weight", taken.take(f"{theirs}.linear_context.weight")
        yield f"{ours}.query.weight", taken.take(f"{theirs}.linear_query.weight")
        yield f"{ours}.query.bias", taken.take(f"{theirs}.linear_query.bias")
        yield f"{ours}.vector", taken.take(f"{theirs}.v.weight").flatten()
        yield "decoder.attentional.combine.bias", taken.take(f"{theirs}.linear_out.bias")
    yield "decoder.attentional.combine.weight", taken.take(f"{theirs}.linear_out.weight")


def output(taken: Taken, rows: list[int]) -> Iterator[tuple[str, Tensor]]:
    """The output layer, whose names have changed from version to version."""
    for name in ("weight", "bias"):
        own = taken.take(f"generator.{name}", f"generator.0.{name}")
        if len(own) != len(rows):
            raise ModelError(f"{taken.where}: must have {len(rows)} rows in its output layer; got {len(own)}")
        yield f"output.{name}", own[rows]


def cell(name: str, kind: str, W: Tensor, U: Tensor, b: Tensor, b_U: Tensor) -> Iterator[tuple[str, Tensor]]:
    """One of PyTorch's cells."""
    yield f"{name}.input.weight", gates(kind, W)
    yield f"{name}.recurrent.weight", gates(kind, U)
    if kind == "lstm":
        yield f"{name}.input.bias", gates(kind, b + b_U)
    else:
        yield f"{name}.input.bias", b
        yield f"{name}.recurrent.bias", b_U


def gates(kind: str, w: Tensor) -> Tensor:
    """Rows of a cell's weight or bias in our order of the gates."""
    if kind != "lstm":
        return w
    i, f, candidate, o = w.tensor_split(4)
    return torch.cat([i, f, o, candidate])
