"""The alignment model, its normaliser and the context against Bahdanau et al., eq. 5-6 and appendix A.1.2."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.attention import Attention
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
    return Encoded(numbers(3, 4, 6), lengths_mask(LENGTHS, 4), numbers(3, 2))


def test_additive_score_is_the_papers(drawn, numbers, paper):
    score, p = drawn(SCORES["additive"].make(AttentionConfig(size=5), 4, 6))
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
    alpha = NORMALISERS["softmax"]()(energy)
    for q in range(3):
        np.testing.assert_allclose(alpha[0, q, :3], paper.softmax(energy[0, q, :3].numpy()), atol=1e-14)
        np.testing.assert_allclose(alpha[1, q], paper.softmax(energy[1, q].numpy()), atol=1e-14)
    assert not alpha[0, :, 3:].any()


@pytest.mark.parametrize(
    ("kind", "got"), [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)]
)
@pytest.mark.parametrize("name", NORMALISERS)
def test_weights_are_at_least_fp32(name, kind, got):
    assert NORMALISERS[name]()(torch.ones(1, 1, 3, dtype=kind)).dtype == got


def test_global_window_is_the_whole_sentence(encoded):
    window = WINDOWS["global"]()
    assert torch.equal(window.allowed(encoded.mask)[:, 0], encoded.mask)
    alpha = torch.rand(3, 2, 4)
    assert torch.equal(window.weigh(alpha), alpha)


def test_weights_and_context_of_a_step(attention, encoded, numbers, paper, within):
    module, p = attention
    query = numbers(3, 4)
    memory = module.on(encoded)
    alpha, context, state = module.step(query, module.start(), memory)
    assert state == module.start()
    for b, length in enumerate(LENGTHS.tolist()):
        annotations = encoded.annotations[b, :length].numpy()
        expected = paper.softmax(paper.energies(within(p, "score"), query[b].numpy(), annotations))
        np.testing.assert_allclose(alpha[b, :length].detach().numpy(), expected, atol=1e-12)
        assert not alpha[b, length:].any()
        np.testing.assert_allclose(context[b].detach().numpy(), paper.context(expected, annotations), atol=1e-12)


def test_hypotheses_of_a_sentence_share_its_memory(attention, encoded, numbers):
    module, _ = attention
    queries = numbers(6, 4)
    alpha, context, _ = module.step(queries, module.start(), module.on(encoded))
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    one_each = select(module.on(encoded), rows)
    expected_alpha, expected_context, _ = module.step(queries, module.start(), one_each)
    torch.testing.assert_close(alpha, expected_alpha)
    torch.testing.assert_close(context, expected_context)


def test_keys_are_made_once_a_sentence_and_kept_in_the_memory_alone(attention, encoded, numbers, monkeypatch):
    module, _ = attention
    memory = module.on(encoded)
    torch.testing.assert_close(memory.keys, module.score.keys(encoded.annotations))
    monkeypatch.setattr(module.score, "keys", None)
    module.step(numbers(3, 4), module.start(), memory)
    assert not list(module.buffers())
