"""Commands that take two files read them from pipes, too: `rnnsearch align MODEL <(zcat a.gz) <(zcat b.gz)`."""

import os
import threading

import pytest

CAT = "the small cat sees the dog."
TEXTS = {"en": f"{CAT}\n" * 3 + "the old bird finds the tree.\n", "de": "der kleine Katze sieht der Hund.\n" * 4}


@pytest.fixture
def texts(tmp_path):
    paths = [tmp_path / f"text.{language}" for language in TEXTS]
    for path, text in zip(paths, TEXTS.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


@pytest.fixture
def pipes(tmp_path):
    """Return named pipes that two other processes would write the texts to, one after the other."""
    paths = [tmp_path / f"pipe.{language}" for language in TEXTS]
    threads = []
    for path, text in zip(paths, TEXTS.values(), strict=True):
        os.mkfifo(path)
        threads.append(threading.Thread(target=path.write_text, args=(text,), daemon=True))
        threads[-1].start()
    yield paths
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive(), "a pipe was not read"


@pytest.mark.parametrize(
    "command",
    [
        ["align", "MODEL", "TEXTS"],
        ["score", "MODEL", "TEXTS"],
        ["evaluate", "MODEL", "TEXTS", "--no-card"],
        ["filter", "TEXTS", "--scores", "SCORES", "-o", "OUT1", "OUT2", "--share", "0.5"],
    ],
    ids=lambda command: command[0],
)
def test_result_from_pipes_equals_that_from_files(command, cli, model, texts, pipes, tmp_path):
    (tmp_path / "scores").write_text("1\n2\n3\n4\n")
    results = []
    for name, files in (("files", texts), ("pipes", pipes)):
        outputs = [tmp_path / f"{name}.{number}" for number in (1, 2)]
        values = {"MODEL": [model], "TEXTS": files, "SCORES": [tmp_path / "scores"]}
        values |= {"OUT1": outputs[:1], "OUT2": outputs[1:]}
        arguments = [value for argument in command for value in values.get(argument, [argument])]
        result = cli(*arguments)
        assert result.code == 0, result.err
        results.append((result.out, [path.read_text() for path in outputs if path.exists()]))
    assert results[0] == results[1]
    assert results[0][0] or results[0][1]


def test_error_names_the_pipe(user_error, model, pipes, tmp_path):
    (tmp_path / "short").write_text("one\n")
    message = user_error("align", model, pipes[0], tmp_path / "short")
    assert message == f"{pipes[0]} and {tmp_path / 'short'} must have the same number of lines; got 4 and 1"
    pipes[1].read_text()


def test_output_file_of_a_pipe_is_written(cli, model, texts, pipes, tmp_path):
    outputs = []
    for number, path in enumerate((texts[0], pipes[0])):
        output = tmp_path / f"out.{number}"
        result = cli("translate", model, "-i", path, "-o", output)
        assert result.code == 0, result.err
        outputs.append(output.read_text())
    assert outputs[0] == outputs[1] != ""
    pipes[1].read_text()


def test_training_text_must_be_files(user_error, corpus, pipes, tmp_path):
    message = user_error(
        "train", corpus / "run.toml", "--set", f"data.train=['{pipes[0]}|{pipes[1]}']", f"folder={tmp_path / 'new'}"
    )
    assert message == f"{pipes[0]}: is a pipe, which can be read only once; write its text to a file first"
    for pipe in pipes:
        pipe.read_text()
