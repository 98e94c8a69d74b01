"""What is measured on a GPU: training RNNsearch at the rivals' size and at its own paper's, its passes recorded and
kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import Row
from benchmarks.speed import tokens as texts
from benchmarks.speed.model import PAPER, RIVALS_SIZE, Sizes
from benchmarks.speed.ours import Ours, Setting
from benchmarks.speed.tokens import Tokens


@dataclass(frozen=True)
class Scale:
    """A size of the model, and `batches`, sentences each, a row for each; `updates` without the first `skip`, in which
    shapes occur for the first times. `words`: where it is trained on sentences of that many words, drawn at random, and
    not on the benchmark's tokens."""

    name: str
    sizes: Sizes
    batches: tuple[int, ...]
    updates: int
    skip: int
    words: int = 0
    pairs: int = 40_000
    length: int = 25

    def tokens(self, given: Tokens, scratch: Path) -> Tokens:
        """What it is trained on."""
        if not self.words:
            return given
        words = [f"w{number}" for number in range(self.words)]
        length = 4 * self.length // 5, 6 * self.length // 5
        return texts.made_up(scratch / f"{self.name}-tokens", words, length, self.pairs)


SCALES = (
    Scale("rivals", RIVALS_SIZE, (64, 512), updates=908, skip=454),
    Scale("paper", PAPER, (80, 512), updates=160, skip=60, words=29_996),
)
PRECISIONS = ("bf16", "fp32")
BY_KERNEL = 150
"""Updates kernel by kernel, which are as fast from the first on; the first twenty do not count."""


def on_a_gpu(ours: Ours, scale: Scale) -> Row:
    """Training of one of them, recorded and kernel by kernel, each in its best precision beside the plain products'
    limit in that: `ways`, a row each."""
    vocabulary = ours.prepare()["vocabulary"]["target"]
    limit = ours.limit(vocabulary, PRECISIONS)
    device = torch.cuda.get_device_name() if ours.device.startswith("cuda") else ours.device
    ways = [_best(ours, scale, recorded) for recorded in (True, False)]
    for row in ways:
        row |= {"scale": scale.name, "batch": ours.sizes.batch, "device": device}
        row["limit_tokens_per_second"] = limit[row["precision"]]["tokens_per_second"]
    return {"ways": ways}


def _best(ours: Ours, scale: Scale, recorded: bool) -> Row:
    """The faster of the precisions."""
    updates, skip, found = scale.updates, scale.skip, list[Row]()
    if not recorded:
        updates, skip = min(updates, BY_KERNEL), min(skip, 20)
    for precision in PRECISIONS:
        name = f"{precision}-{'recorded' if recorded else 'kernels'}"
        setting = Setting(name, name, precision, updates, skip, recorded=recorded)
        found.append({**ours.train(setting, name), "precision": precision, "recorded": recorded})
    return max(found, key=lambda each: each["tokens_per_second"])
