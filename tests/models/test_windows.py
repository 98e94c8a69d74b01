"""Local attention equals Luong et al. 2015, section 3.2, and its fast implementation equals the definition.

The definition computes all positions and masks them; the fast implementation reads only the window.
"""

import itertools

import numpy as np
import pytest
import torch

from rnnsearch.accel.windowed_attention import PRODUCTS_PER_GATHER, attend_gathered, gathering_is_faster
from rnnsearch.config import AttentionConfig
from rnnsearch.config import attention as attention_options
from rnnsearch.models.attention.attention import Attention, AttentionState, Query
from rnnsearch.models.attention.features import FEATURES, WordSizes
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.memory import Encoded, Origin
from rnnsearch.utils.tensors import lengths_mask, select
from tests.models import reference as paper
from tests.models.reference import close, sigma

SIZE, REACH = 4, 2
LENGTHS = [9, 3, 12]
OPTIONS = {
    "size": 6,
    "heads": 2,
    "max_source": 40,
    "width": REACH,
    "wait": 3,
    "fertility": 2.0,
    "coverage_size": 3,
    "neighbours": 1,
    "recurrent_size": 3,
    "components": 2,
    "first": 5,
    "second": 4,
    "around": 1,
}
SEES_BEYOND = {"convolutional"}
"""Scores that read neighbouring positions, in or outside the window."""
LOCAL = [name for name in WINDOWS if name.startswith("local")]


def config(score="general", window="local-p", normaliser="softmax", features=()):
    kinds = [attention_options.SCORES[score], attention_options.WINDOWS[window]]
    kinds += [attention_options.FEATURES[name] for name in features]
    options = {option: OPTIONS[option] for kind in kinds for option in kind.option_fields()}
    return AttentionConfig(score=score, window=window, normaliser=normaliser, features=list(features), **options)


def combinations():
    """Yield every score and window, every valid normaliser, and each feature, together and separately."""
    for score, window in itertools.product(SCORES, WINDOWS):
        yield config(score, window)
        if SCORES[score].component.takes_features:
            yield config(score, window, features=FEATURES)
    for window, normaliser in itertools.product(WINDOWS, NORMALISERS):
        if normaliser != "softmax" and NORMALISERS[normaliser].component.supports(WINDOWS[window].component):
            yield config("additive", window, normaliser)
    for feature in FEATURES:
        yield config("additive", "global", features=[feature])


ALL = list(combinations())


def made(c):
    return Attention(c, SIZE, SIZE, words=WordSizes(SIZE, SIZE))


GATHERED = [c for c in ALL if c.window.type in LOCAL and c.score.type not in SEES_BEYOND]


def name_of(c):
    return " ".join([c.score.type, c.window.type, c.normaliser, *(feature.type for feature in c.features)])


def everywhere(attention, centre, asked, memory):
    """Compute all positions and mask them: the definition."""
    return attention.forward(asked.vectors, attention.inputs(asked, memory, centre))


WAYS = [everywhere, attend_gathered]


@pytest.fixture
def encoded(numbers):
    annotations, words = numbers(3, max(LENGTHS), SIZE), numbers(3, max(LENGTHS), SIZE)
    return Encoded(annotations, lengths_mask(torch.tensor(LENGTHS), max(LENGTHS)), annotations[:, 0], (), words=words)


def centre_of(name, p, query, t, length):
    """Return p_t (Luong et al. 2015, eq. 9)."""
    if name == "local-m":
        return float(min(t, length - 1))
    return length * sigma(p["window.vector"] @ np.tanh(paper.product(p["window.query.weight"], query)))


@pytest.mark.parametrize("window", LOCAL)
@pytest.mark.parametrize("way", WAYS)
def test_local_attention_equals_the_papers_equations(window, way, encoded, drawn, numbers):
    """Eq. 7-10 with the general score; the Gaussian of local-p is not renormalised."""
    attention, p = drawn(Attention(config(window=window), SIZE, SIZE))
    positions = torch.tensor([[0, 1, 2, 7, 30]]).expand(3, 5)
    query, memory = 2 * numbers(3, 5, SIZE), attention.on(encoded)
    centre = attention.window.centre(query, memory.mask, positions)
    attended = way(attention, centre, Query(query, positions), memory)
    seen = set()
    for b, length in enumerate(LENGTHS):
        h = encoded.annotations[b, :length].numpy()
        for q, t in enumerate(positions[0].tolist()):
            s = query[b, q].numpy()
            p_t = centre_of(window, p, s, t, length)
            assert centre[b, q].item() == pytest.approx(p_t, abs=1e-12)
            inside = [j for j in range(length) if p_t - REACH <= j <= p_t + REACH]
            seen.add(len(inside))
            energies = np.array([s @ p["score.key.weight"] @ h[j] for j in inside])
            alpha = np.zeros(max(LENGTHS))
            alpha[inside] = paper.softmax(energies)
            if window == "local-p":
                for j in inside:
                    alpha[j] *= np.exp(-((j - p_t) ** 2) / (2 * (REACH / 2) ** 2))
            close(attended.alpha[b, q], alpha)
            close(attended.context[b, q], paper.context(alpha[:length], h))
    assert len(seen) > 1
    assert 2 * REACH + 1 - (window == "local-p") in seen


def test_wait_k_masks_positions_not_yet_read(encoded, drawn, numbers):
    """Ma et al. 2019: the first target position reads k source positions, and each later one reads one more."""
    attention, p = drawn(Attention(config(window="wait-k"), SIZE, SIZE))
    query, memory = numbers(3, 14, SIZE), attention.on(encoded)
    attended = attention.attend_all(query, attention.start(memory), memory)
    for b, length in enumerate(LENGTHS):
        h = encoded.annotations[b, :length].numpy()
        for t in range(14):
            arrived = h[: t + 3]
            energies = np.array([query[b, t].numpy() @ p["score.key.weight"] @ own for own in arrived])
            alpha = paper.softmax(energies)
            close(attended.alpha[b, t, : len(arrived)], alpha)
            assert not attended.alpha[b, t, len(arrived) :].any()
            close(attended.context[b, t], paper.context(alpha, arrived))


@pytest.mark.parametrize("alone", [True, False])
def test_gaussian_mixture_equals_the_papers_equations(alone, encoded, drawn, numbers):
    """Graves 2013, eq. 46-51, at each step, exactly for the even score and the exponential normaliser."""
    given = config("even", "mixture", "exponential") if alone else config("general", "mixture")
    attention, p = drawn(Attention(given, SIZE, SIZE))
    queries, memory = numbers(3, 4, SIZE), attention.on(encoded)
    state, kappa = attention.start(memory), np.zeros((3, 2))
    for t in range(4):
        attended, state = attention.step(queries[:, t], state, memory)
        for b, length in enumerate(LENGTHS):
            h, s = encoded.annotations[b, :length].numpy(), queries[b, t].numpy()
            bells = np.exp(p["window.bells.weight"] @ s + p["window.bells.bias"])
            kappa[b] += bells[4:]
            weights = (
                np.ones(length) if alone else paper.softmax(np.array([s @ p["score.key.weight"] @ own for own in h]))
            )
            for j in range(length):
                u = j + 1
                weights[j] *= sum(bells[k] * np.exp(-bells[2 + k] * (kappa[b, k] - u) ** 2) for k in range(2))
            close(attended.alpha[b, :length], weights)
            close(attended.context[b], paper.context(weights, h))
            assert not attended.alpha[b, length:].any()


@pytest.mark.parametrize(
    "c", [c for c in ALL if c.window.type in LOCAL and c.score.type not in SEES_BEYOND], ids=name_of
)
def test_fast_local_attention_equals_the_definition(c, encoded, numbers, drawn):
    """Weights, contexts and the gradients of parameters, queries, annotations and feature states are equal."""
    queries, upstream = 2 * numbers(3, 3, SIZE), numbers(3, 3, SIZE)
    past = numbers(9, max(LENGTHS)).abs()
    shape = (3, 3, made(c).score.heads, max(LENGTHS))
    rng = BatchRng(1)
    random = rng.uniform(shape, past) if c.normaliser == "hard" else rng.mask(shape, 0.3, past)
    positions = torch.tensor([[0, 4, 11]]).expand(3, 3)
    results = []
    for way in WAYS:
        attention, _ = drawn(made(c))
        query, annotations = (x.clone().requires_grad_() for x in (queries, encoded.annotations))
        memory = attention.on(encoded._replace(annotations=annotations))
        start = select(attention.start(memory).features, torch.arange(3).repeat_interleave(3))
        states = tuple(past if torch.is_tensor(state) and state.shape == past.shape else state for state in start)
        centre = attention.window.centre(query, memory.mask, positions)
        attended = way(attention, centre, Query(query, positions, states, random), memory)
        loss = (attended.context * upstream).sum() + attended.alpha.square().sum()
        loss = loss if attended.expected_alpha is None else loss + attended.expected_alpha.square().sum()
        loss.backward()
        gradients = {name: p.grad for name, p in attention.named_parameters()}
        results.append((attended, gradients | {"query": query.grad, "annotations": annotations.grad}))
    (plain, gradients), (fast, fast_gradients) = results
    for one, other in zip(plain, fast, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.shape == other.shape
            torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)
    for name, gradient in gradients.items():
        if gradient is None:
            assert fast_gradients[name] is None, name
        else:
            torch.testing.assert_close(fast_gradients[name], gradient, rtol=1e-9, atol=1e-9, msg=name)
    if c.window == "local-p":
        assert gradients["window.vector"].any(), "p_t must learn through the Gaussian"


@pytest.mark.parametrize("window", LOCAL)
@pytest.mark.parametrize("score", [name for name in SCORES if name not in SEES_BEYOND])
def test_fast_local_attention_reads_only_the_window(score, window, drawn, numbers):
    """NaN outside the window of a long source does not change the result."""
    attention, _ = drawn(Attention(config(score, window), SIZE, SIZE))
    J = 40
    annotations = numbers(2, J, SIZE)
    encoded = Encoded(annotations, lengths_mask(torch.tensor([J, 33]), J), annotations[:, 0], ())
    state = AttentionState(torch.tensor([20, 20])) if WINDOWS[window].needs_position else AttentionState()
    query, memory = numbers(2, SIZE), attention.on(encoded)
    attended, _ = attention.step(query, state, memory)
    position = None if state.position is None else state.position[:, None]
    centre = attention.window.centre(query[:, None], memory.mask, position)
    outside = (torch.arange(J) - centre).abs() > REACH + 1
    keys, values = memory.keys.clone(), (annotations if memory.values is None else memory.values).clone()
    keys[outside], values[outside] = torch.nan, torch.nan
    poisoned = memory._replace(keys=keys, values=values)
    again, _ = attention.step(query, state, poisoned)
    assert outside.sum() > J
    assert torch.equal(again.alpha, attended.alpha)
    assert torch.equal(again.context, attended.context)


def test_fast_implementation_is_chosen_for_local_windows_only():
    """Scores with hidden layers read windows if these are shorter than the sentence.

    Products read windows only if the windows have fewer positions than a matrix product is worth.
    """
    additive, dot, everywhere = (
        Attention(c, SIZE, SIZE) for c in (config("additive"), config("dot"), config(window="global"))
    )
    assert [gathering_is_faster(additive, 7, J) for J in (5, 6)] == [False, True]
    assert [gathering_is_faster(dot, 1, J) for J in (10, 11)] == [False, True]
    most = 5 * PRODUCTS_PER_GATHER
    assert [gathering_is_faster(dot, 1000, J) for J in (most, most + 1)] == [False, True]
    assert not gathering_is_faster(everywhere, 1, 10_000)
    assert not gathering_is_faster(Attention(config("convolutional"), SIZE, SIZE), 1, 10_000)


@pytest.mark.parametrize("c", ALL, ids=name_of)
def test_fast_local_attention_handles_hypotheses_padding_and_positions(c, encoded, numbers, drawn):
    """Steps with two hypotheses per sentence equal steps with one unpadded sentence.

    If the attention is parallel, they also equal all positions at once.
    """
    attention, _ = drawn(made(c))
    near = {"rtol": 1e-10, "atol": 1e-10}
    query, words, memory = numbers(6, 5, SIZE), numbers(6, 5, SIZE), attention.on(encoded)
    state = select(attention.start(memory), torch.arange(3).repeat_interleave(2))
    together = []
    for t in range(5):
        attended, state = attention.step(query[:, t], state, memory, words[:, t])
        together.append(attended)
    for n in range(6):
        b, length = n // 2, LENGTHS[n // 2]
        own, read = (part[b : b + 1, :length] for part in (encoded.annotations, encoded.words))
        memory = attention.on(Encoded(own, torch.ones(1, length, dtype=torch.bool), own[:, 0], (), words=read))
        state = attention.start(memory)
        for t in range(5):
            alone, state = attention.step(query[n : n + 1, t], state, memory, words[n : n + 1, t])
            torch.testing.assert_close(together[t].alpha[n : n + 1, :length], alone.alpha, **near)
            torch.testing.assert_close(together[t].context[n : n + 1], alone.context, **near)
            assert not together[t].alpha[n, length:].any()
        alone = c.window.type != "mixture" and c.normaliser != "monotonic"
        assert attention.is_parallel == (alone and all(feature.type == "position" for feature in c.features))
        if attention.is_parallel:
            merged = attention.attend_all(query[n : n + 1], attention.start(memory), memory)
            steps = torch.stack([attended.alpha[n] for attended in together])
            torch.testing.assert_close(merged.alpha[0], steps[:, :length], **near)
            contexts = torch.stack([attended.context[n] for attended in together])
            torch.testing.assert_close(merged.context[0], contexts, **near)


@pytest.mark.parametrize("window", [name for name, kind in WINDOWS.items() if not kind.component.has_factor])
def test_sampled_positions_equal_step_by_step_and_parallel(window, encoded, numbers, drawn):
    """Random numbers are sampled for all target positions at the start, so both orders use the same."""
    attention, _ = drawn(Attention(config(window=window, normaliser="hard"), SIZE, SIZE))
    query, memory = 0.1 * numbers(3, 5, SIZE), attention.on(encoded)
    state = attention.start(memory, BatchRng(3), 5)
    merged = attention.attend_all(query, state, memory)
    for t in range(5):
        attended, state = attention.step(query[:, t], state, memory)
        assert torch.equal(attended.alpha, merged.alpha[:, t])
        torch.testing.assert_close(attended.expected_alpha, merged.expected_alpha[:, t])
    other = attention.attend_all(query, attention.start(memory, BatchRng(4), 5), memory)
    assert not torch.equal(other.alpha, merged.alpha)
    best = attention.attend_all(query, attention.start(memory), memory)
    assert torch.equal(best.alpha.argmax(2), best.expected_alpha.argmax(2))


def test_local_m_counts_source_positions_with_merging_encoders(drawn, numbers):
    """With four source positions per annotation, p_t = t is in annotation t // 4, at most the last one."""
    attention, _ = drawn(Attention(config(window="local-m"), SIZE, SIZE))
    mask = lengths_mask(torch.tensor([10, 7]), 10)
    origin = Origin((torch.arange(40) // 4).expand(2, 40), torch.full((2, 40), 0.25))
    annotations = numbers(2, 10, SIZE)
    memory = attention.on(Encoded(annotations, mask, annotations[:, 0], (), origin))
    for t, centres in ((0, (0, 0)), (13, (3, 3)), (27, (6, 6)), (35, (8, 6)), (50, (9, 6))):
        attended, _ = attention.step(numbers(2, SIZE), AttentionState(torch.tensor([t, t])), memory)
        for b, centre in enumerate(centres):
            inside = [j for j in range(10) if abs(j - centre) <= REACH and mask[b, j]]
            assert attended.alpha[b].nonzero().flatten().tolist() == inside
