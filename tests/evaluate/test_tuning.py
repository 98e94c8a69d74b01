"""Tuning finds the settings that a dev set was made by, and a model folder then translates by them."""

from pathlib import Path

import pytest

from rnnsearch import load
from rnnsearch.errors import ConfigError, RnnsearchError
from rnnsearch.evaluation.tuning import TABLE, Tuning
from rnnsearch.systems.folder import load_system
from tests.command_line import run
from tests.test_ensemble import written
from tests.test_fusion import language
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, write_model

WORDS = sorted({word for line in TEXT["en"] for word in line.split()})
SOURCES = [" ".join(WORDS[n:] + WORDS[: n % 3]) for n in range(len(WORDS))] + TEXT["en"]


@pytest.fixture
def model(tmp_path) -> Path:
    """Drawn so that each of the settings below makes a difference."""
    return written(tmp_path / "model", BAHDANAU, 3)


def translated(folder: Path, **options) -> list[str]:
    translator = load(folder)
    return [t.text for t in translator.translate(SOURCES, translator.options(**options))]


def test_it_finds_what_the_references_were_made_by(model):
    references = translated(model, beam=6, length_penalty=0.0)
    assert references != translated(model, beam=6) != translated(model)
    tuning = Tuning(model, SOURCES, references, values={"length_penalty": (0.0, 0.5), "beam": (1, 6)})
    told = []
    best = tuning.run(told.append)
    assert (best.settings, round(best.score)) == ({"length_penalty": 0.0, "beam": 6}, 100)
    assert told == tuning.tried and tuning.tried[0].settings == {"length_penalty": 1.0, "beam": 3}
    settings = [tuple(tried.settings.values()) for tried in tuning.tried]
    assert len(set(settings)) == len(settings)
    assert all(tried.score <= best.score for tried in tuning.tried)
    tuning.write()
    assert translated(model) == references
    assert (model / TABLE).read_text().count("**") == 2 and "| 0 | 6 | **100.00** |" in (model / TABLE).read_text()


def test_what_is_no_better_changes_nothing(model):
    before = (model / "config.toml").read_bytes()
    tuning = Tuning(model, SOURCES, translated(model), metric="chrf", values={"coverage_penalty": (0.0, 0.3)})
    assert tuning.run().settings == tuning.start == {"coverage_penalty": 0.0}
    tuning.write()
    assert (model / "config.toml").read_bytes() == before
    assert "chrF2" in (model / TABLE).read_text()


def test_a_language_model_that_helps_moves_in_and_one_that_does_not_stays_out(model, tmp_path):
    lm = language(tmp_path / "lm")
    alone = translated(model)
    fused = [t.text for t in load(model, language_model=lm, language_model_weight=0.6).translate(SOURCES)]
    weights = {"language_model_weight": (0.0, 0.3, 0.6)}
    tuning = Tuning(model, SOURCES, alone, language_model=lm, values=weights)
    assert tuning.run().settings == {"language_model_weight": 0.0}
    tuning.write()
    assert load_system(model).config.search.language_model is None and not (model / "language-model").exists()
    tuning = Tuning(model, SOURCES, fused, language_model=lm, values=weights)
    assert tuning.run().settings == {"language_model_weight": 0.6}
    tuning.write()
    assert translated(model) == fused != alone
    again = Tuning(model, SOURCES, alone, values=weights)
    assert again.start == {"language_model_weight": 0.6}
    assert again.run().settings == {"language_model_weight": 0.0}
    again.write()
    assert translated(model) == alone


def test_the_weights_of_an_ensemble(model, tmp_path):
    second = written(tmp_path / "second", BAHDANAU, 2)
    assert run("ensemble", model, second, "-o", tmp_path / "both").code == 0
    made = [t.text for t in load([model, second], weights=[1.0, 2.0]).translate(SOURCES)]
    assert made != translated(tmp_path / "both")
    tuning = Tuning(tmp_path / "both", SOURCES, made, values={"weight_2": (0.5, 2.0)})
    assert (tuning.start, tuning.run().settings) == ({"weight_2": 1.0}, {"weight_2": 2.0})
    tuning.write()
    assert translated(tmp_path / "both") == made
    with pytest.raises(RnnsearchError, match=r"got \"weight_3\""):
        Tuning(tmp_path / "both", SOURCES, made, values={"weight_3": (0.5, 2.0)})


def test_settings_that_do_nothing_are_not_tried(tmp_path):
    blind = Tuning(write_model(tmp_path / "blind", RNNENCDEC), SOURCES, SOURCES)
    assert list(blind.values) == ["length_penalty", "beam"]
    for name, needed in (("coverage_penalty", "a model with attention"), ("language_model_weight", "a language model")):
        with pytest.raises(RnnsearchError, match=f"{name} has no effect without {needed}; do not tune it"):
            Tuning(tmp_path / "blind", SOURCES, SOURCES, values={name: (0.0, 0.2), "beam": (1, 2)})
    with pytest.raises(RnnsearchError, match="no effect where language_model_weight is not tuned"):
        Tuning(tmp_path / "blind", SOURCES, SOURCES, language_model=language(tmp_path / "lm"), values={"beam": (1, 2)})


def test_what_cannot_be(model):
    with pytest.raises(RnnsearchError, match=r'setting to tune must be one of .*; got "bean" \(did you mean "beam"'):
        Tuning(model, SOURCES, SOURCES, values={"bean": (1,)})
    with pytest.raises(ConfigError, match=r"beam: must be .*; got 1\.5"):
        Tuning(model, SOURCES, SOURCES, values={"beam": (1, 1.5)})
    with pytest.raises(RnnsearchError, match="needs sentences; got none"):
        Tuning(model, [], [])


def test_the_command_line(model, tmp_path):
    references = translated(model, beam=1)
    files = tmp_path / "dev.en", tmp_path / "dev.de"
    for path, lines in zip(files, (SOURCES, references), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines * 2))
    assert run("calibrate", model, *files).code == 0
    before = (model / "config.toml").read_bytes()
    found = run("tune", model, *files, "--values", "beam=1,2", "--dry-run")
    assert (found.code, (model / "config.toml").read_bytes(), (model / TABLE).exists()) == (0, before, False)
    assert found.lines[0].split() == ["|", "beam", "|", "BLEU", "|", "seconds", "|"]
    found = run("tune", model, *files, "--values", "beam=1,2")
    assert f"{model}: beam = 1 ({model / TABLE})" in found.err and "run `rnnsearch calibrate` again" in found.err
    assert load(model).options().beam == 1
    for wrong in ("beam", "beam=", "beam=x", "=1"):
        assert "--values must be" in run("tune", model, *files, "--values", wrong).err or wrong == "=1"
