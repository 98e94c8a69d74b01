"""`rnnsearch-runtime translate`: input, output formats, long lines and failing outputs."""

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
from rnnsearch.runtime.command_line import MAX_READ_BYTES, _decoded_lines
from tests.runtime.test_runtime import TEXTS, WITHOUT_TORCH, run_without_torch
from tests.untrained import BAHDANAU, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return an engine file."""
    folder = tmp_path_factory.mktemp("exported")
    export(write_model(folder / "model", BAHDANAU, "bpe"), folder / "m.rnn")
    return folder / "m.rnn"


def test_byte_order_mark_and_carriage_returns_are_removed(exported, tmp_path):
    translations = load(exported).translate(["the dog.", "Is it red?"])
    content = "\ufeffthe dog.\r\nIs it red?".encode()
    (tmp_path / "in.en").write_bytes(content)
    expected = "".join(f"{translation.text}\n" for translation in translations).encode()
    assert run_without_torch("translate", exported, stdin=content).stdout == expected
    assert run_without_torch("translate", exported, "-i", tmp_path / "in.en").stdout == expected
    assert run_without_torch("translate", exported, "-i", "-", "-o", "-", stdin=content).stdout == expected


def test_sentences_of_a_line_are_translated_separately(exported, tmp_path):
    lines = ["the dog sees it! Is it red?  The cat.", "5", "the dog.", "A! " * 10_001, "\u200b"]
    stdin = "".join(f"{line}\n" for line in lines).encode()
    links = tmp_path / "links"
    result = run_without_torch("translate", exported, "--alignments", links, stdin=stdin)
    translator = load(exported)
    joined = translator.translate_text(lines[0])
    parts = translator.translate(["the dog sees it!", "Is it red?", "The cat."])
    assert joined.text == "{} {}  {}".format(*[part.text for part in parts])
    assert result.stdout.decode().split("\n") == [joined.text, "5", translator.translate("the dog.").text, "", "", ""]
    assert result.stderr.endswith(b":4: must have at most 10,000 sentences; its output line is empty\n")
    expected = " ".join(f"{i}-{j}" for i, j in joined.alignment)
    assert links.read_text().split("\n")[:2] == [expected, "0-0"]
    whole = run_without_torch("translate", exported, "--split", "lines", stdin=f"{lines[0]}\n".encode())
    assert whole.stdout.decode() == f"{translator.translate(lines[0]).text}\n"


def test_too_long_line_is_not_held_in_memory(exported, tmp_path):
    (tmp_path / "in.en").write_text("é" * 32_000_000 + "\nthe dog", encoding="utf-8")
    result = run_without_torch("translate", exported, "-i", tmp_path / "in.en")
    assert result.stdout.decode() == f"\n{load(exported).translate('the dog').text}\n"
    assert result.stderr.endswith(b"in.en:1: must have at most 2,000 tokens; its output line is empty\n")
    tracemalloc.start()
    with (tmp_path / "in.en").open("rb") as source:
        lines = list(_decoded_lines(source, tmp_path / "in.en"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line is None or len(line) for line in lines] == [MAX_READ_BYTES // 2, 7]
    assert peak < 10_000_000


def test_output_is_written_before_the_input_ends(exported):
    command = [sys.executable, "-c", WITHOUT_TORCH, "translate", str(exported)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        timer = Timer(60, process.kill)
        timer.start()
        for text in TEXTS[:3]:
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{load(exported).translate(text).text}\n"
        timer.cancel()
        process.stdin.close()
        assert (process.stdout.read(), process.wait(60)) == (b"", 0)


def test_outputs_must_not_overwrite_other_files(exported, tmp_path):
    (tmp_path / "in.en").write_bytes(b"the dog\n")
    shutil.copy(exported, tmp_path / "m.rnn")
    (tmp_path / "folder").mkdir()
    folder = tmp_path / "folder" / ".."  # another path to the same folder
    model = (tmp_path / "m.rnn").read_bytes()
    for options, message in {
        ("-o", tmp_path / "x", "--alignments", folder / "x"): "--output and --alignments must name different files",
        ("-o", folder / "in.en"): "--output must not be a file that is read",
        ("--alignments", folder / "in.en"): "--alignments must not be a file that is read",
        ("-o", folder / "m.rnn"): "--output must not be a file that is read",
    }.items():
        result = run_without_torch("translate", tmp_path / "m.rnn", "-i", tmp_path / "in.en", *options)
        assert (result.returncode, result.stdout) == (1, b"")
        assert re.fullmatch(f"rnnsearch-runtime: {message}; got [^\n]+\n", result.stderr.decode())
    assert (tmp_path / "in.en").read_bytes() == b"the dog\n"
    assert (tmp_path / "m.rnn").read_bytes() == model
    assert not (tmp_path / "x").exists()
    assert (
        run_without_torch(
            "translate", exported, "-o", "/dev/null", "--alignments", "/dev/null", stdin=b"a\n"
        ).returncode
        == 0
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("redirect", "message"),
    [
        (">/dev/full", "rnnsearch-runtime: standard output: No space left on device\n"),
        (">&-", "rnnsearch-runtime: standard output: Bad file descriptor\n"),
        ("| true", ""),
    ],
)
def test_failing_standard_output_is_reported_unless_the_reader_has_gone(exported, redirect, message):
    command = shlex.join([sys.executable, "-c", WITHOUT_TORCH, "translate", str(exported)])
    line = f"set -o pipefail; (sleep 0.5; echo the dog) | {command} {redirect}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr.decode()) == (1, b"", message)


def test_reader_that_has_gone_causes_no_message_about_other_outputs(exported, tmp_path):
    command = shlex.join(
        [sys.executable, "-c", WITHOUT_TORCH, "translate", str(exported), "--alignments", str(tmp_path / "x.align")]
    )
    line = f"set -o pipefail; (sleep 0.5; echo the dog) | {command} | true"
    result = subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr.decode()) == (1, b"", "")
    assert not (tmp_path / "x.align").exists()


def test_output_is_utf_8_independently_of_the_environment(exported):
    command = [sys.executable, "-c", WITHOUT_TORCH, "translate", exported, "--format", "json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    line = "Ünïcode ⁂\n".encode()
    result = subprocess.run(command, input=line, capture_output=True, timeout=120, check=False, env=environment)
    assert (result.returncode, result.stderr, json.loads(result.stdout)["source"]) == (0, b"", "Ünïcode ⁂")


def test_json_is_a_list_only_with_n_best_above_one(exported):
    for options, type_ in (([], dict), (["--n-best", "2"], list)):
        result = run_without_torch(
            "translate", exported, "--format", "json", *options, stdin=b"the dog\n\n \nthe cat\n"
        )
        assert [type(json.loads(line)) for line in result.stdout.splitlines()] == [type_] * 4


@pytest.mark.parametrize("beam", ["x", "0", "1.5", "1001"])
def test_invalid_beams_are_rejected(beam):
    result = run_without_torch("translate", "m.rnn", "--beam", beam)
    assert (result.returncode, result.stdout) == (2, b"")
    message = f"argument --beam: must be a whole number between 1 and 1000; got {beam}\n"
    assert result.stderr.decode().endswith(message)


def test_protected_text_is_copied_as_in_the_package(exported):
    text = "the dog %s sees {name}.\n%d\nthe cat"
    lines = run_without_torch("translate", exported, stdin=text.encode()).stdout.decode().split("\n")
    assert all(lines[0].count(item) == 1 for item in ("%s", "{name}"))
    assert lines[1:] == ["%d", load(exported).translate("the cat").text, ""]
    assert run_without_torch("translate", exported, "--protect", "none,urls", stdin=text.encode()).returncode == 0
    rejected = run_without_torch("translate", exported, "--protect", "number", stdin=b"")
    assert (rejected.returncode, b"numbers" in rejected.stderr) == (2, True)
