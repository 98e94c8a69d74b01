"""Each cell equals its paper's equations, and its sequence equals the loop over its step."""

import numpy as np
import pytest
import torch
from torch import nn

from rnnsearch.models.cells import CELLS, LayerNorm
from rnnsearch.models.memory import HiddenAndCell
from rnnsearch.utils.tensors import lengths_mask
from tests.models import reference as paper
from tests.models.reference import close, sigma

LENGTHS = torch.tensor([3, 1, 5])
every_cell = pytest.mark.parametrize("name", CELLS)


def state_of(cell, numbers, rows):
    return cell.state(*(numbers(rows, 4) for _ in cell.state._fields))


def test_each_cell_has_a_reference_equation():
    assert paper.CELLS.keys() == CELLS.keys()


@every_cell
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_step_equals_the_papers_equation(name, kind, tolerance, drawn, numbers):
    """The start state is random, and a decoder's extra term is added to the gates."""
    cell, p = drawn(CELLS[name](3, 4))
    state, xs, more = state_of(cell, numbers, 2), numbers(3, 2, 3), numbers(3, 2, cell.blocks * 4)
    expected = [tuple(part[n].numpy() for part in state) for n in range(2)]
    cell.to(kind)
    state = cell.state(*(part.to(kind) for part in state))
    for x, added in zip(xs, more, strict=True):
        state = cell.step(cell.inputs(x.to(kind)) + added.to(kind), state)
        rows = zip(x.numpy(), added.numpy(), expected, strict=True)
        expected = [paper.CELLS[name](p, paper.inputs(p, row) + extra, old) for row, extra, old in rows]
    for n, row in enumerate(expected):
        for got, want in zip(state, row, strict=True):
            np.testing.assert_allclose(got[n].detach().numpy(), want, atol=tolerance)


def test_torch_gru_equals_pytorch(drawn, numbers):
    cell, p = drawn(CELLS["torch-gru"](3, 4))
    theirs = nn.GRU(3, 4, batch_first=True).double()
    names = {"weight_ih_l0": "input.weight", "bias_ih_l0": "input.bias"}
    names |= {"weight_hh_l0": "recurrent.weight", "bias_hh_l0": "recurrent.bias"}
    theirs.load_state_dict({there: torch.from_numpy(p[here]) for there, here in names.items()})
    x = numbers(2, 5, 3)
    expected, last = theirs(x)
    for outputs, state in (cell.run(cell.inputs(x), None), cell.sequence(x, torch.ones(2, 5, dtype=torch.bool))):
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(state.h, last[0])


def test_layer_norms_use_fp32_under_autocast(numbers):
    a = numbers(2, 6).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert LayerNorm(6)(a.bfloat16()).dtype == torch.float32
    torch.testing.assert_close(LayerNorm(6)(a.bfloat16()), LayerNorm(6)(a), rtol=0.02, atol=0.02)


def gru_with_mask(p, share, h, keep, old_with_z):
    """Gal & Ghahramani 2016, eq. 7, for the GRU: each matrix reads h multiplied by the mask."""
    n = len(h)
    seen = h * keep
    U_z, U_r, U = p["recurrent_gates.weight"][:n], p["recurrent_gates.weight"][n:], p["recurrent.weight"]
    z, r = sigma(share[:n] + U_z @ seen), sigma(share[n : 2 * n] + U_r @ seen)
    candidate = np.tanh(share[2 * n :] + U @ (r * seen))
    return z * h + (1 - z) * candidate if old_with_z else (1 - z) * h + z * candidate


@every_cell
def test_state_mask_applies_to_products_but_not_to_the_carried_state(name, drawn, numbers):
    cell, p = drawn(CELLS[name](3, 4))
    x, state = cell.inputs(numbers(2, 3)), state_of(cell, numbers, 2)
    keep = torch.tensor([[2.0, 0.0, 2.0, 0.0], [0.0, 0.0, 2.0, 2.0]], dtype=torch.float64)
    new = cell.step(x, state, keep)
    if not cell.component.has_recurrent_product:
        torch.testing.assert_close(tuple(new), tuple(cell.step(x, state)))
        return
    assert (new.h - cell.step(x, state).h).abs().max() > 1e-3
    if name in {"gru", "cho-gru"}:
        rows = zip(x.detach().numpy(), state.h.numpy(), keep.numpy(), strict=True)
        close(new.h, np.stack([gru_with_mask(p, *row, old_with_z=name == "cho-gru") for row in rows]))
        return
    masked = cell.step(x, state._replace(h=state.h * keep))
    if cell.state is HiddenAndCell or name == "tanh":
        torch.testing.assert_close(tuple(new), tuple(masked))
        return
    # The convex combination copies part of h unmasked, so the difference is a fraction of the dropped values.
    carried = (new.h - masked.h) / (state.h - state.h * keep)
    assert ((carried > 0) & (carried < 1)).all()


@every_cell
@pytest.mark.parametrize("masked", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("given", ["nothing", "start", "start and keep"])
def test_sequence_equals_the_loop_over_steps(name, masked, backward, given, drawn, numbers):
    """Outputs, last state and all gradients are equal, for any start state and dropout mask."""
    cell, _ = drawn(CELLS[name](3, 4))
    x = numbers(3, 5, 3).requires_grad_()
    mask = lengths_mask(LENGTHS, 5) if masked else None
    start = None if given == "nothing" else cell.state(*(part.requires_grad_() for part in state_of(cell, numbers, 3)))
    keep = (numbers(3, 4) > 0) * 1.5 if given == "start and keep" else None
    wanted = (x, *cell.parameters(), *(start or ()))
    weights = [numbers(3, 5, 4), *(numbers(3, 4) for _ in cell.state._fields)]
    results = []
    for outputs, last in (
        cell.run(cell.inputs(x), mask, backward, start, keep),
        cell.sequence(x, mask, backward, start, keep),
    ):
        assert type(last) is cell.state
        real = outputs if mask is None else outputs.masked_fill(~mask[:, :, None], 0.0)
        total = sum((out * weight).sum() for out, weight in zip((real, *last), weights, strict=True))
        results.append((real, *last, *torch.autograd.grad(total, wanted, materialize_grads=True)))
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("training", [False, True])
def test_lstm_memory_is_unchanged_by_padding_in_fp32(backward, training, drawn, numbers):
    """The library has separate code for fp32 and fp64, and for training and inference."""
    cell, _ = drawn(CELLS["lstm"](3, 4))
    cell.float()
    x, mask = numbers(3, 40, 3).float(), lengths_mask(LENGTHS, 40)
    x[1, 20] = torch.nan  # values of padding are never read
    with torch.set_grad_enabled(training):
        outputs, last = cell.sequence(x, mask, backward)
        for n, length in enumerate(LENGTHS):
            alone, alone_last = cell.run(cell.inputs(x[n : n + 1, :length]), None, backward)
            found = (outputs[n : n + 1, :length], last.h[n : n + 1], last.c[n : n + 1])
            torch.testing.assert_close(found, (alone, alone_last.h, alone_last.c), rtol=1e-5, atol=1e-6)
