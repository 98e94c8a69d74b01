"""Word vectors composed of characters equal the equations and do not depend on the other words of a batch."""

import numpy as np
import pytest
import torch

from rnnsearch.config.encoders import SOURCE_CHARACTERS
from rnnsearch.data.batch import CharacterTable, EmbeddingInput
from rnnsearch.models.composition import COMPOSITIONS, ComposedEmbedding, NGrams
from tests.models import reference as paper
from tests.models.reference import close, within

CHARACTERS, E = 9, 5
WORDS = [[4], [5, 6, 7], [8, 4, 4, 1, 6, 5]]
OPTIONS = {
    "lstm": {"embedding": 3, "layers": 2},
    "bilstm": {"embedding": 3, "size": 4},
    "cnn": {"embedding": 3, "widths": 4, "filters": 2, "highway": 2},
    "ngrams": {"shortest": 2, "longest": 3, "buckets": 11},
}


def options(name, **more):
    return SOURCE_CHARACTERS[name].model_validate({**OPTIONS[name], **more})


def padded(words, beyond=0):
    width = max(map(len, words)) + beyond
    return torch.tensor([word + [0] * (width - len(word)) for word in words])


def last_state(p, word):
    xs = [p["characters"][c] for c in word]
    for layer in range(2):
        states = paper.read("lstm", within(p, f"layers.{layer}"), xs, E)
        xs = [state[0] for state in states]
    return xs[-1]


def both_states(p, word):
    xs = [p["characters"][c] for c in word]
    forward = paper.read("lstm", within(p, "forward_cell"), xs, 4)[-1][0]
    backward = paper.read("lstm", within(p, "backward_cell"), xs[::-1], 4)[-1][0]
    D_f, D_b = p["join.weight"][:, :4], p["join.weight"][:, 4:]
    return paper.product(D_f, forward) + paper.product(D_b, backward) + p["join.bias"]


def filters(p, word):
    C = [p["characters"][c] for c in word] + [np.zeros(3)] * 3
    y = []
    for w in range(1, 5):
        H, b = p[f"filters.layers.{w - 1}.weight"], p[f"filters.layers.{w - 1}.bias"]
        for f in range(2 * w):
            y.append(max(np.tanh(H[f] @ np.concatenate(C[k : k + w]) + b[f]) for k in range(len(word))))
    y = np.array(y)
    for layer in range(2):
        own = within(p, f"highway.{layer}")
        z = np.zeros(len(y))
        for k in range(len(y)):
            t = paper.sigma(own["gate.weight"][k] @ y + own["gate_bias"][k])
            z[k] = t * max(0.0, own["change.weight"][k] @ y + own["change.bias"][k]) + (1 - t) * y[k]
        y = z
    return paper.product(p["join.weight"], y) + p["join.bias"]


def ngrams(p, word):
    total = np.zeros(E)
    for n in (2, 3):
        for k in range(len(word) - n + 1):
            bucket = 0
            for c in word[k : k + n]:
                bucket = (bucket * NGrams.HASH_FACTOR + c) % 11
            total += p["vectors"][bucket]
    return total


LOOPS = {"lstm": last_state, "bilstm": both_states, "cnn": filters, "ngrams": ngrams}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_each_composition_equals_its_definition(name, drawn):
    module, p = drawn(COMPOSITIONS[name](options(name), CHARACTERS, E))
    for found, word in zip(module(padded(WORDS)), WORDS, strict=True):
        close(found, LOOPS[name](p, word))


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_composition_ignores_neighbours_and_padding(name, drawn):
    module, _ = drawn(COMPOSITIONS[name](options(name), CHARACTERS, E))
    together = module(padded([*WORDS, [0]], beyond=3))
    for found, word in zip(together, WORDS, strict=False):
        close(found, module(padded([word]))[0].detach())


@pytest.mark.parametrize("words", ["all", "unknown"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_tokens_with_characters_are_composed_and_others_looked_up(name, words, drawn):
    table, p = drawn(ComposedEmbedding(options(name, words=words), 20, CHARACTERS, E))
    assert len(table.weight) == (4 if words == "all" else 20)
    ids = torch.tensor([[17, 1, 3], [1, 3, 0]])
    spelled = ids >= 4 if words == "all" else ids == 1
    which = torch.tensor([[3, 1, 0], [2, 0, 0]]) * (spelled | (ids == 1))
    x = table(EmbeddingInput(ids, CharacterTable(which, padded([[0], *WORDS]))))
    for place, row in enumerate(which.flatten().tolist()):
        expected = LOOPS[name](within(p, "composition"), WORDS[row - 1]) if row else p["weight"][ids.flatten()[place]]
        close(x.flatten(0, 1)[place], expected)
    x.sum().backward()
    assert all(parameter.grad is not None for parameter in table.parameters())


def test_highway_layer_initially_passes_its_input_on():
    from rnnsearch.config.outputs import GlorotOptions
    from rnnsearch.models.composition import Highway
    from rnnsearch.models.layers import Glorot, generator, initialise

    layer = Highway(30)
    initialise(layer, Glorot(GlorotOptions(), generator(1)))
    y = torch.randn(4, 30)
    assert (layer(y) - y).abs().mean() < 0.3 * y.abs().mean()
