"""A small RNNsearch learns to copy and to reverse, from raw text to raw text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.config import resolve
from rnnsearch.data.prepare import prepare
from rnnsearch.training.run import train
from rnnsearch.translate import load

WORDS = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki"]


@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_learned_on_sentences_it_has_not_seen(task: str, recorder: Any, tmp_path: Path) -> None:
    rng = random.Random(4)
    rows = sorted({tuple(rng.choices(WORDS, k=rng.randint(3, 6))) for _ in range(2500)})
    rng.shuffle(rows)
    for part, some in (("train", rows[:1500]), ("dev", rows[1500:1600]), ("test", rows[1600:1800])):
        answers = [row if task == "copy" else row[::-1] for row in some]
        (tmp_path / f"{part}.aa").write_text("".join(f"{' '.join(row)}\n" for row in some))
        (tmp_path / f"{part}.bb").write_text("".join(f"{' '.join(row)}\n" for row in answers))
    config = resolve(
        {
            "data": {
                "source": "aa",
                "target": "bb",
                "train": ["train.aa|train.bb"],
                "dev": "dev.aa|dev.bb",
                "test": "test.aa|test.bb",
                "cleaning": {"drop_identical": False},
            },
            "text": {"type": "words", "vocabulary": 20},
            "model": {
                "embedding": 32,
                "encoder": {"type": "bidirectional", "cell": "gru", "size": 32},
                "attention": {"score": "additive", "size": 32},
                "decoder": {"type": "bahdanau", "cell": "gru", "size": 48, "maxout": 32},
            },
            "training": {
                "batch": {"sentences": 50},
                "optimiser": {"type": "adam", "learning_rate": 0.01},
                "schedule": {"type": "plateau", "patience": 0},
                "normalise": "tokens",
                "clip_norm": 1.0,
                "max_epochs": 10,
                "dev_bleu": False,
                "threads": 1,
            },
            "search": {"beam": 3},
        },
        base=tmp_path,
    )
    prepared = prepare(config, tmp_path / "data")
    train(config, prepared, tmp_path / "run", recorder())
    translations = load(tmp_path / "run").translate([pair.source for pair in prepared.test])
    right = sum(t.text == pair.target for t, pair in zip(translations, prepared.test, strict=True))
    assert right / len(translations) > 0.95
    linked = [
        (i, j) in t.alignment
        for t, pair in zip(translations, prepared.test, strict=True)
        if t.text == pair.target
        for n in [len(t.words)]
        for i, j in ((k, k if task == "copy" else n - 1 - k) for k in range(n))
    ]
    assert sum(linked) / len(linked) > 0.6, "and it knows where it looked"
