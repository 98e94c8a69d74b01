"""`rnnsearch presets`, and several settings after `--set`."""

import tomllib

from rnnsearch.cli import expand_set_options
from rnnsearch.config import preset, preset_names


def test_presets_are_listed_with_one_sentence_each(cli):
    result = cli("presets")
    assert (result.code, result.err) == (0, "")
    names, sentences = zip(*(line.split(maxsplit=1) for line in result.lines), strict=True)
    assert list(names) == preset_names()
    assert all(len(sentence) > 40 and sentence.endswith(".") for sentence in sentences)


def test_one_preset_is_printed_completely(cli):
    result = cli("presets", "luong-global-dot-small")
    description, _, tables = result.out.partition("\n\n")
    assert description.startswith("Global attention of Luong et al. with the dot score")
    assert tomllib.loads(tables) == preset("luong-global-dot-small"), "including the settings of its base preset"


def test_unknown_preset_is_an_error(user_error):
    assert user_error("presets", "smal").startswith("preset must be one of ")


def test_set_accepts_several_settings():
    assert expand_set_options(["train", "run.toml", "--set", "a.b=1", "c.d_2=x y", "name=z", "--resume", "e.f=1"]) == (
        ["train", "run.toml", "--set", "a.b=1", "--set", "c.d_2=x y", "--set", "name=z", "--resume", "e.f=1"]
    )
    assert expand_set_options(["--set", "a=1", "./b=1.toml", "runs/a=b"]) == ["--set", "a=1", "./b=1.toml", "runs/a=b"]
