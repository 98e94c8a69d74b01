"""What the fast ways of training cost in quality: dev NLL after equally many updates, over three seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.speed.ours import Ours, Setting
from benchmarks.speed.rows import Row, Rows

SEEDS = (1, 2, 3)


def measure(rows: Rows, ours: Ours, trainings: Sequence[Setting], key: Row, updates: int) -> Row:
    """Dev NLL a word by way of training and seed, and its mean."""
    training: Row = {"updates": updates}
    for setting in trainings:
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
        training[setting.name] = {"nll": values, "mean": statistics.fmean(values)}
    return {"training": training}
