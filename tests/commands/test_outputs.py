"""Outputs and objectives for large vocabularies, from a run file to translations."""

from pathlib import Path

import pytest

from rnnsearch.systems.folder import load_system
from tests.commands.conftest import NOUNS, VERBS

SETTINGS = {
    "adaptive": ['model.output={type="adaptive", cutoffs=[8, 12], factor=2.0}'],
    "hierarchical": ['model.output={type="hierarchical", classes=5}'],
    "neighbours": ['model.output={type="hierarchical", by="neighbours", classes=5}'],
    "tree": ['model.output={type="tree"}'],
    "nce": ['objective.contrast={type="nce", samples=100, power=0.5}'],
    "blackout": ['objective.contrast={type="blackout", samples=40}'],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_model_is_trained_translates_and_is_resumed(name, cli, corpus, tmp_path):
    prepared = tmp_path / "data"
    settings = [f'data.prepared="{prepared}"', f'folder="{tmp_path / name}"']
    updates = 400 if name in ("nce", "blackout") else 200
    train = ("train", corpus / "run.toml", "--set", *settings, *SETTINGS[name])
    result = cli(*train, f"training.max_updates={updates}")
    assert result.code == 0, result.err
    assert cli("candidates", tmp_path / name, corpus / "train.en", corpus / "train.de").code == 0
    lines = ["the small cat sees the dog.", "", "the old tree finds the bird."]
    expected = ["der kleine Katze sieht der Hund.", "", "der alte Baum findet der Vogel."]
    for options in ([], ["--beam", "1"], ["--candidates", "10"]):
        result = cli("translate", tmp_path / name, *options, stdin="".join(f"{line}\n" for line in lines))
        assert result.lines == expected, (name, options)
    resumed = cli(*train, f"training.max_updates={updates + 5}", "--resume")
    assert resumed.code == 0, resumed.err
    if name == "neighbours":
        assert_classes_of_neighbours(tmp_path / name)


def assert_classes_of_neighbours(folder: Path):
    """Assert that words that follow the same words are in one class."""
    system = load_system(folder)
    ids = {text.decode(): id for id, text in enumerate(system.target.token_bytes())}
    for words in (NOUNS, VERBS):
        assert len({system.model.output.classes[ids[f" {word}"]].item() for word in words.values()}) == 1


def test_cutoff_beyond_the_vocabulary_is_an_error(cli, corpus, tmp_path):
    setting = 'model.output={type="adaptive", cutoffs=[8, 5000]}'
    result = cli("train", corpus / "run.toml", "--set", f'folder="{tmp_path}"', setting)
    assert result.code == 1
    assert "model.output.cutoffs: must be below the" in result.err and "got 5000" in result.err
