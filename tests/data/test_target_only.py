"""`data.target_only`: training on target text without source, in addition to pairs."""

from collections import Counter

import numpy as np
import pytest

from rnnsearch.config import BatchConfig, resolve
from rnnsearch.data import preprocess
from rnnsearch.data.batches import Batches
from rnnsearch.data.prepare import prepare
from rnnsearch.errors import ConfigError
from rnnsearch.text.vocabulary import EOS
from rnnsearch.training.run import _mixture, check
from tests.data.toys import PAIRS, config, contents, texts, write

ALONE = [f"Das ist die {number} von {n} Katzen." for n, number in enumerate(["eine", "zweite", "dritte"] * 10)]
JOINT = {"type": "bpe", "vocabulary": 340, "joint": True}


@pytest.fixture
def corpus(tmp_path):
    """Two files of pairs, and one of text of the target between them."""
    (tmp_path / "mono.de").write_text("".join(f"{line}\n" for line in [*ALONE, "", ALONE[0]]), encoding="utf-8")
    return [write(tmp_path, "a", PAIRS[:60]), "|mono.de", write(tmp_path, "b", PAIRS[60:])]


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_missing_sources_are_copied_from_the_target(tmp_path, corpus, monkeypatch, chunk):
    """Every line is there once, as its own source; dev and test are of pairs alone, and no copy counts as identical."""
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", chunk)
    run = config(tmp_path, JOINT, train=corpus, target_only="copied", dev_size=10, test_size=5, weights=[1, 0.5, 2])
    assert check(run) == []
    prepared = prepare(run, tmp_path / "prepared", processes=1 if chunk > 7 else 2)
    held = [(pair.source, pair.target) for part in (prepared.dev, prepared.test) for pair in part]
    copies = [(line, line) for line in ALONE]
    assert len(held) == 15 and sorted([*texts(prepared), *held]) == sorted([*PAIRS, *copies])
    assert {reason: found["count"] for reason, found in prepared.report["rejected"].items()} == {
        "empty": 1,
        "duplicate": 1,
    }
    assert prepared.facts["pairs_of_files"][1] == len(ALONE)
    mixture = _mixture(run, prepared)
    assert mixture.ends.tolist() == np.cumsum(prepared.facts["pairs_of_files"]).tolist()
    again = prepare(run, tmp_path / "again", processes=1)
    assert contents(prepared.folder) == contents(again.folder)


@pytest.mark.parametrize("text", [{"type": "words", "vocabulary": 200}, {"type": "bpe", "vocabulary": 400}], ids=str)
def test_missing_sources_are_empty_sentences(tmp_path, corpus, text):
    """Their source is nothing but its end, and their rows are in the batches with all others."""
    run = config(tmp_path, text, train=corpus, target_only="null", dev_size=10, test_size=5)
    prepared = prepare(run, tmp_path / "prepared")
    assert prepared.facts["lacking"] == {"en": 0, "de": 0}
    found = Counter()
    for batch in Batches(prepared.train, BatchConfig(sentences=8), None, seed=1).epoch(0):
        for row in range(batch.sentences):
            source = batch.source.ids[row][batch.source.mask[row]].tolist()
            target = prepared.target.join(batch.target.ids[row][batch.target.mask[row]].tolist()[:-1])
            assert source[-1] == EOS and (source == [EOS]) == (target in ALONE)
            found[target in ALONE] += 1
    assert found == {True: len(ALONE), False: 85}


def test_aligner_and_default_split_use_only_complete_pairs(tmp_path, corpus):
    """Text of the target makes neither larger, nor other."""
    with_text = config(tmp_path, train=corpus, target_only="null", aligner=True)
    pairs = config(tmp_path, train=[corpus[0], corpus[2]], aligner=True)
    one, other = (prepare(run, tmp_path / name) for name, run in (("one", with_text), ("other", pairs)))
    assert one.facts["dev"] == other.facts["dev"] == 5
    assert contents(one.folder / "aligner") == contents(other.folder / "aligner")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"target_only": None}, 'target_only: must be "copied" or "null" for "|mono.de", which has no source'),
        ({"train": ["a.en|a.de"]}, "target_only: has no effect without text in the target language only"),
        (
            {"train": None, "corpus": "tatoeba-en-de"},
            "target_only: has no effect without text in the target language only",
        ),
        ({"documents": True}, "target_only: cannot be combined with `documents`; remove one"),
        ({"alignments": "aligner"}, "target_only: cannot be combined with `alignments`; remove one"),
        ({"target_only": "empty"}, "data.target_only: must be"),
    ],
)
def test_incompatible_options_are_rejected(tmp_path, data, message):
    settings = {"train": ["a.en|a.de", "|mono.de"], "target_only": "null", **data}
    with pytest.raises(ConfigError) as error:
        config(tmp_path, **{name: value for name, value in settings.items() if value is not None})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("data.target_only=copied", '"copied" needs one vocabulary for both languages (text.joint = true)'),
        ("objective.symmetry=1.0", "cannot be combined with objective.symmetry, which swaps source and target"),
    ],
)
def test_target_only_is_checked_with_other_settings(tmp_path, setting, fault):
    data = {"source": "en", "target": "de", "train": ["a.tsv", "|mono.de"], "target_only": "null"}
    found = check(resolve({"preset": "small", "data": data}, [setting, "text.joint=false"], tmp_path))
    assert [one for one in found if one.startswith("data.target_only: ") and fault in one]
