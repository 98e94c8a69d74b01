"""Posterior attention equals a loop over source positions for every decoder whose readout reads the context."""

from functools import partial

import numpy as np
import pytest
import torch

from rnnsearch.data.batch import EmbeddingInput, Stream
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import TranslationModel, only_memory
from rnnsearch.search import reattend
from rnnsearch.search.decode import make_sources
from rnnsearch.search.reattend import MIN_WEIGHT, posterior_attention
from rnnsearch.text.vocabulary import BOS, EOS

SOURCE, TARGET = [5, 9, 7, 6], [8, 5, 10]


def plain_posterior(model: TranslationModel) -> np.ndarray:
    """Return p(a = j | y), computed for each j with c_i replaced by h_j."""
    x = torch.tensor([[*SOURCE, EOS]])
    memories = model.encode({"source": Stream.from_ids(x)})
    memory = only_memory(memories)
    previous, y = [BOS, *TARGET], [*TARGET, EOS]
    reading = model.unroll(torch.tensor([previous]), memories).reading
    states = (
        fed(model, previous, memory) if model.decoder.component.name() == "luong-input-feeding" else reading.state[0]
    )
    values = memory.annotations if memory.values is None else memory.values
    rows = []
    for i, (word, before) in enumerate(zip(y, previous, strict=True)):
        row = []
        for j in range(values.shape[1]):
            here = reading._replace(
                state=states[i][None],
                context=values[0, j][None],
                alpha=torch.eye(values.shape[1], dtype=values.dtype)[j][None],
                expected_alpha=None,
            )
            readout = model._readout(model.target_embedding(EmbeddingInput(torch.tensor([before]))), here, memory)
            # The state in readings of input feeding already includes the context.
            if model.decoder.component.name() == "luong-input-feeding":
                readout = model._append_lexical(model.decoder.attentional(here.context, here.state), here, memory)
            prior = reading.alpha if reading.expected_alpha is None else reading.expected_alpha
            weight = max(float(prior[0, i, j]), MIN_WEIGHT)
            row.append(weight * float(model.log_probs(readout)[0, word].exp()))
        rows.append(np.array(row) / sum(row))
    over_annotations = torch.tensor(np.stack(rows))
    return memory.to_source(over_annotations[None])[0].numpy()


def fed(model: TranslationModel, previous: list[int], memory: Memory) -> list[torch.Tensor]:
    """h_t = stack([E y_{t-1}; h~_{t-1}], h_{t-1}), h~_t = tanh(W_c [c_t; h_t]) (Luong et al. 2015, section 3.3)."""
    decoder, state, states = model.decoder, model.decoder.start(memory), []
    layers, attention, tilde = state.stack, state.attention, state.fed
    for word in previous:
        x = decoder.inputs(model.target_embedding(EmbeddingInput(torch.tensor([word]))))
        h, layers = decoder.stack.step(x + tilde @ decoder.feeding.weight.T, layers)
        attended, attention = decoder.attention.step(h, attention, memory)
        tilde = torch.tanh(torch.cat([attended.context, h], 1) @ decoder.attentional.combine.weight.T)
        states.append(h[0])
    return states


def test_posterior_attention_equals_loop(system, make, monkeypatch):
    decoder = DECODERS[system.model.decoder.type]
    if not decoder.component.attends or system.model.copies:
        pytest.skip("attention has no posterior here")
    model = make(system)
    with torch.no_grad():
        expected = plain_posterior(model)
    (found,) = posterior_attention(model, [SOURCE], [TARGET])
    found = found["source"]
    assert found.shape == (len(TARGET) + 1, len(SOURCE) + 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    monkeypatch.setattr(reattend, "MAX_CHUNK_PROBABILITIES", 1)
    (in_pieces,) = posterior_attention(model, [SOURCE], [TARGET])
    np.testing.assert_allclose(in_pieces["source"], found, rtol=1e-5, atol=1e-7)
    alone = posterior_attention(model, [[6]], [[]], partial(make_sources, name="en"))
    both = posterior_attention(model, [SOURCE, [6]], [TARGET, []])
    assert np.array_equal(both[1]["source"], alone[0]["en"])
