"""Each normaliser equals its definition, including zero weights and the samples of hard attention."""

import itertools

import numpy as np
import pytest
import torch

from rnnsearch.models.attention.normalisers import NORMALISERS
from tests.models import reference as paper
from tests.models.reference import close

OUTSIDE = -torch.inf


def sparsemax(e):
    """Martins & Astudillo 2016, algorithm 1."""
    z = sorted(e, reverse=True)
    k = max(k for k in range(1, len(z) + 1) if 1 + k * z[k - 1] > sum(z[:k]))
    tau = (sum(z[:k]) - 1) / k
    return np.array([max(x - tau, 0.0) for x in e])


def entmax15(e):
    """max(e / 2 - tau, 0)^2, where bisection finds the tau for which the sum is 1 (Peters et al. 2019, eq. 10)."""
    low, high = e.max() / 2 - 1, e.max() / 2
    for _ in range(200):
        tau = (low + high) / 2
        if (np.maximum(e / 2 - tau, 0) ** 2).sum() < 1:
            high = tau
        else:
            low = tau
    return np.maximum(e / 2 - tau, 0) ** 2


def hard(e):
    return np.eye(len(e))[e.argmax()]


def linear_chain(e):
    """Kim et al. 2017, section 4.2, enumerated over all selections of positions."""
    into, out, stay = TRANSITIONS
    marginal = np.zeros(len(e))
    for z in itertools.product((0, 1), repeat=len(e)):
        steps = sum({(0, 0): 0.0, (0, 1): into, (1, 0): out, (1, 1): stay}[step] for step in itertools.pairwise(z))
        marginal += np.exp(np.dot(z, e) + steps) * np.array(z)
    return marginal / marginal.sum()


DEFINITIONS = {
    "softmax": paper.softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "hard": hard,
    "exponential": np.exp,
    "linear-chain": linear_chain,
}
TRANSITIONS = [0.7, -0.4, 1.1]


def make(name):
    normaliser = NORMALISERS[name]()
    if name == "linear-chain":
        normaliser.transitions.data = torch.tensor(TRANSITIONS, dtype=torch.float64)
    return normaliser


def masked(numbers):
    """Return energies [2, 3, 6]; the first row has four positions, and one window of the second has two."""
    energy = 2 * numbers(2, 3, 6)
    energy[0, :, 4:] = OUTSIDE
    energy[1, 2, :4] = OUTSIDE
    return energy


def test_each_normaliser_has_a_reference():
    assert DEFINITIONS.keys() | {"monotonic"} == NORMALISERS.keys()


@pytest.mark.parametrize("name", DEFINITIONS)
def test_weights_equal_the_reference_and_are_zero_outside_the_mask(name, numbers):
    energy = masked(numbers)
    alpha = make(name)(energy).alpha
    for b, q in itertools.product(range(2), range(3)):
        inside = energy[b, q] > OUTSIDE
        expected = DEFINITIONS[name](energy[b, q][inside].numpy())
        close(alpha[b, q][inside], expected)
        assert not alpha[b, q][~inside].any()
        assert name == "exponential" or alpha[b, q].sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_sparse_normalisers_give_zeros_inside_the_mask(name, numbers):
    alpha = NORMALISERS[name]()(4 * numbers(20, 1, 8), None).alpha
    assert (alpha == 0).sum() > 60


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "exponential", "linear-chain"])
def test_gradients_equal_finite_differences(name, numbers):
    energy = masked(numbers)
    inside, normaliser = energy > OUTSIDE, make(name)

    def alpha(given):
        return normaliser(energy.masked_scatter(inside, given), None).alpha

    assert torch.autograd.gradcheck(alpha, energy[inside].requires_grad_())
    energy.requires_grad_()
    (normaliser(energy, None).alpha * numbers(2, 3, 6)).sum().backward()
    assert not energy.grad[~inside].any()


@pytest.mark.parametrize(
    ("kind", "got"), [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)]
)
@pytest.mark.parametrize("name", NORMALISERS)
def test_weights_are_at_least_fp32(name, kind, got):
    last = torch.ones(1, 1, 3, dtype=torch.promote_types(kind, torch.float32))
    weights = NORMALISERS[name]()(torch.ones(1, 1, 3, dtype=kind), torch.full((1, 1, 3), 0.5), last)
    assert weights.alpha.dtype == got
    assert weights.expected_alpha is None or weights.expected_alpha.dtype == got


def test_hard_weights_are_sampled_from_the_softmax(numbers):
    energy = masked(numbers)
    count = 20_000
    noise = torch.rand(count, 3, 6, generator=torch.Generator().manual_seed(1)).clamp_min(1e-12)
    for b in range(2):
        weights = NORMALISERS["hard"]()(energy[b : b + 1].expand(count, -1, -1), noise)
        assert torch.equal(weights.alpha.sum(2), torch.ones(count, 3, dtype=torch.float64))
        assert ((weights.alpha == 0) | (weights.alpha == 1)).all()
        expected = torch.softmax(energy[b], dim=-1)
        torch.testing.assert_close(weights.expected_alpha[0], expected)
        # Four standard deviations of the frequency in 20,000 samples are below 0.015.
        torch.testing.assert_close(weights.alpha.mean(0), expected, rtol=0, atol=0.015)
        assert not weights.alpha[:, expected == 0].any()


def test_hard_weights_have_gradients_through_expected_weights(numbers):
    energy = masked(numbers).requires_grad_()
    weights = NORMALISERS["hard"]()(energy, torch.rand(2, 3, 6))
    assert not NORMALISERS["hard"]()(energy, None).alpha.requires_grad
    log_p = (weights.alpha.detach() * weights.expected_alpha.clamp_min(1e-30).log()).sum()
    assert not torch.autograd.grad(weights.alpha.sum(), energy, retain_graph=True)[0].any(), "samples are constants"
    log_p.backward()
    # d log softmax(e)_k / d e = onehot - softmax
    torch.testing.assert_close(energy.grad, weights.alpha.detach() - weights.expected_alpha.detach())


def test_zero_noise_uses_the_expected_value_with_gradient(numbers):
    energy = masked(numbers).requires_grad_()
    noise = torch.rand(2, 3, 6)
    noise[1] = 0.0
    weights = NORMALISERS["hard"]()(energy, noise)
    assert set(weights.alpha[0].unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(weights.alpha[1], weights.expected_alpha[1])
    torch.autograd.backward(weights.alpha, torch.ones_like(weights.alpha).cumsum(-1))
    assert not energy.grad[0].any()
    assert energy.grad[1].any()


def monotonic(p, before):
    """q_ij = (1 - p_{i,j-1}) q_{i,j-1} + alpha_{i-1,j}, position by position (Raffel et al. 2017, eq. 9-10)."""
    alpha, q = [], 0.0
    for j, own in enumerate(before):
        q = own + ((1 - p[j - 1]) * q if j else 0.0)
        alpha.append(p[j] * q)
    return np.array(alpha)


def test_monotonic_training_weights_equal_the_paper(numbers):
    energy, noise, normaliser = masked(numbers), 0.5 * numbers(2, 3, 6), NORMALISERS["monotonic"]()
    normaliser.offset.data = torch.tensor([-0.3], dtype=torch.float64)
    last = torch.softmax(numbers(2, 3, 6), -1)
    energy.requires_grad_()
    alpha = normaliser(energy, noise, last).alpha
    for b, q in itertools.product(range(2), range(3)):
        p = torch.sigmoid(energy[b, q] - 0.3 + noise[b, q]).detach().numpy()
        close(alpha[b, q].detach(), monotonic(p, last[b, q].numpy()))
    alpha.square().sum().backward()
    assert energy.grad.isfinite().all() and not energy.grad[energy == OUTSIDE].any()
    sure = energy.detach().clamp(min=-1e3).masked_fill(energy == OUTSIDE, -1e3).requires_grad_()
    assert torch.autograd.gradcheck(lambda e: normaliser(e, noise, last).alpha, sure)


def test_monotonic_memory_grows_linearly_with_the_source(numbers):
    """Quadratic memory per step would take gigabytes for 4,000 tokens."""

    def kept(J):
        sizes = []
        energy, last = numbers(1, 1, J).requires_grad_(), torch.full((1, 1, J), 1.0 / J)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            NORMALISERS["monotonic"]()(energy, numbers(1, 1, J), last)
        return sum(sizes)

    assert kept(400) < 4.5 * kept(100)


def test_monotonic_decoding_stops_at_the_first_selected_position(numbers):
    """Raffel et al. 2017, algorithm 1, over several target positions; attention ends if no position is selected."""
    normaliser = NORMALISERS["monotonic"]()
    normaliser.offset.data = torch.tensor([0.0], dtype=torch.float64)
    found, ended = [], 0
    for energies in numbers(20, 5, 1, 1, 7):
        last, at = torch.eye(7, dtype=torch.float64)[:1].unsqueeze(0), 0
        for e in energies:
            alpha = normaliser(e, None, last).alpha
            stops = [] if at is None else [j for j in range(at, 7) if e[0, 0, j] > 0]
            at = stops[0] if stops else None
            assert alpha[0, 0].nonzero().flatten().tolist() == stops[:1]
            assert stops == [] or alpha.sum() == 1
            found.append(at)
            ended += not stops
            last = alpha
    assert len(set(found)) > 5 and ended > 3
