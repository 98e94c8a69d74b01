"""RNNsearch-50 at the paper's size on a GPU: speed of training and its share of the plain products' limit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.harness import Row, say
from benchmarks.speed import toy
from benchmarks.speed.model import Sizes
from benchmarks.speed.ours import Ours, Setting
from benchmarks.speed.rows import Rows

PAPER = Sizes(embedding=620, encoder=1000, decoder=1000, attention=1000, readout=500, batch=80, pool=2)
"""Bahdanau et al. 2015, appendix B; their minibatches have 80 sentences."""


@dataclass(frozen=True)
class Scale:
    """What is trained on: random sentences. `batches`: sentences a batch, a row each."""

    sizes: Sizes = PAPER
    words: int = 29_996
    pairs: int = 40_000
    length: int = 25
    batches: tuple[int, ...] = (80, 512)
    updates: int = 70
    skip: int = 20


def measure(
    rows: Rows, folder: Path, threads: int, device: str, key: Row, scale: Scale | None = None, at_home: bool = False
) -> list[Row]:
    """A row for each batch size; none, and a sentence on stderr, where the device is not there."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        say("RNNsearch-50 at its full size was skipped: torch finds no CUDA device here")
        return []
    scale = scale or Scale()
    tokens = toy.random_tokens(folder / "tokens", scale.words, scale.pairs, scale.length)
    found = []
    for batch in scale.batches:
        sizes = Sizes(**{**asdict(scale.sizes), "batch": batch})
        ours = Ours(folder / f"batch-{batch}", tokens, threads, sizes, device=device, at_home=at_home)
        setting = Setting(f"gpu-{batch}", "bf16", ("training.precision=bf16",), scale.updates, scale.skip)

        def once(ours: Ours = ours, setting: Setting = setting) -> Row:
            vocabulary = ours.prepare()["vocabulary"]["target"]
            row = ours.train(setting, setting.name)
            limit = ours.limit(vocabulary, ("bf16",))["bf16"]["tokens_per_second"]
            where = torch.cuda.get_device_name() if device.startswith("cuda") else device
            return {**row, "batch": ours.sizes.batch, "limit_tokens_per_second": limit, "device": where}

        found.append(rows.get(f"full-size-{batch}", {**key, "scale": asdict(scale), "device": device}, once))
    return found
