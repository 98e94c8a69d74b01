"""Each attention score equals the equation of its paper, element by element."""

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.config import attention as attention_options
from rnnsearch.models.attention.attention import Attention, Query
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.memory import Encoded
from rnnsearch.utils.tensors import lengths_mask
from tests.models import reference as paper
from tests.models.reference import close, within

QUERY, ANNOTATION, UNITS, HEADS, MOST = 4, 6, 6, 2, 9
ZERO = np.zeros(UNITS)
FILTERS, AROUND = 5, 1
OPTIONS = {
    "size": UNITS,
    "heads": HEADS,
    "max_source": MOST,
    "first": UNITS,
    "second": FILTERS,
    "around": AROUND,
}


def sizes(name):
    """Return the sizes of query and annotation, which differ if the score allows it."""
    return (QUERY, QUERY) if name in {"dot", "scaled-dot"} else (QUERY, ANNOTATION)


def make(name):
    kind = attention_options.SCORES[name]
    return SCORES[name](kind(**{option: OPTIONS[option] for option in kind.option_fields()}), *sizes(name))


def additive(p, s, h, _j, extra=ZERO):
    """Bahdanau et al. 2015, A.1.2, with the features added inside the tanh."""
    W, U, v = p["query.weight"], p["key.weight"], p["vector"]
    return sum(v[a] * np.tanh(W[a] @ s + U[a] @ h + extra[a]) for a in range(UNITS))


def additive_bias(p, s, h, _j, extra=ZERO):
    """OpenNMT-py's `GlobalAttention` with attn_type `mlp`."""
    return additive(p, s, h, _j, extra + p["query.bias"])


def concat(p, s, h, _j, extra=ZERO):
    """v_a^T tanh(W_a [h_t; hbar_s]) (Luong et al. 2015, after eq. 7)."""
    both = np.concatenate([s, h])
    return sum(p["vector"][a] * np.tanh(p["weight"][a] @ both + extra[a]) for a in range(UNITS))


def concat_identity(p, s, h, _j, extra=None):
    """Luong et al. 2015, footnote 15: the half of W_a that multiplies hbar_s is the identity."""
    extra = np.zeros(ANNOTATION) if extra is None else extra
    return sum(p["vector"][a] * np.tanh(p["query.weight"][a] @ s + h[a] + extra[a]) for a in range(ANNOTATION))


def multi_head(p, s, h, _j, extra=ZERO):
    """Chen et al. 2018: one additive score per head over separate hidden units."""
    energies = np.zeros(HEADS)
    for a in range(UNITS):
        hidden = np.tanh(p["query.weight"][a] @ s + p["key.weight"][a] @ h + extra[a])
        energies[a // (UNITS // HEADS)] += p["vector"][a] * hidden
    return energies


def dot(_p, s, h, _j):
    """h_t^T hbar_s (Luong et al. 2015, after eq. 7)."""
    return sum(s[d] * h[d] for d in range(QUERY))


def scaled_dot(_p, s, h, _j):
    """q^T k / sqrt(d_k) (Vaswani et al. 2017, eq. 1)."""
    return sum(s[d] * h[d] for d in range(QUERY)) / np.sqrt(QUERY)


def general(p, s, h, _j):
    """h_t^T W_a hbar_s (Luong et al. 2015, after eq. 7)."""
    W = p["key.weight"]
    return sum(s[d] * W[d, k] * h[k] for d in range(QUERY) for k in range(ANNOTATION))


def location(p, s, _h, j):
    """(W_a h_t)_j (Luong et al. 2015, section 3.1)."""
    return p["weight"][j] @ s


def even(_p, _s, _h, _j):
    """Graves 2013, eq. 46, which has no score."""
    return 0.0


def around(rows, j):
    """Return position j and its neighbours, with zeros outside."""
    padded = np.pad(rows, ((AROUND, AROUND), (0, 0)))
    return padded[j : j + 2 * AROUND + 1]


def filtered(rows, weight):
    """Return a convolution over positions; filters are stored position by position."""
    filters = weight.reshape(len(weight), 2 * AROUND + 1, -1)
    return np.array([[(f * around(rows, j)).sum() for f in filters] for j in range(len(rows))])


def convolutional(p, s, h):
    """Return the energies of a whole sentence (Allamanis et al. 2016, section 2.1)."""
    first = np.maximum(filtered(h, p["first.weight"]), 0)
    gated = filtered(first, p["key.weight"]) * (p["query.weight"] @ s)
    features = gated / np.sqrt((gated**2).sum())
    return filtered(features, p["filter.weight"])[:, 0]


EQUATIONS = {
    "even": even,
    "additive": additive,
    "additive-bias": additive_bias,
    "concat": concat,
    "concat-identity": concat_identity,
    "multi-head-additive": multi_head,
    "dot": dot,
    "scaled-dot": scaled_dot,
    "general": general,
    "location": location,
}


def test_each_score_has_a_reference_equation():
    assert EQUATIONS.keys() | {"convolutional"} == SCORES.keys()


@pytest.mark.parametrize(
    ("name", "features"),
    [
        *((name, False) for name in EQUATIONS),
        *((name, True) for name, kind in SCORES.items() if kind.component.takes_features),
    ],
)
def test_energies_equal_the_papers_equations(name, features, drawn, numbers):
    score, p = drawn(make(name))
    D, H = sizes(name)
    query, annotations = numbers(2, 3, D), numbers(2, 7, H)
    extra = numbers(2, 3, 7, score.hidden_size) if features else None
    energy = score(query, score.keys(annotations, torch.ones(2, 7, dtype=torch.bool)), extra)
    assert energy.shape == (2, 3 * score.heads, 7)
    for b, q, j in product(range(2), range(3), range(7)):
        more = [extra[b, q, j].numpy()] if features else []
        expected = EQUATIONS[name](p, query[b, q].numpy(), annotations[b, j].numpy(), j, *more)
        close(energy[b, q * score.heads : (q + 1) * score.heads, j], np.atleast_1d(expected))


def test_convolutional_scores_do_not_depend_on_padding(drawn, numbers):
    score, p = drawn(make("convolutional"))
    query, annotations, lengths = numbers(2, 3, QUERY), numbers(2, 7, ANNOTATION), [7, 4]
    energy = score(query, score.keys(annotations, lengths_mask(torch.tensor(lengths), 7)))
    for b, length in enumerate(lengths):
        for q in range(3):
            expected = convolutional(p, query[b, q].numpy(), annotations[b, :length].numpy())
            close(energy[b, q, :length], expected)


@pytest.mark.parametrize("name", SCORES)
def test_score_declares_whether_it_has_parameters(name):
    assert bool(list(make(name).parameters())) == SCORES[name].component.has_parameters


def test_multi_head_contexts_equal_the_reference(drawn, numbers):
    """The context concatenates c^m = sum_j alpha^m_j V_m h_j, and the reported weights are the mean of the heads."""
    attention, p = drawn(
        Attention(AttentionConfig(score="multi-head-additive", size=UNITS, heads=HEADS), QUERY, ANNOTATION)
    )
    annotations, query, lengths = numbers(2, 5, ANNOTATION), numbers(2, 3, QUERY), [3, 5]
    memory = attention.on(Encoded(annotations, lengths_mask(torch.tensor(lengths), 5), annotations[:, 0], ()))
    attended = attention.attend(Query(query), memory)
    score = within(p, "score")
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
            close(attended.context[b, q], np.concatenate(contexts))
            close(attended.alpha[b, q, :length], np.mean(alphas, axis=0))
            assert not attended.alpha[b, q, length:].any()


def test_location_ignores_words_near_the_end_of_long_sentences(drawn, numbers):
    """Luong et al. 2015, footnote 6."""
    made, p = drawn(Attention(AttentionConfig(score="location", max_source=MOST), QUERY, ANNOTATION))
    weight, lengths = p["score.weight"], [MOST + 3, MOST - 2, MOST]
    annotations, mask = numbers(3, MOST + 3, ANNOTATION), lengths_mask(torch.tensor(lengths), MOST + 3)
    memory = made.on(Encoded(annotations, mask, annotations[:, 0], ()))
    query = numbers(3, QUERY)
    attended, _ = made.step(query, made.start(memory), memory)
    for b, length in enumerate(lengths):
        known = min(length, MOST)
        alpha = paper.softmax(weight[:known] @ query[b].numpy())
        close(attended.alpha[b, :known], alpha)
        assert not attended.alpha[b, known:].any()
        close(attended.context[b], sum(alpha[j] * annotations[b, j].numpy() for j in range(known)))
