"""`rnnsearch presets`, and settings after one another."""

import tomllib

from rnnsearch.cli import with_each_set
from rnnsearch.config import preset, preset_names


def test_presets_are_listed_with_a_sentence_each(cli):
    result = cli("presets")
    assert (result.code, result.err) == (0, "")
    names, sentences = zip(*(line.split(maxsplit=1) for line in result.lines), strict=True)
    assert list(names) == preset_names()
    assert all(len(sentence) > 40 and sentence.endswith(".") for sentence in sentences)


def test_a_preset_is_shown_whole(cli):
    result = cli("presets", "luong-global-dot-small")
    about, _, tables = result.out.partition("\n\n")
    assert about.startswith("Global attention of Luong et al. with the dot score")
    assert tomllib.loads(tables) == preset("luong-global-dot-small"), "with what it takes from others"


def test_a_preset_that_there_is_not(fault):
    assert fault("presets", "smal").startswith("preset must be one of ")


def test_settings_after_one_another():
    assert with_each_set(["train", "run.toml", "--set", "a.b=1", "c.d_2=x y", "name=z", "--resume", "e.f=1"]) == (
        ["train", "run.toml", "--set", "a.b=1", "--set", "c.d_2=x y", "--set", "name=z", "--resume", "e.f=1"]
    )
    assert with_each_set(["--set", "a=1", "./b=1.toml", "runs/a=b"]) == ["--set", "a=1", "./b=1.toml", "runs/a=b"]
