"""Estimate the cost of training on a corpus of WMT14's size from measurements; docs/cost.md explains the method.

Run it as `python -m benchmarks.predict`. It reads `docs/results/prepare.json` (`python -m benchmarks.prepare`) and
`docs/results/speed.json` (`python -m benchmarks.speed`, with `--device cuda` for the rows of a GPU), counts the model's
matrix products and the activations saved by its forward pass, and prints the tables of the page.
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

from benchmarks.harness import Row, argument_parser, parse_arguments, publish, table
from benchmarks.speed.limit import Counts, flops, products
from benchmarks.speed.model import PAPER
from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.native import library
from rnnsearch.systems.translation import build

RESULTS = Path(__file__).parents[1] / "docs" / "results"
# Bytes per parameter in fp32. Buckets for summing gradients exist only with several processes.
WEIGHT_BYTES = 4
GRADIENT_BYTES = 4
ADAM_BYTES = 8
BUCKET_BYTES = 4


@dataclass(frozen=True)
class Run:
    """Assumptions about a training run."""

    pairs: int = 36_000_000
    target_length: float = 25.0
    """Target tokens per sentence pair."""
    epochs: float = 5.0
    cores: int = 16
    bandwidth: float = 200e9
    """Bytes per second that each GPU sends during the all-reduce of gradients."""
    flops_per_second: float = 400e12
    """Speed of a GPU that computes only this model's matrix products in bf16."""


def load_preset(preset: str) -> RunConfig:
    """Resolve a preset."""
    return resolve({"preset": preset, "data": {"source": "en", "target": "fr", "train": ["none"]}})


def num_parameters(config: RunConfig) -> int:
    """Return the number of parameters of the model with its full vocabularies."""
    size = config.text.vocabulary
    return sum(p.numel() for p in build(config.model, size, size, seed=1).parameters())


@contextmanager
def without_native_code() -> Iterator[None]:
    """Disable native code, because it does not run on a GPU and cannot read fake tensors."""
    library._library.cache_clear()
    try:
        with patch.dict(os.environ, {library.SWITCH: "0"}):
            yield
    finally:
        library._library.cache_clear()


def saved_activation_bytes(config: RunConfig, sentences: int, length: int) -> int:
    """Return the bytes that a forward pass in bf16 saves for the backward pass, without the parameters.

    The forward pass runs on fake tensors; counted is every storage that autograd saves.
    """
    rows = [[0] * (length - 1)] * sentences
    batch = make_batch(list(zip(rows, rows, strict=True)), range(sentences))
    size = config.text.vocabulary
    with without_native_code(), FakeTensorMode(allow_non_fake_inputs=True):
        model = build(config.model, size, size, seed=1)
        parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        saved = {}

        def record(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved[storage._cdata] = storage
            return tensor

        with torch.autocast("cpu", torch.bfloat16), saved_tensors_hooks(record, lambda tensor: tensor):
            Likelihood()(model, batch, None)
        return sum(storage.nbytes() for data, storage in saved.items() if data not in parameters)


def flops_per_token(sentences: int, length: int) -> float:
    """Return RNNsearch-50's FLOP in matrix products per target token, forward and backward.

    Source and target sentences have the same length.
    """
    tokens = sentences * length
    counts = Counts(sentences, tokens, tokens, tokens * length)
    vocabulary = load_preset("rnnsearch-50").text.vocabulary
    return flops(products(PAPER, vocabulary, counts)) / tokens


def all_reduce_seconds(parameters: int, gpus: int, bandwidth: float, element_bytes: int = 4) -> float:
    """Return the time to sum gradients over n GPUs, each of which sends and receives 2 (n - 1) / n of them."""
    return 2 * (gpus - 1) / gpus * parameters * element_bytes / bandwidth


def training_hours(run: Run, tokens_per_second: float, batch_tokens: float, parameters: int, gpus: int) -> float:
    """Return the training time if each GPU uses batches of the measured size and the all-reduce is not overlapped."""
    update_seconds = batch_tokens / tokens_per_second
    if gpus > 1:
        update_seconds += all_reduce_seconds(parameters, gpus, run.bandwidth)
    updates = run.pairs * run.target_length * run.epochs / (batch_tokens * gpus)
    return updates * update_seconds / 3600


def fixed_bytes(parameters: int, gpus: int) -> int:
    """Return the bytes of weights, gradients and Adam's moments on each GPU."""
    return parameters * (WEIGHT_BYTES + GRADIENT_BYTES + ADAM_BYTES + (BUCKET_BYTES if gpus > 1 else 0))


def data_facts(run: Run, rows: list[Row]) -> dict[str, str]:
    """Return the costs of the corpus, extrapolated from the largest measured one."""
    first = rows[0]
    row = max(rows, key=lambda row: row["pairs"])
    core_speed = row["pairs_per_core_second"]
    growth = (rows[-1]["training_bytes"] - first["training_bytes"]) / max(1, rows[-1]["pairs"] - first["pairs"])
    return {
        f"measured on {row['pairs']:,} pairs": f"{core_speed:,.0f} pairs per core and second",
        f"preparing {run.pairs:,} pairs on {run.cores} cores": f"{run.pairs / core_speed / run.cores / 60:.0f} min",
        "text on disk": f"{run.pairs * row['text_bytes'] / row['pairs'] / 1e9:.1f} GB",
        "memory for the order of an epoch, 4 bytes per pair": f"{4 * run.pairs / 2**20:,.0f} MiB",
        "measured growth of training memory": f"{max(0.0, growth):.1f} bytes per pair",
    }


def model_facts(run: Run, config: RunConfig, parameters: int) -> dict[str, str]:
    """Return the memory of the training state and of saved activations, the computation and the communication."""
    length = round(run.target_length)
    facts = {"parameters of RNNsearch-50": f"{parameters:,}"}
    for gpus, name in ((1, "one GPU"), (8, "each of eight GPUs")):
        facts[f"weights, gradients, Adam on {name}"] = f"{fixed_bytes(parameters, gpus) / 2**30:.2f} GiB"
    for sentences in (80, 512):
        saved = saved_activation_bytes(config, sentences, length) / 2**30
        facts[f"saved by a forward pass of {sentences} sentences of {length} tokens"] = f"{saved:.2f} GiB"
    mega_flops = flops_per_token(512, length) / 1e6
    facts["multiplications and additions per target token, forward and backward"] = f"{mega_flops:,.0f} million"
    for dtype, element_bytes in (("fp32", 4), ("bf16", 2)):
        seconds = all_reduce_seconds(parameters, 8, run.bandwidth, element_bytes)
        facts[f"summing gradients over eight GPUs in {dtype}"] = f"{1000 * seconds:.1f} ms per update"
    return facts


COLUMNS = "target tokens/s {:,.0f} | one GPU {:.1f} h | eight GPUs {:.1f} h"


def _cells(run: Run, speed: float, batch_tokens: float, parameters: int) -> list[float]:
    """Return the cells of COLUMNS: target tokens per second of a GPU, hours on one GPU and on eight."""
    return [speed, *(training_hours(run, speed, batch_tokens, parameters, gpus) for gpus in (1, 8))]


def measured_table(run: Run, rows: list[Row]) -> list[str]:
    """Return a table of training hours at the speeds measured on GPUs."""
    lines = []
    for row in rows:
        batch_tokens = row["batch"] * run.target_length
        cells = _cells(run, row["tokens_per_second"], batch_tokens, row["parameters"])
        lines.append([row["device"], row["batch"], *cells])
    return table(f"device | sentences per batch | {COLUMNS}", lines)


def paper_size_rows(results: Path) -> list[Row]:
    """Return the measurements of RNNsearch-50 on a GPU, if there are any."""
    rows = json.loads(results.read_text("utf-8"))["gpu"] if results.is_file() else []
    return [row for row in rows if row["scale"] == "paper" and row["recorded"]]


def limit_fractions(results: Row) -> dict[str, float]:
    """Return the fraction of the matrix product limit that each bf16 training setting reached on the CPU."""
    limit = results["limit"]["bf16"]["tokens_per_second"]
    rows = [(title, row) for title, precision, row in results["trainings"] if precision == "bf16"]
    return {title: row["tokens_per_second"] / limit for title, row in rows}


def estimated_table(run: Run, parameters: int, reached: dict[str, float], sentences: int = 512) -> list[str]:
    """Return a table of training hours for 10% of the limit and for the fractions reached on the CPU."""
    length = round(run.target_length)
    limit = run.flops_per_second / flops_per_token(sentences, length)
    cases = {"10%": 0.1}
    for title, fraction in reached.items():
        cases[f"{fraction:.0%}, as {title} on the CPU"] = fraction
    rows = []
    for name, fraction in sorted(cases.items(), key=lambda case: case[1]):
        rows.append([name, *_cells(run, fraction * limit, sentences * length, parameters)])
    return table(f"fraction of the matrix product limit | {COLUMNS}", rows)


def main() -> None:
    """Print the tables of docs/cost.md."""
    parser = argument_parser(__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of prepare.json and speed.json")
    args = parse_arguments(parser)
    run = Run()
    config = load_preset("rnnsearch-50")
    parameters = num_parameters(config)
    prepared = json.loads((args.results / "prepare.json").read_text("utf-8"))
    speed = json.loads((args.results / "speed.json").read_text("utf-8"))
    facts = {**data_facts(run, prepared), **model_facts(run, config, parameters)}
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items()), ""]
    lines += estimated_table(run, parameters, limit_fractions(speed))
    publish([*lines, *measured_table(run, paper_size_rows(args.results / "speed-gpu.json"))], args.output)


if __name__ == "__main__":
    main()
