"""What training on a corpus of WMT14's size costs, from what was measured: docs/cost.md says how it is reckoned.

Run it as `python -m benchmarks.predict`. It reads `docs/results/prepare.json` (`python -m benchmarks.prepare`) and
`docs/results/speed.json` (`python -m benchmarks.speed`, with `--device cuda` for rows of a GPU), counts the model's
products and what its forward pass keeps, and prints the page's tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.harness import Row, parsed, parser, publish, table
from benchmarks.speed.limit import Counts, flops, products
from benchmarks.speed.model import PAPER
from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.kernels.native import library
from rnnsearch.objectives.likelihood import Likelihood
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
    library._library.cache_clear()
    try:
        with patch.dict(os.environ, {library.SWITCH: "0"}):
            yield
    finally:
        library._library.cache_clear()


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
            Likelihood()(model, batch, None)
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


def data_facts(run: Run, rows: list[Row]) -> dict[str, str]:
    """What the corpus costs, from the largest one measured."""
    first, row = rows[0], max(rows, key=lambda row: row["pairs"])
    core = row["pairs_per_core_second"]
    growth = (rows[-1]["training_bytes"] - first["training_bytes"]) / max(1, rows[-1]["pairs"] - first["pairs"])
    return {
        f"measured on {row['pairs']:,} pairs": f"{core:,.0f} pairs a second of a core",
        f"preparing {run.pairs:,} pairs on {run.cores} cores": f"{run.pairs / core / run.cores / 60:.0f} min",
        "text on disk": f"{run.pairs * row['text_bytes'] / row['pairs'] / 1e9:.1f} GB",
        "memory of an epoch's order, 4 bytes a pair": f"{4 * run.pairs / 2**20:,.0f} MiB",
        "growth of memory in training that was measured": f"{max(0.0, growth):.1f} bytes a pair",
    }


def model_facts(run: Run, config: RunConfig, count: int) -> dict[str, str]:
    """Memory of weights, gradients, moments and of what a forward pass keeps; work and what is sent."""
    length = round(run.symbols)
    facts = {"parameters of RNNsearch-50": f"{count:,}"}
    for gpus, name in ((1, "one GPU"), (8, "each of eight")):
        facts[f"weights, gradients, Adam on {name}"] = f"{fixed_bytes(count, gpus) / 2**30:.2f} GiB"
    for sentences in (80, 512):
        kept = kept_bytes(config, sentences, length) / 2**30
        facts[f"kept by a forward pass of {sentences} sentences of {length} symbols"] = f"{kept:.2f} GiB"
    work = f"{flops_per_symbol(512, length) / 1e6:,.0f} million"
    facts["multiplications and additions a target symbol, forward and backward"] = work
    for kind, size in (("fp32", 4), ("bf16", 2)):
        seconds = sum_seconds(count, 8, run.bandwidth, size)
        facts[f"summing gradients over eight in {kind}"] = f"{1000 * seconds:.1f} ms an update"
    return facts


COLUMNS = "target tokens/s {:,.0f} | one GPU {:.1f} h | eight GPUs {:.1f} h"


def _hours(run: Run, speed: float, batch_tokens: float, count: int) -> list[float]:
    """Cells of a row: target tokens a second of a GPU, hours on one, on eight."""
    return [speed, *(training_hours(run, speed, batch_tokens, count, gpus) for gpus in (1, 8))]


def training_table(run: Run, rows: list[Row]) -> list[str]:
    """Hours on one GPU and on eight."""
    hours = [_hours(run, r["tokens_per_second"], r["batch"] * run.symbols, r["parameters"]) for r in rows]
    cells = [[row["device"], row["batch"], *each] for row, each in zip(rows, hours, strict=True)]
    return table(f"device | sentences a batch | {COLUMNS}", cells)


def full_size(results: Path) -> list[Row]:
    """RNNsearch-50 on a GPU, where it was measured."""
    rows = json.loads(results.read_text("utf-8"))["gpu"] if results.is_file() else []
    return [row for row in rows if row["scale"] == "paper" and row["recorded"]]


def shares(found: Row) -> dict[str, float]:
    """The share of its products' limit that each way of training in bf16 reached on the measured machine."""
    limit = found["limit"]["bf16"]["tokens_per_second"]
    return {title: row["tokens_per_second"] / limit for title, kind, row in found["trainings"] if kind == "bf16"}


def reckoned_table(run: Run, count: int, reached: dict[str, float], sentences: int = 512) -> list[str]:
    """Hours on one GPU and on eight if the share of the limit were that of a way of training measured elsewhere."""
    length = round(run.symbols)
    limit = run.products / flops_per_symbol(sentences, length)
    cases = {"10%": 0.1, **{f"{share:.0%}, as {title} on the CPU": share for title, share in reached.items()}}
    ordered = sorted(cases.items(), key=lambda case: case[1])
    rows = [[name, *_hours(run, share * limit, sentences * length, count)] for name, share in ordered]
    return table(f"share of the products' limit | {COLUMNS}", rows)


def main() -> None:
    """Print what can be reckoned from what was measured."""
    made = parser(__doc__)
    made.add_argument("--results", type=Path, default=RESULTS, help="folder of prepare.json and speed.json")
    given = parsed(made)
    run, config = Run(), configuration("rnnsearch-50")
    count = parameters(config)
    prepared, measured = (json.loads((given.results / f"{n}.json").read_text("utf-8")) for n in ("prepare", "speed"))
    facts = {**data_facts(run, prepared), **model_facts(run, config, count)}
    lines = ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in facts.items()), ""]
    lines += reckoned_table(run, count, shares(measured))
    publish([*lines, *training_table(run, full_size(given.results / "speed-gpu.json"))], given.output)


if __name__ == "__main__":
    main()
