"""Import of OpenNMT-py 3 checkpoints.

| OpenNMT-py                          | here                                                               |
|-------------------------------------|--------------------------------------------------------------------|
| ids: unknown, padding, BOS, EOS     | rows of tables and output: padding, unknown, BOS, EOS first        |
| `nn.LSTM`: i, f, candidate, o       | i, f, o, candidate; the two biases of a gate are added             |
| `nn.GRU`: r, z, candidate           | the cell `torch-gru`, unchanged                                    |
| decoder's W of [word; h~]           | the bottom cell's W, and `feeding`                                 |
| `bridge`, per direction             | `rectified`: its matrix for each direction, zeros elsewhere        |
| `linear_in` (general), of the query | `key`, of the annotation: its transpose                            |

`importers/folder.py` does the steps that all toolkits share. An option that changes the equations belongs in
`SUPPORTED_VALUES`, or models would be converted wrongly. Tests:
tests/importers/test_opennmt_py.py, and benchmarks/importing.py with the toolkit itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.config.options import MAX_INTEGER
from rnnsearch.errors import ModelError
from rnnsearch.importers.folder import (
    ConvertedModel,
    Imported,
    WeightReader,
    collect_weights,
    decoder_weights,
    embedding_tables,
    encoder_weights,
    import_from,
    is_mapping,
    is_weight,
    load_checkpoint,
    no_counterpart,
    num_layers,
    optimiser_table,
    reorder_rows,
    require_distinct,
    token_order,
)

REQUIRED_ENTRIES = {
    "model": "the weights (save_format must be pytorch, and lora_layers none)",
    "generator": "the output layer",
    "vocab": "the vocabularies",
    "opt": "the options",
}
"""Entries of a checkpoint, described for errors."""
OPTION_TYPES = (str, int, float, list, dict, type(None))
"""Types of options that are read; options of other types do not concern the model."""
SPECIALS = ("<blank>", "<unk>", "<s>", "</s>")
"""OpenNMT-py's names of the special tokens, in the order of rnnsearch."""
EMBEDDING_NAMES = {
    "source": "encoder.embeddings.make_embedding.emb_luts.0.weight",
    "target": "decoder.embeddings.make_embedding.emb_luts.0.weight",
}
"""Names of the embeddings in a checkpoint, by stream."""
CELLS = {"LSTM": "lstm", "GRU": "torch-gru"}
"""Cell of rnnsearch by OpenNMT-py's name."""
SCORES = {"general": "general", "dot": "dot", "mlp": "additive-bias"}
"""Attention score of rnnsearch by OpenNMT-py's name."""
NO_ATTENTION = (None, "none")
"""Values of the option `global_attention` of models without attention."""
SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
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
"""Values that have a counterpart here, for each option that changes the equations; the first is the default."""


def import_opennmt_py(checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write the recurrent model of an OpenNMT-py 3 checkpoint as a model folder that translates like `onmt_translate`.

    Args:
        checkpoint: File to read.
        output: Folder to create.
        source: Code of the source language, which the checkpoint does not contain.
        target: Code of the target language.

    Raises:
        ModelError: If the file is missing or malformed, an option has no counterpart here, or `output` exists.
        ConfigError: If a language code is invalid.
    """
    return import_from(_read, checkpoint, output, source, target)


def _read(path: Path) -> ConvertedModel:
    """Return the model of a checkpoint in terms of rnnsearch."""
    checkpoint = read_checkpoint(path)
    architecture = read_architecture(str(path), checkpoint.options, checkpoint.start_token)
    orders = [token_order(str(path), tokens, SPECIALS) for tokens in checkpoint.vocabularies]
    reader = WeightReader(str(path), checkpoint.tensors)
    weights = collect_weights(reader, _rename_weights(reader, architecture, orders))
    source_tokens, target_tokens = (
        [tokens[id] for id in order[len(SPECIALS) :]]
        for tokens, order in zip(checkpoint.vocabularies, orders, strict=True)
    )
    return ConvertedModel(
        toolkit="OpenNMT-py",
        weights=weights,
        tokens=(source_tokens, target_tokens),
        model=_model_table(architecture, weights),
        training=_training_table(checkpoint.options, checkpoint.updates),
        search=_search_table(),
        train=_training_files(checkpoint.options),
        updates=checkpoint.updates,
    )


class Checkpoint(NamedTuple):
    """Content of a checkpoint."""

    tensors: dict[str, Tensor]
    """Weights by their names in the file; those of the output layer have the prefix `generator.`."""
    vocabularies: tuple[list[str], list[str]]
    """Source and target tokens by id."""
    options: Mapping[str, Any]
    """Options of the training run that have a type of `OPTION_TYPES`."""
    start_token: Any
    """Token before the first one of a translation."""
    updates: int | None
    """Number of training updates, or None if unknown."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raise ModelError if it is not one of OpenNMT-py 3 or contains other objects."""
    content = load_checkpoint(path, "OpenNMT-py 3")
    for name, description in REQUIRED_ENTRIES.items():
        if content.get(name) is None:
            raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; it has no {name!r}, {description}")
    options = vars(content["opt"]) if isinstance(content["opt"], argparse.Namespace) else content["opt"]
    vocab = content["vocab"]
    tensors: dict[str, Tensor] = {}
    for prefix, entry in (("", content["model"]), ("generator.", content["generator"])):
        if not is_mapping(entry, is_weight):
            raise ModelError(
                f"{path}: must be a checkpoint of OpenNMT-py 3; its weights are not named matrices and vectors"
            )
        tensors |= {f"{prefix}{name}": tensor for name, tensor in entry.items()}
    if not is_mapping(options) or not is_mapping(vocab):
        raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; its options or vocabularies have another form")
    if vocab.get("src_feats"):
        raise ModelError(f"{path}: source features (n_src_feats) have no counterpart here")
    return Checkpoint(
        tensors,
        (_vocabulary(path, vocab, "src"), _vocabulary(path, vocab, "tgt")),
        {name: value for name, value in options.items() if isinstance(value, OPTION_TYPES)},
        vocab.get("decoder_start_token", "<s>"),
        _num_updates(content.get("optim")),
    )


def _vocabulary(path: Path, vocab: Mapping[str, Any], stream: str) -> list[str]:
    """Return the tokens of a stream; raise ModelError if they are not in the form of version 3 or not distinct."""
    tokens = vocab.get(stream)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ModelError(
            f"{path}: must be a checkpoint of OpenNMT-py 3; its vocabulary {stream!r} is not a list of tokens"
        )
    return require_distinct(str(path), stream, tokens)


def _num_updates(optimiser: Any) -> int | None:
    step = optimiser.get("training_step") if isinstance(optimiser, Mapping) else None
    return step - 1 if isinstance(step, int) else None  # training_step counts from 1


class Architecture(NamedTuple):
    """Architecture of a checkpoint's model."""

    bidirectional: bool
    """True if the encoder is bidirectional."""
    cell: str
    """Cell, by its name in rnnsearch."""
    score: str | None
    """Attention score, or None without attention."""
    sparse: bool
    """True if attention is normalised by sparsemax."""
    input_feeding: bool
    """True if the decoder has input feeding."""
    bridge: bool
    """True if the initial state is a transformed encoder state."""
    tied: bool
    """True if the rows of the output layer are the target embeddings."""
    dropout: float
    """Dropout rate."""


def read_architecture(path: str, options: Mapping[str, Any], start_token: Any) -> Architecture:
    """Return the architecture from the options; raise ModelError for an option that has no counterpart here."""
    values = {name: options.get(name, supported[0]) for name, supported in SUPPORTED_VALUES.items()}
    for name, supported in SUPPORTED_VALUES.items():
        if values[name] not in supported:
            raise no_counterpart(path, name, values[name], supported)
    if start_token != "<s>":
        raise no_counterpart(path, "decoder_start_token", start_token, ["<s>"])
    input_feeding = bool(options.get("input_feed", 1))
    score = SCORES.get(values["global_attention"])
    if score is None and input_feeding:
        raise ModelError(f"{path}: input_feed without global_attention has no counterpart here")
    dropout = options.get("dropout", 0.0)
    if isinstance(dropout, list) and dropout:
        dropout = dropout[0]
    return Architecture(
        bidirectional=values["encoder_type"] == "brnn",
        cell=CELLS[values["rnn_type"]],
        score=score,
        sparse=values["global_attention_function"] == "sparsemax",
        input_feeding=input_feeding,
        bridge=bool(options.get("bridge", False)),
        tied=bool(options.get("share_decoder_embeddings", False)),
        dropout=float(dropout) if isinstance(dropout, int | float) else 0.0,
    )


def _rename_weights(
    reader: WeightReader, architecture: Architecture, orders: Sequence[list[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights under the names that they have here."""
    sizes_text = "src_word_vec_size = {} and tgt_word_vec_size = {}"
    tables = embedding_tables(reader, EMBEDDING_NAMES, orders, sizes_text)
    yield from tables.items()
    yield from encoder_weights(reader, architecture.cell, architecture.bidirectional)
    theirs = "decoder.rnn.layers.{layer}.{weight}" if architecture.input_feeding else "decoder.rnn.{weight}_l{layer}"
    embedding_size = tables["target_embedding.weight"].shape[1]
    yield from decoder_weights(reader, theirs, architecture.cell, embedding_size, architecture.input_feeding)
    if architecture.bridge:
        num_directions = 2 if architecture.bidirectional else 1
        for number in range(2 if architecture.cell == "lstm" else 1):
            weight = reader.take(f"encoder.bridge.{number}.weight")
            bias = reader.take(f"encoder.bridge.{number}.bias")
            yield f"decoder.bridge.layers.{number}.weight", torch.block_diag(*[weight] * num_directions)
            yield f"decoder.bridge.layers.{number}.bias", bias.repeat(num_directions)
    if architecture.score is not None:
        yield from _attention_weights(reader, architecture.score)
    for name in ("weight", "bias"):
        weight = reader.take(f"generator.{name}", f"generator.0.{name}")  # its name depends on the version
        yield f"output.{name}", reorder_rows(reader, weight, orders[1], "rows in its output layer")


def _attention_weights(reader: WeightReader, score: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the score and W_c, with a bias if the score is `mlp`."""
    if score == "general":
        yield "decoder.attention.score.key.weight", reader.take("decoder.attn.linear_in.weight").t()
    if score == "additive-bias":
        yield "decoder.attention.score.key.weight", reader.take("decoder.attn.linear_context.weight")
        yield "decoder.attention.score.query.weight", reader.take("decoder.attn.linear_query.weight")
        yield "decoder.attention.score.query.bias", reader.take("decoder.attn.linear_query.bias")
        yield "decoder.attention.score.vector", reader.take("decoder.attn.v.weight").flatten()
        yield "decoder.attentional.combine.bias", reader.take("decoder.attn.linear_out.bias")
    yield "decoder.attentional.combine.weight", reader.take("decoder.attn.linear_out.weight")


def _model_table(architecture: Architecture, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return `[model]`, with the sizes of the weights."""
    encoder_layers = num_layers(weights, "encoder.layers.")
    decoder_layers = num_layers(weights, "decoder.stack.cells.")
    decoder_size = weights["decoder.stack.cells.0.recurrent.weight"].shape[1]
    encoder = {
        "type": "stacked",
        "cell": architecture.cell,
        "size": weights["encoder.layers.0.forward_cell.recurrent.weight"].shape[1],
        "layers": encoder_layers,
        "direction": "both" if architecture.bidirectional else "forward",
        "reads_end": False,
    }
    decoder: dict[str, Any] = {
        "cell": architecture.cell,
        "size": decoder_size,
        "layers": decoder_layers,
        "bridge": "rectified" if architecture.bridge else "copy",
    }
    if architecture.score is None:
        decoder["type"] = "sutskever"
    else:
        decoder["type"] = "luong-input-feeding" if architecture.input_feeding else "luong"
        decoder["readout"] = decoder_size
        decoder["attentional"] = "linear" if architecture.score == "additive-bias" else "tanh"
    dropout = {"embedding": architecture.dropout, "readout": architecture.dropout}
    if max(encoder_layers, decoder_layers) > 1:
        dropout["layers"] = architecture.dropout
    table: dict[str, Any] = {
        "embedding": weights["target_embedding.weight"].shape[1],
        "encoder": encoder,
        "decoder": decoder,
        "dropout": dropout,
    }
    if architecture.tied:
        table["tie"] = "target"
    if architecture.score is not None:
        normaliser = "sparsemax" if architecture.sparse else "softmax"
        table["attention"] = {"score": architecture.score, "normaliser": normaliser}
        if architecture.score == "additive-bias":
            table["attention"]["size"] = len(weights["decoder.attention.score.vector"])
    return table


def _training_table(options: Mapping[str, Any], updates: int | None) -> dict[str, Any]:
    """Return `[training]` with the number of updates that were made."""
    optimiser = optimiser_table(options.get("optim"), options.get("learning_rate"))
    return {"max_updates": min(max(1, updates or 1), MAX_INTEGER), "optimiser": optimiser}


def _search_table() -> dict[str, Any]:
    """Return `[search]` with the defaults of `onmt_translate`.

    They are beam_size 5, length_penalty avg with alpha 1, max_length_ratio 1.25, and fp32.
    """
    return {
        "beam": 5,
        "length_penalty": 1.0,
        "length_norm": "power-with-bos",
        "stop": "top",
        "max_ratio": 1.25,
        "max_extra": 5,
        "precision": "fp32",
    }


def _training_files(options: Mapping[str, Any]) -> list[str]:
    """Return the training files that the options name, as in `[data] train`."""
    corpora = options.get("data")
    files = []
    for corpus in corpora.values() if isinstance(corpora, Mapping) else ():
        if not isinstance(corpus, Mapping):
            continue
        paths = [corpus.get("path_src"), corpus.get("path_tgt")]
        # "|" separates the two paths.
        valid_paths = [path for path in paths if isinstance(path, str) and "|" not in path]
        if len(valid_paths) == 2:
            files.append("|".join(valid_paths))
    return files
