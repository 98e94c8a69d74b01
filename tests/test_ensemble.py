"""Ensembles of model folders combine members of several families, vocabularies and precisions in one Translator."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import rnnsearch
from rnnsearch.config import resolve
from rnnsearch.errors import ModelError
from rnnsearch.systems.ensemble_folder import write_ensemble
from rnnsearch.systems.folder import load_system, save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.words import train_words
from tests.command_line import run
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, write_model

ENGLISH, GERMAN = TEXT["en"], TEXT["de"]
LUONG = {
    "embedding": 8,
    "encoder": {"type": "stacked", "cell": "lstm", "size": 9, "layers": 2, "direction": "forward"},
    "attention": {"score": "general"},
    "decoder": {"type": "luong", "cell": "lstm", "size": 9, "layers": 2, "bridge": "copy", "readout": 7},
    "init": {"type": "uniform", "scale": 0.8},
}


def written(folder: Path, model, seed: int, source=train_words, **tables) -> Path:
    """Write a folder with the target vocabulary of `tests.untrained` and another source vocabulary."""
    config = resolve(
        {
            "data": {"source": "en", "target": "de", "train": ["x.tsv"]},
            "text": {"type": "words", "vocabulary": 340},
            "model": model,
            "training": {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}},
            "search": {"beam": 3, "max_ratio": 1.0, "max_extra": 4},
            **tables,
        }
    )
    tokenizers = {"en": source(TEXT["en"], 340, 1), "de": train_words(TEXT["de"], 340, 1)}
    save_system(folder, TranslationSystem.make(config, tokenizers, seed))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "one": written(root / "one", BAHDANAU, 1),
        "two": written(root / "two", BAHDANAU, 2),
        "luong": written(root / "luong", LUONG, 3),
        "blind": written(root / "blind", RNNENCDEC, 4),
        "subwords": written(root / "subwords", BAHDANAU, 5, train_bpe),
        "precise": written(root / "precise", BAHDANAU, 6, search={"precision": "fp32", "beam": 3}),
        "hybrid": written(root / "hybrid", BAHDANAU | {"target_characters": {"embedding": 4, "size": 11}}, 8),
        "turned": write_model(root / "turned", BAHDANAU, languages=("de", "en")),
        "other": write_model(root / "other", BAHDANAU, "bpe"),
        "all": gathered(root, "one", "blind"),
    }


def gathered(root: Path, *names: str) -> Path:
    """Write an ensemble of several folders."""
    write_ensemble(
        root / "all", [root / name for name in names], [load_system(root / name) for name in names], None, "geometric"
    )
    return root / "all"


def arithmetic(folders, names):
    """Return log p(GERMAN | ENGLISH) under the arithmetic mean of the models' probabilities."""
    each = [rnnsearch.load(folders[name]).score(ENGLISH, GERMAN) for name in names]
    return [
        np.log(np.mean([np.exp(model[n].token_scores) for model in each], axis=0)).sum() for n in range(len(ENGLISH))
    ]


@pytest.mark.parametrize(
    "names", [("one", "two"), ("one", "luong", "blind"), ("one", "subwords"), ("subwords", "blind")]
)
def test_members_may_differ_in_family_and_source_vocabulary(folders, names):
    translator = rnnsearch.load([folders[name] for name in names], mean="arithmetic")
    scored = translator.score(ENGLISH, GERMAN)
    assert [t.log_prob for t in scored] == pytest.approx(arithmetic(folders, names), abs=1e-4)
    for mean in ("geometric", "arithmetic"):
        translator = rnnsearch.load([folders[name] for name in names], precision="fp32", mean=mean)
        found = translator.translate(ENGLISH)
        again = translator.score(ENGLISH, [t.text for t in found])
        for t, scored_again in zip(found, again, strict=True):
            if t.finished and "<unk>" not in t.text:
                assert t.log_prob == pytest.approx(scored_again.log_prob, abs=1e-3)
        assert all(t.alignment is not None for t in found)


def test_weights_interpolate_between_the_models(folders):
    pair = [folders["one"], folders["two"]]
    alone = [t.text for t in rnnsearch.load(pair[0]).translate(ENGLISH)]
    assert [t.text for t in rnnsearch.load(pair, weights=[1.0, 1e-9]).translate(ENGLISH)] == alone
    assert [t.text for t in rnnsearch.load([pair[0]] * 3).translate(ENGLISH)] == alone
    assert [t.text for t in rnnsearch.load([pair[0]], weights=[2.0]).translate(ENGLISH)] == alone


def test_prefixes_streams_and_lists_work_with_ensembles(folders):
    translator = rnnsearch.load([folders["one"], folders["luong"], folders["subwords"]])
    [begun] = translator.n_best(ENGLISH[:1], translator.options(n_best=2), prefixes=["der Hu"])
    assert len(begun) == 2
    assert all(t.text.startswith("der Hu") for t in begun)
    steps = list(translator.stream(ENGLISH[0]))
    assert steps[-1] == translator.translate(ENGLISH[0], translator.options(beam=1)).text
    assert translator.parameters == sum(rnnsearch.load(folders[n]).parameters for n in ("one", "luong", "subwords"))


def test_attention_is_averaged_over_members_with_the_first_ones_tokens(folders):
    one = rnnsearch.load([folders["one"], folders["subwords"]], precision="fp32").score(ENGLISH[:1], GERMAN[:1])[0]
    alone = rnnsearch.load(folders["one"]).score(ENGLISH[:1], GERMAN[:1])[0]
    np.testing.assert_allclose(one.attention, alone.attention, atol=1e-6)
    blind = rnnsearch.load([folders["blind"], folders["subwords"]])
    assert not blind.attends
    with pytest.raises(ModelError, match="this needs a model with attention"):
        blind.require_alignments("attention")
    with pytest.raises(ModelError, match="posterior attention needs a single model; this is an ensemble"):
        rnnsearch.load([folders["one"], folders["two"]]).require_alignments("posterior")


def test_hybrid_member_spells_unknown_words(folders):
    translator = rnnsearch.load([folders["one"], folders["hybrid"]])
    assert translator.system.can("spell")
    for t in translator.translate(ENGLISH, translator.options(beam=2)):
        assert "<unk>" not in t.text


def test_members_use_their_fast_implementations(folders):
    alone = rnnsearch.load(folders["one"]).search.description
    assert rnnsearch.load([folders["one"], folders["two"]]).search.description == f"an ensemble of 2: {alone}"
    mixed = rnnsearch.load([folders["one"], folders["precise"]], precision="fp32").search.description
    assert mixed == f"an ensemble of 2: {rnnsearch.load(folders['precise']).search.description}"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("one", "other"), "model 2 of the ensemble must have the target vocabulary of the first"),
        (("all", "two"), "model 1 of the ensemble is an ensemble itself; name its models one by one"),
        (("two", "all"), "model 2 of the ensemble is an ensemble itself; name its models one by one"),
        (("one", "two", "turned"), r"model 3 of the ensemble must translate en to de, like the first; got de to en"),
        ((), "there must be a model folder to load; got none"),
    ],
)
def test_incompatible_models_are_rejected(folders, names, message):
    with pytest.raises(ModelError, match=message):
        rnnsearch.load([folders[name] for name in names])


def test_ensemble_folder_equals_the_ensemble(folders, tmp_path):
    names, weights = ["one", "luong", "subwords"], [1.0, 0.5, 2.0]
    made = run("ensemble", *(folders[n] for n in names), "-o", tmp_path / "all", "--weights", "1,0.5,2")
    assert (made.code, "an ensemble of 3 models" in made.err) == (0, True)
    together = rnnsearch.load([folders[name] for name in names], weights=weights)
    alone = rnnsearch.load(tmp_path / "all")
    for own, other in zip(alone.n_best(ENGLISH), together.n_best(ENGLISH), strict=True):
        assert [(t.text, t.log_prob) for t in own] == [(t.text, t.log_prob) for t in other]
    assert alone.parameters == together.parameters and alone.calibration is None
    other_mean = rnnsearch.load(tmp_path / "all", mean="arithmetic").score(ENGLISH, GERMAN)
    expected = rnnsearch.load([folders[n] for n in names], weights=weights, mean="arithmetic").score(ENGLISH, GERMAN)
    assert [t.log_prob for t in other_mean] == [t.log_prob for t in expected]
    lines = "".join(f"{line}\n" for line in ENGLISH)
    assert run("translate", tmp_path / "all", "--split", "lines", stdin=lines).lines == [
        t.text for t in together.translate(ENGLISH)
    ]
    reweighted = ["--weights", "1,0.001,0.001", "--mean", "geometric"]
    only = run("translate", tmp_path / "all", *reweighted, "--split", "lines", stdin=lines).lines
    first = rnnsearch.load([folders[name] for name in names], weights=[1.0, 0.001, 0.001])
    assert only == [t.text for t in first.translate(ENGLISH)] != [t.text for t in together.translate(ENGLISH)]
    with pytest.raises(ModelError, match="one: is one model; a mean needs several"):
        rnnsearch.load(folders["one"], mean="geometric")
    shown = run("inspect", tmp_path / "all").out
    assert "3 models, the first is shown; geometric mean, weights 1, 0.5, 2" in shown
    again = run("ensemble", folders["one"], folders["two"], "-o", tmp_path / "all")
    assert (again.code, "already exists" in again.err) == (1, True)
    nested = run("ensemble", tmp_path / "all", folders["two"], "-o", tmp_path / "more")
    assert (nested.code, "is an ensemble itself" in nested.err, (tmp_path / "more").exists()) == (1, True, False)
    for wrong in (["--weights", "1,x", folders["two"]], ["--snapshots", "2", folders["two"]], []):
        assert run("ensemble", folders["one"], *wrong, "-o", tmp_path / "more").code == 2
    assert "target vocabulary" in run("ensemble", folders["one"], folders["other"], "-o", tmp_path / "more").err


def test_ensemble_folder_copies_the_first_aligner_and_lists_only(folders, tmp_path):
    first = tmp_path / "first"
    shutil.copytree(folders["one"], first)
    for side, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    for command in ("aligner", "candidates"):
        assert run(command, first, tmp_path / "en", tmp_path / "de").code == 0
    (first / "confidence.json").write_text("{}")
    assert run("ensemble", first, folders["two"], "-o", tmp_path / "both").code == 0
    both = rnnsearch.load(tmp_path / "both", candidates=2)
    assert both.aligner is not None and both.candidates is not None and both.calibration is None
    assert both.translate(ENGLISH[0]).alignment


def test_ensemble_folder_can_be_calibrated(folders, tmp_path):
    assert run("ensemble", folders["one"], folders["luong"], "-o", tmp_path / "both").code == 0
    lines = {"en": ENGLISH * 40, "de": GERMAN * 40}
    for side, some in lines.items():
        (tmp_path / side).write_text("".join(f"{line}\n" for line in some))
    made = run("calibrate", tmp_path / "both", tmp_path / "en", tmp_path / "de")
    assert made.code == 0, made.err
    both = rnnsearch.load(tmp_path / "both")
    assert both.translate(ENGLISH[0]).confidence is not None
    for other in ({"mean": "arithmetic"}, {"weights": [1.0, 2.0]}):
        assert rnnsearch.load(tmp_path / "both", **other).calibration is None, "the calibration is for another search"
    assert rnnsearch.load([folders["two"], folders["one"]]).calibration is None


def test_snapshots_of_a_run_form_an_ensemble(folders, tmp_path):
    model, kept = tmp_path / "model", tmp_path / "model" / "checkpoints"
    shutil.copytree(folders["one"], model)
    kept.mkdir()
    for update, name in ((8, "two"), (10, "one"), (9, "precise")):
        shutil.copyfile(folders[name] / "model.safetensors", kept / f"evaluated-{update}.safetensors")
    assert run("ensemble", model, "--snapshots", 2, "-o", tmp_path / "last").code == 0
    found = rnnsearch.load(tmp_path / "last").score(ENGLISH, GERMAN)
    expected = rnnsearch.load([folders["precise"], folders["one"]]).score(ENGLISH, GERMAN)
    np.testing.assert_allclose([t.log_prob for t in found], [t.log_prob for t in expected], rtol=1e-12)
    few = run("ensemble", model, "--snapshots", 4, "-o", tmp_path / "more")
    assert (few.code, "must have 4 checkpoints; it has 3" in few.err) == (1, True)


def test_ensemble_folder_may_not_name_outside_paths(folders, tmp_path, problems):
    assert run("ensemble", folders["one"], folders["two"], "-o", tmp_path / "both").code == 0
    path = tmp_path / "both" / "config.toml"
    path.write_text(path.read_text().replace('"ensemble/2"', f'"{folders["two"]}"'))
    with pytest.raises(ModelError, match=r"its search.ensemble must be inside the folder"):
        rnnsearch.load(tmp_path / "both")
    tables = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}
    tables["search"] = {"ensemble": {"members": ["a"], "weights": [1.0, 1.0]}}
    assert problems(tables) == [
        "search.ensemble: cannot be set in a run file; `rnnsearch ensemble` writes it to a model folder; remove it"
    ]
