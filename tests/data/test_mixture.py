"""`data.weights`: how often an epoch contains the pairs of each corpus file."""

from collections import Counter

import numpy as np
import pytest

from rnnsearch.config import BatchConfig, resolve
from rnnsearch.data.epochs import BatchWidths, CorpusMixture, plan_epoch
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, DataError
from rnnsearch.training.run import _mixture

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def test_rows_are_sampled_by_weight():
    ids = ParallelIds.from_rows({"a": [[5]] * 900, "b": [[6]] * 900})
    mixture = CorpusMixture(np.array([300, 600, 900]), np.array([1.0, 2.5, 0.25]))
    seen, batch = Counter(), BatchConfig(sentences=8)
    for epoch in range(40):
        made = plan_epoch(ids, None, batch, 1, epoch, BatchWidths(1, 9), mixture)
        again = plan_epoch(ids, None, batch, 1, epoch, BatchWidths(1, 9), mixture)
        assert np.array_equal(made.order, again.order)
        own = Counter(made.order.tolist())
        assert all(own[row] == 1 for row in range(300))
        assert all(own[row] in (2, 3) for row in range(300, 600))
        assert all(own[row] in (0, 1) for row in range(600, 900))
        assert sum(len(made.pairs(number)) for number in range(len(made))) == len(made.order)
        seen += own
    assert sum(seen[row] for row in range(300, 600)) == pytest.approx(40 * 300 * 2.5, rel=0.02)
    assert sum(seen[row] for row in range(600, 900)) == pytest.approx(40 * 300 * 0.25, rel=0.05)
    assert len({seen[row] for row in range(600, 900)}) > 5, "others in each epoch"


def test_excluded_rows_are_never_sampled_and_epochs_never_empty():
    ids, kept = ParallelIds.from_rows({"a": [[5]] * 6, "b": [[6]] * 6}), np.array([1, 4], dtype=np.uint32)
    mixture = CorpusMixture(np.array([3, 6]), np.array([3.0, 1.0]))
    made = plan_epoch(ids, kept, BatchConfig(sentences=2), 1, 0, BatchWidths(1, 9), mixture)
    assert Counter(made.order.tolist()) == {1: 3, 4: 1}
    rarely = CorpusMixture(np.array([6]), np.array([1e-9]))
    assert len(plan_epoch(ids, kept, BatchConfig(sentences=2), 1, 0, BatchWidths(1, 9), rarely)) == 1


def config(tmp_path, weights, *settings):
    tables = {
        "preset": "small",
        "data": {"source": "en", "target": "de", "train": ["a.en|a.de", "none.en|none.de", "b.tsv"]},
        "text": {"vocabulary": 300},
    }
    if weights is not None:
        tables["data"]["weights"] = weights
    return resolve(tables, ["data.dev_size=3", "data.test_size=2", *settings], tmp_path)


@pytest.fixture
def corpus(tmp_path):
    """Two files of text, and one between them without a line."""
    pairs = [(f"{a} {b}", f"{b} {a}") for a in WORDS for b in WORDS]
    for side, name in enumerate(("en", "de")):
        (tmp_path / f"a.{name}").write_text("".join(f"{pair[side]}\n" for pair in [*pairs[:60], ("", "x"), pairs[0]]))
        (tmp_path / f"none.{name}").write_text("")
    (tmp_path / "b.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs[60:]))
    return tmp_path


def test_prepared_data_count_pairs_per_file(corpus):
    prepared = prepare(config(corpus, None), corpus / "data", processes=1)
    of_files = prepared.facts["pairs_of_files"]
    assert of_files[1] == 0
    assert sum(of_files) == len(prepared.train) == 85, "no duplicate, nothing held out, no empty or equal sides"
    assert 49 <= of_files[0] <= 54
    same = Prepared.open(corpus / "data", config(corpus, [1.0, 1.0, 3.0]))  # weights change nothing that is prepared
    mixture = _mixture(config(corpus, [1.0, 1.0, 3.0]), same)
    assert mixture.ends.tolist() == np.cumsum(of_files).tolist()
    assert _mixture(config(corpus, None), same) is None
    texts = [same.tokenizers["en"].join(same.train.row(row)[0].tolist()) for row in range(len(same.train))]
    assert {"ten nine", "ten eight"} & {*texts[of_files[0] :]}
    assert not {"one two", "two one"} & {*texts[of_files[0] :]}


def test_invalid_weights_are_rejected(corpus):
    with pytest.raises(ConfigError, match="weights: must have one number per file of `train`; got 2"):
        config(corpus, [1.0, 2.0])
    with pytest.raises(ConfigError, match=r"data.weights"):
        config(corpus, [1.0, 0.0, 2.0])
    prepared = prepare(config(corpus, None), corpus / "data", processes=1)
    prepared.facts["pairs_of_files"] = []
    with pytest.raises(DataError, match="prepare the corpus again"):
        _mixture(config(corpus, [1.0, 2.0, 1.0]), prepared)
