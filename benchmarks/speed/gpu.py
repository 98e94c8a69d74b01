"""Training RNNsearch on a GPU at the rivals' and the paper's size, with recorded passes and kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import Row
from benchmarks.speed import tokens as texts
from benchmarks.speed.model import PAPER, RIVALS_SIZE, Sizes
from benchmarks.speed.ours import Ours, TrainingSetting
from benchmarks.speed.tokens import Tokens


@dataclass(frozen=True)
class Scale:
    """A size of the model and how to train it.

    Attributes:
        batches: Batch sizes in sentences; one row each.
        updates: Updates, of which the first `skip` are not measured because shapes occur for the first time in them.
        words: If not 0, train on random sentences over this many words instead of the benchmark's tokens.
        pairs: Number of random sentence pairs.
        length: Mean length of random sentences.
    """

    name: str
    sizes: Sizes
    batches: tuple[int, ...]
    updates: int
    skip: int
    words: int = 0
    pairs: int = 40_000
    length: int = 25

    def tokens(self, default: Tokens, scratch: Path) -> Tokens:
        """Return the tokens to train on."""
        if not self.words:
            return default
        words = [f"w{number}" for number in range(self.words)]
        length = (4 * self.length // 5, 6 * self.length // 5)
        return texts.synthetic(scratch / f"{self.name}-tokens", words, length, self.pairs)


SCALES = (
    Scale("rivals", RIVALS_SIZE, (64, 512), updates=908, skip=454),
    Scale("paper", PAPER, (80, 512), updates=160, skip=60, words=29_996),
)
PRECISIONS = ("bf16", "fp32")
# Kernel by kernel, updates have the same speed from the start, so that fewer are enough.
MAX_EAGER_UPDATES = 150
MAX_EAGER_SKIP = 20


def measure_on_gpu(ours: Ours, scale: Scale) -> Row:
    """Train at one scale, recorded and kernel by kernel, each in its best precision; `ways` has a row for each.

    Each row contains the matrix product limit in its precision.
    """
    vocabulary = ours.prepare()["vocabulary"]["target"]
    limit = ours.limit(vocabulary, PRECISIONS)
    device = torch.cuda.get_device_name() if ours.device.startswith("cuda") else ours.device
    rows = [_best_precision(ours, scale, recorded) for recorded in (True, False)]
    for row in rows:
        row |= {"scale": scale.name, "batch": ours.sizes.batch, "device": device}
        row["limit_tokens_per_second"] = limit[row["precision"]]["tokens_per_second"]
    return {"ways": rows}


def _best_precision(ours: Ours, scale: Scale, recorded: bool) -> Row:
    """Train in each precision and return the row of the faster one."""
    updates = scale.updates if recorded else min(scale.updates, MAX_EAGER_UPDATES)
    skip = scale.skip if recorded else min(scale.skip, MAX_EAGER_SKIP)
    rows = list[Row]()
    for precision in PRECISIONS:
        name = f"{precision}-{'recorded' if recorded else 'kernels'}"
        setting = TrainingSetting(name, name, precision, updates, skip, recorded=recorded)
        rows.append({**ours.train(setting, name), "precision": precision, "recorded": recorded})
    return max(rows, key=lambda row: row["tokens_per_second"])
