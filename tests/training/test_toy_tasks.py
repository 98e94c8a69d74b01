"""A small RNNsearch learns to copy and to reverse sentences, and to ignore filler words, from raw text to raw text."""

import random
from collections import Counter

import pytest

from rnnsearch.config import merge
from rnnsearch.data.prepare import prepare
from rnnsearch.training.run import train
from rnnsearch.translator.confidence import warnings
from rnnsearch.translator.loading import load
from tests.training.toys import Recorder, random_sentences, toy_config, write_split

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
def test_model_translates_and_aligns_unseen_sentences(task, tmp_path):
    all_rows = random_sentences(4, 2500, 3, 6)
    for split, rows in (("train", all_rows[:1500]), ("dev", all_rows[1500:1600]), ("test", all_rows[1600:1800])):
        write_split(tmp_path, split, rows, reverse=task == "reverse")
    config = toy_config(tmp_path, TABLES)
    prepared = prepare(config, tmp_path / "data")
    train(config, prepared, tmp_path / "run", Recorder())
    translations = load(tmp_path / "run").translate([pair.source for pair in prepared.test])
    right = sum(t.text == pair.target for t, pair in zip(translations, prepared.test, strict=True))
    assert right / len(translations) > 0.95
    is_linked = []
    for t, pair in zip(translations, prepared.test, strict=True):
        if t.text == pair.target:
            length = len(t.words)
            for i in range(length):
                j = i if task == "copy" else length - 1 - i
                is_linked.append((i, j) in t.alignment)
    assert sum(is_linked) / len(is_linked) > 0.6, "the alignments must be correct, too"


FILLERS = ("um", "eh", "er")


def test_rationale_skips_filler_words(tmp_path):
    """The words that the translation needs are read, and fillers are not (Lei et al. 2016)."""
    all_rows = random_sentences(4, 1800, 3, 6)
    rng = random.Random(1)
    for split, rows in (("train", all_rows[:1500]), ("dev", all_rows[1500:1600]), ("test", all_rows[1600:1800])):
        filled = []
        for row in rows:
            filled.append([w for word in row for w in (*rng.sample(FILLERS, rng.randrange(2)), word)])
        for suffix, texts in (("aa", filled), ("bb", rows)):
            lines = "".join(f"{' '.join(words)}\n" for words in texts)
            (tmp_path / f"{split}.{suffix}").write_text(lines, encoding="utf-8")
    encoder = {"encoder": {"type": "rationale", "cell": "gru", "size": 32, "chooser": 16}}
    objective = {"objective": {"rationale": {"sparsity": 0.3}}, "training": {"max_epochs": 10}}
    config = toy_config(tmp_path, merge(TABLES, {"model": encoder, **objective}))
    prepared = prepare(config, tmp_path / "data")
    train(config, prepared, tmp_path / "run", Recorder())
    translations = load(tmp_path / "run").translate([pair.source for pair in prepared.test])
    right = sum(t.text == pair.target for t, pair in zip(translations, prepared.test, strict=True))
    assert right / len(translations) > 0.95
    read = Counter((w in FILLERS, n in t.rationale) for t in translations for n, w in enumerate(t.source_words))
    missing = {"dropped", "detached"}
    assert not any(missing & {*warnings(t)} for t in translations), (
        "words that were not read are not reported as missing"
    )
    assert read[False, True] > 0.95 * (read[False, True] + read[False, False])
    assert read[True, True] < 0.1 * (read[True, True] + read[True, False])
