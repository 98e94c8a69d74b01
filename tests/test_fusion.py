"""Shallow fusion with a language model is a weighted sum of log-probabilities per token."""

from pathlib import Path

import numpy as np
import pytest

from rnnsearch import load, load_text_model
from rnnsearch.config import override_search, resolve
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.systems.folder import load_system, save_system
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.words import train_words
from tests.command_line import run
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, write_model

ENGLISH, GERMAN = TEXT["en"], TEXT["de"]


def language(folder: Path, tokenizer=train_words, **more) -> Path:
    config = resolve(
        {
            "data": {"target": "de", "train": ["x.de"]},
            "text": {"type": "words" if tokenizer is train_words else "bpe"},
            "model": {
                "kind": "language-model",
                "embedding": 6,
                "network": {"type": "recurrent", "cell": "gru", "size": 7},
                "init": {"type": "uniform", "scale": 0.8},
                **more,
            },
            "training": {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}},
        }
    )
    save_system(folder, LanguageSystem.make(config, {"de": tokenizer(TEXT["de"], 340, 1)}, 3))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("fusion")
    return {
        "model": write_model(root / "model", BAHDANAU),
        "blind": write_model(root / "blind", RNNENCDEC),
        "lm": language(root / "lm"),
        "other lm": language(root / "other", train_bpe),
        "composed lm": language(root / "composed", characters={"type": "bilstm", "embedding": 3, "size": 4}),
    }


@pytest.mark.parametrize(("name", "lm"), [("model", "lm"), ("blind", "lm"), ("model", "composed lm")])
def test_fused_scores_are_weighted_sums_per_token(name, lm, folders):
    fused = load(folders[name], language_model=folders[lm], language_model_weight=0.4).score(ENGLISH, GERMAN)
    own, beside = load(folders[name]).score(ENGLISH, GERMAN), load_text_model(folders[lm]).score(GERMAN)
    for both, one, other in zip(fused, own, beside, strict=True):
        expected = np.array(one.token_scores) + 0.4 * np.array(other.token_scores)
        np.testing.assert_allclose(both.token_scores, expected, rtol=1e-5, atol=1e-5)


def test_search_and_scoring_use_the_same_sum(folders):
    translator = load(folders["model"], precision="fp32", language_model=folders["lm"], language_model_weight=0.7)
    alone = load(folders["model"], precision="fp32")
    options = translator.options(beam=12, n_best=12, max_length=8)
    found = translator.n_best(ENGLISH, options)
    texts = [[t.text for t in one] for one in found]
    assert texts != [[t.text for t in one] for one in alone.n_best(ENGLISH, options)]
    system, sources = translator.system, [s.spelled_ids for s in translator.system.segment_sources(ENGLISH)]
    for source, own in zip(sources, decode_all(system.fast_scorer("fp32").scorer, sources, options), strict=True):
        for h, again in zip(
            own, force_decode_all(system.reference_scorer(), [source] * 12, [h.ids for h in own]), strict=True
        ):
            np.testing.assert_allclose(again.token_scores[: len(h.token_scores)], h.token_scores, rtol=1e-3, atol=1e-3)
            assert h.attention.keys() == again.attention.keys() != set()


def test_zero_weight_fusion_equals_model(folders):
    def told(*weight):
        beside = {} if not weight else {"language_model": folders["lm"], "language_model_weight": weight[0]}
        translator = load(folders["model"], **beside)
        return [[(t.text, t.log_prob) for t in one] for one in translator.n_best(ENGLISH, translator.options(5, 5))]

    assert told(0.0) == told() != told(0.3)


def test_fusion_works_with_greedy_prefixes_terms_and_ensembles(folders):
    both = load([folders["model"], folders["blind"]], language_model=folders["lm"], language_model_weight=0.2)
    options = both.options(beam=3)
    for text in ("die kleine", "der Hu"):
        assert both.n_best(ENGLISH[:1], options, prefixes=[text])[0][0].text.startswith(text)
    assert "Katze" in both.n_best(ENGLISH[:1], options, terms=[["Katze"]])[0][0].text
    assert both.translate(ENGLISH[0], both.options(beam=1)).text == "".join(list(both.stream(ENGLISH[0]))[-1:])
    assert both.parameters == sum(load_system(folders[name]).num_parameters for name in ("model", "blind", "lm"))


def test_model_folder_may_contain_its_language_model(folders, tmp_path):
    own = write_model(tmp_path / "own", BAHDANAU)
    language(own / "language-model")
    system = load_system(own)
    given = {"language_model": "language-model", "language_model_weight": 0.4}
    config = system.config.model_copy(update={"search": override_search(system.config.search, given)})
    save_system(own, type(system)(system.model, config, system.tokenizers))
    scored, alone = load(own).score(ENGLISH, GERMAN), load(folders["model"]).score(ENGLISH, GERMAN)
    with_it = load(folders["model"], language_model=folders["lm"], language_model_weight=0.4).score(ENGLISH, GERMAN)
    assert [t.log_prob for t in scored] == [t.log_prob for t in with_it] != [t.log_prob for t in alone]
    without = load(own, language_model_weight=0.0).score(ENGLISH, GERMAN)
    assert [t.log_prob for t in without] == [t.log_prob for t in alone]
    for foreign in ("../lm", str(folders["lm"])):
        text = (own / "config.toml").read_text().replace('"language-model"', f'"{foreign}"')
        (own / "config.toml").write_text(text)
        with pytest.raises(ModelError, match="language_model must be inside the folder"):
            load(own)
        (own / "config.toml").write_text(text.replace(f'"{foreign}"', '"language-model"'))


def test_incompatible_models_are_rejected(folders, tmp_path, problems):
    with pytest.raises(ModelError, match=r"must have the target vocabulary .* \(train it with text.tokenizers"):
        load(folders["model"], language_model=folders["other lm"])
    with pytest.raises(ModelError, match="fusion needs a language model; got a translation model"):
        load(folders["model"], language_model=folders["blind"])
    with pytest.raises(ModelError, match="there is no such model folder"):
        load(folders["model"], language_model=tmp_path / "none")
    with pytest.raises(ConfigError, match="language_model_weight: has no effect without a language model"):
        load(folders["model"], language_model_weight=0.2)
    for weight in (-0.2, 1e300):
        with pytest.raises(ConfigError, match="language_model_weight"):
            load(folders["model"], language_model=folders["lm"], language_model_weight=weight)
    tables = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}
    assert problems(tables, "search.language_model=lm") == [
        "search.language_model: cannot be set in a run file; `rnnsearch tune` writes it to a model folder; remove it"
    ]


def test_command_line(folders):
    cli, lines = run, "".join(f"{line}\n" for line in ENGLISH)
    options = ["--lm", folders["lm"], "--lm-weight", "0.7"]
    found = cli("translate", folders["model"], *options, "--beam", 4, "--split", "lines", stdin=lines)
    translator = load(folders["model"], language_model=folders["lm"], language_model_weight=0.7)
    assert found.lines == [t.text for t in translator.translate(ENGLISH, translator.options(beam=4))]
    alone = cli("translate", folders["model"], "--lm-weight", "0.7", stdin=lines)
    assert (alone.code, "has no effect without a language model" in alone.err) == (1, True)
