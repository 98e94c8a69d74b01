"""A target vocabulary of its own size (Sutskever et al. 2014: 160,000 source and 80,000 target words)."""

import pytest

from rnnsearch.config import resolve
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import DataError


def config_of(tmp_path, **text):
    lines = "".join(f"word{i} and word{i + 1}\tWort{i} und Wort{i + 1}\n" for i in range(60))
    (tmp_path / "pairs.tsv").write_text(lines, encoding="utf-8")
    data = {"source": "en", "target": "de", "train": ["pairs.tsv"], "dev_size": 5, "test_size": 5}
    model = {
        "embedding": 4,
        "encoder": {"type": "unidirectional", "cell": "gru", "size": 4},
        "decoder": {"type": "cho", "size": 4, "maxout": 4},
    }
    tables = {
        "data": data,
        "text": {"type": "words"} | text,
        "model": model,
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }
    return resolve(tables, base=tmp_path)


def test_each_side_has_its_size(tmp_path):
    prepared = prepare(config_of(tmp_path, vocabulary=20, target_vocabulary=12), tmp_path / "data")
    assert (len(prepared.source), len(prepared.target)) == (20, 12)


def test_without_it_both_have_one_size(tmp_path):
    prepared = prepare(config_of(tmp_path, vocabulary=20), tmp_path / "data")
    assert (len(prepared.source), len(prepared.target)) == (20, 20)


def test_data_prepared_with_another_is_refused(tmp_path):
    prepare(config_of(tmp_path, vocabulary=20), tmp_path / "data")
    with pytest.raises(DataError, match="target_vocabulary"):
        Prepared.open(tmp_path / "data", config_of(tmp_path, vocabulary=20, target_vocabulary=12))
