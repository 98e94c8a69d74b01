"""Help, version, exit codes and wrong usage."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rnnsearch import __version__
from rnnsearch.cli.options import SearchGroup
from rnnsearch.config import SearchConfig
from rnnsearch.config.options import MAX_INTEGER

COMMANDS = [
    *("demo", "presets", "prepare", "train", "adapt", "lm", "report", "inspect"),
    *("translate", "score", "align", "plot", "dictionary"),
    *("evaluate", "tune", "reranker", "calibrate", "candidates", "aligner", "compare", "contrast"),
    *("ensemble", "extract", "prune", "import", "export"),
    *("data", "backtranslate", "distil", "synthesise", "filter"),
    "serve",
]
SUBCOMMANDS = ["data list", "data get", "lm train", "lm score", "lm sample", "lm complete"]
MAX_SUMMARY_WORDS = 8


def command(*arguments: object, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "rnnsearch", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        timeout=300,
        check=False,
    )


def test_help_lists_every_command_once_with_a_short_summary(cli):
    result = cli("--help")
    assert result.code == 0
    panels = result.out.partition("\nTrain:\n")[2]
    rows = [line.split(maxsplit=1) for line in panels.splitlines() if line.startswith("  ")]
    assert sorted(name for name, _ in rows) == sorted(COMMANDS)
    for _, summary in rows:
        assert summary.endswith(".") and not summary.endswith("..."), summary
        assert len(summary.split()) <= MAX_SUMMARY_WORDS, summary
    assert max(map(len, result.lines)) <= 80


def test_ranges_of_search_options_equal_those_of_run_files():
    # Declared twice, because `--help` must not import pydantic.
    names = [parameter.name for parameter in SearchGroup.parameters() if parameter.name in SearchConfig.model_fields]
    assert names == ["beam", "length_penalty", "no_repeat_ngram", "candidates"]
    for parameter in SearchGroup.parameters():
        if parameter.name in names:
            option = parameter.annotation.__metadata__[0]
            limits = {}
            for mark in SearchConfig.model_fields[parameter.name].metadata:
                limits |= {name: getattr(mark, name) for name in ("ge", "le") if hasattr(mark, name)}
            maximum = MAX_INTEGER if option.max is None else option.max
            assert limits == {"ge": option.min, "le": maximum}, parameter.name


def test_help_of_translate_groups_options_in_panels(cli):
    result = cli("translate", "--help")
    panels = [line.removesuffix(":") for line in result.lines if line.endswith(":") and not line.startswith(" ")]
    assert panels == [
        "Arguments",
        "Input and output",
        "Languages",
        "Search",
        "Sampling",
        "Ensembles",
        "Third language",
        "Unknown words",
        "Terms and tags",
        "Bulk",
        "Hardware",
        "Options",
    ]
    assert "[default: the model's setting; 1<=x<=1000]" in " ".join(result.out.split())


@pytest.mark.parametrize("name", [*COMMANDS, *SUBCOMMANDS])
def test_every_command_has_help(cli, name):
    result = cli(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: rnnsearch {name} ")
    assert len(result.out.splitlines()) > 5


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(2**50), lambda: np.empty(2**50), lambda: bytearray(2**62)],
    ids=["torch", "numpy", "without a message"],
)
def test_out_of_memory_is_a_one_line_error(allocate, cli, monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.app.app", lambda *_, **__: allocate())
    code, out, err = cli("translate")
    assert (code, out) == (1, "")
    assert err.startswith("rnnsearch: not enough memory; use smaller batches") and err.count("\n") == 1


def test_other_runtime_errors_are_not_reported_as_out_of_memory(cli, monkeypatch):
    def raise_error(*_, **__):
        raise RuntimeError("sizes differ")

    monkeypatch.setattr("rnnsearch.cli.app.app", raise_error)
    with pytest.raises(RuntimeError, match="sizes differ"):
        cli("translate")


def test_version(cli):
    assert cli("--version") == (0, f"rnnsearch {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
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
        (["translate", "m", "--sample", "--groups", "2"], "are different search methods; choose one"),
        (["translate", "m", "--stochastic", "--noisy", "4"], "--stochastic and --noisy are different search methods"),
        (["translate", "m", "--stochastic", "--top-p", "0.5"], "--top-p has no effect without --sample"),
        (["translate", "m", "--seed", "1", "--groups", "2"], "without --sample or --stochastic or --noisy"),
        (["translate", "m", "--sigma", "1"], "--sigma has no effect without --noisy"),
        (["translate", "m", "--noisy", "1"], "'--noisy'"),
        (["translate", "m", "--mbr", "ter"], "'--mbr'"),
        (["translate", "m", "n", "--weights", "1,x"], "--weights must be comma-separated numbers; got 1,x"),
        (["translate", "m", "--unsure", "mark"], "--unsure has no effect without --min-confidence"),
        (["translate", "m", "--min-confidence", "2"], "'--min-confidence'"),
        (["translate", "m", "--min-confidence", "0.5", "--format", "json"], "--min-confidence needs --format text"),
        (["dictionary", "a", "b", "--model", "m", "--alignments", "l"], "--model has no effect with --alignments"),
        (["dictionary", "a", "b", "--by", "attention"], "--by has no effect without --model"),
        (["score", "m", "a", "b", "--format", "nbest"], "'--format'"),
        (
            ["filter", "a", "b", "--scores", "s"],
            "needs a model (--forward, --reverse) to score pairs, files for the best pairs",
        ),
        (["filter", "a", "b", "--scores", "s", "-o", "c", "d"], "-o needs --share, --threshold or both"),
        (["filter", "a", "b", "--scores", "s", "--forward", "m", "--share", "1"], "have no effect without -o"),
        (["filter", "a", "b", "--scores", "s", "-o", "c", "c", "--share", "1"], "must name different files; got c"),
        (["filter", __file__, "b", "--scores", __file__, "--forward", "m"], "--scores must not be a file that is read"),
        (["score", "m", "a", __file__, "-o", __file__], "--output must not be a file that is read"),
        (["align", "m", __file__, "b", "-o", __file__], "--output must not be a file that is read"),
        (["distil", "m", __file__, "-o", __file__], "--output must not be a file that is read"),
        (["distil", "m", "a", "--interpolate", __file__, "-o", __file__], "--output must not be a file that is read"),
        (["backtranslate", "m", __file__, "-o", __file__], "--output must not be a file that is read"),
        (["dictionary", __file__, "b", "-o", __file__], "--output must not be a file that is read"),
        (["translate", "m", "--length-penalty", "1000"], "'--length-penalty'"),
        (["translate", "m", "--threads", "100000"], "'--threads'"),
        (["demo", "--pair", "en-xx"], "'--pair'"),
        (["prune", "m", "-o", "o", "--share", "1"], "--share must be at least 0 and below 1; got 1"),
        (["prune", "m", "-o", "o", "--scheme", "blind"], "'--scheme'"),
        (["train", "run.toml", "--nothing"], "No such option"),
    ],
)
def test_wrong_usage_exits_2(cli, arguments, message):
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_help_imports_no_heavy_library():
    code = (
        "import sys\nsys.argv = ['rnnsearch', '--help']\nfrom rnnsearch.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "heavy = {'torch', 'tokenizers', 'numpy', 'sacrebleu', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "sys.stderr.write(' '.join(sorted(heavy)))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "Usage: rnnsearch" in process.stdout
    assert process.stderr == ""


def test_exit_codes_and_streams_of_the_installed_command(model, tmp_path):
    success = command("translate", model, stdin=b"the cat sees the dog.\n\n")
    assert success.returncode == 0
    assert success.stderr == b""
    assert success.stdout.count(b"\n") == 2
    failure = command("translate", tmp_path / "nowhere", stdin=b"a\n")
    assert (failure.returncode, failure.stdout) == (1, b"")
    assert failure.stderr.decode() == f"rnnsearch: {tmp_path / 'nowhere'}: there is no such model folder\n"


def test_closed_output_pipe_is_not_an_error(model, tmp_path):
    """`rnnsearch translate ... | head -1`"""
    text = tmp_path / "in.txt"
    text.write_text("the cat sees the dog.\n" * 3000)
    arguments = [sys.executable, "-m", "rnnsearch", "translate", str(model), "-i", str(text), "--beam", "1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=300) in (0, 1)
