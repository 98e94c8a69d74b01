"""The comparison with OpenNMT-py and JoeyNMT at toy size. A script that prints stored translations replaces them."""

import json
import runpy
import sys
from pathlib import Path

from rnnsearch.importers import import_joeynmt
from rnnsearch.translator.loading import load
from tests.importers import joeynmt
from tests.importers.opennmt_py import Model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "importing.py"


def test_opennmt_py_checkpoint_has_a_row_per_beam(tmp_path, monkeypatch, capsys):
    model, lines = Model.random(), ["a b@@ c", "d f"]
    (tmp_path / "toy").mkdir()
    checkpoint, text = model.save(tmp_path / "toy" / "model.pt"), tmp_path / "text"
    text.write_text("\n".join(lines))
    for beam, n_best in ((5, 5), (1, 1)):
        n_best_lists = [model.translate(line, beam, n_best) for line in lines]
        n_best_lists[1][0] = ("another", 0.0)
        (tmp_path / f"{beam}.json").write_text(json.dumps(n_best_lists))
    rival = tmp_path / "python"
    rival.write_text('#!/bin/sh\nfor last; do :; done\ncase "$*" in *"-beam_size 5 "*) n=5;; *) n=1;; esac\n')
    rival.write_text(rival.read_text() + f'cp {tmp_path}/$n.json "$last"\n')
    rival.chmod(0o755)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    arguments = ["--source", text, "--rival", rival, "--threads", 1, checkpoint]
    monkeypatch.setattr(sys, "argv", ["importing", *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| toy")]
    assert [row[1:4] for row in rows] == [["5", "1/2", "1/2"], ["1", "1/2", "1/2"]]
    assert all(float(row[4].rstrip(" |")) < 1e-5 for row in rows)


def test_joeynmt_checkpoint_has_a_row_per_beam(tmp_path, monkeypatch, capsys):
    model, lines = joeynmt.Model.random(), ["a b@@ c", "d f"]
    checkpoint, text = model.save(tmp_path / "toy"), tmp_path / "text"
    text.write_text("\n".join(lines))
    import_joeynmt(checkpoint, tmp_path / "model", "en", "de")
    translator = load(tmp_path / "model")
    for beam in (5, 1):
        translations = translator.translate(lines, translator.options(beam))
        (tmp_path / f"beam_size: {beam}").write_text(f"{translations[0].text}\nanother\n")
    rival = tmp_path / "python"
    rival.write_text(f'#!/bin/sh\ncat "{tmp_path}/$(grep -o "beam_size: [0-9]*" "$4")"\n')
    rival.chmod(0o755)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    arguments = ["--from", "joeynmt", "--source", text, "--rival", rival, "--threads", 1, checkpoint]
    monkeypatch.setattr(sys, "argv", ["importing", *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| toy")]
    assert [row[1:3] for row in rows] == [["5", "1/2"], ["1", "1/2"]]
