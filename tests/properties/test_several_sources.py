"""All decoders read several sources: training, forced decoding, greedy search and beam search agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rnnsearch.config import decoders, resolve
from rnnsearch.config.rules import check_model
from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import make_batch
from rnnsearch.models.decoders import DECODERS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.forced import force_decode
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import build
from tests.properties.conftest import DECODER_OPTIONS, options

DIRECTION = Direction(("en", "fr"), "de")
ROWS = [([5, 6, 7], [8, 9, 4, 4], [4, 5]), (None, [6, 4], [7, 8, 9]), ([9, 9], None, [11]), ([4], [5], [])]
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


def test_every_decoder_reads_several_sources_or_is_rejected() -> None:
    assert set(DECODERS) - set(READING) == {"copynet", "rnmt-plus"}
