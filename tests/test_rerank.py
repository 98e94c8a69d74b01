"""Reranking by a weighted sum of several models' scores: learning on a dev set, saving, and reordering."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rnnsearch import load, load_text_model
from rnnsearch.errors import DataError, ModelError, RnnsearchError
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.search.noisy import Noisy
from rnnsearch.search.sampling import Diverse, Sampling
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.translator.rerank import RERANKER_FILE, Features, Reranker, learn, load_features, load_reranker
from tests.command_line import run
from tests.evaluation.test_tuning import SOURCES
from tests.test_ensemble import written
from tests.test_fusion import language
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, write_model

ENGLISH = TEXT["en"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("rerank")
    lm = language(root / "lm")
    return {
        "model": written(root / "model", BAHDANAU, 3),
        "reverse": write_model(root / "reverse", RNNENCDEC, "bpe", ("de", "en")),
        "lm": lm,
    }


@pytest.fixture(scope="module")
def translator(folders):
    return load(folders["model"])


@pytest.fixture(scope="module")
def features(folders) -> Features:
    return load_features(folders["reverse"], folders["lm"])


@pytest.fixture(scope="module")
def lists(translator):
    return translator.n_best([*SOURCES, ""], translator.options(beam=8, n_best=8))


def weighing(features: Features, **weights: float) -> Reranker:
    return Reranker(("en", "de"), features, tuple(weights.get(name, 0.0) for name in features.names), 8)


def texts(lists) -> list[list[str]]:
    return [[t.text for t in own] for own in lists]


def test_scores_are_weighted_sums_of_model_scores(folders, features, lists):
    weights = {"score": 1.0, "log_prob": 0.2, "reverse": 0.3, "language_model": 0.4, "symbols": -0.5, "words": 0.6}
    assert list(weights) == list(features.names)
    reverse, lm, some = load(folders["reverse"]), load_text_model(folders["lm"]), [lists[0], lists[-1], lists[5][:3]]
    for own, sums in zip(some, weighing(features, **weights).scores(some), strict=True):
        for t, found in zip(own, sums, strict=True):
            back, alone = reverse.score([t.text], [t.source])[0].log_prob, lm.score([t.text])[0].log_prob
            expected = t.score + 0.2 * t.log_prob + 0.3 * back + 0.4 * alone
            expected += -0.5 * len(t.token_scores) + 0.6 * len(t.text.split())
            assert found == pytest.approx(expected, rel=1e-4)


def test_search_score_alone_does_not_rerank(features, lists):
    assert texts(weighing(features, score=1.0).ordered(lists)) == texts(lists)
    assert weighing(Features(), score=1.0).ordered([]) == []
    longest = weighing(Features(), words=1.0).ordered(lists)
    assert texts(longest) != texts(lists)
    for own, before in zip(longest, lists, strict=True):
        counts = [(t.finished, len(t.words)) for t in own]
        assert counts == sorted(counts, reverse=True), "truncated translations come last"
        assert sorted(texts([own])[0]) == sorted(texts([before])[0])
    own = next(own for own in lists if all(t.finished for t in own))
    cut = [replace(t, finished=n > 0) for n, t in enumerate(own)]
    [found] = weighing(features, score=1.0).ordered([cut])
    assert found == [*cut[1:], cut[0]]


def chosen_by_language_model(features: Features, lists) -> list[str]:
    return [own[0].text for own in weighing(features, language_model=1.0, words=6.0).ordered(lists)][:-1]


@pytest.mark.parametrize("method", ["mert", "pro"])
def test_learning_finds_the_weights_behind_the_references(method, translator, features, lists):
    """The references are those of the n best that a language model prefers, so its score must be learned."""
    references = chosen_by_language_model(features, lists)
    found = learn(translator, SOURCES, references, features, method, n_best=8)
    assert found.before == pytest.approx(corpus_bleu([own[0].text for own in lists[:-1]], references))
    assert found.before + 10 < found.after <= found.oracle + 1e-6
    assert method == "pro" or found.after == pytest.approx(100.0)
    chosen = [own[0].text for own in found.reranker.ordered(lists)][:-1]
    assert corpus_bleu(chosen, references) == pytest.approx(found.after)
    assert sum(map(abs, found.reranker.weights)) == pytest.approx(1.0)
    assert sum(map(abs, found.influences)) == pytest.approx(1.0)


def test_mert_keeps_the_order_of_a_perfect_search(translator, lists):
    references = [own[0].text for own in lists[:-1]]
    found = learn(translator, SOURCES, references, Features(), n_best=8)
    assert (found.before, found.after) == (pytest.approx(100.0), pytest.approx(100.0))
    assert found.reranker.weights == (1.0, 0.0, 0.0, 0.0)


def test_saved_reranker_equals_the_loaded_one(folders, features, lists, tmp_path):
    given = weighing(features, score=0.3, language_model=0.5, reverse=-0.2)
    lm, reverse = (Path(shutil.copytree(folders[name], tmp_path / name)) for name in ("lm", "reverse"))
    (reverse / "checkpoints").mkdir()
    for _ in range(2):  # the second save overwrites the first
        given.save(tmp_path / "kept", reverse, lm)
    assert not (tmp_path / "kept" / "reverse" / "checkpoints").exists()
    for own in (lm, reverse):
        shutil.rmtree(own)
    found = load_reranker((tmp_path / "kept").rename(tmp_path / "moved"))
    assert (found.languages, found.n_best, found.weights) == (given.languages, 8, given.weights)
    for one, other in zip(found.scores(lists), given.scores(lists), strict=True):
        np.testing.assert_array_equal(one, other)
    weighing(Features(), words=1.0).save(tmp_path / "plain")
    assert [path.name for path in (tmp_path / "plain").iterdir()] == [RERANKER_FILE]
    assert load_reranker(tmp_path / "plain").weights == (0.0, 0.0, 0.0, 1.0)


def test_reverse_ensemble_is_saved_with_the_reranker(folders, lists, tmp_path):
    both = tmp_path / "both"
    assert run("ensemble", folders["reverse"], folders["reverse"], "-o", both, "--weights", "1,2").code == 0
    given = weighing(Features(load(both)), reverse=1.0)
    given.save(tmp_path / "kept", both)
    for one, other in zip(load_reranker(tmp_path / "kept").scores(lists), given.scores(lists), strict=True):
        np.testing.assert_array_equal(one, other)


def test_models_of_other_languages_and_invalid_arguments_are_rejected(folders, translator, features):
    with pytest.raises(ModelError, match="reverse model must translate from de to en; got en to de"):
        learn(translator, ENGLISH, ENGLISH, Features(translator))
    with pytest.raises(ModelError, match="the language model must be of en; got de"):
        learn(load(folders["reverse"]), ENGLISH, ENGLISH, Features(None, features.language_model))
    with pytest.raises(ModelError, match="must translate from en to de, like the reranker; got de to en"):
        weighing(features).require_languages(load(folders["reverse"]))
    with pytest.raises(RnnsearchError, match="n_best must be at least 2, to have a choice; got 1"):
        learn(translator, ENGLISH, ENGLISH, features, n_best=1)
    for references in ([], ENGLISH[:2]):
        with pytest.raises(DataError, match=f"one reference per sentence; got {len(references)} references"):
            learn(translator, ENGLISH if references else [], references, features)
    with pytest.raises(
        ModelError, match=f"must be a folder written by `rnnsearch reranker`; it has no {RERANKER_FILE}"
    ):
        load_reranker(folders["model"])
    with pytest.raises(RnnsearchError, match="exists and is not a reranker"):
        weighing(Features()).save(folders["model"])
    assert load(folders["model"]).translate(ENGLISH)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": {"score": 1.0}}, "does not fit the models in its folder"),
        ({"n_best": 1}, "does not fit the models in its folder"),
        ({"weights": {"score": 1.0, "log_prob": float("nan"), "symbols": 0, "words": 0}}, "does not fit the models"),
        ({"weights": {"score": "x"}}, "it is damaged"),
        ({"weights": [1.0]}, "it is damaged"),
        ({"languages": ["en"]}, "it is damaged"),
    ],
)
def test_damaged_files_are_rejected(change, said, tmp_path):
    weighing(Features(), score=1.0).save(tmp_path / "kept")
    path = tmp_path / "kept" / RERANKER_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=said):
        load_reranker(path.parent)


def test_command_line(folders, translator, features, lists, tmp_path):
    references = chosen_by_language_model(features, lists)
    dev = tmp_path / "dev.en", tmp_path / "dev.de"
    for path, some in zip(dev, (SOURCES, references), strict=True):
        path.write_text("".join(f"{line}\n" for line in some))
    made, asked = tmp_path / "made", ["--lm", folders["lm"], "--reverse", folders["reverse"], "--n-best", "8"]
    result = run("reranker", folders["model"], *dev, "-o", made, *asked)
    assert result.code == 0, result.err
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.lines if line]
    assert [row[0] for row in rows[2:8]] == list(features.names)
    assert [row[0] for row in rows[-3:]] == ["as searched", "reranked", "the best of each list"]
    before, after, most = (float(row[1]) for row in rows[-3:])
    assert before < after <= most == 100.0
    given, options = [*SOURCES[:5], ""], ["--reranker", made]
    few, stdin = [*lists[:5], lists[-1]], "".join(f"{line}\n" for line in given)
    expected = load_reranker(made).ordered(few)
    chosen = [own[0].text for own in expected]
    assert chosen != [own[0].text for own in few]
    found = run("translate", folders["model"], *options, stdin=stdin)
    assert (found.code, found.lines) == (0, chosen)
    rows = run("translate", folders["model"], *options, "--n-best", 3, "--format", "json", stdin=stdin).rows
    assert [[t["text"] for t in row["n_best"]] for row in rows[:-1]] == [own[:3] for own in texts(expected)[:-1]]
    narrow = run("translate", folders["model"], *options, "--beam", 2, stdin=stdin).lines
    two = translator.n_best(given, translator.options(beam=2, n_best=2))
    assert narrow == [own[0].text for own in load_reranker(made).ordered(two)]


@pytest.mark.parametrize("variant", [Noisy(3), Diverse(3), Sampling(), Stochastic()])
def test_wide_enough_beam_is_divided_evenly(translator, features, variant):
    options = weighing(features).wide_enough(translator.options(variant=variant))
    assert options.beam == (9 if isinstance(variant, Noisy | Diverse) else 8)
    wider = translator.options(beam=12, variant=variant)
    assert weighing(features).wide_enough(wider) == wider


def test_wrong_usage_is_reported(folders, tmp_path):
    weighing(Features(), score=1.0).save(tmp_path / "plain")
    translate = ["translate", folders["model"], "--reranker", tmp_path / "plain"]
    for options, said in (
        (["--mbr", "chrf"], "--mbr and --reranker cannot be combined; choose one"),
        (["--beam", 1], "--reranker needs several translations to choose from"),
    ):
        found = run(*translate, *options, stdin="a\n")
        assert (found.code, said in found.err) == (2, True), found.err
    turned = run("translate", folders["reverse"], "--reranker", tmp_path / "plain", stdin="a\n")
    assert (turned.code, "must translate from en to de, like the reranker" in turned.err) == (1, True)
    (tmp_path / "empty").write_text("")
    none = tmp_path / "empty", tmp_path / "empty"
    found = run("reranker", folders["model"], *none, "-o", tmp_path / "made")
    assert (found.code, "one reference per sentence" in found.err) == (1, True)
    found = run("reranker", folders["model"], *none, "-o", folders["model"])
    assert (found.code, "is not a reranker" in found.err) == (1, True)
    assert not (tmp_path / "made").exists()
