"""Outputs and objectives for large vocabularies, from a run file to translations."""

from pathlib import Path

import pytest

from rnnsearch.systems.folder import load_system
from tests.commands.conftest import NOUNS, VERBS

WAYS = {
    "adaptive": ['model.output={type="adaptive", cutoffs=[8, 12], factor=2.0}'],
    "hierarchical": ['model.output={type="hierarchical", classes=5}'],
    "neighbours": ['model.output={type="hierarchical", by="neighbours", classes=5}'],
    "nce": ['objective.contrast={type="nce", samples=100, power=0.5}'],
    "blackout": ['objective.contrast={type="blackout", samples=40}'],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_learns_by_it_and_translates(way, cli, corpus, tmp_path):
    prepared = tmp_path / "data"
    settings = [f'data.prepared="{prepared}"', f'folder="{tmp_path / way}"']
    settings.append(f"training.max_updates={400 if way in ('nce', 'blackout') else 200}")
    result = cli("train", corpus / "run.toml", "--set", *settings, *WAYS[way])
    assert result.code == 0, result.err
    assert cli("candidates", tmp_path / way, corpus / "train.en", corpus / "train.de").code == 0
    lines = ["the small cat sees the dog.", "", "the old tree finds the bird."]
    expected = ["der kleine Katze sieht der Hund.", "", "der alte Baum findet der Vogel."]
    for options in ([], ["--beam", "1"], ["--candidates", "10"]):
        told = cli("translate", tmp_path / way, *options, stdin="".join(f"{line}\n" for line in lines))
        assert told.lines == expected, (way, options)
    again = cli("train", corpus / "run.toml", "--resume", "--set", *settings, *WAYS[way], "training.max_updates=410")
    assert again.code == 0, again.err
    if way == "neighbours":
        assert_kinds(tmp_path / way)


def assert_kinds(folder: Path):
    """What stands after the same words is of one class."""
    system = load_system(folder)
    ids = {text.decode(): id for id, text in enumerate(system.target.spellings())}
    for words in (NOUNS, VERBS):
        assert len({system.model.output.classes[ids[f" {word}"]].item() for word in words.values()}) == 1


def test_a_group_beyond_the_vocabulary_is_refused(cli, corpus, tmp_path):
    wrong = 'model.output={type="adaptive", cutoffs=[8, 5000]}'
    result = cli("train", corpus / "run.toml", "--set", f'folder="{tmp_path}"', wrong)
    assert result.code == 1
    assert "model.output.cutoffs: must be below the" in result.err and "got 5000" in result.err
