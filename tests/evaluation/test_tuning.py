"""Tuning finds the settings that the references were translated with, and writes them to the model folder."""

from pathlib import Path

import pytest

from rnnsearch import load
from rnnsearch.errors import ConfigError, RnnsearchError
from rnnsearch.evaluation.tuning import TABLE_FILE, Tuning
from rnnsearch.systems.folder import load_system
from tests.command_line import run
from tests.test_ensemble import written
from tests.test_fusion import language
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, write_model

WORDS = sorted({word for line in TEXT["en"] for word in line.split()})
SOURCES = [" ".join(WORDS[n:] + WORDS[: n % 3]) for n in range(len(WORDS))] + TEXT["en"]


@pytest.fixture
def model(tmp_path) -> Path:
    """Return a random model for which each of the settings below makes a difference."""
    return written(tmp_path / "model", BAHDANAU, 3)


def translated(folder: Path, **options) -> list[str]:
    translator = load(folder)
    return [t.text for t in translator.translate(SOURCES, translator.options(**options))]


def test_tuning_finds_the_settings_of_the_references(model):
    references = translated(model, beam=6, length_penalty=0.0)
    assert references != translated(model, beam=6) != translated(model)
    tuning = Tuning(model, SOURCES, references, values={"length_penalty": (0.0, 0.5), "beam": (1, 6)})
    reported = []
    best = tuning.run(reported.append)
    assert (best.settings, round(best.score)) == ({"length_penalty": 0.0, "beam": 6}, 100)
    assert reported == tuning.trials and tuning.trials[0].settings == {"length_penalty": 1.0, "beam": 3}
    settings = [tuple(tried.settings.values()) for tried in tuning.trials]
    assert len(set(settings)) == len(settings)
    assert all(tried.score <= best.score for tried in tuning.trials)
    tuning.write()
    assert translated(model) == references
    assert (model / TABLE_FILE).read_text().count("**") == 2 and "| 0 | 6 | **100.00** |" in (
        model / TABLE_FILE
    ).read_text()


def test_settings_that_are_not_better_change_nothing(model):
    before = (model / "config.toml").read_bytes()
    tuning = Tuning(model, SOURCES, translated(model), metric="chrf", values={"coverage_penalty": (0.0, 0.3)})
    assert tuning.run().settings == tuning.start == {"coverage_penalty": 0.0}
    tuning.write()
    assert (model / "config.toml").read_bytes() == before
    assert "chrF2" in (model / TABLE_FILE).read_text()


def test_language_model_is_added_only_if_it_helps(model, tmp_path):
    lm = language(tmp_path / "lm")
    unfused = translated(model)
    fused = [t.text for t in load(model, language_model=lm, language_model_weight=0.6).translate(SOURCES)]
    weights = {"language_model_weight": (0.0, 0.3, 0.6)}
    tuning = Tuning(model, SOURCES, unfused, language_model=lm, values=weights)
    assert tuning.run().settings == {"language_model_weight": 0.0}
    tuning.write()
    assert load_system(model).config.search.language_model is None and not (model / "language-model").exists()
    tuning = Tuning(model, SOURCES, fused, language_model=lm, values=weights)
    assert tuning.run().settings == {"language_model_weight": 0.6}
    tuning.write()
    assert translated(model) == fused != unfused
    again = Tuning(model, SOURCES, unfused, values=weights)
    assert again.start == {"language_model_weight": 0.6}
    assert again.run().settings == {"language_model_weight": 0.0}
    again.write()
    assert translated(model) == unfused


def test_ensemble_weights_are_tuned(model, tmp_path):
    second = written(tmp_path / "second", BAHDANAU, 2)
    assert run("ensemble", model, second, "-o", tmp_path / "both").code == 0
    references = [t.text for t in load([model, second], weights=[1.0, 2.0]).translate(SOURCES)]
    assert references != translated(tmp_path / "both")
    tuning = Tuning(tmp_path / "both", SOURCES, references, values={"weight_2": (0.5, 2.0)})
    assert (tuning.start, tuning.run().settings) == ({"weight_2": 1.0}, {"weight_2": 2.0})
    tuning.write()
    assert translated(tmp_path / "both") == references
    with pytest.raises(RnnsearchError, match=r"got \"weight_3\""):
        Tuning(tmp_path / "both", SOURCES, references, values={"weight_3": (0.5, 2.0)})


def test_settings_without_effect_are_not_tried(tmp_path):
    tuning = Tuning(write_model(tmp_path / "without-attention", RNNENCDEC), SOURCES, SOURCES)
    assert list(tuning.values) == ["length_penalty", "beam"]
    for name, needed in (("coverage_penalty", "a model with attention"), ("language_model_weight", "a language model")):
        with pytest.raises(RnnsearchError, match=f"{name} has no effect without {needed}; do not tune it"):
            Tuning(tmp_path / "without-attention", SOURCES, SOURCES, values={name: (0.0, 0.2), "beam": (1, 2)})
    with pytest.raises(RnnsearchError, match="no effect if language_model_weight is not tuned"):
        Tuning(
            tmp_path / "without-attention",
            SOURCES,
            SOURCES,
            language_model=language(tmp_path / "lm"),
            values={"beam": (1, 2)},
        )


def test_invalid_settings_are_rejected(model):
    with pytest.raises(RnnsearchError, match=r'setting to tune must be one of .*; got "bean" \(did you mean "beam"'):
        Tuning(model, SOURCES, SOURCES, values={"bean": (1,)})
    with pytest.raises(ConfigError, match=r"beam: must be .*; got 1\.5"):
        Tuning(model, SOURCES, SOURCES, values={"beam": (1, 1.5)})
    with pytest.raises(RnnsearchError, match="needs sentences; got none"):
        Tuning(model, [], [])


def test_tune_command(model, tmp_path):
    references = translated(model, beam=1)
    files = tmp_path / "dev.en", tmp_path / "dev.de"
    for path, lines in zip(files, (SOURCES, references), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines * 2))
    assert run("calibrate", model, *files).code == 0
    before = (model / "config.toml").read_bytes()
    result = run("tune", model, *files, "--values", "beam=1,2", "--dry-run")
    assert (result.code, (model / "config.toml").read_bytes(), (model / TABLE_FILE).exists()) == (0, before, False)
    assert result.lines[0].split() == ["|", "beam", "|", "BLEU", "|", "seconds", "|"]
    result = run("tune", model, *files, "--values", "beam=1,2")
    assert f"{model}: beam = 1 ({model / TABLE_FILE})" in result.err and "run `rnnsearch calibrate` again" in result.err
    assert load(model).options().beam == 1
    for wrong in ("beam", "beam=", "beam=x", "=1"):
        assert "--values must be" in run("tune", model, *files, "--values", wrong).err or wrong == "=1"
