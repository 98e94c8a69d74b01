"""The benchmark of engine files at toy size."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from rnnsearch.ops.native.building import SWITCH
from rnnsearch.ops.native.library import library
from rnnsearch.runtime.translator import best_variant
from tests.untrained import BAHDANAU, TEXT, write_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "shipping.py"


@pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
def test_every_precision_agrees_with_the_package(tmp_path, monkeypatch, capsys):
    model, text = write_model(tmp_path / "model", BAHDANAU), tmp_path / "text.en"
    text.write_text("\n".join(TEXT["en"]))
    monkeypatch.setenv(SWITCH, best_variant().name)  # without AMX tiles, which sum in a different order
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    arguments = ["--model", model, "--source", text, "--rounds", 1]
    monkeypatch.setattr(sys, "argv", ["shipping", *map(str, arguments), "--threads", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    agreement = [(name.strip(), same.strip()) for name, _, same in rows]
    assert agreement == [(name, "3/3") for name in ("int4", "int8", "bf16", "fp32")]
