"""A tiny language of words to turn round, a tiny model of it, and a reporter that keeps what it is told."""

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
PLAIN = {"model": {"dropout": {"embedding": 0.0, "annotations": 0.0, "readout": 0.0, "word": 0.0}}}
"""Without random numbers, which are others on another device and for other batches."""
ALIGNED = {"data": {"alignments": ["train.align"], "dev_alignments": "dev.align"}}
HARD = {
    "model": {"attention": {"normaliser": "hard"}},
    "objective": {"reinforce": {"baseline": "average", "decay": 0.5}},
}


def nothing(_update: int) -> None:
    """What is done after an update where nothing is asked for."""


class Recorder:
    """A reporter that keeps what it is told, and calls `hook` after each update."""

    def __init__(self, hook: Callable[[int], None] = nothing) -> None:
        self.hook = hook
        self.updates: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.messages: list[str] = []
        self.reason = ""
        """Why the run ended."""

    def update(self, row: dict[str, Any]) -> None:
        self.updates.append(row)
        self.hook(row["update"])

    def evaluated(self, row: dict[str, Any]) -> None:
        self.evaluations.append(row)

    def message(self, text: str) -> None:
        self.messages.append(text)


def sentences(seed: int, count: int, shortest: int, longest: int) -> list[tuple[str, ...]]:
    """Different ones of so many that are drawn, in an order that is drawn, too."""
    rng = random.Random(seed)
    drawn = sorted({tuple(rng.choices(WORDS, k=rng.randint(shortest, longest))) for _ in range(count)})
    rng.shuffle(drawn)
    return drawn


def write_part(folder: Path, part: str, rows: list[tuple[str, ...]], turned: bool = True) -> None:
    """Sentences, the same reversed (or the same) as their translations, and the links between their words."""
    order = [range(len(row))[:: -1 if turned else 1] for row in rows]
    lines = {
        "aa": [" ".join(row) for row in rows],
        "bb": [" ".join(row[i] for i in places) for row, places in zip(rows, order, strict=True)],
        "align": [" ".join(f"{i}-{j}" for i, j in enumerate(places)) for places in order],
    }
    for suffix, some in lines.items():
        (folder / f"{part}.{suffix}").write_text("".join(f"{line}\n" for line in some))


def toy_config(base: Path, *tables: dict[str, Any]) -> RunConfig:
    """A run on the parts in a folder; later tables go over those before them."""
    whole: dict[str, Any] = {
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
    for each in tables:
        whole = merge(whole, each)
    return resolve(whole, base=base)
