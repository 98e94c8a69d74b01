"""Help, version, exit statuses and quick answers, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rnnsearch import __version__

COMMANDS = ["demo", "data", "prepare", "train", "translate", "score", "align", "evaluate", "report", "inspect", "serve"]
BELOW = ["data list", "data get", "lm train", "lm score", "lm sample", "lm complete"]
COMMANDS += ["aligner", "backtranslate", "calibrate", "candidates", "dictionary", "ensemble", "lm", "plot", "presets"]
COMMANDS += ["distil", "export", "filter", "import", "prune", "reranker", "tune"]


def command(*arguments: object, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "rnnsearch", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        timeout=300,
        check=False,
    )


def test_help_lists_every_command(cli):
    result = cli("--help")
    assert result.code == 0
    listed = [line.split()[0] for line in result.out.partition("Commands:\n")[2].splitlines() if line[2] != " "]
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize(
    "name", [*COMMANDS, "data list", "data get", "lm train", "lm score", "lm sample", "lm complete"]
)
def test_each_command_has_help(cli, name):
    result = cli(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: rnnsearch {name} ")
    assert len(result.out.splitlines()) > 5


@pytest.mark.parametrize("asked", [lambda: torch.empty(2**50), lambda: np.empty(2**50)], ids=["torch", "numpy"])
def test_too_little_memory_is_said_in_a_sentence(asked, cli, monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.app.app", lambda *_, **__: asked())
    code, out, err = cli("translate")
    assert (code, out) == (1, "")
    assert err.startswith("rnnsearch: there is not enough memory; smaller batches take less") and err.count("\n") == 1


def test_a_fault_of_the_program_is_not_called_one_of_memory(cli, monkeypatch):
    def fault(*_, **__):
        raise RuntimeError("sizes differ")

    monkeypatch.setattr("rnnsearch.cli.app.app", fault)
    with pytest.raises(RuntimeError, match="sizes differ"):
        cli("translate")


def test_version(cli):
    assert cli("--version") == (0, f"rnnsearch {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["translatte"], "No such command"),
        (["translate"], "Missing argument"),
        (["translate", "m", "--beam", "0"], "'--beam'"),
        (["translate", "m", "--format", "xml"], "'--format'"),
        (["translate", "m", "--precision", "int4"], "'--precision'"),
        (["translate", "m", "--replace-unknown", "copy", "--ban-unknown"], "have no effect with --ban-unknown"),
        (["translate", "m", "--n-best", "2"], "--n-best needs --format json or nbest"),
        (["translate", "m", "--unit", "symbols"], "--unit has no effect without --alignments"),
        (["translate", "m", "--by", "attention"], "--by has no effect without --alignments, --format"),
        (["translate", "m", "--protect", "number"], 'got "number" (did you mean "numbers"?)'),
        (["translate", "m", "--top-k", "3"], "--top-k has no effect without --sample"),
        (["translate", "m", "--seed", "0"], "--seed has no effect without --sample"),
        (["translate", "m", "--sample", "--top-p", "0"], "'--top-p'"),
        (["translate", "m", "--diversity", "1"], "--diversity has no effect without --groups"),
        (["translate", "m", "--sample", "--groups", "2"], "two ways to search; choose one"),
        (["translate", "m", "--stochastic", "--noisy", "4"], "--stochastic and --noisy are two ways to search"),
        (["translate", "m", "--stochastic", "--top-p", "0.5"], "--top-p has no effect without --sample"),
        (["translate", "m", "--seed", "1", "--groups", "2"], "without --sample or --stochastic or --noisy"),
        (["translate", "m", "--sigma", "1"], "--sigma has no effect without --noisy"),
        (["translate", "m", "--noisy", "1"], "'--noisy'"),
        (["translate", "m", "--mbr", "ter"], "'--mbr'"),
        (["translate", "m", "n", "--weights", "1,x"], "--weights must be numbers with commas between; got 1,x"),
        (["translate", "m", "--unsure", "mark"], "--unsure has no effect without --min-confidence"),
        (["translate", "m", "--min-confidence", "2"], "'--min-confidence'"),
        (["translate", "m", "--min-confidence", "0.5", "--format", "json"], "--min-confidence needs --format text"),
        (["dictionary", "a", "b", "--model", "m", "--alignments", "l"], "--model has no effect with --alignments"),
        (["dictionary", "a", "b", "--by", "attention"], "--by has no effect without --model"),
        (["score", "m", "a", "b", "--format", "nbest"], "'--format'"),
        (["filter", "a", "b", "--scores", "s"], "there must be models (--forward, --reverse), files for what is kept"),
        (["filter", "a", "b", "--scores", "s", "-o", "c", "d"], "-o needs --share, --threshold or both"),
        (["filter", "a", "b", "--scores", "s", "--forward", "m", "--share", "1"], "have no effect without -o"),
        (["filter", "a", "b", "--scores", "s", "-o", "c", "c", "--share", "1"], "must name different files; got c"),
        (["filter", __file__, "b", "--scores", __file__, "--forward", "m"], "--scores must not be a file that is read"),
        *(
            ([name, "m", *read, "-o", __file__], "--output must not be a file that is read")
            for name, read in [
                *[("score", ["a", __file__]), ("align", [__file__, "b"]), ("distil", [__file__])],
                *[("backtranslate", [__file__]), ("distil", ["a", "--interpolate", __file__])],
            ]
        ),
        (["dictionary", __file__, "b", "-o", __file__], "--output must not be a file that is read"),
        (["translate", "m", "--length-penalty", "1000"], "'--length-penalty'"),
        (["translate", "m", "--threads", "100000"], "'--threads'"),
        (["demo", "--pair", "en-xx"], "'--pair'"),
        (["prune", "m", "-o", "o", "--share", "1"], "--share must be at least 0 and below 1; got 1"),
        (["prune", "m", "-o", "o", "--scheme", "blind"], "'--scheme'"),
        (["train", "run.toml", "--nothing"], "No such option"),
    ],
)
def test_wrong_usage_exits_2(cli, arguments, said):
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "Traceback" not in result.err


def test_help_needs_no_heavy_library():
    code = (
        "import sys\nsys.argv = ['rnnsearch', '--help']\nfrom rnnsearch.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "heavy = {'torch', 'tokenizers', 'numpy', 'sacrebleu', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "sys.stderr.write(' '.join(sorted(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "Usage: rnnsearch" in done.stdout
    assert done.stderr == ""


def test_exit_statuses_and_streams_of_the_real_command(model, tmp_path):
    right = command("translate", model, stdin=b"the cat sees the dog.\n\n")
    assert right.returncode == 0
    assert right.stderr == b""
    assert right.stdout.count(b"\n") == 2
    wrong = command("translate", tmp_path / "nowhere", stdin=b"a\n")
    assert (wrong.returncode, wrong.stdout) == (1, b"")
    assert wrong.stderr.decode() == f"rnnsearch: {tmp_path / 'nowhere'}: there is no such model folder\n"


def test_a_reader_that_leaves_early_is_no_fault(model, tmp_path):
    """`rnnsearch translate ... | head -1`"""
    text = tmp_path / "in.txt"
    text.write_text("the cat sees the dog.\n" * 3000)
    arguments = [sys.executable, "-m", "rnnsearch", "translate", str(model), "-i", str(text), "--beam", "1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=300) in (0, 1)
