"""Options of OpenNMT-py 3: what is the same here under another name, and what is refused by its own."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.config.options import MAX_INTEGER
from rnnsearch.errors import ModelError
from rnnsearch.importers import folder
from rnnsearch.importers.folder import (
    Found,
    Imported,
    Taken,
    all_of,
    depth,
    distinct,
    import_from,
    is_whole,
    mapping_of,
    no_counterpart,
    optimiser,
    order,
    plain,
)

# Checkpoints of OpenNMT-py 3 as plain data: read without running anything that is in them.

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


CELLS = {"LSTM": "lstm", "GRU": "torch-gru"}
SCORES = {"general": "general", "dot": "dot", "mlp": "additive-bias"}
NO_ATTENTION = (None, "none")
ONLY: dict[str, tuple[Any, ...]] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "encoder_type": ("rnn", "brnn"),
    "decoder_type": ("rnn",),
    "rnn_type": tuple(CELLS),
    "global_attention": (*SCORES, *NO_ATTENTION),
    "global_attention_function": ("softmax", "sparsemax"),
    "generator_function": ("softmax",),
    "copy_attn": (False, None),
    "coverage_attn": (False, None),
    "context_gate": (None,),
    "position_encoding": (False, None),
    "n_src_feats": (0, None),
    "lora_layers": ([], None),
    "lora_embedding": (False, None),
    "quant_layers": ([], None),
}
"""Of the options that change the equations those values that have a counterpart here; the first is that of a checkpoint
which does not say."""
BRNN = "brnn"


class Parts(NamedTuple):
    """What a checkpoint's model is made of."""

    both_ways: bool
    cell: str
    score: str | None
    sparse: bool
    feeds: bool
    bridge: bool
    tied: bool
    """The output layer's rows are the target's embeddings."""
    dropout: float


def parts(where: str, options: Mapping[str, Any], start: Any) -> Parts:
    """Errors: ModelError for the first option that has no counterpart, by its name."""
    given = {name: options.get(name, known[0]) for name, known in ONLY.items()}
    for name, known in ONLY.items():
        if given[name] not in known:
            raise no_counterpart(where, name, given[name], known)
    if start != "<s>":
        raise no_counterpart(where, "decoder_start_token", start, ["<s>"])
    feeds = bool(options.get("input_feed", 1))
    score = SCORES.get(given["global_attention"])
    if score is None and feeds:
        raise ModelError(f"{where}: input_feed without global_attention has no counterpart here")
    dropout = options.get("dropout", 0.0)
    dropout = dropout[0] if isinstance(dropout, list) and dropout else dropout
    return Parts(
        given["encoder_type"] == BRNN,
        CELLS[given["rnn_type"]],
        score,
        given["global_attention_function"] == "sparsemax",
        feeds,
        bool(options.get("bridge", False)),
        bool(options.get("share_decoder_embeddings", False)),
        float(dropout) if isinstance(dropout, int | float) else 0.0,
    )


def files(options: Mapping[str, Any]) -> list[str]:
    """The training text that the options name, as `[data] train` does."""
    corpora = options.get("data")
    found = []
    for corpus in corpora.values() if isinstance(corpora, Mapping) else ():
        named = [corpus.get(f"path_{side}") for side in ("src", "tgt")] if isinstance(corpus, Mapping) else []
        sides = [side for side in named if isinstance(side, str) and "|" not in side]
        if len(sides) == 2:
            found.append("|".join(sides))
    return found


def training(options: Mapping[str, Any], updates: int | None) -> dict[str, Any]:
    """`[training]`: as many updates as there were, and the optimiser where it is one of ours in the same words."""
    own = optimiser(options.get("optim"), options.get("learning_rate"))
    return {"max_updates": min(max(1, updates or 1), MAX_INTEGER), "optimiser": own}


def search() -> dict[str, Any]:
    """`[search]`: what `onmt_translate` does where nothing is said (beam_size 5, length_penalty avg with alpha 1,
    max_length_ratio 1.25), in the precision that it has."""
    return {
        "beam": 5,
        "length_penalty": 1.0,
        "length_norm": "power-with-bos",
        "stop": "top",
        "max_ratio": 1.25,
        "max_extra": 5,
        "precision": "fp32",
    }


# Weights of OpenNMT-py 3 by the names that they have here.
#
# | OpenNMT-py                          | here                                                          |
# |-------------------------------------|---------------------------------------------------------------|
# | ids: unknown, padding, BOS, EOS     | rows of tables and output as ours: padding, unknown, BOS, EOS |
# | `nn.LSTM`: i, f, candidate, o       | i, f, o, candidate; two biases of a gate are one, their sum   |
# | `nn.GRU`: r, z, candidate           | the cell `torch-gru`, as it is                                |
# | decoder's W of [word; h~]           | the bottom cell's W, and `feeding`                            |
# | `bridge`, a direction at a time     | `rectified`: its matrix for each direction, zeros elsewhere   |
# | `linear_in` (general), of the query | `key`, of the annotation: its transpose                       |

SPECIALS = ("<blank>", "<unk>", "<s>", "</s>")
"""OpenNMT-py's names of the special symbols, in the order of ours."""
TABLES = {
    side: f"{part}.embeddings.make_embedding.emb_luts.0.weight"
    for side, part in (("source", "encoder"), ("target", "decoder"))
}


def every(taken: Taken, parts: Parts, orders: Sequence[list[int]]) -> Iterator[tuple[str, Tensor]]:
    """All weights by our names."""
    tables = folder.tables(taken, TABLES, orders, "src_word_vec_size = {} and tgt_word_vec_size = {}")
    yield from tables.items()
    yield from folder.encoder(taken, parts.cell, parts.both_ways)
    form = "decoder.rnn.layers.{1}.{0}" if parts.feeds else "decoder.rnn.{0}_l{1}"
    embedding = tables["target_embedding.weight"].shape[1]
    yield from folder.decoder(taken, form, parts.cell, embedding, parts.feeds)
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
        yield f"output.{name}", folder.in_order(taken, own, orders[1], "rows in its output layer")


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


# A checkpoint of OpenNMT-py 3 as a model folder.


def import_opennmt_py(checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write the recurrent model of an OpenNMT-py 3 checkpoint as a model folder, which translates as `onmt_translate`.

    source, target: the languages' codes, which a checkpoint does not say. Errors: ModelError for a file that is none,
    for an option without a counterpart, by its name, and where something stands at `output`; ConfigError for codes that
    are none.
    """
    return import_from(_found, checkpoint, output, source, target)


def _found(path: Path) -> Found:
    """What is in the file."""
    where, given = str(path), read(path)
    components = parts(where, given.options, given.start)
    orders = [order(where, symbols, SPECIALS) for symbols in given.vocabularies]
    taken = Taken(where, given.tensors)
    found = all_of(taken, every(taken, components, orders))
    source, target = (
        [symbols[id] for id in rows[4:]] for symbols, rows in zip(given.vocabularies, orders, strict=True)
    )
    return Found(
        "OpenNMT-py",
        found,
        (source, target),
        _model(components, found),
        training(given.options, given.updates),
        search(),
        files(given.options),
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
