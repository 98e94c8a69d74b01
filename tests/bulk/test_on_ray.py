"""`--engine ray` with a real Ray: with actors and the program killed, the output is that of one process."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.toys import contents
from tests.untrained import BAHDANAU, write_model

pytest.importorskip("ray.data", reason='needs Ray: pip install "ray[data]"')

SOURCE = Path(__file__).parents[2] / "src"
LINES = 6000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, a text, and what one process makes of it in one pass."""
    folder = tmp_path_factory.mktemp("ray")
    write_model(folder / "model", BAHDANAU)
    words, draw = ["the", "small", "cat", "sees", "dog", "a", "big", "bird", "Is", "it", "red", "and"], random.Random(3)
    lines = [" ".join(draw.choices(words, k=draw.randrange(12))) for _ in range(LINES)]
    lines[700] = "cat " * 99
    (folder / "in.en").write_text("".join(f"{line}\n" for line in lines))
    command(folder, "one", "--alignments", "one.links", "--format", "nbest", "--n-best", "2").check_returncode()
    return folder


def program(folder, *arguments):
    """A program where no cluster is."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "RAY_ADDRESS": "local"}
    arguments = [sys.executable, *arguments]
    return subprocess.Popen(arguments, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def begin(folder, output, *arguments):
    """A program that translates the text."""
    asked = ["translate", "model", "-i", "in.en", "-o", output, "--batch", "4", "--beam", "12", "--max-source", "90"]
    return program(folder, "-m", "rnnsearch", *asked, *arguments)


def command(folder, output, *arguments):
    return ended(begin(folder, output, *arguments))


def ended(begun):
    with begun as process:
        said = process.communicate(timeout=500)[1]
    return subprocess.CompletedProcess(process.args, process.returncode, None, said)


def actors(program):
    """The processes of the pool that belong to a program, by number."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                rest = (entry / "stat").read_text().rpartition(")")[2].split()
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            parents[int(entry.name)] = int(rest[1])

    def ours(number):
        while number in parents and number != program:
            number = parents[number]
        return number == program

    return [number for number, name in names.items() if name.startswith(b"ray::Map") and ours(number)]


def finished(folder, output):
    return sorted(path.name for path in folder.glob(f"{output}.partial/*.done"))


def wait_for(program, folder, output, count):
    while len(finished(folder, output)) < count:
        assert program.poll() is None, program.stderr.read()
        time.sleep(0.01)


def test_run_survives_actors_killed_at_random(place):
    draw, killed = random.Random(5), 0
    options = ["--alignments", "ray.links", "--format", "nbest", "--n-best", "2", "--engine", "ray", "--actors", "2"]
    with begin(place, "ray.out", *options) as program:
        for count in (3, 10, 20, 40):
            wait_for(program, place, "ray.out", count)
            if here := actors(program.pid):
                os.kill(draw.choice(here), signal.SIGKILL)
                killed += 1
        said = program.communicate(timeout=500)[1]
    assert program.returncode == 0, said
    assert killed >= 2
    assert (place / "ray.out").read_bytes() == (place / "one").read_bytes()
    assert (place / "ray.links").read_bytes() == (place / "one.links").read_bytes()
    assert "in.en:701: must have at most 90 tokens" in said
    assert not (place / "ray.out.partial").exists()


def test_killed_program_resumes(place):
    """Ranges that were finished are marked, so that it shows which were done anew; other ranges are of another size."""
    options = ["--format", "nbest", "--n-best", "2", "--engine", "ray", "--rows", "150", "--store", "begun.partial"]
    with begin(place, "begun", *options) as program:
        wait_for(program, place, "begun", 5)
        program.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (before := finished(place, "begun")) != wait_and_look(place):
        pass
    assert 5 <= len(before) < LINES / 192
    kept = []
    for name in before:
        path = place / "begun.partial" / name
        done = json.loads(path.read_text())
        kept += done["outputs"]["output"].splitlines()
        path.write_text(
            json.dumps({**done, "outputs": {"output": done["outputs"]["output"].replace("|||", "kept", 1)}})
        )
    result = command(place, "begun", *options)
    assert result.returncode == 0, result.stderr
    assert f"resuming after {len(before) * 192:,} of 6,000 lines" in result.stderr
    written = (place / "begun").read_text()
    assert written.count(" kept ") == len(before)
    assert written.replace(" kept ", " ||| ") == (place / "one").read_text()


def wait_and_look(place):
    time.sleep(1.0)
    return finished(place, "begun")


def test_error_of_an_actor_is_one_sentence(place):
    """Each of a cluster's machines must have the model; from Python."""
    code = """
from pathlib import Path
from rnnsearch.bulk import FolderStore, OnRay, run
from rnnsearch.cli.translate_lines import TranslateOptions
from rnnsearch.errors import RnnsearchError
try:
    options = TranslateOptions(models=(Path("/nowhere"),), input_name="x")
    run([["a"], ["b"]], {}, options, {"output": Path("x")}, FolderStore(Path("y")), OnRay(actors=1))
except RnnsearchError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert done.stdout == "/nowhere: there is no such model folder\n"
    assert not (place / "x").exists()


RUN = """
preset = "small"

[data]
source = "en"
target = "de"
train = ["in.en|out.de"]
alignments = "aligner"

[text]
vocabulary = 340
"""
PREPARE = """
from rnnsearch.cli import main
from rnnsearch.data import preprocess
preprocess.CHUNK_ROWS = 40
main()
"""


def prepare(place, folder, *arguments):
    """A program that prepares a corpus in chunks of forty pairs."""
    settings = ["--set", f'data.prepared="{folder}"']
    return program(place, "-c", PREPARE, "prepare", "run.toml", *settings, *arguments)


def test_preparation_survives_killed_actors_and_program(tmp_path):
    """Actors at random, and once the program."""
    place, draw, killed = tmp_path, random.Random(7), 0
    words = ["the", "small", "cat", "sees", "a", "big", "dog", "and", "it"]
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(3000)]
    for name, own in {"in.en": lines, "out.de": [f"{line.upper()} x{n}" for n, line in enumerate(lines)]}.items():
        (place / name).write_text("".join(f"{line}\n" for line in own))
    (place / "run.toml").write_text(RUN)
    result = ended(prepare(place, "plain", "--processes", "1"))
    assert result.returncode == 0, result.stderr
    options = ["--engine", "ray", "--actors", "2"]

    def kill(process, *counts):
        for count in counts:
            wait_for(process, place, "data", count)
            if here := actors(process.pid):
                os.kill(draw.choice(here), signal.SIGKILL)
                yield count

    with prepare(place, "data", *options) as process:
        killed += len(list(kill(process, 9, 50, 85)))
        wait_for(process, place, "data", 100)
        process.send_signal(signal.SIGKILL)
    time.sleep(3)  # its actors end, too
    held = finished(place, "data")
    with prepare(place, "data", *options) as process:
        killed += len(list(kill(process, len(held) + 5, len(held) + 60)))
        said = process.communicate(timeout=500)[1]
    assert process.returncode == 0, said
    assert killed >= 3
    assert "resuming after 75 of 75 shards of cleaning" in said
    assert contents(place / "data") == contents(place / "plain")
    assert not (place / "data.partial").exists()
