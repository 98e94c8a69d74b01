"""A small RNNsearch learns to copy and to reverse, and which words tell nothing, from raw text to raw text."""

import random
from collections import Counter

import pytest

from rnnsearch.config import merge
from rnnsearch.data.prepare import prepare
from rnnsearch.training.run import train
from rnnsearch.translator.confidence import warnings
from rnnsearch.translator.loading import load
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


FILLERS = ("um", "eh", "er")


def test_a_rationale_leaves_out_the_words_that_tell_nothing(tmp_path):
    """Lei et al. 2016: every word that the translation needs is read, and no filler."""
    drawn, dice = sentences(4, 1800, 3, 6), random.Random(1)
    for part, rows in (("train", drawn[:1500]), ("dev", drawn[1500:1600]), ("test", drawn[1600:1800])):
        filled = [[w for word in row for w in (*dice.sample(FILLERS, dice.randrange(2)), word)] for row in rows]
        for side, texts in (("aa", filled), ("bb", rows)):
            lines = "".join(f"{' '.join(words)}\n" for words in texts)
            (tmp_path / f"{part}.{side}").write_text(lines, encoding="utf-8")
    chooses = {"encoder": {"type": "rationale", "cell": "gru", "size": 32, "chooser": 16}}
    learns = {"objective": {"rationale": {"sparsity": 0.3}}, "training": {"max_epochs": 10}}
    config = toy_config(tmp_path, merge(TABLES, {"model": chooses, **learns}))
    prepared = prepare(config, tmp_path / "data")
    train(config, prepared, tmp_path / "run", Recorder())
    translations = load(tmp_path / "run").translate([pair.source for pair in prepared.test])
    right = sum(t.text == pair.target for t, pair in zip(translations, prepared.test, strict=True))
    assert right / len(translations) > 0.95
    read = Counter((w in FILLERS, n in t.rationale) for t in translations for n, w in enumerate(t.source_words))
    missing = {"dropped", "detached"}
    assert not any(missing & {*warnings(t)} for t in translations), "what was left unread is not missing"
    assert read[False, True] > 0.95 * (read[False, True] + read[False, False])
    assert read[True, True] < 0.1 * (read[True, True] + read[True, False])
