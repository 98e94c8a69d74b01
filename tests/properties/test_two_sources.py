"""Streams by name: a system with two sources learns, searches and aligns with the code for one source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rnnsearch.config import BatchConfig
from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import Batches
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.translation_model import Memories, TranslationModel, Unrolled
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.beam import beam_search
from rnnsearch.search.forced import force_decode
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions

CORPUS = {
    "en": [[5, 6, 7], [8, 9], [5], [6, 9, 10, 11]],
    "fr": [[4, 4, 7, 9, 5], None, [6, 8], [5, 10]],
    "de": [[5, 8], [9, 4, 5, 6], [10, 7], [11]],
}
DIRECTION = Direction(("en", "fr"), "de")


class SummedSources(TranslationModel):
    """Model with one decoder state per source and the sum of the readouts as softmax input."""

    def start(self, memories: Memories, rng: Any = None, steps: int = 0) -> Any:
        return {name: TranslationModel.start(self, {name: memory}) for name, memory in memories.items()}

    def step(self, y: Tensor, state: Any, memories: Memories) -> tuple[Tensor, Any, dict[str, Tensor]]:
        each = {n: TranslationModel.step(self, y, state[n], {n: memory}) for n, memory in memories.items()}
        readouts, states, attention = zip(*each.values(), strict=True)
        return sum(readouts), dict(zip(each, states, strict=True)), {k: v for a in attention for k, v in a.items()}

    def unroll(self, previous: Tensor, memories: Memories, rng: Any = None) -> Unrolled:
        readouts, state = [], self.start(memories)
        for y in previous.unbind(1):
            readout, state, _ = self.step(y, state, memories)
            readouts.append(readout)
        return Unrolled(torch.stack(readouts, dim=1), Reading(*readouts[:2], None))


@pytest.fixture
def model(choices: Any, make: Any) -> SummedSources:
    made = make(choices["system"]["bahdanau gru bidirectional gru additive global softmax"]).eval()
    made.__class__ = SummedSources
    return made


def test_rows_without_a_stream_are_skipped_and_both_sources_learn(model: SummedSources) -> None:
    batches = Batches(ParallelIds.from_rows(CORPUS), BatchConfig(sentences=4), None, 1, direction=DIRECTION)
    (batch,) = batches.epoch(0)
    assert sorted(batch.indices) == [0, 2, 3]
    assert list(batch.sources) == ["en", "fr"]
    Likelihood()(model, batch, None).total.backward()
    own, sides = model.source_embedding.weight.grad, [CORPUS["en"], CORPUS["fr"]]
    for symbol in range(4, 12):
        read = any(symbol in side[row] for side in sides for row in (0, 2, 3))
        assert bool(own[symbol].any()) == read


def test_search_reads_and_aligns_both_sources(model: SummedSources) -> None:
    (batch,) = Batches(ParallelIds.from_rows(CORPUS), BatchConfig(sentences=4), None, 1, direction=DIRECTION).epoch(0)
    with torch.no_grad():
        loss = Likelihood()(model, batch, None)
    targets = [CORPUS["de"][row] for row in batch.indices]
    found = force_decode(ModelScorer(model), batch.sources, targets)
    assert -sum(one.log_prob for one in found) == pytest.approx(loss.nll.item(), rel=1e-5)
    for row, one in zip(batch.indices, found, strict=True):
        for name in DIRECTION.sources:
            weights = one.attention[name]
            assert weights.shape == (len(CORPUS["de"][row]) + 1, len(CORPUS[name][row]) + 1)
            assert weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    best = beam_search(ModelScorer(model), batch.sources, SearchOptions(beam=3, n_best=3, max_extra=3))
    again = force_decode(ModelScorer(model), batch.sources, [hypotheses[0].ids for hypotheses in best])
    for hypotheses, one in zip(best, again, strict=True):
        if hypotheses[0].finished:
            assert hypotheses[0].log_prob == pytest.approx(one.log_prob, abs=1e-5)
