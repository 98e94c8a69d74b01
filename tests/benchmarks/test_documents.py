"""The benchmark of document translation at toy size."""

from __future__ import annotations

import sys

import pytest

from benchmarks import documents
from tests.untrained import BAHDANAU


def test_models_translate_the_same_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(documents, "VOCABULARY_SIZE", 50)
    monkeypatch.setattr(documents, "model", lambda *_: dict(BAHDANAU))
    options = ["--documents", "2", "--sentences", "2", "--rounds", "1", "--beams", "1", "2", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["documents", *options, "--systems", "concatenation, 1 sentence"])
    documents.main()
    _, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| model | beam 1, sentences/s | relative | beam 2, sentences/s | relative | search |")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["sentences", "concatenation, 1 sentence"]
    assert [cells[0][2], cells[0][4]] == ["100%", "100%"]
    assert all(float(row[1].replace(",", "")) > 0 for row in cells)
