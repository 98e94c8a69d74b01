"""A checkpoint of OpenNMT-py 3 as a model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rnnsearch.config import resolve
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.files import atomic_folder, write_text
from rnnsearch.importing import checkpoint as checkpoints
from rnnsearch.importing import options, weights
from rnnsearch.importing.checkpoint import Checkpoint
from rnnsearch.importing.options import Parts
from rnnsearch.importing.weights import Taken
from rnnsearch.systems.card import sha256_of
from rnnsearch.systems.checks import check_model
from rnnsearch.systems.folder import WEIGHTS, save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.columns import as_markdown
from rnnsearch.text.words import given_words
from rnnsearch.weights import fill
from rnnsearch.weights import weights as parameters


class Imported(NamedTuple):
    """What was made of a checkpoint. parameters: its numbers; vocabularies: source and target symbols."""

    parameters: int
    vocabularies: tuple[int, int]
    encoder: str
    decoder: str


def import_opennmt_py(checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write the recurrent model of an OpenNMT-py 3 checkpoint as a model folder, which translates as `onmt_translate`.

    source, target: the languages' codes, which a checkpoint does not say. Errors: ModelError for a file that is none,
    for an option without a counterpart, by its name, and where something stands at `output`; ConfigError for codes that
    are none.
    """
    if output.exists():
        raise ModelError(f"{output}: there is something already; name another folder")
    given = checkpoints.read(checkpoint)
    system = _system(str(checkpoint), given, source, target)
    with atomic_folder(output) as folder:
        save_system(folder, system)
        write_text(folder / "card.md", _card(checkpoint, given, system, sha256_of(folder / WEIGHTS)))
    model = system.config.translation
    sizes = len(system.source), len(system.target)
    return Imported(system.parameters, sizes, f"{model.encoder.type} {model.encoder.cell}", model.decoder.type)


def _system(where: str, given: Checkpoint, source: str, target: str) -> TranslationSystem:
    """The system that a checkpoint holds."""
    parts = options.parts(where, given.options, given.start)
    orders = [weights.order(where, symbols) for symbols in given.vocabularies]
    found = _weights(where, given, parts, orders)
    embedding = found["target_embedding.weight"].shape[1]
    tables = {
        "data": {"source": source, "target": target, "train": options.files(given.options), "aligner": False},
        "text": {"type": "words"},
        "model": _model(parts, found, embedding),
        "training": options.training(given.options, given.updates),
        "search": options.search(),
    }
    config = resolve(tables)
    if faults := check_model(config):
        raise ConfigError(faults)
    each = zip((source, target), given.vocabularies, orders, strict=True)
    tokenizers = {side: given_words([symbols[id] for id in order[4:]]) for side, symbols, order in each}
    if parts.tied:
        del found["output.weight"]
    with torch.device("meta"):  # without memory: a few numbers may say that there are many
        _require_shapes(where, TranslationSystem.make(config, tokenizers, seed=None).model, found)
    system = TranslationSystem.make(config, tokenizers, seed=None)
    fill(system.model, found)
    system.model.eval()
    return system


def _weights(where: str, given: Checkpoint, parts: Parts, orders: Sequence[list[int]]) -> dict[str, Tensor]:
    """All weights by our names. Errors: ModelError where one is missing, of other sizes than the rest, or left over."""
    taken = Taken(where, given.tensors)
    found = weights.embeddings(taken, orders)
    try:
        found |= dict(weights.encoder(taken, parts))
        found |= dict(weights.decoder(taken, parts, found["target_embedding.weight"].shape[1]))
    except RuntimeError as error:  # of two sizes that PyTorch was to add or join
        raise ModelError(f"{where}: its weights do not fit together: {str(error).splitlines()[0]}") from None
    found |= dict(weights.output(taken, orders[1]))
    taken.require_empty()
    return found


def _model(parts: Parts, found: Mapping[str, Tensor], embedding: int) -> dict[str, Any]:
    """`[model]`, in the sizes that the weights have."""
    unit = found["encoder.layers.0.forward_cell.recurrent.weight"].shape[1]
    size = found["decoder.stack.cells.0.recurrent.weight"].shape[1]
    depths = [_depth(found, "encoder.layers."), _depth(found, "decoder.stack.cells.")]
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
    made = {"embedding": embedding, "encoder": encoder, "decoder": decoder, "dropout": dropout}
    if parts.tied:
        made["tie"] = "target"
    if parts.score is not None:
        attention: dict[str, Any] = {"score": parts.score, "normaliser": "sparsemax" if parts.sparse else "softmax"}
        if parts.score == "additive-bias":
            attention["size"] = len(found["decoder.attention.score.vector"])
        made["attention"] = attention
    return made


def _depth(found: Mapping[str, Tensor], prefix: str) -> int:
    """How many layers' names begin so."""
    return len({name.removeprefix(prefix).partition(".")[0] for name in found if name.startswith(prefix)})


def _require_shapes(where: str, model: nn.Module, found: Mapping[str, Tensor]) -> None:
    """Errors: ModelError where a weight has another shape than those beside it."""
    own = parameters(model)
    for name in sorted(own.keys() | found.keys()):
        shapes = [tuple(each[name].shape) if name in each else None for each in (own, found)]
        if shapes[0] != shapes[1]:
            raise ModelError(f"{where}: its weights do not fit together: {name} would be {shapes[1]}, not {shapes[0]}")


def _card(checkpoint: Path, given: Checkpoint, system: TranslationSystem, sha256: str) -> str:
    """The card: what it is, and where it is from."""
    sides, data = system.config.data.sides, system.config.data.train or []
    rows: Sequence[tuple[str, str]] = (
        ("Pair", " → ".join(sides)),
        ("Parameters", f"{system.parameters:,}"),
        ("Vocabulary", f"{len(system.source):,} source, {len(system.target):,} target symbols"),
        ("Weights' SHA-256", f"`{sha256}`"),
        ("Imported from", f"OpenNMT-py, {checkpoint.name}"),
        ("Its SHA-256", f"`{sha256_of(checkpoint)}`"),
        ("Updates", "not said" if given.updates is None else f"{given.updates:,}"),
        ("Trained on", ", ".join(data) or "not said"),
    )
    table = as_markdown([["", ""], *(list(row) for row in rows)], left=(0, 1))
    return f"# {' → '.join(sides)}, a recurrent translation model\n\n{table}"
