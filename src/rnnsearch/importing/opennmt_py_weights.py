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

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rnnsearch.importing import renaming
from rnnsearch.importing.opennmt_py_options import Parts
from rnnsearch.importing.renaming import Taken

SPECIALS = ("<blank>", "<unk>", "<s>", "</s>")
"""OpenNMT-py's names of the special symbols, in the order of ours."""
TABLES = {
    side: f"{part}.embeddings.make_embedding.emb_luts.0.weight"
    for side, part in (("source", "encoder"), ("target", "decoder"))
}


def every(taken: Taken, parts: Parts, orders: Sequence[list[int]]) -> Iterator[tuple[str, Tensor]]:
    """All weights by our names."""
    tables = renaming.tables(taken, TABLES, orders, "src_word_vec_size = {} and tgt_word_vec_size = {}")
    yield from tables.items()
    yield from renaming.encoder(taken, parts.cell, parts.both_ways)
    form = "decoder.rnn.layers.{1}.{0}" if parts.feeds else "decoder.rnn.{0}_l{1}"
    embedding = tables["target_embedding.weight"].shape[1]
    yield from renaming.decoder(taken, form, parts.cell, embedding, parts.feeds)
    if parts.bridge:
        for number in range(2 if parts.cell == "lstm" else 1):
            once = taken.take(f"encoder.bridge.{number}.weight"), taken.take(f"encoder.bridge.{number}.bias")
            times = 1 + parts.both_ways
            yield f"decoder.bridge.layers.{number}.weight", torch.block_diag(*[once[0]] * times)
            yield f"decoder.bridge.layers.{number}.bias", once[1].repeat(times)
    if parts.score is not None:
        yield from attention(taken, parts.score)
    for name in ("weight", "bias"):  # whose names have changed from version to version
        own = taken.take(f"generator.{name}", f"generator.0.{name}")
        yield f"output.{name}", renaming.in_order(taken, own, orders[1], "rows in its output layer")


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
