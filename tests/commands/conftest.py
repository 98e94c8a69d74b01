"""Fixtures: the command line in this process, a tiny parallel corpus, and models trained on it once per session."""

import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from rnnsearch.data.prepare import STAGES
from tests.command_line import Result, run

NOUNS = {"cat": "Katze", "dog": "Hund", "bird": "Vogel", "child": "Kind", "tree": "Baum"}
ADJECTIVES = {"small": "kleine", "old": "alte", "red": "rote", "quiet": "stille"}
VERBS = {"sees": "sieht", "hears": "hört", "finds": "findet"}

RUN = """
name = "tiny"

[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev = "dev.en|dev.de"
test = "test.en|test.de"

[text]
type = "words"
vocabulary = {vocabulary}

[model]
embedding = 24
{model}
[training]
batch = {{ sentences = 16 }}
optimiser = {{ type = "adam", learning_rate = 0.02 }}
clip_norm = 1.0
normalise = "tokens"
max_updates = {updates}
evaluate_every = 50
threads = 1

[search]
beam = 3
"""
ATTENTION = """encoder = { type = "bidirectional", cell = "gru", size = 24 }
attention = { score = "additive", size = 24 }
decoder = { type = "bahdanau", cell = "gru", size = 32, maxout = 16 }
"""
ONE_VECTOR = """encoder = { type = "unidirectional", cell = "gru", size = 16 }
decoder = { type = "rnnencdec", cell = "gru", size = 16, maxout = 8 }
"""


Cli = Callable[..., Result]


@pytest.fixture(scope="session")
def cli() -> Cli:
    return run


def sentences() -> list[tuple[str, str]]:
    """Return English sentences such as 'the small cat sees the dog.' with word-by-word German translations."""
    pairs = []
    for (a, b), (s, t), (v, w), (o, p) in product(ADJECTIVES.items(), NOUNS.items(), VERBS.items(), NOUNS.items()):
        if s != o:
            pairs.append((f"the {a} {s} {v} the {o}.", f"der {b} {t} {w} der {p}."))
    random.Random(2).shuffle(pairs)
    return pairs


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with text files for train, dev and test, and run files."""
    folder = tmp_path_factory.mktemp("tiny")
    pairs = sentences()
    parts = {"train": pairs[:200], "dev": pairs[200:220], "test": pairs[220:]}
    for part, part_pairs in parts.items():
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text(
                "".join(f"{pair[side]}\n" for pair in part_pairs), encoding="utf-8"
            )
    (folder / "run.toml").write_text(RUN.format(vocabulary=40, model=ATTENTION, updates=100))
    (folder / "one-vector.toml").write_text(RUN.format(vocabulary=10, model=ONE_VECTOR, updates=2))
    return folder


@pytest.fixture(scope="session")
def trained(corpus: Path, cli: Cli) -> Result:
    """Return the result of the command that trains `model`."""
    return cli("train", corpus / "run.toml", "--set", "folder=model", "--set", "training.max_updates=100")


@pytest.fixture(scope="session")
def model(trained: Result, corpus: Path) -> Path:
    """Return a model folder with attention."""
    assert trained.code == 0, trained.err
    return corpus / "model"


@pytest.fixture(scope="session")
def one_vector(corpus: Path, cli: Cli) -> Path:
    """Return a model folder of RNNencdec, without attention, whose vocabulary does not contain all words."""
    result = cli("train", corpus / "one-vector.toml", "--set", "folder=one-vector", "data.aligner=false")
    assert result.code == 0, result.err
    return corpus / "one-vector"


@pytest.fixture
def model_copy(model: Path, tmp_path: Path) -> Path:
    """Return a copy of the model without checkpoints and data."""
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("checkpoints", "data"))
    return copy


@pytest.fixture
def user_error(cli: Cli) -> Callable[..., str]:
    """Return a function that runs a command, which must fail with exit code 1, and returns its one-line message."""

    def run(*arguments: object, stdin: bytes | str = b"") -> str:
        result = cli(*arguments, stdin=stdin)
        assert (result.code, result.out) == (1, ""), result
        assert "Traceback" not in result.err
        # A corpus may turn out to be invalid while it is prepared.
        lines = [line for line in result.err.splitlines() if line.partition(":")[0] not in STAGES]
        assert len(lines) == 1, result.err
        assert lines[0].startswith("rnnsearch: ")
        return lines[0].removeprefix("rnnsearch: ")

    return run
