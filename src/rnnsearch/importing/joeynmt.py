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
from torch import Tensor

from rnnsearch.errors import ModelError
from rnnsearch.importing import renaming
from rnnsearch.importing.folder import Found, Imported, all_of, import_from
from rnnsearch.importing.joeynmt_options import CELLS, Options, text_of
from rnnsearch.importing.options import optimiser
from rnnsearch.importing.pickles import is_whole, mapping_of, plain
from rnnsearch.importing.renaming import Taken, depth, distinct, order

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
    tables = renaming.tables(taken, names, orders, "embedding_dim = {} of the source and {} of the target")
    yield from tables.items()
    yield from renaming.encoder(taken, options.encoder_cell, both_ways=True)
    embedding = tables["target_embedding.weight"].shape[1]
    form, cell = "decoder.rnn.{0}_l{1}", options.decoder_cell
    stack = dict(renaming.decoder(taken, form, cell, embedding, options.feeds))
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
    rows = renaming.in_order(taken, taken.take("decoder.output_layer.weight"), orders[1], "rows in its output layer")
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
