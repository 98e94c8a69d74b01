"""The benchmark of search methods at toy size."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tests.test_fusion import language
from tests.untrained import BAHDANAU, TEXT, write_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "searches.py"


def test_every_method_has_a_row(tmp_path, monkeypatch, capsys):
    model, text = write_model(tmp_path / "model", BAHDANAU), tmp_path / "text.en"
    text.write_text("\n".join(TEXT["en"]))
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    arguments = ["--model", model, "--source", text, "--lm", language(tmp_path / "lm"), "--members", 2, "--rounds", 1]
    arguments += ["--student", write_model(tmp_path / "student", BAHDANAU)]
    monkeypatch.setattr(sys, "argv", ["searches", *map(str, arguments), "--threads", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    _, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| search | words/s |")
    relative = {cells[1].strip(): cells[4].strip() for row in rows if (cells := row.split("|"))}
    assert {
        "greedy",
        "sampling, 10 chains",
        "beam 5, a language model",
        "greedy, the student",
        "ensemble of 2, beam 5",
        "ensemble of 2, greedy",
        "nucleus of 0.9, 1 chain",
        "minimum risk of 10 chains, chrF",
        "beam 5, a term",
    } <= relative.keys()
    assert relative["ensemble of 1, beam 5"] == relative["ensemble of 1, greedy"] == "1.00"
    ensembles = [
        f"ensemble of {name}" for name in ("1, beam 5", "1, greedy", "2, beam 5", "2, arithmetic, beam 5", "2, greedy")
    ]
    assert [name for name, time in relative.items() if time] == ensembles
    assert all(float(relative[name]) > 0 for name in ensembles)
