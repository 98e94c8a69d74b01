"""The runtime's own command line: what it reads and writes, and how it ends."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from threading import Timer

import pytest

from rnnsearch.export.engine_file import export
from rnnsearch.ops.native.library import library
from rnnsearch.runtime import load
from rnnsearch.runtime.command_line import CUT, _lines
from tests.runtime.test_runtime import BARE, TEXTS, bare
from tests.untrained import BAHDANAU, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An engine file."""
    folder = tmp_path_factory.mktemp("exported")
    export(write_model(folder / "model", BAHDANAU, "bpe"), folder / "m.rnn")
    return folder / "m.rnn"


def test_a_byte_order_mark_is_not_text(exported, tmp_path):
    """At the beginning of a file or of standard input; the carriage return of a line's end is not, either."""
    best = load(exported).translate(["the dog.", "Is it red?"])
    given = "\ufeffthe dog.\r\nIs it red?".encode()
    (tmp_path / "in.en").write_bytes(given)
    wanted = "".join(f"{one.text}\n" for one in best).encode()
    assert bare("translate", exported, stdin=given).stdout == wanted
    assert bare("translate", exported, "-i", tmp_path / "in.en").stdout == wanted
    assert bare("translate", exported, "-i", "-", "-o", "-", stdin=given).stdout == wanted


def test_a_line_that_does_not_end_fills_no_memory(exported, tmp_path):
    """It is too long, and of what is behind its first bytes nothing is held."""
    (tmp_path / "in.en").write_text("é" * 32_000_000 + "\nthe dog", encoding="utf-8")
    result = bare("translate", exported, "-i", tmp_path / "in.en")
    assert result.stdout.decode() == f"\n{load(exported).translate('the dog').text}\n"
    assert result.stderr.endswith(b"in.en:1: must have at most 2,000 symbols; its line of output is empty\n")
    tracemalloc.start()
    with (tmp_path / "in.en").open("rb") as source:
        found = list(_lines(source, tmp_path / "in.en"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ([line is None or len(line) for line in found], peak < 10_000_000) == ([CUT // 2, 7], True)


def test_who_waits_for_an_answer_gets_it(exported):
    """Before the input ends."""
    command = [sys.executable, "-c", BARE, "translate", str(exported)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        late = Timer(60, process.kill)
        late.start()
        for text in TEXTS[:3]:
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{load(exported).translate(text).text}\n"
        late.cancel()
        process.stdin.close()
        assert (process.stdout.read(), process.wait(60)) == (b"", 0)


def test_no_output_takes_the_place_of_another_file(exported, tmp_path):
    """By whatever spelling of its path."""
    (tmp_path / "in.en").write_bytes(b"the dog\n")
    shutil.copy(exported, tmp_path / "m.rnn")
    (tmp_path / "folder").mkdir()
    folder = tmp_path / "folder" / ".."
    before = (tmp_path / "m.rnn").read_bytes()
    for files, said in {
        ("-o", tmp_path / "x", "--alignments", folder / "x"): "--output and --alignments must name different files",
        ("-o", folder / "in.en"): "--output must not be a file that is read",
        ("--alignments", folder / "in.en"): "--alignments must not be a file that is read",
        ("-o", folder / "m.rnn"): "--output must not be a file that is read",
    }.items():
        result = bare("translate", tmp_path / "m.rnn", "-i", tmp_path / "in.en", *files)
        assert (result.returncode, result.stdout) == (1, b"")
        assert re.fullmatch(f"rnnsearch-runtime: {said}; got [^\n]+\n", result.stderr.decode())
    assert (tmp_path / "in.en").read_bytes() == b"the dog\n" and (tmp_path / "m.rnn").read_bytes() == before
    assert not (tmp_path / "x").exists()
    assert bare("translate", exported, "-o", "/dev/null", "--alignments", "/dev/null", stdin=b"a\n").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("redirect", "said"),
    [
        (">/dev/full", "rnnsearch-runtime: standard output: No space left on device\n"),
        (">&-", "rnnsearch-runtime: standard output: Bad file descriptor\n"),
        ("| true", ""),
    ],
)
def test_an_output_that_takes_nothing(exported, redirect, said):
    command = shlex.join([sys.executable, "-c", BARE, "translate", str(exported)])
    line = f"set -o pipefail; (sleep 0.5; echo the dog) | {command} {redirect}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr.decode()) == (1, b"", said)


def test_a_reader_who_goes_away_is_not_told_of_another_output(exported, tmp_path):
    command = shlex.join(
        [sys.executable, "-c", BARE, "translate", str(exported), "--alignments", str(tmp_path / "x.align")]
    )
    line = f"set -o pipefail; (sleep 0.5; echo the dog) | {command} | true"
    result = subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr.decode()) == (1, b"", "")
    assert not (tmp_path / "x.align").exists()


def test_what_is_written_is_utf_8(exported):
    """Whatever standard output is for others."""
    command = [sys.executable, "-c", BARE, "translate", exported, "--format", "json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    given = "Ünïcode ⁂\n".encode()
    result = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False, env=environment)
    assert (result.returncode, result.stderr, json.loads(result.stdout)["source"]) == (0, b"", "Ünïcode ⁂")


def test_json_has_one_shape(exported):
    """A list where several translations are asked for, however many there are."""
    for more, shape in (([], dict), (["--n-best", "2"], list)):
        result = bare("translate", exported, "--format", "json", *more, stdin=b"the dog\n\n \nthe cat\n")
        assert [type(json.loads(line)) for line in result.stdout.splitlines()] == [shape] * 4


@pytest.mark.parametrize("given", ["x", "0", "1.5", "1001"])
def test_a_beam_that_is_none(given):
    result = bare("translate", "m.rnn", "--beam", given)
    assert (result.returncode, result.stdout) == (2, b"")
    wanted = f"argument --beam: must be a whole number between 1 and 1000; got {given}\n"
    assert result.stderr.decode().endswith(wanted)
