"""Every cell against its paper's equations, one unit at a time, and `torch-gru` against PyTorch's own."""

import numpy as np
import pytest
import torch
from torch import nn

from rnnsearch.models.cells import CELLS, Hidden, HiddenAndCell
from rnnsearch.tensors import lengths_mask

LENGTHS = [4, 1, 3]
every_cell = pytest.mark.parametrize("name", CELLS)


def test_every_cell_has_its_equations_here(paper):
    assert paper.cells.keys() == CELLS.keys()


@every_cell
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_step_is_the_papers_equation(name, kind, tolerance, paper, drawn, numbers):
    cell, p = drawn(CELLS[name](3, 4))
    cell.to(kind)
    xs, h = numbers(3, 2, 3), numbers(2, 4).tanh()
    state = cell.start(h.to(kind))
    expected = [paper.start(name, row.numpy()) for row in h]
    for x in xs:
        state = cell.step(cell.inputs(x.to(kind)), state)
        expected = [
            paper.cells[name](p, paper.inputs(p, row.numpy()), old) for row, old in zip(x, expected, strict=True)
        ]
    for n, row in enumerate(expected):
        for got, want in zip(state, row, strict=True):
            np.testing.assert_allclose(got[n].detach().numpy(), want, atol=tolerance)


@every_cell
def test_start_gives_back_the_output_it_was_given(name):
    h = torch.rand(2, 4)
    state = CELLS[name](3, 4).start(h)
    assert torch.equal(state.h, h)
    assert isinstance(state, HiddenAndCell if "lstm" in name else Hidden)
    assert all(not leaf.any() for leaf in state[1:])


@every_cell
@pytest.mark.parametrize("backward", [False, True])
def test_sequence_reads_each_sentence_as_if_it_were_alone(name, backward, paper, drawn, numbers):
    cell, p = drawn(CELLS[name](3, 4))
    x = numbers(3, 5, 3)
    outputs, last = cell.sequence(x, lengths_mask(torch.tensor(LENGTHS), 5), backward)
    for n, length in enumerate(LENGTHS):
        xs = x[n, :length].numpy()
        expected = paper.read(name, p, xs[::-1] if backward else xs, 4)
        np.testing.assert_allclose(last.h[n].detach().numpy(), expected[-1], atol=1e-12)
        in_order = expected[::-1] if backward else expected
        np.testing.assert_allclose(outputs[n, :length].detach().numpy(), np.stack(in_order), atol=1e-12)


def test_the_gru_cells_differ(drawn, numbers):
    h, x = numbers(2, 4), numbers(2, 3)
    ours, _ = drawn(CELLS["gru"](3, 4), seed=3)
    cho, _ = drawn(CELLS["cho-gru"](3, 4), seed=3)
    assert ours.state_dict().keys() == cho.state_dict().keys()
    a, b = (cell.step(cell.inputs(x), cell.start(h)).h for cell in (ours, cho))
    assert (a - b).abs().max() > 0.1
    # h' = (1 - z) h + z h~ here and z h + (1 - z) h~ there, so together they are h + h~, and h~ is in (-1, 1).
    assert (a + b - h).abs().max() < 1


def test_torch_gru_is_pytorchs_gru(drawn, numbers):
    cell, p = drawn(CELLS["torch-gru"](3, 4))
    theirs = nn.GRU(3, 4, batch_first=True).double()
    names = {"weight_ih_l0": "input.weight", "bias_ih_l0": "input.bias"}
    names |= {"weight_hh_l0": "recurrent.weight", "bias_hh_l0": "recurrent.bias"}
    theirs.load_state_dict({there: torch.from_numpy(p[here]) for there, here in names.items()})
    x = numbers(2, 5, 3)
    expected, last = theirs(x)
    state, outputs = cell.start(x.new_zeros(2, 4)), []
    for x_j in x.unbind(1):
        state = cell.step(cell.inputs(x_j), state)
        outputs.append(state.h)
    torch.testing.assert_close(torch.stack(outputs, 1), expected)
    fused, fused_last = cell.sequence(x, torch.ones(2, 5, dtype=torch.bool))
    torch.testing.assert_close(fused, expected)
    torch.testing.assert_close(fused_last.h, last[0])


@every_cell
def test_inputs_serve_all_positions_at_once(name, drawn, numbers):
    cell, _ = drawn(CELLS[name](3, 4))
    x = numbers(2, 5, 3)
    assert cell.inputs(x).shape == (2, 5, cell.blocks * 4)
    torch.testing.assert_close(cell.inputs(x)[:, 2], cell.inputs(x[:, 2]))
