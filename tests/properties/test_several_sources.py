"""All decoders read several sources: training, forced decoding, greedy, beam and native search agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rnnsearch.accel.decoder_steps import DECODER_STEPS
from rnnsearch.accel.search import NativeDecoder, search_unsupported_reason
from rnnsearch.config import decoders, resolve
from rnnsearch.config.rules import check_model
from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import make_batch
from rnnsearch.engine.structs import DType
from rnnsearch.models.decoders import DECODERS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.native.library import library
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import ModelScorer, NativeScorer, NativeStepScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import CONTEXT_END
from tests.properties.conftest import DECODER_OPTIONS, options

DIRECTION = Direction(("en", "fr"), "de")
ROWS = [([5, 6, 7], [8, 9, CONTEXT_END, 4, 4], [4, 5]), (None, [6, 4], [7, 8, 9]), ([9, 9], None, [11]), ([4], [5], [])]
READING = [name for name, cls in decoders.DECODERS.items() if cls.reads_several_sources]
FEATURED = {"window": "local-p", "width": 1, "features": ["coverage-neural", "markov"], "coverage_size": 3}


def tables(decoder: str, sources: dict[str, Any], attention: dict[str, Any]) -> dict[str, Any]:
    component = decoders.DECODERS[decoder]
    own = options(component, DECODER_OPTIONS)
    if "cell" in component.option_fields():
        own["cell"] = "lstm"
    if "bridge" in component.option_fields():
        own["bridge"] = "learned"
    attends = {"attention": {"score": "additive", "size": 4, **attention}} if component.attends else {}
    return {
        "data": {"source": ["en", "fr"], "target": "de", "corpus": "x"},
        "model": {
            "embedding": 5,
            "encoder": {"type": "unidirectional", "cell": "lstm", "size": 6},
            "decoder": {"type": decoder, "size": 8, **own},
            "sources": sources,
            **attends,
        },
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }


def require_agreement(table: dict[str, Any]) -> None:
    """Raise AssertionError if training, forced decoding and search give different scores."""
    config = resolve(table)
    assert check_model(config) == []
    model = build(config.translation, {"en": 12, "fr": 11}, 13, seed=3).eval()
    batch = make_batch(ROWS, range(len(ROWS)), DIRECTION)
    scorer = ModelScorer(model)
    with torch.no_grad():
        nll = Likelihood()(model, batch, None).nll.item()
    forced = force_decode(scorer, batch.sources, [row[-1] for row in ROWS])
    assert -sum(one.log_prob for one in forced) == pytest.approx(nll, rel=1e-5)
    limits: dict[str, Any] = {"max_ratio": 1.0, "max_extra": 3}
    beam = beam_search(scorer, batch.sources, SearchOptions(beam=3, n_best=2, **limits))
    best = [hypotheses[0] for hypotheses in beam]
    again = force_decode(scorer, batch.sources, [one.ids for one in best], finished=[one.finished for one in best])
    for one, other, row in zip(best, again, ROWS, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-4, abs=1e-5)
        if config.translation.decoder.attends:
            widths = [0 if ids is None else len(ids) + 1 for ids in row[:2]]
            assert [weights.shape[1] for weights in one.attention.values()] == widths
    greedy = greedy_search(scorer, batch.sources, SearchOptions(**limits))
    fast = greedy_search(fastest_scorer(model, "fp32").scorer, batch.sources, SearchOptions(**limits))
    assert [one.ids for [one] in fast] == [one.ids for [one] in greedy]


@pytest.mark.parametrize("decoder", READING)
def test_training_and_search_agree(decoder: str) -> None:
    """Concatenation, for which the sizes of a decoder's layers depend on the number of sources."""
    require_agreement(tables(decoder, {"type": "concatenation"}, {}))


@pytest.mark.parametrize("sources", [{"type": "mean"}, {"type": "child-sum", "contexts": "mean"}])
def test_other_combinations_agree(sources: dict[str, Any]) -> None:
    require_agreement(tables("luong-input-feeding", sources, {}))


def test_attention_features_are_carried_per_source() -> None:
    require_agreement(tables("bahdanau", {"type": "mean"}, FEATURED | {"neighbours": 1}))


# Native search.

needs_native_code = pytest.mark.skipif(library() is None, reason="there is no native code")
PREVIOUS = "en@previous"
OWN_ENCODERS = {
    PREVIOUS: {"type": "hierarchical", "cell": "gru", "size": 5},
    "fr": {"type": "pyramid", "cell": "gru", "size": 5, "layers": 2, "reduce": 1},
}


def require_equal(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """Raise AssertionError unless hypotheses, scores and attention are equal up to rounding."""
    assert [[one.ids for one in hypotheses] for hypotheses in found] == [[one.ids for one in e] for e in expected]
    for hypotheses, wanted in zip(found, expected, strict=True):
        for one, other in zip(hypotheses, wanted, strict=True):
            assert one.token_scores == pytest.approx(other.token_scores, rel=2e-5, abs=2e-5)
            assert one.attention.keys() == other.attention.keys()
            for name in one.attention:
                assert one.attention[name] == pytest.approx(other.attention[name], abs=2e-5)


def require_native_agreement(table: dict[str, Any], second: str = "fr") -> None:
    """Raise AssertionError if native search gives other scores than the model, step by step or in one call.

    Args:
        second: Name of the second source.
    """
    config = resolve(table)
    assert check_model(config) == []
    model = build(config.translation, {"en": 12, second: 11}, 13, seed=3).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    native = NativeDecoder.create(model, DType.FP32)
    assert native is not None
    scorer = NativeScorer(native)
    batch = make_batch(ROWS, range(len(ROWS)), Direction(("en", second), "de"))
    definition = ModelScorer(model)
    limits: dict[str, Any] = {"max_ratio": 1.0, "max_extra": 3}
    targets = [row[-1] for row in ROWS]
    scored = [force_decode(one, batch.sources, targets) for one in (scorer, definition)]
    require_equal(*([[hypothesis] for hypothesis in hypotheses] for hypotheses in scored))
    greedy = SearchOptions(beam=1, **limits)
    require_equal(*(greedy_search(one, batch.sources, greedy) for one in (scorer, definition)))
    wide = SearchOptions(beam=3, n_best=2, **limits)
    require_equal(*(beam_search(one, batch.sources, wide) for one in (scorer, definition)))
    assert beam_search(scorer, batch.sources, wide) == beam_search(NativeStepScorer(native), batch.sources, wide)


@needs_native_code
@pytest.mark.parametrize("decoder", READING)
@pytest.mark.parametrize("sources", [{"type": "concatenation"}, {"type": "mean"}])
def test_native_search_of_every_decoder_equals_the_model(decoder: str, sources: dict[str, Any]) -> None:
    if DECODERS[decoder] not in DECODER_STEPS:
        pytest.skip("its step is not written for native search")
    require_native_agreement(tables(decoder, sources, {}))


@needs_native_code
@pytest.mark.parametrize(
    "attention",
    [
        FEATURED | {"neighbours": 1},
        {"window": "local-m", "width": 1},
        {"score": "multi-head-additive", "heads": 2},
        {"features": ["position", "coverage-linguistic", "fertility-local"], "fertility": 2.0, "neighbours": 1},
    ],
)
@pytest.mark.parametrize("sources", [{"type": "child-sum"}, {"type": "child-sum", "contexts": "mean"}])
def test_native_attention_to_each_source_equals_the_model(sources: dict[str, Any], attention: dict[str, Any]) -> None:
    require_native_agreement(tables("luong-input-feeding", sources, attention))


@needs_native_code
@pytest.mark.parametrize("source", OWN_ENCODERS)
def test_native_search_reads_encoders_with_fewer_annotations(source: str) -> None:
    """Weights over the annotations of each source are divided among its positions."""
    sources = {"type": "concatenation", "encoders": {source: OWN_ENCODERS[source]}}
    table = tables("cgru", sources, {"features": ["markov"], "neighbours": 1})
    if source == PREVIOUS:
        context = {"type": "streams", "sentences": 2}
        table["data"] = {"source": "en", "target": "de", "train": ["x"], "documents": True, "context": context}
    require_native_agreement(table, source)


@needs_native_code
@pytest.mark.parametrize("sources", [{"type": "concatenation"}, {"type": "mean"}])
def test_verified_search_of_several_sources_is_native(sources: dict[str, Any]) -> None:
    sources = sources | {"encoders": {"fr": {"type": "bidirectional", "cell": "gru", "size": 3}}}
    table = tables("cgru", sources, {})
    if sources["type"] == "mean":
        table["model"]["encoder"] = {"type": "bidirectional", "cell": "lstm", "size": 3}
    model = build(resolve(table).translation, {"en": 12, "fr": 11}, 13, seed=3).eval()
    assert fastest_scorer(model, "fp32").description == "native search, fp32"


def test_reason_without_native_search_names_the_component() -> None:
    table = tables("bahdanau", {"type": "mean"}, {"normaliser": "sparsemax"})
    model = build(resolve(table).translation, {"en": 12, "fr": 11}, 13, seed=3)
    assert search_unsupported_reason(model) == "its normaliser is Sparsemax"


def test_every_decoder_reads_several_sources_or_is_rejected() -> None:
    assert set(DECODERS) - set(READING) == {"copynet", "rnmt-plus"}
