"""A tiny corpus (sentences and the same words in reverse order), a tiny model, and a reporter that stores its calls."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rnnsearch.config import RunConfig, merge, resolve

WORDS = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki"]
MODEL = {
    "embedding": 8,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 6},
    "attention": {"score": "additive", "size": 7},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 9, "maxout": 5},
    "dropout": {"embedding": 0.2, "annotations": 0.1, "readout": 0.2, "word": 0.1},
}
TRAINING = {
    "batch": {"sentences": 8, "sort_batches": 2},
    "optimiser": {"type": "adam", "learning_rate": 0.01},
    "dev_bleu": False,
    "threads": 1,
    "device": "cpu",
}
SGD = {"type": "sgd", "learning_rate": 0.2}
WITHOUT_DROPOUT = {"model": {"dropout": {"embedding": 0.0, "annotations": 0.0, "readout": 0.0, "word": 0.0}}}
"""Tables without random numbers, which depend on the device and the batch."""
ALIGNED = {"data": {"alignments": ["train.align"], "dev_alignments": "dev.align"}}
HARD_ATTENTION = {
    "model": {"attention": {"normaliser": "hard"}},
    "objective": {"reinforce": {"baseline": "average", "decay": 0.5}},
}


def do_nothing(_update: int) -> None:
    """Default hook of `Recorder`."""


class Recorder:
    """A reporter that stores its calls, and calls `hook` after each update."""

    def __init__(self, hook: Callable[[int], None] = do_nothing) -> None:
        self.hook = hook
        self.updates: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.messages: list[str] = []
        self.reason = ""
        """Return value of `train`."""

    def update(self, row: dict[str, Any]) -> None:
        self.updates.append(row)
        self.hook(row["update"])

    def evaluated(self, row: dict[str, Any]) -> None:
        self.evaluations.append(row)

    def message(self, text: str) -> None:
        self.messages.append(text)


def random_sentences(seed: int, count: int, shortest: int, longest: int) -> list[tuple[str, ...]]:
    """Sample `count` sentences and return the distinct ones in random order."""
    rng = random.Random(seed)
    rows = sorted({tuple(rng.choices(WORDS, k=rng.randint(shortest, longest))) for _ in range(count)})
    rng.shuffle(rows)
    return rows


def write_split(folder: Path, split: str, rows: list[tuple[str, ...]], reverse: bool = True) -> None:
    """Write source sentences, translations with the words in reverse (or the same) order, and word alignments."""
    lines: dict[str, list[str]] = {"aa": [], "bb": [], "align": []}
    for row in rows:
        order = range(len(row))[::-1] if reverse else range(len(row))
        lines["aa"].append(" ".join(row))
        lines["bb"].append(" ".join(row[i] for i in order))
        lines["align"].append(" ".join(f"{i}-{j}" for i, j in enumerate(order)))
    for suffix, texts in lines.items():
        (folder / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in texts))


def toy_config(base: Path, *tables: dict[str, Any]) -> RunConfig:
    """Return the config of a run on the splits in a folder; later tables override earlier ones."""
    config: dict[str, Any] = {
        "data": {
            "source": "aa",
            "target": "bb",
            "train": ["train.aa|train.bb"],
            "dev": "dev.aa|dev.bb",
            "test_size": 0,
            "cleaning": {"drop_identical": False},
        },
        "text": {"type": "words", "vocabulary": 20},
        "model": MODEL,
        "training": TRAINING,
    }
    for table in tables:
        config = merge(config, table)
    return resolve(config, base=base)
