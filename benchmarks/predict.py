"""What training on a corpus of WMT14's size costs, from what was measured: docs/cost.md says how it is reckoned.

Run it as `python -m benchmarks.predict`. It reads `docs/results/prepare.json` (`python -m benchmarks.prepare`) and,
where it is there, `docs/results/speed.json` (`python -m benchmarks.speed --device cuda`), and prints the page's tables.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def parameters(preset: str) -> int:
    """Of a preset's model with its own vocabulary on both sides."""
    from rnnsearch.config import resolve
    from rnnsearch.models.build import build

    config = resolve({"preset": preset, "data": {"source": "en", "target": "fr", "train": ["none"]}})
    size = config.text.vocabulary
    return sum(p.numel() for p in build(config.model, size, size, seed=1).parameters())


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


def training_table(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    """Hours on one GPU and on eight."""
    lines = ["| device | sentences a batch | target tokens/s | one GPU | eight GPUs |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        speed, batch = row["tokens_per_second"], row["batch"] * run.symbols
        hours = [training_hours(run, speed, batch, row["parameters"], gpus) for gpus in (1, 8)]
        lines.append(f"| {row['device']} | {row['batch']} | {speed:,.0f} | {hours[0]:.1f} h | {hours[1]:.1f} h |")
    return lines


def main() -> None:
    """Print what can be reckoned from what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="rnnsearch-50")
    options = parser.parse_args()
    run, count = Run(), parameters(options.preset)
    lines = ["| | |", "|---|---|", *data_table(run, json.loads((RESULTS / "prepare.json").read_text("utf-8")))]
    lines.append(f"| parameters of {options.preset} | {count:,} |")
    for gpus, name in ((1, "one GPU"), (8, "each of eight")):
        lines.append(f"| weights, gradients, Adam on {name} | {fixed_bytes(count, gpus) / 2**30:.2f} GiB |")
    for kind, size in (("fp32", 4), ("bf16", 2)):
        seconds = sum_seconds(count, 8, run.bandwidth, size)
        lines.append(f"| summing gradients over eight in {kind} | {1000 * seconds:.1f} ms an update |")
    speed = RESULTS / "speed.json"
    rows = json.loads(speed.read_text("utf-8")).get("full_size", []) if speed.is_file() else []
    if rows:
        lines += ["", *training_table(run, rows)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
