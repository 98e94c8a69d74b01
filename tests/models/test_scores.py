"""Each score against the equation of its paper, one number at a time; the options and sizes that it refuses."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.config import attention as attention_options
from rnnsearch.config.model import GlorotOptions
from rnnsearch.errors import ModelError
from rnnsearch.models.attention.attention import Asked, Attention
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.initialise import INITS, generator, initialise
from rnnsearch.models.memory import Encoded
from rnnsearch.tensors import lengths_mask

QUERY, ANNOTATION, UNITS, HEADS, MOST = 4, 6, 6, 2, 9
OPTIONS = {"size": UNITS, "heads": HEADS, "max_source": MOST}


def config(name, **more):
    kind = attention_options.SCORES[name]
    return kind(**({option: OPTIONS[option] for option in kind.own()} | more))


def sizes(name):
    """The sizes of query and annotation: different ones, where the score takes them."""
    return (QUERY, QUERY) if name in {"dot", "scaled-dot"} else (QUERY, ANNOTATION)


def make(name):
    return SCORES[name].make(config(name), *sizes(name))


def additive(p, s, h, _j):
    """Bahdanau et al., A.1.2."""
    return sum(p["vector"][a] * np.tanh(p["query.weight"][a] @ s + p["key.weight"][a] @ h) for a in range(UNITS))


def concat(p, s, h, _j):
    """Luong et al., eq. 8: v_a^T tanh(W_a [h_t; hbar_s])."""
    both = np.concatenate([s, h])
    return sum(p["vector"][a] * np.tanh(p["weight"][a] @ both) for a in range(UNITS))


def multi_head(p, s, h, _j):
    """Chen et al. 2018: one additive score a head, over its own hidden units."""
    energies = np.zeros(HEADS)
    for a in range(UNITS):
        energies[a // (UNITS // HEADS)] += p["vector"][a] * np.tanh(p["query.weight"][a] @ s + p["key.weight"][a] @ h)
    return energies


def dot(_p, s, h, _j):
    """Luong et al., eq. 8."""
    return sum(s[d] * h[d] for d in range(QUERY))


def scaled_dot(_p, s, h, _j):
    """Vaswani et al., eq. 1."""
    return sum(s[d] * h[d] for d in range(QUERY)) / np.sqrt(QUERY)


def general(p, s, h, _j):
    """Luong et al., eq. 8: h_t^T W_a hbar_s."""
    W = p["key.weight"]
    return sum(s[d] * W[d, k] * h[k] for d in range(QUERY) for k in range(ANNOTATION))


def location(p, s, _h, j):
    """Luong et al., section 3.1: the j-th number of W_a h_t."""
    return p["weight"][j] @ s


EQUATIONS = {
    "additive": additive,
    "concat": concat,
    "multi-head-additive": multi_head,
    "dot": dot,
    "scaled-dot": scaled_dot,
    "general": general,
    "location": location,
}


def test_every_score_has_its_equation():
    assert EQUATIONS.keys() == SCORES.keys()


@pytest.mark.parametrize("name", SCORES)
def test_energies_are_the_papers(name, drawn, numbers):
    score, p = drawn(make(name))
    D, H = sizes(name)
    query, annotations = numbers(2, 3, D), numbers(2, 7, H)
    energy = score(query, score.keys(annotations)).detach().numpy()
    assert energy.shape == (2, 3 * score.heads, 7)
    for b in range(2):
        for q in range(3):
            for j in range(7):
                expected = EQUATIONS[name](p, query[b, q].numpy(), annotations[b, j].numpy(), j)
                got = energy[b, q * score.heads : (q + 1) * score.heads, j]
                np.testing.assert_allclose(got, np.atleast_1d(expected), atol=1e-12)


@pytest.mark.parametrize("name", [name for name, kind in SCORES.items() if kind.takes_features])
def test_features_enter_inside_the_hidden_layer(name, drawn, numbers):
    score, p = drawn(make(name))
    query, annotations, extra = numbers(1, 2, QUERY), numbers(1, 3, ANNOTATION), numbers(1, 2, 3, UNITS)
    energy = score(query, score.keys(annotations), extra).detach().numpy()
    for q in range(2):
        for j in range(3):
            heads = np.zeros(score.heads)
            for a in range(UNITS):
                weight = np.concatenate([p["query.weight"], p["key.weight"]], 1) if "query.weight" in p else p["weight"]
                inside = weight[a] @ np.concatenate([query[0, q], annotations[0, j]]) + extra[0, q, j, a].item()
                heads[a * score.heads // UNITS] += p["vector"][a] * np.tanh(inside)
            np.testing.assert_allclose(energy[0, q * score.heads : (q + 1) * score.heads, j], heads, atol=1e-12)


def test_concat_is_additive_with_its_two_matrices_side_by_side(drawn, numbers):
    luong, p = drawn(make("concat"))
    bahdanau, _ = drawn(make("additive"))
    with torch.no_grad():
        bahdanau.query.weight.copy_(torch.from_numpy(p["weight"][:, :QUERY]))
        bahdanau.key.weight.copy_(torch.from_numpy(p["weight"][:, QUERY:]))
        bahdanau.vector.copy_(luong.vector)
    query, annotations = numbers(2, 3, QUERY), numbers(2, 7, ANNOTATION)
    torch.testing.assert_close(
        luong(query, luong.keys(annotations)), bahdanau(query, bahdanau.keys(annotations)), rtol=1e-12, atol=1e-12
    )


def test_concat_begins_as_one_matrix():
    """Glorot's bound is over all D + H columns: another than for two matrices, which is all that sets them apart."""
    sizes = 40, 60, 50
    luong, bahdanau = (SCORES[name].make(config(name, size=50), *sizes[:2]) for name in ("concat", "additive"))
    for score in (luong, bahdanau):
        initialise(score, INITS["glorot"](GlorotOptions(), generator(1)))
    assert luong.weight.abs().max().item() == pytest.approx((6 / (50 + 100)) ** 0.5, rel=0.02)
    assert bahdanau.query.weight.abs().max().item() == pytest.approx((6 / (50 + 40)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_says_whether_it_has_parameters(name):
    assert bool(list(make(name).parameters())) == SCORES[name].draws


def test_contexts_of_several_heads(drawn, numbers, paper):
    """c^m = sum_j alpha^m_j V_m h_j, side by side; the weights that are reported are the heads' mean."""
    attention, p = drawn(
        Attention.make(AttentionConfig(score="multi-head-additive", size=UNITS, heads=HEADS), QUERY, ANNOTATION)
    )
    annotations, query, lengths = numbers(2, 5, ANNOTATION), numbers(2, 3, QUERY), [3, 5]
    memory = attention.on(Encoded(annotations, lengths_mask(torch.tensor(lengths), 5), annotations[:, 0], ()))
    attended = attention.attend(Asked(query), memory)
    score = {name.removeprefix("score."): value for name, value in p.items()}
    part = ANNOTATION // HEADS
    for b, length in enumerate(lengths):
        for q in range(3):
            h = annotations[b, :length].numpy()
            energies = np.stack([multi_head(score, query[b, q].numpy(), h_j, 0) for h_j in h], 1)
            alphas = [paper.softmax(e) for e in energies]
            contexts = []
            for m in range(HEADS):
                V_m = score["value.weight"][m * part : (m + 1) * part]
                contexts.append(sum(alphas[m][j] * (V_m @ h[j]) for j in range(length)))
            got = attended.context[b, q].detach().numpy()
            np.testing.assert_allclose(got, np.concatenate(contexts), atol=1e-12)
            alpha = attended.alpha[b, q].detach().numpy()
            np.testing.assert_allclose(alpha[:length], np.mean(alphas, axis=0), atol=1e-12)
            assert not alpha[length:].any()


def test_location_refuses_a_longer_source(numbers):
    score = make("location").double()
    assert score.keys(numbers(2, MOST, ANNOTATION)).shape == (2, MOST, QUERY)
    with pytest.raises(ModelError) as error:
        score.keys(numbers(2, MOST + 2, ANNOTATION))
    assert str(error.value) == (
        "a source sentence must have at most 8 symbols and its end symbol for this model's location score "
        "(model.attention.max_source = 9); got 11 with the end symbol"
    )


@pytest.mark.parametrize("name", SCORES)
def test_sizes_that_do_not_fit(name):
    """A dot product needs two vectors of one length; every other score takes any."""
    fault = config(name).size_fault(QUERY, ANNOTATION)
    assert (fault or "").startswith(f"score: {name} must have a decoder state as long") == name.endswith("dot")
    assert bool(fault) == name.endswith("dot")
    assert config(name).size_fault(QUERY, QUERY) is None


@pytest.mark.parametrize(("heads", "annotation"), [(4, 8), (3, 8)])
def test_heads_must_divide(heads, annotation):
    fault = config("multi-head-additive", heads=heads).size_fault(QUERY, annotation)
    assert fault.endswith(f"must divide model.attention.size and the size of an annotation; got {heads}, 6 and 8")
