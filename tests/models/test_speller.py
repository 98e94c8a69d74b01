"""The character decoder of a hybrid model equals a NumPy loop, and its steps equal the sequence of training."""

import numpy as np
import pytest
import torch

from rnnsearch.config.encoders import TargetCharactersConfig
from rnnsearch.models.cells import CELLS
from rnnsearch.models.memory import HiddenAndCell
from rnnsearch.models.speller import Speller
from rnnsearch.text.vocabulary import BOS, EOS
from tests.models import reference as paper
from tests.models.reference import close, within

CHARACTERS, S, H, D = 9, 4, 6, 5
WORDS = [[4], [5, 6, 7, 4], [8, 4]]


def made(drawn, cell="lstm", layers=2):
    options = TargetCharactersConfig(cell=cell, size=D, layers=layers, embedding=3)
    return drawn(Speller(options, CHARACTERS, S, H))


def log_p(p, cell, layers, s, c, word):
    """Return log p(word | [c; s]), summed over characters."""
    first = np.tanh(paper.product(p["path.weight"], np.concatenate([c, s])))
    states = [paper.start(cell, first if layer == 0 else np.zeros(D)) for layer in range(layers)]
    total = 0.0
    for before, y in zip([BOS, *word], [*word, EOS], strict=True):
        x = p["characters"][before]
        for layer in range(layers):
            own = within(p, f"layers.{layer}")
            states[layer] = paper.CELLS[cell](own, paper.inputs(own, x), states[layer])
            x = states[layer][0]
        total += np.log(paper.softmax(paper.product(p["output.weight"], x) + p["output.bias"])[y])
    return total


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_word_probability_equals_its_definition(cell, layers, drawn, numbers):
    speller, p = made(drawn, cell, layers)
    s, c = numbers(len(WORDS), S), numbers(len(WORDS), H)
    words = torch.tensor([word + [0] * (6 - len(word)) for word in WORDS])
    total, each = speller.losses(speller.initial_state(s, c), words)
    expected = [-log_p(p, cell, layers, *row, word) for *row, word in zip(s.numpy(), c.numpy(), WORDS, strict=True)]
    close(each, expected)
    close(total, sum(expected))
    total.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in speller.parameters())


@pytest.mark.parametrize("cell", CELLS)
def test_search_steps_equal_training_steps(cell, drawn, numbers):
    speller, _ = made(drawn, cell)
    first, words = speller.initial_state(numbers(2, S), numbers(2, H)), torch.tensor([[5, 6, 7], [8, 4, 4]])
    state, total, y = speller.start(first), torch.zeros(2, dtype=torch.float64), torch.tensor([BOS, BOS])
    for target in [*words.T, torch.tensor([EOS, EOS])]:
        readout, state = speller.step(y, state)
        total += speller.output.log_probs(readout).gather(1, target[:, None])[:, 0].detach()
        y = target
    close(speller.losses(first, words)[1], -total)


def test_speller_state_starts_at_zero_above_the_first_layer(drawn, numbers):
    speller, _ = made(drawn)
    first = numbers(2, D)
    bottom, top = speller.start(first)
    assert isinstance(bottom, HiddenAndCell)
    close(bottom.h, first)
    assert not any(part.any() for part in (bottom.c, top.h, top.c))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_batch_without_words_has_zero_loss(kind, drawn):
    speller, _ = made(drawn)
    speller.to(kind)
    total, each = speller.losses(torch.zeros(0, D, dtype=kind), torch.zeros(0, 3, dtype=torch.int64))
    total.backward()
    assert total.item() == 0 and each.shape == (0,)
    assert not any(parameter.grad.any() for parameter in speller.parameters() if parameter.grad is not None)
