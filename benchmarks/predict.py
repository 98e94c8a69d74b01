"""What training on a corpus of WMT14's size costs, from what was measured: docs/cost.md says how it is reckoned.

Run it as `python -m benchmarks.predict`. It reads `docs/results/prepare.json` (`python -m benchmarks.prepare`) and
`docs/results/speed.json` (`python -m benchmarks.speed`, with `--device cuda` for rows of a GPU), counts the model's
products and what its forward pass keeps, and prints the page's tables.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.speed.full_size import PAPER
from benchmarks.speed.limit import Counts, flops, products
from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.kernels.native import library
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.systems.build import build

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WEIGHT, GRADIENT, ADAM, BUCKET = 4, 4, 8, 4
"""Bytes a parameter, in fp32; buckets of summed gradients are there with several processes alone."""


@dataclass(frozen=True)
class Run:
    """What is assumed of a run. symbols: target symbols a pair; bandwidth: bytes a second that one GPU sends while all
    do, of which the sum of gradients is made."""

    pairs: int = 36_000_000
    symbols: float = 25.0
    epochs: float = 5.0
    cores: int = 16
    bandwidth: float = 200e9
    products: float = 400e12
    """Multiplications and additions a second of a GPU that does nothing but this model's products in bf16."""


def configuration(preset: str) -> RunConfig:
    """A preset's, with its own vocabulary on both sides."""
    return resolve({"preset": preset, "data": {"source": "en", "target": "fr", "train": ["none"]}})


def parameters(config: RunConfig) -> int:
    """Of the model."""
    size = config.text.vocabulary
    return sum(p.numel() for p in build(config.model, size, size, seed=1).parameters())


@contextmanager
def without_native_code() -> Iterator[None]:
    """The functions in here that run on a GPU; and native code must not be given tensors without numbers."""
    before = os.environ.get(library.OFF)
    os.environ[library.OFF] = "0"
    library.library.cache_clear()
    try:
        yield
    finally:
        library.library.cache_clear()
        del os.environ[library.OFF]
        os.environ |= {} if before is None else {library.OFF: before}


def kept_bytes(config: RunConfig, sentences: int, length: int) -> int:
    """What a forward pass in bf16 keeps for the backward pass, the weights themselves not counted: of every tensor that
    autograd saves, without numbers in any."""
    rows = [[0] * (length - 1)] * sentences
    batch = make_batch(list(zip(rows, rows, strict=True)), range(sentences))
    size = config.text.vocabulary
    with without_native_code(), FakeTensorMode(allow_non_fake_inputs=True):
        model = build(config.model, size, size, seed=1)
        own = {p.untyped_storage()._cdata for p in model.parameters()}
        saved = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved[storage._cdata] = storage
            return tensor

        with torch.autocast("cpu", torch.bfloat16), saved_tensors_hooks(note, lambda tensor: tensor):
            likelihood()(model, batch, None)
        return sum(storage.nbytes() for data, storage in saved.items() if data not in own)


def flops_per_symbol(sentences: int, length: int) -> float:
    """Multiplications and additions of RNNsearch-50's products a target symbol, forward and backward; both sides are
    as long."""
    symbols = sentences * length
    counts = Counts(sentences, symbols, symbols, symbols * length)
    vocabulary = configuration("rnnsearch-50").text.vocabulary
    return flops(products(PAPER, vocabulary, counts)) / symbols


def sum_seconds(count: int, gpus: int, bandwidth: float, number_bytes: int = 4) -> float:
    """Of the gradients of `count` parameters over some GPUs: each sends and receives 2 (n - 1) / n of them."""
    return 2 * (gpus - 1) / gpus * count * number_bytes / bandwidth


def training_hours(run: Run, tokens_per_second: float, batch_tokens: float, count: int, gpus: int) -> float:
    """Each GPU works on batches as large as the measured one; the sum of gradients is counted as if nothing hid it."""
    update = batch_tokens / tokens_per_second + (sum_seconds(count, gpus, run.bandwidth) if gpus > 1 else 0.0)
    updates = run.pairs * run.symbols * run.epochs / (batch_tokens * gpus)
    return updates * update / 3600


def fixed_bytes(count: int, gpus: int) -> int:
    """Of weights, gradients and Adam's moments on each GPU."""
    return count * (WEIGHT + GRADIENT + ADAM + (BUCKET if gpus > 1 else 0))


def data_table(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    """What the corpus costs, from the largest one measured."""
    row = max(rows, key=lambda row: row["pairs"])
    core = row["pairs_per_core_second"]
    growth = [(r["pairs"], r["training_bytes"]) for r in rows]
    per_pair = max(0.0, (growth[-1][1] - growth[0][1]) / max(1, growth[-1][0] - growth[0][0]))
    return [
        f"| measured on {row['pairs']:,} pairs | {core:,.0f} pairs a second of a core |",
        f"| preparing {run.pairs:,} pairs on {run.cores} cores | {run.pairs / core / run.cores / 60:.0f} min |",
        f"| text on disk | {run.pairs * row['text_bytes'] / row['pairs'] / 1e9:.1f} GB |",
        f"| memory of an epoch's order, 4 bytes a pair | {4 * run.pairs / 2**20:,.0f} MiB |",
        f"| growth of memory in training that was measured | {per_pair:.1f} bytes a pair |",
    ]


def _hours(run: Run, speed: float, batch_tokens: float, count: int) -> str:
    """Cells of a row: target tokens a second of a GPU, hours on one, on eight."""
    hours = [training_hours(run, speed, batch_tokens, count, gpus) for gpus in (1, 8)]
    return f"{speed:,.0f} | {hours[0]:.1f} h | {hours[1]:.1f} h"


def training_table(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    """Hours on one GPU and on eight."""
    lines = ["| device | sentences a batch | target tokens/s | one GPU | eight GPUs |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        speed, batch = row["tokens_per_second"], row["batch"] * run.symbols
        lines.append(f"| {row['device']} | {row['batch']} | {_hours(run, speed, batch, row['parameters'])} |")
    return lines


def shares(found: dict[str, Any]) -> dict[str, float]:
    """The share of its products' limit that each way of training in bf16 reached on the measured machine."""
    limit = found["limit"]["bf16"]["tokens_per_second"]
    return {title: row["tokens_per_second"] / limit for title, kind, row in found["trainings"] if kind == "bf16"}


def reckoned_table(run: Run, count: int, reached: dict[str, float], sentences: int = 512) -> list[str]:
    """Hours on one GPU and on eight if the share of the limit were that of a way of training measured elsewhere."""
    length = round(run.symbols)
    limit = run.products / flops_per_symbol(sentences, length)
    lines = ["| share of the products' limit | target tokens/s | one GPU | eight GPUs |", "|---|---:|---:|---:|"]
    cases = {"10%": 0.1, **{f"{share:.0%}, as {title} on the CPU": share for title, share in reached.items()}}
    for name, share in sorted(cases.items(), key=lambda case: case[1]):
        lines.append(f"| {name} | {_hours(run, share * limit, sentences * length, count)} |")
    return lines


def memory_rows(config: RunConfig, count: int, length: int) -> list[str]:
    """Of weights, gradients and moments, and of what a forward pass keeps."""
    lines = []
    for gpus, name in ((1, "one GPU"), (8, "each of eight")):
        lines.append(f"| weights, gradients, Adam on {name} | {fixed_bytes(count, gpus) / 2**30:.2f} GiB |")
    for sentences in (80, 512):
        kept = kept_bytes(config, sentences, length) / 2**30
        lines.append(f"| kept by a forward pass of {sentences} sentences of {length} symbols | {kept:.2f} GiB |")
    return lines


def main() -> None:
    """Print what can be reckoned from what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of prepare.json and speed.json")
    options = parser.parse_args()
    run, config = Run(), configuration("rnnsearch-50")
    count, length = parameters(config), round(run.symbols)
    measured = json.loads((options.results / "speed.json").read_text("utf-8"))
    lines = ["| | |", "|---|---|", *data_table(run, json.loads((options.results / "prepare.json").read_text("utf-8")))]
    lines += [f"| parameters of RNNsearch-50 | {count:,} |", *memory_rows(config, count, length)]
    each = flops_per_symbol(512, length)
    lines.append(f"| multiplications and additions a target symbol, forward and backward | {each / 1e6:,.0f} million |")
    for kind, size in (("fp32", 4), ("bf16", 2)):
        seconds = sum_seconds(count, 8, run.bandwidth, size)
        lines.append(f"| summing gradients over eight in {kind} | {1000 * seconds:.1f} ms an update |")
    lines += ["", *reckoned_table(run, count, shares(measured))]
    if rows := measured.get("full_size", []):
        lines += ["", *training_table(run, rows)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
