"""`rnnsearch translate` at a terminal and over pipes: it answers when it is asked."""

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
from rnnsearch.cli.io import input_portions
from rnnsearch.cli.prompt import Prompt
from rnnsearch.cli.translate_lines import Asked
from rnnsearch.data.corpus import CUT, LONGEST
from rnnsearch.translator.translator import Translator

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."
PATIENCE = 60.0
"""Seconds to wait for what must come: far more than it takes."""


class Talk:
    """What is written to a descriptor, read as far as each answer goes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.rest = b""

    def until(self, wanted: str) -> str:
        """The text up to and with `wanted`."""
        end = time.monotonic() + PATIENCE
        while wanted.encode() not in self.rest:
            assert time.monotonic() < end, self.rest
            if select.select([self.descriptor], [], [], 1.0)[0]:
                block = os.read(self.descriptor, 65536)
                assert block, f"it ended: {self.rest!r}"
                self.rest += block
        before, _, self.rest = self.rest.partition(wanted.encode())
        return before.decode("utf-8") + wanted


@contextlib.contextmanager
def running(*arguments: object, **streams: Any) -> Iterator[Any]:
    """The command in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "rnnsearch", "translate", *map(str, arguments)]
    with subprocess.Popen(command, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_coprocess_gets_its_answer_before_it_writes_on(cli, model):
    expected = cli("translate", model, stdin=f"{CAT}\n{BIRD}\n\n").lines
    with running(model, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        talk = Talk(process.stdout.fileno())
        for line, answer in zip((CAT, BIRD, ""), expected, strict=True):
            process.stdin.write(f"{line}\n".encode())
            assert talk.until("\n") == f"{answer}\n"
        process.stdin.write(CAT[:9].encode())  # half a line is no line
        process.stdin.write(f"{CAT[9:]}\n{BIRD}".encode())
        process.stdin.close()
        assert process.stdout.read().decode().split("\n") == [*expected[:2], ""]
        assert process.wait(PATIENCE) == 0


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a pipe to write to; its other end is standard input."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stream:  # noqa: PTH123  (a descriptor, no path)
        monkeypatch.setattr(sys, "stdin", stream)
        yield writing
    with contextlib.suppress(OSError):
        os.close(writing)


def test_a_portion_ends_where_no_more_has_come(pipe):
    portions = input_portions(None, 3)
    os.write(pipe, b"a\nb\n\xc3")
    assert next(portions) == ["a", "b"]
    os.write(pipe, b"\xa4\r\n\nd\ne\n")
    assert next(portions) == ["ä", "", "d"], "nor is one longer than asked for"
    assert next(portions) == ["e"]
    long = b"x" * 50_000
    os.write(pipe, long)
    os.close(pipe)
    assert list(portions) == [[long.decode()]]


def test_a_line_without_end_is_cut(tmp_path, monkeypatch):
    """And no more of it held; the lines after it come as they are."""
    for end in (b"", b"\nb\n"):
        (tmp_path / "in").write_bytes(b"a\n" + 700_000 * "ä".encode() + end)
        with (tmp_path / "in").open(encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            piped = list(input_portions(None, 3))
        assert piped == list(input_portions(tmp_path / "in", 3))
        first, long, *others = (line for portion in piped for line in portion)
        assert (first, others) == ("a", ["b"] if end else [])
        assert LONGEST < len(long.encode()) <= CUT


def test_of_long_lines_fewer_make_a_portion(tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.io.SQUARES", 60)
    (tmp_path / "in").write_text("12345\n123456\n1\n2\n", encoding="utf-8")
    assert list(input_portions(tmp_path / "in", 3)) == [["12345", "123456"], ["1", "2"]]
    with (tmp_path / "in").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert list(input_portions(None, 3)) == [["12345", "123456"], ["1", "2"]]


def test_a_file_as_standard_input_comes_in_whole_portions(tmp_path, monkeypatch):
    lines = [f"line {n}" for n in range(20_000)]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with (tmp_path / "in").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        portions = list(input_portions(None, 700))
    assert [line for portion in portions for line in portion] == lines
    assert {len(portion) for portion in portions[:-1]} == {700}


def test_a_session_at_a_terminal(cli, model):
    pty = pytest.importorskip("pty", reason="needs a system with terminals of POSIX")
    answer = cli("translate", model, stdin=f"{CAT}\n").lines[0]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "90"}
    with running(model, "--beam", "2", stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        talk = Talk(ours)
        assert ":help" in talk.until("en> ")
        os.write(ours, f"{CAT}\n".encode())
        said = plain(talk.until("en> "))
        assert answer in said
        assert re.search(r"Hund\.\s+\d+ %\s+dog\. \d+ %", said), said
        os.write(ours, b":heat on\n")
        talk.until("heat on\r\n")
        os.write(ours, b"\x1b[A\x1b[A\n")  # twice up: the sentence again, from the history
        talk.until("┌ small")
        talk.until("en> ")
        os.write(ours, b"\x04")
        assert process.wait(PATIENCE) == 0
    os.close(ours)


def at_a_terminal(*asked: object) -> list[str]:
    """What `translate` says there to two lines."""
    pty = pytest.importorskip("pty", reason="needs a system with terminals of POSIX")
    ours, theirs = pty.openpty()
    with running(*asked, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        os.write(ours, f"{CAT}\n{BIRD}\n\x04".encode())
        assert process.wait(PATIENCE) == 0, process.stderr.read()
        said = os.read(ours, 65536).decode()
    os.close(ours)
    return said.replace("^D\b\b", "").split("\r\n")


@pytest.mark.parametrize("asked", [["--max-source", "3"], ["--batch", "1"]])
def test_what_a_prompt_does_not_do_is_done_line_by_line(cli, model, asked):
    expected = cli("translate", model, *asked, stdin=f"{CAT}\n{BIRD}\n").lines
    assert at_a_terminal(model, *asked) == [CAT, BIRD, *expected, ""]


def test_how_sure_to_be_is_asked_line_by_line():
    asked = Asked(models=(Path("model"),), source="lines")
    assert not asked.by_lines
    assert replace(asked, min_confidence=0.0).by_lines


def plain(text: str) -> str:
    """Without the terminal's control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return rnnsearch.load(model)


def session(translator: Translator, *lines: str | type[BaseException], width: int = 100) -> str:
    """What a session says; a class stands for what the keyboard raises."""
    rest = iter([*lines, EOFError])

    def read(_prompt: str) -> str:
        given = next(rest)
        if isinstance(given, str):
            return given
        raise given

    out = io.StringIO()
    Prompt(translator, Console(file=out, width=width), translator.options(2)).run(read)
    assert next(rest, None) is None, "it left early"
    return out.getvalue()


def test_n_best_and_words(translator):
    said = session(translator, ":n 3", CAT)
    best = translator.n_best([CAT], translator.options(3, 3))[0]
    for number, t in enumerate(best, start=1):
        assert f"{number}. {t.text}   {t.score:.2f}" in said
    row = best[0].word_attention[5]
    sure = best[0].word_probabilities[5]
    source = best[0].source_words[int(row.argmax())]
    assert re.search(
        rf"{re.escape(best[0].words[5])} +{100 * sure:.0f} % +{re.escape(source)} {100 * row.max():.0f} %", said
    )
    assert "probability" not in session(translator, ":words off", CAT)


def test_what_can_be_set(translator):
    said = session(translator, ":help", ":beam 7", ":heat", ":heat off", ":words", "", "  ")
    assert "beam width; 1 is greedy search" in said
    assert [line for line in said.splitlines() if line][-4:] == ["beam 7", "heat on", "heat off", "words off"]
    for line, sentence in (
        (":beam", ":beam must be followed by a whole number from 1 to 1000; it is 2"),
        (":n 0", ":n must be followed by a whole number from 1 to 1000; it is 1"),
        (":heat maybe", ":heat must be followed by on or off"),
        (":frobnicate", "there is no command :frobnicate; :help lists them"),
    ):
        assert sentence in session(translator, line)


def test_keys_and_faults_do_not_end_a_session(translator):
    said = session(translator, KeyboardInterrupt, "a \ud800", "[bold]\x1b[31m the cat.", CAT)
    assert "text must be valid Unicode" in said
    assert "\x1b" not in said, "no sentence steers the terminal"
    assert translator.translate(CAT).text in said


def test_leaving_by_a_word(translator):
    with pytest.raises(AssertionError, match="it left early"):
        session(translator, ":quit", CAT)


def test_a_model_without_attention_has_nothing_to_draw(one_vector):
    said = session(rnnsearch.load(one_vector), ":heat on", CAT)
    assert "this model has no attention to draw" in said
    assert "heat off" in said
    assert "from" not in said
