"""`rnnsearch translate` at a terminal and in pipes: every line is answered when it arrives."""

import contextlib
import io
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rnnsearch
from rnnsearch.cli.io import input_chunks
from rnnsearch.cli.options import LineGroup
from rnnsearch.cli.prompt import Prompt
from rnnsearch.cli.translate_lines import TranslateOptions
from rnnsearch.data.corpus import MAX_LINE_BYTES, MAX_READ_BYTES
from rnnsearch.translator.translator import Translator

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."
TIMEOUT_SECONDS = 60.0  # far more than an answer takes


class OutputReader:
    """Reads a descriptor up to the end of each answer."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.buffered = b""

    def until(self, wanted: str) -> str:
        """Read and return the text up to and including `wanted`."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while wanted.encode() not in self.buffered:
            assert time.monotonic() < end, self.buffered
            if select.select([self.descriptor], [], [], 1.0)[0]:
                block = os.read(self.descriptor, 65536)
                assert block, f"the output ended: {self.buffered!r}"
                self.buffered += block
        before, _, self.buffered = self.buffered.partition(wanted.encode())
        return before.decode("utf-8") + wanted


@contextlib.contextmanager
def running(*arguments: object, **streams: Any) -> Iterator[Any]:
    """Run the command in a separate process, which is killed after the test."""
    command = [sys.executable, "-m", "rnnsearch", "translate", *map(str, arguments)]
    with subprocess.Popen(command, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def test_each_line_of_a_pipe_is_answered_before_the_next(cli, model):
    expected = cli("translate", model, stdin=f"{CAT}\n{BIRD}\n\n").lines
    # No folder can be written to.
    environment = {"HOME": "/dev/null", "RNNSEARCH_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with running(model, env=environment, **pipes) as process:
        talk = OutputReader(process.stdout.fileno())
        for line, answer in zip((CAT, BIRD, ""), expected, strict=True):
            process.stdin.write(f"{line}\n".encode())
            assert talk.until("\n") == f"{answer}\n"
        process.stdin.write(CAT[:9].encode())  # an incomplete line is not translated yet
        process.stdin.write(f"{CAT[9:]}\n{BIRD}".encode())
        process.stdin.close()
        assert process.stdout.read().decode().split("\n") == [*expected[:2], ""]
        assert process.wait(TIMEOUT_SECONDS) == 0


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return the write end of a pipe whose read end is standard input."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stream:  # noqa: PTH123  (a descriptor, not a path)
        monkeypatch.setattr(sys, "stdin", stream)
        yield writing
    with contextlib.suppress(OSError):
        os.close(writing)


def test_chunk_ends_where_no_more_input_is_available(pipe):
    chunks = input_chunks(None, 3)
    os.write(pipe, b"a\nb\n\xc3")
    assert next(chunks) == ["a", "b"]
    os.write(pipe, b"\xa4\r\n\nd\ne\n")
    assert next(chunks) == ["ä", "", "d"], "at most 3 lines"
    assert next(chunks) == ["e"]
    long = b"x" * 50_000
    os.write(pipe, long)
    os.close(pipe)
    assert list(chunks) == [[long.decode()]]


def test_overlong_line_is_cut(tmp_path, monkeypatch):
    """The following lines are not affected."""
    for end in (b"", b"\nb\n"):
        (tmp_path / "in").write_bytes(b"a\n" + 700_000 * "ä".encode() + end)
        with (tmp_path / "in").open(encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            piped = list(input_chunks(None, 3))
        assert piped == list(input_chunks(tmp_path / "in", 3))
        first, long, *others = (line for chunk in piped for line in chunk)
        assert (first, others) == ("a", ["b"] if end else [])
        assert MAX_LINE_BYTES < len(long.encode()) <= MAX_READ_BYTES


def test_chunks_of_long_lines_have_fewer_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.io.MAX_CHUNK_SQUARED_CHARACTERS", 60)
    (tmp_path / "in").write_text("12345\n123456\n1\n2\n", encoding="utf-8")
    assert list(input_chunks(tmp_path / "in", 3)) == [["12345", "123456"], ["1", "2"]]
    with (tmp_path / "in").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert list(input_chunks(None, 3)) == [["12345", "123456"], ["1", "2"]]


def test_file_as_standard_input_is_read_in_full_chunks(tmp_path, monkeypatch):
    lines = [f"line {n}" for n in range(20_000)]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with (tmp_path / "in").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        chunks = list(input_chunks(None, 700))
    assert [line for chunk in chunks for line in chunk] == lines
    assert {len(chunk) for chunk in chunks[:-1]} == {700}


def test_prompt_at_a_terminal(cli, model):
    pty = pytest.importorskip("pty", reason="needs a system with terminals of POSIX")
    answer = cli("translate", model, stdin=f"{CAT}\n").lines[0]
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "90"}
    with running(model, "--beam", "2", stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        talk = OutputReader(master)
        assert ":help" in talk.until("en> ")
        os.write(master, f"{CAT}\n".encode())
        output = plain(talk.until("en> "))
        assert answer in output
        assert re.search(r"Hund\.\s+\d+ %\s+dog\. \d+ %", output), output
        os.write(master, b":heat on\n")
        talk.until("heat on\r\n")
        os.write(master, b"\x1b[A\x1b[A\n")  # arrow up twice: the sentence, from the history
        talk.until("┌ small")
        talk.until("en> ")
        os.write(master, b"\x04")
        assert process.wait(TIMEOUT_SECONDS) == 0
    os.close(master)


def run_at_a_terminal(*options: object) -> list[str]:
    """Return the output of `translate` at a terminal for two lines."""
    pty = pytest.importorskip("pty", reason="needs a system with terminals of POSIX")
    master, slave = pty.openpty()
    with running(*options, stdin=slave, stdout=slave, stderr=subprocess.PIPE) as process:
        os.close(slave)
        os.write(master, f"{CAT}\n{BIRD}\n\x04".encode())
        assert process.wait(TIMEOUT_SECONDS) == 0, process.stderr.read()
        output = os.read(master, 65536).decode()
    os.close(master)
    return output.replace("^D\b\b", "").split("\r\n")


@pytest.mark.parametrize("options", [["--max-source", "3"], ["--batch", "1"]])
def test_options_without_prompt_translate_line_by_line(cli, model, options):
    expected = cli("translate", model, *options, stdin=f"{CAT}\n{BIRD}\n").lines
    assert run_at_a_terminal(model, *options) == [CAT, BIRD, *expected, ""]


def test_prompt_does_not_support_min_confidence():
    options = TranslateOptions(models=(Path("model"),), input_name="lines")
    assert options.supports_prompt
    assert not replace(options, lines=LineGroup(min_confidence=0.0)).supports_prompt


def plain(text: str) -> str:
    """Return the text without control sequences of the terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return rnnsearch.load(model)


def session(translator: Translator, *lines: str | type[BaseException], width: int = 100) -> str:
    """Return the output of a session; an exception class represents a key that raises it."""
    remaining = iter([*lines, EOFError])

    def read(_prompt: str) -> str:
        line = next(remaining)
        if isinstance(line, str):
            return line
        raise line

    out = io.StringIO()
    Prompt(translator, Console(file=out, width=width), translator.options(2)).run(read)
    assert next(remaining, None) is None, "the session ended early"
    return out.getvalue()


def test_prompt_shows_n_best_and_words(translator):
    output = session(translator, ":n 3", CAT)
    best = translator.n_best([CAT], translator.options(3, 3))[0]
    for number, t in enumerate(best, start=1):
        assert f"{number}. {t.text}   {t.score:.2f}" in output
    row = best[0].word_attention[5]
    probability = best[0].word_probabilities[5]
    source = best[0].source_words[int(row.argmax())]
    assert re.search(
        rf"{re.escape(best[0].words[5])} +{100 * probability:.0f} % +{re.escape(source)} {100 * row.max():.0f} %",
        output,
    )
    assert "probability" not in session(translator, ":words off", CAT)


def test_prompt_commands(translator):
    output = session(translator, ":help", ":beam 7", ":heat", ":heat off", ":words", "", "  ")
    assert "set the beam width; 1 is greedy search" in output
    assert [line for line in output.splitlines() if line][-4:] == ["beam 7", "heat on", "heat off", "words off"]
    for line, sentence in (
        (":beam", ":beam must be followed by an integer from 1 to 1000; it is 2"),
        (":n 0", ":n must be followed by an integer from 1 to 1000; it is 1"),
        (":heat maybe", ":heat must be followed by on or off"),
        (":frobnicate", "unknown command :frobnicate; :help lists all commands"),
    ):
        assert sentence in session(translator, line)


def test_keys_and_errors_do_not_end_a_session(translator):
    output = session(translator, KeyboardInterrupt, "a \ud800", "[bold]\x1b[31m the cat.", CAT)
    assert "text must be valid Unicode" in output
    assert "\x1b" not in output, "control sequences are not printed"
    assert translator.translate(CAT).text in output


def test_quit_ends_the_session(translator):
    with pytest.raises(AssertionError, match="the session ended early"):
        session(translator, ":quit", CAT)


def test_heat_without_attention_prints_a_message(one_vector):
    output = session(rnnsearch.load(one_vector), ":heat on", CAT)
    assert "this model has no attention to draw" in output
    assert "heat off" in output
    assert "from" not in output
