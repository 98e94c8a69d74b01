"""A model trained by beam-search optimisation is searched and scored without a softmax, or the task is rejected."""

from __future__ import annotations

import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.config.rules import check
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.export.engine_file import unsupported_settings
from rnnsearch.search.beam import beam_search
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.sampling import Diverse, Sampling
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.systems.ensemble import EnsembleSystem
from rnnsearch.systems.folder import load_system, save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.vocabulary import BOS, EOS
from rnnsearch.translator.translator import Translator
from tests.untrained import BAHDANAU, OTHER_FAMILIES, untrained

SENTENCES = ["the small cat sees the dog.", "a bird"]
SEARCH = {"length_penalty": 0.0, "stop": "top", "precision": "fp32"}


def unnormalised(model=BAHDANAU, **search) -> TranslationSystem:
    """Return an untrained system with the config of beam-search optimisation."""
    tables = untrained(model).config.model_dump(mode="json", exclude_none=True)
    tables["objective"] = {"sequence": {"type": "bso"}}
    tables["training"]["metric"] = "bleu"
    tables["data"]["dev"] = "dev.tsv"
    tables["search"] |= {**SEARCH, **search}
    config = resolve(tables)
    assert check(config) == []
    return TranslationSystem.make(config, untrained(model).tokenizers, 7)


@torch.no_grad()
def summed_scores(system, source, target, finished=True):
    """Return f(y) = sum_i W_o[y_i] t_i + b[y_i] of token ids, with EOS if they are finished, from a whole pass."""
    model = system.model
    sources = system.make_sources([source], torch.device("cpu"))
    tokens = [*target, EOS] if finished else target
    logits = model.output.logits(model.unroll(torch.tensor([[BOS, *target]]), model.encode(sources)).readout)[0]
    return float(sum(logits[position, token] for position, token in enumerate(tokens)))


@pytest.mark.parametrize("family", ["bahdanau", "luong", "sutskever"])
def test_search_and_scores_are_sums_without_a_softmax(family):
    system = unnormalised(OTHER_FAMILIES.get(family, BAHDANAU))
    translator = Translator(system)
    sources = [source.ids for source in system.segment_sources(SENTENCES)]
    batch = system.make_sources(sources, torch.device("cpu"))
    groups = beam_search(translator.search.scorer, batch, translator.options(n_best=3))
    for source, group in zip(sources, groups, strict=True):
        assert len(group) == 3
        for hypothesis in group:
            expected = summed_scores(system, source, hypothesis.ids, hypothesis.finished)
            assert hypothesis.log_prob == pytest.approx(expected, abs=2e-4)
            assert hypothesis.score == hypothesis.log_prob
    [scored] = translator.score(SENTENCES[:1], ["die kleine Katze"])
    [target] = system.target.segment(["die kleine Katze"])
    [source] = system.segment_sources(SENTENCES[:1])
    assert scored.log_prob == pytest.approx(summed_scores(system, source.ids, target.ids), abs=2e-4)


def test_native_steps_and_definition_agree():
    system = unnormalised()
    fast = system.fast_scorer("fp32")
    if "native" in fast.description:
        assert fast.description == "native steps, fp32 (no native search: its scores are not normalised)"
    assert not fast.scorer.normalised
    results = []
    for scorer in (fast.scorer, system.reference_scorer()):
        sources = system.make_sources([[5, 6, 7], [8]], torch.device("cpu"))
        memory, state = scorer.start(sources, None)
        step = scorer.step(memory, state, torch.tensor([BOS, BOS]))
        assert step.norm is None
        results.append(step.log_probs())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert float(results[0].logsumexp(1).abs().min()) > 1e-3  # not a distribution


def test_greedy_translations_do_not_depend_on_normalisation():
    system = unnormalised(beam=1)
    ordinary = Translator(untrained(BAHDANAU, search={"beam": 1, "precision": "fp32"}))
    assert [t.text for t in Translator(system).translate(SENTENCES)] == [t.text for t in ordinary.translate(SENTENCES)]


def test_stored_model_has_unnormalised_scores(tmp_path):
    save_system(tmp_path / "model", unnormalised())
    assert not load_system(tmp_path / "model").reference_scorer().normalised


def test_tasks_that_need_probabilities_are_rejected():
    system = unnormalised()
    translator = Translator(system)
    with pytest.raises(ModelError, match="scores are log-probabilities; those of this model are not normalised"):
        translator.log_probs(SENTENCES[:1], ["die Katze"])
    with pytest.raises(ModelError, match="not normalised"):
        translator.cross_entropies(SENTENCES[:1], ["die Katze"])
    with pytest.raises(ModelError, match=r"model 2 of the ensemble: this needs .* not normalised"):
        EnsembleSystem.combine([untrained(BAHDANAU), system])
    for variant in (Sampling(), Stochastic()):
        with pytest.raises(ModelError, match="not normalised"):
            translator.options(variant=variant)
    with pytest.raises(RnnsearchError, match="length_penalty must be 0 for a model whose scores are not normalised"):
        translator.options(length_penalty=1.0)
    assert "not normalised" in unsupported_settings(system.config)
    assert translator.options(variant=Diverse(1)).variant == Diverse(1)


@pytest.mark.parametrize(
    ("table", "option", "value", "message"),
    [
        ("search", "length_penalty", 1.0, 'must be 0 with objective.sequence.type = "bso"'),
        ("search", "stop", "bound", 'must be "top" with objective.sequence.type = "bso"'),
        ("training", "metric", "nll", 'must be "bleu" or "aer" with objective.sequence.type = "bso"'),
    ],
)
def test_incompatible_options_are_rejected(table, option, value, message):
    tables = unnormalised().config.model_dump(mode="json", exclude_none=True)
    tables[table][option] = value
    [problem] = check(resolve(tables))
    assert problem.startswith(f"{table}.{option}: {message}")


def test_scorer_with_a_softmax_subtracts_the_norm():
    model = unnormalised().model
    sources = unnormalised().make_sources([[5, 6]], torch.device("cpu"))
    scores = []
    for normalised in (True, False):
        scorer = ModelScorer(model, normalised=normalised)
        memory, state = scorer.start(sources, None)
        scores.append(scorer.step(memory, state, torch.tensor([BOS])).log_probs())
    torch.testing.assert_close(scores[0], scores[1].log_softmax(1))
