"""The report of a run, and files of grouped sentences. `test_assess` tests the report of an evaluation."""

import json
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.errors import DataError, ModelError
from rnnsearch.evaluation.projection import GroupedSentence
from rnnsearch.evaluation.report import read_grouped_sentences, write_run_report
from rnnsearch.systems.card import add_scores

TRAINING: dict[str, Any] = {
    "pair": ["en", "de"],
    "parameters": 12345,
    "vocabulary": [300, 400],
    "data": {
        "corpus": "toys & co",
        "licence": "CC BY 9.9",
        "pairs": 70,
        "cleaning": {"read": 100, "kept": 90, "rejected": {"empty": {"count": 10}}},
        "left_out_by_split": 5,
    },
    "updates": 40,
    "epochs": 2.0,
    "hours": 0.5,
    "device": "1 thread of a toy",
    "precision": "fp32",
    "torch": "2.13.0",
    "date": "2026-01-01",
    "history": [
        {"update": n, "train_nll": 9.0 - n, "dev_nll": 9.5 - n, "dev_bleu": n, "best": True} for n in range(1, 4)
    ],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run, with the files that its report needs."""
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps(TRAINING), encoding="utf-8")
    (folder / "config.toml").write_text('[data]\nsource = "en"\n', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_report_of_run_without_recorded_scores(run, tmp_path):
    write_run_report(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>en → de: my run</h1>" in page
    for text in ("toys &amp; co", "CC BY 9.9", "12,345", "300 source and 400 target", "1 thread of a toy"):
        assert text in page
    rows = dict(zip(("empty", "shares a sentence with dev or test", "removed in all", "held out for dev and test",
                     "trained on", "read"), (10, 5, 15, 15, 70, 100), strict=True))  # fmt: skip
    for name, count in rows.items():
        assert f'<th scope="row">{name}</th><td class="number">{count}</td><td class="number">{count}.0 %</td>' in page
    assert 'id="scores"' not in page
    assert page.count("<img") == 1, "the learning curves"


def test_report_shows_recorded_scores(run, tmp_path):
    for value, search in ((12.34, "beam 5"), (11.11, "beam 1")):
        scores = [{"name": "BLEU", "value": value, "signature": "nrefs:1"}]
        add_scores(run, {"set": "news", "text": "t", "search": search, "sentences": 9, "scores": scores})
    write_run_report(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h3>news, beam 5</h3>" in page
    assert "BLEU 12.34 <code>nrefs:1</code>" in page
    assert "BLEU 11.11" in page


def test_folder_without_run_is_rejected(tmp_path):
    with pytest.raises(ModelError, match="must be the folder of a run that has evaluated its dev set; got none"):
        write_run_report(tmp_path, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_read_grouped_sentences(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("a b\tx\n\n  c d \n\te\nf\tx y\tz\n", encoding="utf-8")
    assert read_grouped_sentences(path) == [
        GroupedSentence("a b", "x"),
        GroupedSentence("c d"),
        GroupedSentence("f", "x y\tz"),
    ]
    path.write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(DataError, match="must have at least 3 sentences to draw; got 2"):
        read_grouped_sentences(path)
