"""What the fast ways of training and of searching cost in quality, beside fp32 without native code."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness import Row
from benchmarks.speed.ours import Ours, Setting
from benchmarks.speed.rows import Rows

SEEDS = (1, 2, 3)
REFERENCE = "fp32, without native code"
"""The title that the others are held against."""


def of_training(rows: Rows, ours: Ours, trainings: Sequence[Setting], key: Row, updates: int) -> Row:
    """Dev NLL a word after equally many updates, by title: of each seed, and the mean."""
    found: Row = {}
    for setting in trainings:
        if setting.plain:
            continue
        long = replace(setting, updates=updates)
        values = []
        for seed in SEEDS:
            name = f"quality-{setting.name}-{seed}"
            row = rows.get(
                name,
                {**key, "updates": updates, "settings": setting.settings},
                lambda s=long, n=name, seed=seed: ours.train(s, n, [f"training.seed={seed}"]),  # type: ignore[misc]
            )
            values.append(row["dev_nll_per_word"])
        found[setting.title] = {"nll": values, "mean": statistics.fmean(values)}
    return found


def of_search(decodings: Sequence[tuple[str, str, Row]]) -> Row:
    """BLEU of the same weights by title and kind of search, of the first row of each."""
    found: Row = {}
    for title, kind, case in decodings:
        found.setdefault(title, {}).setdefault(kind.partition(",")[0], case["bleu"])
    return found
