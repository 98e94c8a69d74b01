"""Run files for the model and the training of the rivals' scripts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.tokens import Tokens


@dataclass(frozen=True)
class Sizes:
    """Sizes of the embedding, the encoder (per direction), the decoder, the alignment model and the readout.

    `batch` is the number of sentences per batch.
    """

    embedding: int = 256
    encoder: int = 256
    decoder: int = 512
    attention: int = 512
    readout: int = 512
    batch: int = 64
    pool: int = 1
    """Readout units per maxout unit: 2 as in the paper, or 1 for a tanh layer."""


RIVALS_SIZE = Sizes()
PAPER = Sizes(embedding=620, encoder=1000, decoder=1000, attention=1000, readout=500, batch=80, pool=2)
"""Bahdanau et al. 2015, appendix B, with minibatches of 80 sentences."""
# Vocabulary sizes are rounded down to a multiple, which removes a few tokens that occur once. (OpenNMT-py pads its
# vocabularies up to a multiple.)
VOCABULARY_MULTIPLE = 8


def vocabulary_size(units: int, specials: int = 4) -> int:
    """Return the size of a vocabulary of this many BPE units, with special tokens, rounded unless it is tiny."""
    size = units + specials
    return size // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE if units >= 16 * VOCABULARY_MULTIPLE else size


def run_file(tokens: Tokens, text: Path, sizes: Sizes) -> dict[str, Any]:
    """Return the tables of a run file: RNNsearch with the rivals' sizes and training settings."""
    source = tokens.source
    target = tokens.target
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
            "vocabulary": vocabulary_size(len(tokens.units(source))),
            "target_vocabulary": vocabulary_size(len(tokens.units(target))),
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
    """Return a `[model]` table: Bahdanau et al. 2015 with their GRU and a tanh layer (or maxout) as the readout."""
    decoder = {"type": "bahdanau-tanh", "readout": sizes.readout}
    if sizes.pool == 2:
        decoder = {"type": "bahdanau", "maxout": sizes.readout}
    return {
        "embedding": sizes.embedding,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": sizes.encoder},
        "attention": {"score": "additive", "size": sizes.attention},
        "decoder": {"cell": "gru", "size": sizes.decoder, **decoder},
        "dropout": {"embedding": 0.2, "readout": 0.2},
    }
