"""A small RNNsearch learns to copy and to reverse, from raw text to raw text."""

import pytest

from rnnsearch.data.prepare import prepare
from rnnsearch.loading import load
from rnnsearch.training.run import train
from tests.training.toys import Recorder, sentences, toy_config, write_part

TABLES = {
    "data": {"test": "test.aa|test.bb", "test_size": 100},
    "model": {
        "embedding": 32,
        "encoder": {"size": 32},
        "attention": {"size": 32},
        "decoder": {"size": 48, "maxout": 32},
        "dropout": {"embedding": 0.0, "annotations": 0.0, "readout": 0.0, "word": 0.0},
    },
    "training": {
        "batch": {"sentences": 50},
        "schedule": {"type": "plateau", "patience": 0},
        "normalise": "tokens",
        "clip_norm": 1.0,
        "max_epochs": 10,
    },
    "search": {"beam": 3},
}


@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_learned_on_sentences_it_has_not_seen(task, tmp_path):
    drawn = sentences(4, 2500, 3, 6)
    for part, rows in (("train", drawn[:1500]), ("dev", drawn[1500:1600]), ("test", drawn[1600:1800])):
        write_part(tmp_path, part, rows, turned=task == "reverse")
    config = toy_config(tmp_path, TABLES)
    prepared = prepare(config, tmp_path / "data")
    train(config, prepared, tmp_path / "run", Recorder())
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
