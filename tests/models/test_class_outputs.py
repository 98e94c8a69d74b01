"""Class-based outputs equal their definitions, over the whole vocabulary and over some tokens, with their losses."""

import numpy as np
import pytest
import torch

from rnnsearch.config.outputs import AdaptiveOptions, HierarchicalOptions, TreeOptions
from rnnsearch.data.word_classes import huffman_parents
from rnnsearch.models.class_outputs import AdaptiveOutput, HierarchicalOutput, TreeOutput
from tests.models import reference as paper
from tests.models.reference import close

M, R, V = 9, 8, 11
CLASSES = [2, 0, 1, 1, 0, 2, 2, 4, 1, 0, 4]
"""Class of each token; class 3 is empty."""
SOME = [6, 1, 3, 10, 5]


def hierarchical(p, t, some):
    """p(c(y)) p(y | c(y)), over the tokens `some` and their classes."""
    here = sorted({CLASSES[y] for y in some})
    of_class = paper.softmax((paper.product(p["class_weight"], t) + p["class_bias"])[here])
    scores, found = paper.product(p["weight"], t) + p["bias"], []
    for y in some:
        members = [other for other in some if CLASSES[other] == CLASSES[y]]
        among = paper.softmax(scores[members])
        found.append(of_class[here.index(CLASSES[y])] * among[members.index(y)])
    return np.array(found)


def adaptive(p, t, some):
    """Grave et al. 2017, eq. 3 and 4, with two clusters: tokens 3 to 6, and 7 to 10."""
    groups = [range(3, 7), range(7, V)]
    here = [k for k, group in enumerate(groups) if any(y in group for y in some)]
    own = [y for y in some if y < 3]
    W, b = p["layer.head.weight"], p["layer.head.bias"]
    head = paper.softmax((paper.product(W, t) + b)[own + [3 + k for k in here]])
    found = []
    for y in some:
        if y < 3:
            found.append(head[own.index(y)])
            continue
        k = 0 if y in groups[0] else 1
        members = [other for other in some if other in groups[k]]
        small = paper.product(p[f"layer.tail.{k}.0.weight"], t)
        scores = paper.product(p[f"layer.tail.{k}.1.weight"], small)
        among = paper.softmax(scores[[member - groups[k][0] for member in members]])
        found.append(head[len(own) + here.index(k)] * among[members.index(y)])
    return np.array(found)


COUNTS = [5, 1, 40, 3, 3, 9, 0, 17, 2, 2, 6]


def tree(p, t, some):
    """The product of the decisions on the path from the root, over the tokens `some`."""
    parents = huffman_parents(np.array(COUNTS)).tolist()
    found = []
    for token in some:
        probability = 1.0
        node = token
        while node != 2 * V - 2:
            inner = parents[node] - V
            siblings = [child for child, parent in enumerate(parents) if parent == parents[node]]
            score = p["weight"][inner] @ t + p["bias"][inner]
            probability *= paper.sigma(score if node == siblings[0] else -score)
            node = parents[node]
        found.append(probability)
    return np.array(found) / (1.0 if len(some) == V else sum(found))


@pytest.fixture(params=["hierarchical", "tree", "adaptive"])
def output(request, drawn):
    if request.param == "tree":
        made = TreeOutput(TreeOptions(), R, V)
        made.assign_parents(torch.from_numpy(huffman_parents(np.array(COUNTS))))
        return *drawn(made), tree
    if request.param == "adaptive":
        made = AdaptiveOutput(AdaptiveOptions(cutoffs=[3, 7], factor=2.0), R, V)
        return *drawn(made), adaptive
    made = HierarchicalOutput(HierarchicalOptions(classes=5), R, V)
    made.assign_classes(torch.tensor(CLASSES))
    return *drawn(made), hierarchical


@pytest.mark.parametrize("some", [None, SOME, [4], [*range(V)]])
def test_log_probs_equal_their_definition(output, numbers, some):
    layer, p, definition = output
    t = numbers(2, 3, R)
    found = layer.log_probs(t, None if some is None else torch.tensor(some)).exp()
    for row, got in zip(t.flatten(0, 1), found.flatten(0, 1), strict=True):
        close(got, definition(p, row.numpy(), [*range(V)] if some is None else some))
    close(found.sum(-1), np.ones((2, 3)))


@pytest.mark.parametrize("rows", [1, M])
def test_losses_and_gradients_equal_those_of_the_log_probs(output, numbers, rows):
    layer, _, _ = output
    target = torch.tensor([7, 0, 5, 5, 10, 2, 9, 1, 6][:rows])
    found = []
    for plain in (True, False):
        layer.zero_grad()
        t = numbers(rows, R).mul(0).add(torch.linspace(-1, 1, rows * R, dtype=torch.float64).view(rows, R))
        t.requires_grad_()
        if plain:
            nll = -layer.log_probs(t).gather(1, target[:, None])[:, 0]
            total, each = nll.sum(), nll.detach()
        else:
            total, each = layer.losses(t, target)
            assert not each.requires_grad
        (total * 0.3).backward()
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in layer.parameters()]
        found.append([total.detach(), each, t.grad, *gradients])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_classes_with_very_different_scores_keep_finite_probabilities(drawn):
    layer, _ = drawn(HierarchicalOutput(HierarchicalOptions(classes=2), 1, 4))
    layer.float()
    layer.weight.data = torch.tensor([[0.0], [0.0], [-500.0], [-501.0]])
    layer.bias.data.zero_()
    layer.class_weight.data.zero_()
    layer.class_bias.data.zero_()
    found = layer.log_probs(torch.ones(1, 1, dtype=torch.float32)).exp()[0]
    expected = torch.tensor([0.25, 0.25, 0.5 / (1 + np.exp(-1)), 0.5 / (1 + np.exp(1))], dtype=torch.float32)
    torch.testing.assert_close(found, expected)


def test_bf16_losses_are_close_to_fp32(output, numbers):
    layer, t, target = output[0].float(), numbers(M, R).float(), torch.arange(M)
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = layer.losses(t.bfloat16(), target)
    assert total.item() == pytest.approx(layer.losses(t, target)[0].item(), rel=0.05)


def test_default_number_of_classes_is_the_square_root():
    layer = HierarchicalOutput(HierarchicalOptions(), R, 100)
    assert layer.classes.unique(return_counts=True)[1].tolist() == [10] * 10


def test_tree_is_balanced_before_tokens_are_counted():
    levels, order = TreeOutput(TreeOptions(), R, 16)._levels()
    assert [len(level.parent) for level in levels] == [2, 4, 8, 16]
    assert sorted(order.tolist()) == [*range(31)]
