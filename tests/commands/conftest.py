"""The command line in this process, a tiny parallel corpus, and models trained on it once a session."""

import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

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
    """English and German, word by word: 'the small cat sees the dog.'"""
    made = []
    for (a, b), (s, t), (v, w), (o, p) in product(ADJECTIVES.items(), NOUNS.items(), VERBS.items(), NOUNS.items()):
        if s != o:
            made.append((f"the {a} {s} {v} the {o}.", f"der {b} {t} {w} der {p}."))
    random.Random(2).shuffle(made)
    return made


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text files train, dev and test, and run.toml beside them."""
    folder = tmp_path_factory.mktemp("tiny")
    pairs = sentences()
    for part, some in (("train", pairs[:200]), ("dev", pairs[200:220]), ("test", pairs[220:])):
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text("".join(f"{pair[side]}\n" for pair in some), encoding="utf-8")
    (folder / "run.toml").write_text(RUN.format(vocabulary=40, model=ATTENTION, updates=100))
    (folder / "one-vector.toml").write_text(RUN.format(vocabulary=10, model=ONE_VECTOR, updates=2))
    return folder


@pytest.fixture(scope="session")
def trained(corpus: Path, cli: Cli) -> Result:
    """What `train` said while it made `model`."""
    return cli("train", corpus / "run.toml", "--set", "folder=model", "--set", "training.max_updates=100")


@pytest.fixture(scope="session")
def model(trained: Result, corpus: Path) -> Path:
    """A model folder with attention."""
    assert trained.code == 0, trained.err
    return corpus / "model"


@pytest.fixture(scope="session")
def one_vector(corpus: Path, cli: Cli) -> Path:
    """A model folder of RNNencdec, with a vocabulary that lacks some words."""
    result = cli("train", corpus / "one-vector.toml", "--set", "folder=one-vector", "data.aligner=false")
    assert result.code == 0, result.err
    return corpus / "one-vector"


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, as it is handed on."""
    copy = tmp_path / "own"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("checkpoints", "data"))
    return copy


@pytest.fixture
def fault(cli: Cli) -> Callable[..., str]:
    """Runs a command that must fail with exit 1 and one sentence on stderr alone; returns the sentence."""

    def run(*arguments: object, stdin: bytes | str = b"") -> str:
        result = cli(*arguments, stdin=stdin)
        assert (result.code, result.out) == (1, ""), result
        assert "Traceback" not in result.err
        lines = result.err.splitlines()
        assert len(lines) == 1, result.err
        assert lines[0].startswith("rnnsearch: ")
        return lines[0].removeprefix("rnnsearch: ")

    return run
