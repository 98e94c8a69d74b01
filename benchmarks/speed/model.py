"""The model and the training that the rivals' scripts have, as run files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.tokens import Tokens


@dataclass(frozen=True)
class Sizes:
    """Embedding, units a direction of the encoder, of the decoder, the alignment model and the layer under the
    softmax, and sentences a batch."""

    embedding: int = 256
    encoder: int = 256
    decoder: int = 512
    attention: int = 512
    readout: int = 512
    batch: int = 64
    pool: int = 1
    """Units of the layer under the softmax of which one is taken: 2 for the papers' maxout, 1 for a tanh layer."""


RIVALS_SIZE = Sizes()
PAPER = Sizes(embedding=620, encoder=1000, decoder=1000, attention=1000, readout=500, batch=80, pool=2)
"""Bahdanau et al. 2015, appendix B; their minibatches have 80 sentences."""
MULTIPLE = 8
"""Vocabularies are cut to a multiple of this (OpenNMT-py fills its own up to one), at the cost of a few symbols that
occur once."""


def rounded(units: int, specials: int = 4) -> int:
    """Symbols of a vocabulary, the special ones included."""
    return (units + specials) // MULTIPLE * MULTIPLE if units >= 16 * MULTIPLE else units + specials


def tables(tokens: Tokens, text: Path, sizes: Sizes) -> dict[str, Any]:
    """The run file: RNNsearch with a tanh layer under the softmax, of the rivals' sizes, trained as they are."""
    source, target = tokens.source, tokens.target
    paths = {name: str((text / name).resolve()) for name in ("train", "dev", "test")}
    parts = {name: f"{path}.{source}|{path}.{target}" for name, path in paths.items()}
    batches = -(-len(tokens.lines("train", target)) // sizes.batch)
    return {
        "data": {
            "source": source,
            "target": target,
            **parts,
            "train": [parts["train"]],
            "prepared": str((text / "prepared").resolve()),
            "cleaning": {"max_words": 10_000, "max_ratio": 10_000.0, "drop_duplicates": False, "drop_identical": False},
        },
        "text": {
            "type": "words",
            "vocabulary": rounded(len(tokens.units(source))),
            "target_vocabulary": rounded(len(tokens.units(target))),
        },
        "model": model(sizes),
        "training": {
            "batch": {"sentences": sizes.batch, "sort_batches": batches},
            "optimiser": {"type": "adam", "learning_rate": 1e-3},
            "schedule": {"type": "constant"},
            "normalise": "tokens",
            "clip_norm": 1.0,
            "dev_bleu": False,
            "save_minutes": 1000.0,
            "evaluate_every": 1_000_000,
            "max_updates": 1,
        },
        "search": {"beam": 5},
    }


def model(sizes: Sizes) -> dict[str, Any]:
    """`[model]`: contexts feed the state (Bahdanau et al. 2015, their GRU); a tanh layer (or maxout) reads all."""
    output = {"type": "bahdanau-tanh", "readout": sizes.readout}
    if sizes.pool == 2:
        output = {"type": "bahdanau", "maxout": sizes.readout}
    return {
        "embedding": sizes.embedding,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": sizes.encoder},
        "attention": {"score": "additive", "size": sizes.attention},
        "decoder": {"cell": "gru", "size": sizes.decoder, **output},
        "dropout": {"embedding": 0.2, "readout": 0.2},
    }
