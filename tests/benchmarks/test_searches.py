"""The benchmark of searches at toy size: each way is searched and stands in the table."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tests.test_fusion import language
from tests.untrained import BAHDANAU, TEXT, write_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "searches.py"


def test_every_way_has_its_row(tmp_path, monkeypatch, capsys):
    model, text = write_model(tmp_path / "model", BAHDANAU), tmp_path / "text.en"
    text.write_text("\n".join(TEXT["en"]))
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    given = ["--model", model, "--source", text, "--lm", language(tmp_path / "lm"), "--members", 2, "--rounds", 1]
    given += ["--student", write_model(tmp_path / "student", BAHDANAU)]
    monkeypatch.setattr(sys, "argv", ["searches", *map(str, given), "--threads", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    _, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| search | words/s |")
    shares = {cells[1].strip(): cells[4].strip() for row in rows if (cells := row.split("|"))}
    assert {
        "greedy",
        "sampling, 10 chains",
        "beam 5, a language model",
        "greedy, the student",
        "ensemble of 2, beam 5",
        "ensemble of 2, greedy",
        "nucleus of 0.9, 1 chain",
        "least risk of 10 chains, chrF",
        "beam 5, a term",
    } <= shares.keys()
    assert shares["ensemble of 1, beam 5"] == shares["ensemble of 1, greedy"] == "1.00"
    together = [
        f"ensemble of {way}" for way in ("1, beam 5", "1, greedy", "2, beam 5", "2, arithmetic, beam 5", "2, greedy")
    ]
    assert [name for name, share in shares.items() if share] == together
    assert all(float(shares[name]) > 0 for name in together)
