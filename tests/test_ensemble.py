"""Ensembles of model folders: members of several families, vocabularies and precisions under one Translator."""

from pathlib import Path

import numpy as np
import pytest

import rnnsearch
from rnnsearch.config import resolve
from rnnsearch.errors import ModelError
from rnnsearch.systems.folder import save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.words import train_words
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
    """A folder of the target vocabulary that `tests.untrained` has, and its own source vocabulary."""
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
        "turned": write_model(root / "turned", BAHDANAU, sides=("de", "en")),
        "other": write_model(root / "other", BAHDANAU, "bpe"),
    }


def arithmetic(folders, names):
    """log p(GERMAN | ENGLISH) by the means of what each model says of every symbol."""
    each = [rnnsearch.load(folders[name]).score(ENGLISH, GERMAN) for name in names]
    return [
        np.log(np.mean([np.exp(model[n].token_scores) for model in each], axis=0)).sum() for n in range(len(ENGLISH))
    ]


@pytest.mark.parametrize(
    "names", [("one", "two"), ("one", "luong", "blind"), ("one", "subwords"), ("subwords", "blind")]
)
def test_members_of_any_family_and_source_vocabulary_are_one_model(folders, names):
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


def test_weights_go_from_one_model_to_the_other(folders):
    pair = [folders["one"], folders["two"]]
    alone = [t.text for t in rnnsearch.load(pair[0]).translate(ENGLISH)]
    assert [t.text for t in rnnsearch.load(pair, weights=[1.0, 1e-9]).translate(ENGLISH)] == alone
    assert [t.text for t in rnnsearch.load([pair[0]] * 3).translate(ENGLISH)] == alone
    assert [t.text for t in rnnsearch.load([pair[0]], weights=[2.0]).translate(ENGLISH)] == alone


def test_prefixes_streams_and_lists_are_as_of_one_model(folders):
    translator = rnnsearch.load([folders["one"], folders["luong"], folders["subwords"]])
    [begun] = translator.n_best(ENGLISH[:1], translator.options(n_best=2), prefixes=["der Hu"])
    assert len(begun) == 2
    assert all(t.text.startswith("der Hu") for t in begun)
    steps = list(translator.stream(ENGLISH[0]))
    assert steps[-1] == translator.translate(ENGLISH[0], translator.options(beam=1)).text
    assert translator.parameters == sum(rnnsearch.load(folders[n]).parameters for n in ("one", "luong", "subwords"))


def test_the_attention_is_of_those_that_read_as_the_first(folders):
    one = rnnsearch.load([folders["one"], folders["subwords"]], precision="fp32").score(ENGLISH[:1], GERMAN[:1])[0]
    alone = rnnsearch.load(folders["one"]).score(ENGLISH[:1], GERMAN[:1])[0]
    np.testing.assert_allclose(one.attention, alone.attention, atol=1e-6)
    blind = rnnsearch.load([folders["blind"], folders["subwords"]])
    assert not blind.attends
    with pytest.raises(ModelError, match="this needs a model with attention"):
        blind.require_attention()
    with pytest.raises(ModelError, match="posterior attention is of one model; this is an ensemble"):
        rnnsearch.load([folders["one"], folders["two"]]).require_alignments("posterior")


def test_a_hybrid_member_spells_the_ensembles_unknown_words(folders):
    translator = rnnsearch.load([folders["one"], folders["hybrid"]])
    assert translator.system.can("spell")
    for t in translator.translate(ENGLISH, translator.options(beam=2)):
        assert "<unk>" not in t.text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("one", "other"), "model 2 of the ensemble must have the first one's target vocabulary"),
        (("one", "two", "turned"), r"model 3 of the ensemble must translate en to de as the first does; got de to en"),
        ((), "there must be a model folder to load; got none"),
    ],
)
def test_models_that_do_not_go_together_are_refused(folders, names, message):
    with pytest.raises(ModelError, match=message):
        rnnsearch.load([folders[name] for name in names])
