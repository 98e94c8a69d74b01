"""The alignment model, its normaliser and the context against Bahdanau et al., eq. 5-6 and appendix A.1.2."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.config.attention import AdditiveOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.memory import Encoded
from rnnsearch.tensors import lengths_mask, select

LENGTHS = torch.tensor([3, 1, 4])


@pytest.fixture
def attention(drawn):
    return drawn(Attention.make(AttentionConfig(size=5), 4, 6))


@pytest.fixture
def encoded(numbers):
    return Encoded(numbers(3, 4, 6), lengths_mask(LENGTHS, 4), numbers(3, 2), ())


def test_additive_score_is_the_papers(drawn, numbers, paper):
    score, p = drawn(SCORES["additive"].make(AdditiveOptions(size=5), 4, 6))
    query, annotations = numbers(2, 3, 4), numbers(2, 7, 6)
    energy = score(query, score.keys(annotations)).detach().numpy()
    assert energy.shape == (2, 3, 7)
    for b in range(2):
        for q in range(3):
            expected = paper.energies(p, query[b, q].numpy(), annotations[b].numpy())
            np.testing.assert_allclose(energy[b, q], expected, atol=1e-12)


def test_softmax_is_the_papers_and_zero_outside(numbers, paper):
    energy = numbers(2, 3, 5)
    energy[0, :, 3:] = -torch.inf
    alpha, expected = NORMALISERS["softmax"]()(energy, None)
    assert expected is None
    for q in range(3):
        np.testing.assert_allclose(alpha[0, q, :3], paper.softmax(energy[0, q, :3].numpy()), atol=1e-14)
        np.testing.assert_allclose(alpha[1, q], paper.softmax(energy[1, q].numpy()), atol=1e-14)
    assert not alpha[0, :, 3:].any()


def test_global_window_is_the_whole_sentence(encoded):
    window = WINDOWS["global"]()
    assert window.reach is None
    assert window.centre(torch.rand(3, 2, 5), encoded.mask, None) is None
    allowed, factor = window.place(None, torch.arange(4)[None, None], encoded.mask[:, None])
    assert torch.equal(allowed[:, 0], encoded.mask)
    assert factor is None


def test_weights_and_context_of_a_step(attention, encoded, numbers, paper, within):
    module, p = attention
    query = numbers(3, 4)
    memory = module.on(encoded)
    (alpha, context, drawn_from), state = module.step(query, module.start(memory), memory)
    assert state == module.start(memory) == AttentionState()
    assert drawn_from is None
    for b, length in enumerate(LENGTHS.tolist()):
        annotations = encoded.annotations[b, :length].numpy()
        expected = paper.softmax(paper.energies(within(p, "score"), query[b].numpy(), annotations))
        np.testing.assert_allclose(alpha[b, :length].detach().numpy(), expected, atol=1e-12)
        assert not alpha[b, length:].any()
        np.testing.assert_allclose(context[b].detach().numpy(), paper.context(expected, annotations), atol=1e-12)


def test_hypotheses_of_a_sentence_share_its_memory(attention, encoded, numbers):
    module, _ = attention
    queries = numbers(6, 4)
    memory, rows = module.on(encoded), torch.tensor([0, 0, 1, 1, 2, 2])
    together, _ = module.step(queries, select(module.start(memory), rows), memory)
    one_each = select(memory, rows)
    alone, _ = module.step(queries, module.start(one_each), one_each)
    torch.testing.assert_close(together.alpha, alone.alpha)
    torch.testing.assert_close(together.context, alone.context)


def test_all_target_positions_at_once_are_the_steps(attention, encoded, numbers):
    module, _ = attention
    queries, memory = numbers(3, 5, 4), module.on(encoded)
    assert module.merges
    merged = module.attend_all(queries, module.start(memory), memory)
    for i in range(5):
        one, _ = module.step(queries[:, i], module.start(memory), memory)
        torch.testing.assert_close(merged.alpha[:, i], one.alpha)
        torch.testing.assert_close(merged.context[:, i], one.context)


def test_keys_are_made_once_a_sentence_and_kept_in_the_memory_alone(attention, encoded, numbers, monkeypatch):
    module, _ = attention
    memory = module.on(encoded)
    torch.testing.assert_close(memory.keys, module.score.keys(encoded.annotations))
    monkeypatch.setattr(module.score, "keys", None)
    module.step(numbers(3, 4), module.start(memory), memory)
    assert not list(module.buffers())
