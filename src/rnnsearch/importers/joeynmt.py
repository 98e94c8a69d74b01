"""A checkpoint of JoeyNMT as a model folder.

| JoeyNMT                             | here                                                             |
|-------------------------------------|------------------------------------------------------------------|
| ids of special symbols, by config   | rows of tables and output as ours: padding, unknown, BOS, EOS    |
| decoder's W of [word; h~]           | the bottom cell's W, and `feeding`                               |
| `bridge_layer`, one for all layers  | `learned-top`, a copy for each layer; zeros for an LSTM's c      |
| `att_vector_layer`, of [h; c]       | W_c and b, of [c; h]: `attentional = "tanh-bias"`                |
| `output_layer`, without a bias      | the output layer, with a bias of zeros                           |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

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

# Options of JoeyNMT, from the `config.yaml` beside a checkpoint; what has no counterpart is refused by its name.

LONGEST = 1_000_000
"""Bytes of a configuration."""
LARGEST = 1 << 28
"""Bytes of a vocabulary."""
CELLS = {"lstm": "lstm", "gru": "torch-gru"}
ONLY: dict[str, tuple[Any, ...]] = {
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
"""Of the options that change the equations or the symbols those values that have a counterpart here; the first is that
of a configuration which does not say."""


class Options:
    """A configuration."""

    def __init__(self, path: Path) -> None:
        """Errors: ModelError for a file that is none, and for the first option without a counterpart."""
        text = text_of(path, LONGEST)
        try:
            self._all = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError, ValueError):
            self._all = None
        if not isinstance(self._all, Mapping):
            raise ModelError(f"{path}: must be a configuration of JoeyNMT, in YAML")
        for name, known in ONLY.items():
            value = self.of(name, known[0])
            if not any(type(value) is type(one) and value == one for one in known):
                raise no_counterpart(str(path), name, value, known)
        self.encoder_cell = CELLS[self._one("model.encoder.rnn_type")]
        self.decoder_cell = CELLS[self._one("model.decoder.rnn_type")]
        self.attention, self.bridge = self._one("model.decoder.attention"), self._one("model.decoder.init_hidden")
        self.feeds = bool(self.of("model.decoder.input_feeding", True))

    def _one(self, name: str) -> str:
        value: str = self.of(name, ONLY[name][0])
        return value

    def of(self, name: str, default: Any) -> Any:
        """An option by its path."""
        found: Any = self._all
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return default if found is None else found

    def text(self, name: str, default: str) -> str:
        """One that is a text; another than that is as none."""
        found = self.of(name, default)
        return found if isinstance(found, str) else default

    def share(self, name: str) -> float:
        """Of what is dropped out; 0 for what is no share."""
        found = self.of(name, 0.0)
        return float(found) if isinstance(found, int | float) and 0 <= found < 1 else 0.0


def text_of(path: Path, most: int = LARGEST) -> str:
    """A file beside the checkpoint. Errors: ModelError where it is missing, has more bytes than `most`, or no text."""
    try:
        if path.stat().st_size > most:
            raise ModelError(f"{path}: must have at most {most:,} bytes; got {path.stat().st_size:,}")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: must stand beside the checkpoint, as JoeyNMT writes it; there is none") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: must be text in UTF-8: {type(error).__name__}") from None


CONFIG = "config.yaml"
VOCABULARIES = {"src": "src_vocab.txt", "trg": "trg_vocab.txt"}
"""The files beside a checkpoint, by what the configuration calls the sides."""
SPECIALS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
"""The special symbols in the order of ours, by what names them in the configuration."""
SCORES = {"bahdanau": "additive", "luong": "general"}
BRIDGES = {"bridge": "learned-top", "zero": "zero"}


def import_joeynmt(checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write the recurrent model of a JoeyNMT checkpoint, beside which its `config.yaml` and vocabularies stand, as a
    model folder.

    source, target: the languages' codes. Errors: ModelError for a file that is none, for an option without a
    counterpart, by its name, and where something stands at `output`; ConfigError for codes that are none.
    """
    return import_from(_found, checkpoint, output, source, target)


def _found(path: Path) -> Found:
    """What is in the files."""
    whole, options = plain(path, "JoeyNMT"), Options(path.parent / CONFIG)
    tensors = whole.get("model_state")
    if not mapping_of(tensors, is_whole):
        raise ModelError(f"{path}: must be a checkpoint of JoeyNMT; it has no weights by the name of 'model_state'")
    specials = [options.text(f"data.special_symbols.{name}", usual) for name, usual in SPECIALS.items()]
    symbols, orders = list[list[str]](), list[list[int]]()
    for side, name in VOCABULARIES.items():
        file = path.parent / name
        every = distinct(str(file), side, text_of(file).removesuffix("\n").split("\n"))
        orders.append(order(str(file), every, specials))
        symbols.append([every[id] for id in orders[-1][4:]])
    taken = Taken(str(path), tensors)
    found = all_of(taken, _renamed(taken, options, orders))
    both = symbols[0], symbols[1]
    return Found("JoeyNMT", found, both, _model(options, found), _training(options), _search(options), [], None)


def _renamed(taken: Taken, options: Options, orders: Sequence[list[int]]) -> Iterator[tuple[str, Tensor]]:
    """All weights by our names."""
    names = {"source": "src_embed.lut.weight", "target": "trg_embed.lut.weight"}
    tables = folder.tables(taken, names, orders, "embedding_dim = {} of the source and {} of the target")
    yield from tables.items()
    yield from folder.encoder(taken, options.encoder_cell, both_ways=True)
    embedding = tables["target_embedding.weight"].shape[1]
    form, cell = "decoder.rnn.{0}_l{1}", options.decoder_cell
    stack = dict(folder.decoder(taken, form, cell, embedding, options.feeds))
    yield from stack.items()
    if options.bridge == "bridge":
        yield from _bridge(taken, options, depth(stack, "decoder.stack.cells."))
    ours, theirs = "decoder.attention.score", "decoder.attention"
    yield f"{ours}.key.weight", taken.take(f"{theirs}.key_layer.weight")
    if options.attention == "bahdanau":
        yield f"{ours}.query.weight", taken.take(f"{theirs}.query_layer.weight")
        yield f"{ours}.vector", taken.take(f"{theirs}.energy_layer.weight").flatten()
    combine = taken.take("decoder.att_vector_layer.weight")
    yield "decoder.attentional.combine.weight", combine.roll(-len(combine), 1)
    yield "decoder.attentional.combine.bias", taken.take("decoder.att_vector_layer.bias")
    rows = folder.in_order(taken, taken.take("decoder.output_layer.weight"), orders[1], "rows in its output layer")
    yield "output.weight", rows
    yield "output.bias", rows.new_zeros(len(rows))


def _bridge(taken: Taken, options: Options, layers: int) -> Iterator[tuple[str, Tensor]]:
    """W and b of each layer of the decoder: its h and, of an LSTM, c are the same tanh(W h + b) of the encoder's h."""
    W, b = taken.take("decoder.bridge_layer.weight"), taken.take("decoder.bridge_layer.bias")
    if options.encoder_cell == CELLS["lstm"]:
        W = torch.cat([W, torch.zeros_like(W)], dim=1)
    parts = 2 if options.decoder_cell == CELLS["lstm"] else 1
    for layer in range(layers):
        yield f"decoder.bridge.layers.{layer}.weight", W.repeat(parts, 1)
        yield f"decoder.bridge.layers.{layer}.bias", b.repeat(parts)


def _model(options: Options, found: Mapping[str, Tensor]) -> dict[str, Any]:
    """`[model]`, in the sizes that the weights have."""
    depths = [depth(found, "encoder.layers."), depth(found, "decoder.stack.cells.")]
    encoder = {
        "type": "stacked",
        "cell": options.encoder_cell,
        "size": found["encoder.layers.0.forward_cell.recurrent.weight"].shape[1],
        "layers": depths[0],
        "direction": "both",
    }
    decoder = {
        "type": "luong-input-feeding" if options.feeds else "luong",
        "cell": options.decoder_cell,
        "size": found["decoder.stack.cells.0.recurrent.weight"].shape[1],
        "layers": depths[1],
        "bridge": BRIDGES[options.bridge],
        "readout": len(found["decoder.attentional.combine.bias"]),
        "attentional": "tanh-bias",
    }
    attention: dict[str, Any] = {"score": SCORES[options.attention]}
    if options.attention == "bahdanau":
        attention["size"] = len(found["decoder.attention.score.vector"])
    dropout = {"embedding": options.share("model.decoder.embeddings.dropout")}
    dropout["readout"] = options.share("model.decoder.hidden_dropout")
    if max(depths) > 1:
        dropout["layers"] = options.share("model.decoder.dropout")
    made = {"embedding": found["target_embedding.weight"].shape[1], "encoder": encoder, "decoder": decoder}
    tied = {"tie": "target"} if options.of("model.tied_softmax", False) else {}
    return made | {"attention": attention, "dropout": dropout} | tied


def _training(options: Options) -> dict[str, Any]:
    """`[training]`: the optimiser where it is one of ours in the same words; how long it was is not said."""
    own = optimiser(options.of("training.optimizer", None), options.of("training.learning_rate", None))
    return {"max_updates": 1, "optimiser": own}


def _search(options: Options) -> dict[str, Any]:
    """`[search]`: its beam, and its division by ((5 + length) / 6) ** beam_alpha, in the precision that it has."""
    beam, alpha = options.of("testing.beam_size", 1), options.of("testing.beam_alpha", -1)
    return {
        "beam": beam if isinstance(beam, int) and 1 <= beam <= 1000 else 1,
        "length_penalty": float(alpha) if isinstance(alpha, int | float) and 0 <= alpha <= 100 else 0.0,
        "length_norm": "gnmt",
        "precision": "fp32",
    }
