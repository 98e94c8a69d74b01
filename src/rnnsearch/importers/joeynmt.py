"""Import of JoeyNMT checkpoints.

| JoeyNMT                             | here                                                              |
|-------------------------------------|-------------------------------------------------------------------|
| ids of special tokens, by config    | rows of tables and output: padding, unknown, BOS, EOS first       |
| decoder's W of [word; h~]           | the bottom cell's W, and `feeding`                                |
| `bridge_layer`, one for all layers  | `learned-top`, a copy for each layer; zeros for an LSTM's c       |
| `att_vector_layer`, of [h; c]       | W_c and b, of [c; h]: `attentional = "tanh-bias"`                 |
| `output_layer`, without a bias      | the output layer, with a bias of zeros                            |

`importers/folder.py` does the steps that all toolkits share. An option that changes the equations belongs in
`SUPPORTED_VALUES`, or models would be converted wrongly. Tests:
tests/importers/test_joeynmt.py, and benchmarks/importing.py with the toolkit itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from rnnsearch.errors import ModelError, library_errors
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
from rnnsearch.utils.files import read_text

CONFIG_FILE = "config.yaml"
"""Name of the config next to a checkpoint."""
VOCABULARY_FILES = {"src": "src_vocab.txt", "trg": "trg_vocab.txt"}
"""Files next to a checkpoint, by the names of the streams in the config."""
MAX_CONFIG_BYTES = 1_000_000
"""Limit for the config."""
MAX_VOCABULARY_BYTES = 1 << 28
"""Limit for a vocabulary."""
SPECIALS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
"""Special tokens in the order of rnnsearch: their options in the config, and the defaults."""
CELLS = {"lstm": "lstm", "gru": "torch-gru"}
"""Cell of rnnsearch by JoeyNMT's name."""
SCORES = {"bahdanau": "additive", "luong": "general"}
"""Attention score of rnnsearch by JoeyNMT's name."""
BRIDGES = {"bridge": "learned-top", "zero": "zero"}
"""Initial state of rnnsearch by JoeyNMT's name."""
SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "model.encoder.type": ("recurrent",),
    "model.encoder.rnn_type": ("gru", "lstm"),
    "model.encoder.bidirectional": (True,),
    "model.encoder.embeddings.scale": (False,),
    "model.decoder.type": ("recurrent",),
    "model.decoder.rnn_type": ("gru", "lstm"),
    "model.decoder.attention": ("bahdanau", "luong"),
    "model.decoder.init_hidden": ("bridge", "zero"),
    "model.decoder.activation": ("tanh",),
    "model.decoder.embeddings.scale": (False,),
    "data.src.level": ("word", "bpe"),
    "data.trg.level": ("word", "bpe"),
}
"""Values that have a counterpart here, for each option that changes the equations or tokens; the first is the default.
"""


def import_joeynmt(checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write the recurrent model of a JoeyNMT checkpoint as a model folder.

    Args:
        checkpoint: File to read; its `config.yaml` and vocabularies are in the same folder.
        output: Folder to create.
        source: Code of the source language.
        target: Code of the target language.

    Raises:
        ModelError: If a file is missing or malformed, an option has no counterpart here, or `output` exists.
        ConfigError: If a language code is invalid.
    """
    return import_from(_read, checkpoint, output, source, target)


def _read(path: Path) -> ConvertedModel:
    """Return the model of a checkpoint in terms of rnnsearch."""
    content = load_checkpoint(path, "JoeyNMT")
    options = JoeyNMTOptions(path.parent / CONFIG_FILE)
    tensors = content.get("model_state")
    if not is_mapping(tensors, is_weight):
        raise ModelError(f"{path}: must be a checkpoint of JoeyNMT; it has no weights named 'model_state'")
    specials = [options.text(f"data.special_symbols.{name}", default) for name, default in SPECIALS.items()]
    vocabularies: list[list[str]] = []
    orders: list[list[int]] = []
    for stream, name in VOCABULARY_FILES.items():
        file = path.parent / name
        lines = _read_text(file, MAX_VOCABULARY_BYTES).removesuffix("\n").split("\n")
        tokens = require_distinct(str(file), stream, lines)
        order = token_order(str(file), tokens, specials)
        orders.append(order)
        vocabularies.append([tokens[id] for id in order[len(SPECIALS) :]])
    reader = WeightReader(str(path), tensors)
    weights = collect_weights(reader, _rename_weights(reader, options, orders))
    return ConvertedModel(
        toolkit="JoeyNMT",
        weights=weights,
        tokens=(vocabularies[0], vocabularies[1]),
        model=_model_table(options, weights),
        training=_training_table(options),
        search=_search_table(options),
        train=[],
        updates=None,
    )


class JoeyNMTOptions:
    """Options from the `config.yaml` of a checkpoint."""

    def __init__(self, path: Path) -> None:
        """Read the file; raise ModelError if it is no config, or an option has no counterpart here."""
        text = _read_text(path, MAX_CONFIG_BYTES)
        problem = f"{path}: must be a configuration of JoeyNMT, in YAML"
        # The library raises KeyError, AttributeError and others for values that are not of their types.
        with library_errors(problem, ModelError):
            self._tables = yaml.safe_load(text)
        if not isinstance(self._tables, Mapping):
            raise ModelError(problem)
        for name, supported in SUPPORTED_VALUES.items():
            value = self.get(name, supported[0])
            if not any(type(value) is type(option) and value == option for option in supported):  # 1 is not True
                raise no_counterpart(str(path), name, value, supported)
        self.encoder_cell = CELLS[self._supported("model.encoder.rnn_type")]
        self.decoder_cell = CELLS[self._supported("model.decoder.rnn_type")]
        self.attention = self._supported("model.decoder.attention")
        self.bridge = self._supported("model.decoder.init_hidden")
        self.input_feeding = bool(self.get("model.decoder.input_feeding", True))

    def _supported(self, name: str) -> str:
        value: str = self.get(name, SUPPORTED_VALUES[name][0])
        return value

    def get(self, name: str, default: Any) -> Any:
        """Return an option by its dotted path."""
        value: Any = self._tables
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return default if value is None else value

    def text(self, name: str, default: str) -> str:
        """Return an option if it is a string, otherwise the default."""
        value = self.get(name, default)
        return value if isinstance(value, str) else default

    def rate(self, name: str) -> float:
        """Return a dropout rate; 0 if the value is invalid."""
        value = self.get(name, 0.0)
        return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.0


def _read_text(path: Path, max_bytes: int) -> str:
    """Read a file next to the checkpoint; raise ModelError if it is missing, too large or not UTF-8."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelError(f"{path}: must have at most {max_bytes:,} bytes; got {size:,}")
        return read_text(path)
    except FileNotFoundError:
        raise ModelError(f"{path}: must exist next to the checkpoint, as JoeyNMT writes it; got no such file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: must be text in UTF-8: {type(error).__name__}") from None


def _rename_weights(
    reader: WeightReader, options: JoeyNMTOptions, orders: Sequence[list[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights under the names that they have here."""
    names = {"source": "src_embed.lut.weight", "target": "trg_embed.lut.weight"}
    tables = embedding_tables(reader, names, orders, "embedding_dim = {} of the source and {} of the target")
    yield from tables.items()
    yield from encoder_weights(reader, options.encoder_cell, bidirectional=True)
    embedding_size = tables["target_embedding.weight"].shape[1]
    theirs = "decoder.rnn.{weight}_l{layer}"
    stack = dict(decoder_weights(reader, theirs, options.decoder_cell, embedding_size, options.input_feeding))
    yield from stack.items()
    if options.bridge == "bridge":
        yield from _bridge_weights(reader, options, num_layers(stack, "decoder.stack.cells."))
    yield "decoder.attention.score.key.weight", reader.take("decoder.attention.key_layer.weight")
    if options.attention == "bahdanau":
        yield "decoder.attention.score.query.weight", reader.take("decoder.attention.query_layer.weight")
        yield "decoder.attention.score.vector", reader.take("decoder.attention.energy_layer.weight").flatten()
    combine = reader.take("decoder.att_vector_layer.weight")
    yield "decoder.attentional.combine.weight", combine.roll(-len(combine), 1)  # from [h; c] to [c; h]
    yield "decoder.attentional.combine.bias", reader.take("decoder.att_vector_layer.bias")
    output = reorder_rows(reader, reader.take("decoder.output_layer.weight"), orders[1], "rows in its output layer")
    yield "output.weight", output
    yield "output.bias", output.new_zeros(len(output))


def _bridge_weights(reader: WeightReader, options: JoeyNMTOptions, layers: int) -> Iterator[tuple[str, Tensor]]:
    """Yield W and b per decoder layer: its h and an LSTM's c start at the same tanh(W h + b) of the encoder's h."""
    W = reader.take("decoder.bridge_layer.weight")
    b = reader.take("decoder.bridge_layer.bias")
    if options.encoder_cell == CELLS["lstm"]:
        W = torch.cat([W, torch.zeros_like(W)], dim=1)  # the encoder's c is not read
    num_states = 2 if options.decoder_cell == CELLS["lstm"] else 1
    for layer in range(layers):
        yield f"decoder.bridge.layers.{layer}.weight", W.repeat(num_states, 1)
        yield f"decoder.bridge.layers.{layer}.bias", b.repeat(num_states)


def _model_table(options: JoeyNMTOptions, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return `[model]`, with the sizes of the weights."""
    encoder_layers = num_layers(weights, "encoder.layers.")
    decoder_layers = num_layers(weights, "decoder.stack.cells.")
    attention: dict[str, Any] = {"score": SCORES[options.attention]}
    if options.attention == "bahdanau":
        attention["size"] = len(weights["decoder.attention.score.vector"])
    dropout = {
        "embedding": options.rate("model.decoder.embeddings.dropout"),
        "readout": options.rate("model.decoder.hidden_dropout"),
    }
    if max(encoder_layers, decoder_layers) > 1:
        dropout["layers"] = options.rate("model.decoder.dropout")
    table: dict[str, Any] = {
        "embedding": weights["target_embedding.weight"].shape[1],
        "encoder": {
            "type": "stacked",
            "cell": options.encoder_cell,
            "size": weights["encoder.layers.0.forward_cell.recurrent.weight"].shape[1],
            "layers": encoder_layers,
            "direction": "both",
        },
        "decoder": {
            "type": "luong-input-feeding" if options.input_feeding else "luong",
            "cell": options.decoder_cell,
            "size": weights["decoder.stack.cells.0.recurrent.weight"].shape[1],
            "layers": decoder_layers,
            "bridge": BRIDGES[options.bridge],
            "readout": len(weights["decoder.attentional.combine.bias"]),
            "attentional": "tanh-bias",
        },
        "attention": attention,
        "dropout": dropout,
    }
    if options.get("model.tied_softmax", False):
        table["tie"] = "target"
    return table


def _training_table(options: JoeyNMTOptions) -> dict[str, Any]:
    """Return `[training]`; a config does not contain the number of updates that were made."""
    optimiser = optimiser_table(options.get("training.optimizer", None), options.get("training.learning_rate", None))
    return {"max_updates": 1, "optimiser": optimiser}


def _search_table(options: JoeyNMTOptions) -> dict[str, Any]:
    """Return `[search]` with JoeyNMT's beam and precision, and its division by ((5 + length) / 6) ** beam_alpha."""
    beam = options.get("testing.beam_size", 1)
    alpha = options.get("testing.beam_alpha", -1)
    return {
        "beam": beam if isinstance(beam, int) and 1 <= beam <= 1000 else 1,
        "length_penalty": float(alpha) if isinstance(alpha, int | float) and 0 <= alpha <= 100 else 0.0,
        "length_norm": "gnmt",
        "precision": "fp32",
    }
