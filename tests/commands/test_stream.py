"""`rnnsearch translate --stream`."""

import subprocess
import sys

import pytest

import rnnsearch
from rnnsearch.engine import file
from rnnsearch.export.engine_file import export
from rnnsearch.systems.folder import save_system
from rnnsearch.text.vocabulary import UNK
from rnnsearch.translator.simultaneous import SimultaneousTranslator
from tests.command_line import run
from tests.test_simultaneous import MONOTONIC, TEXTS, WAIT_K, with_agent
from tests.untrained import BAHDANAU, untrained, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("wait-k") / "model", WAIT_K, "bpe")


def test_lines_are_those_of_greedy_search(model, tmp_path):
    text = f"{TEXTS[0]}\n\n{TEXTS[1]} {TEXTS[2]}\n5"
    expected = run("translate", model, "--beam", "1", stdin=text)
    result = run("translate", model, "--stream", stdin=text)
    assert result.code == 0
    assert result.lines == expected.lines and len(result.lines) == 4
    assert result.err.startswith("average lagging: ") and "over 3 sentences" in result.err
    (tmp_path / "in.txt").write_text(text)
    run("translate", model, "--stream", "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == result.out


def test_model_with_an_agent_streams(tmp_path):
    save_system(tmp_path / "model", with_agent().system)
    result = run("translate", tmp_path / "model", "--stream", stdin=TEXTS[0])
    words = SimultaneousTranslator(rnnsearch.load(tmp_path / "model")).translate(TEXTS[0].split())
    assert result.code == 0 and result.lines == ["".join(words)]
    assert result.err.startswith("average lagging: ")


def test_exported_model_has_its_agent_but_not_the_baseline(tmp_path):
    save_system(tmp_path / "model", with_agent().system)
    export(tmp_path / "model", tmp_path / "model.rnn", "fp32")
    expected = run("translate", tmp_path / "model", "--stream", stdin=TEXTS[0])
    assert run("translate", tmp_path / "model.rnn", "--stream", stdin=TEXTS[0]).lines == expected.lines
    with file.open_file(tmp_path / "model.rnn") as (_, arrays, *_):
        names = [*arrays.weights, *arrays.vectors]
    assert any(name.startswith("agent.") for name in names)
    assert not any(name.startswith("auxiliary.") for name in names)


def test_monotonic_model_streams(tmp_path):
    folder = write_model(tmp_path / "model", MONOTONIC)
    expected = run("translate", folder, "--beam", "1", stdin=TEXTS[0])
    assert run("translate", folder, "--stream", stdin=TEXTS[0]).lines == expected.lines


def test_unknown_words_are_banned_on_request(tmp_path):
    system = untrained(WAIT_K)
    system.model.output.bias.data[UNK] += 20.0
    save_system(tmp_path / "model", system)
    assert "<unk>" in run("translate", tmp_path / "model", "--stream", stdin=TEXTS[0]).out
    result = run("translate", tmp_path / "model", "--stream", "--ban-unknown", stdin=TEXTS[0])
    expected = run("translate", tmp_path / "model", "--beam", "1", "--ban-unknown", stdin=TEXTS[0])
    assert result.lines == expected.lines and "<unk>" not in result.out


def test_words_are_written_before_the_line_ends(model):
    command = [sys.executable, "-m", "rnnsearch", "translate", str(model), "--stream"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, bufsize=0, **pipes) as process:
        process.stdin.write(b"the small cat sees ")
        start = process.stdout.read(1)
        rest, _ = process.communicate(b"the dog.\n")
    expected = run("translate", model, "--beam", "1", stdin=TEXTS[0]).out
    assert (start + rest).decode() == expected


def test_words_of_bytes_that_arrive_one_by_one(model, monkeypatch):
    from rnnsearch.cli import translate_stream

    text = "\ufeffthe\u00a0small ca\u0308t  sees\r\n\n the dog"
    expected = run("translate", model, "--stream", stdin=text)
    monkeypatch.setattr(translate_stream, "READ_BYTES", 1)
    assert run("translate", model, "--stream", stdin=text) == expected
    assert len(expected.lines) == 3 and not expected.lines[1]


def test_long_words_are_cut(model, monkeypatch):
    from rnnsearch.translator import simultaneous

    monkeypatch.setattr(simultaneous, "MAX_WORD_CHARACTERS", 4)
    assert (
        run("translate", model, "--stream", stdin="thedogseesacat").lines
        == run("translate", model, "--stream", stdin="thed ogse esac at").lines
    )


def test_invalid_input_names_its_line(model):
    result = run("translate", model, "--stream", stdin=b"the cat\nthe \xff dog\n")
    assert result.code == 1
    assert "<standard input>:2: must be text in UTF-8" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "4"], "--beam cannot be combined with --stream"),
        (["--format", "json"], "--format cannot be combined with --stream"),
        (["--alignments", "x"], "--alignments cannot be combined with --stream"),
        (["--tags"], "--tags cannot be combined with --stream"),
        (["--sample", "3"], "--sample cannot be combined with --stream"),
    ],
)
def test_options_without_effect_are_rejected(model, options, message):
    result = run("translate", model, "--stream", *options, stdin="the cat")
    assert result.code == 2
    assert message in result.err


def test_models_that_need_the_whole_sentence_are_rejected(model, tmp_path):
    folder = write_model(tmp_path / "model", BAHDANAU)
    result = run("translate", folder, "--stream", stdin="the cat")
    assert result.code == 1
    assert f"{folder}: simultaneous translation needs" in result.err
    result = run("translate", model, model, "--stream", stdin="the cat")
    assert result.code == 2 and "--stream needs a single model" in result.err


def test_documents_are_rejected(model, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<p>the cat</p>")
    result = run("translate", model, "--stream", "-i", path)
    assert result.code == 2
    assert "--stream needs lines of text as input" in result.err
