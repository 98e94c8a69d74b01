"""The stack of cells equals a loop over layers and positions, with residual connections and dropout masks."""

import pytest
import torch

from rnnsearch.accel.fast_forwards import layer_by_layer
from rnnsearch.config import DropoutConfig
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.cells import CELLS
from rnnsearch.models.stack import Stack
from rnnsearch.utils.tensors import leaves
from tests.models import reference as paper
from tests.models.reference import close

cells = pytest.mark.parametrize("cell", ["gru", "lstm", "torch-gru", "layer-norm-lstm"])


def first_states(stack, numbers, rows=2):
    return tuple(
        shape.state_type(*(numbers(rows, shape.size) for _ in shape.state_type._fields)) for shape in stack.shapes
    )


def steps(stack, x, state, context=None):
    """Run the stack step by step: the definition."""
    outputs = []
    for i in range(x.shape[1]):
        top, state = stack.step(stack.inputs(x[:, i]), state, None if context is None else context[:, i])
        outputs.append(top)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("residual_from", [None, 2, 3])
@pytest.mark.parametrize("with_context", [False, True])
def test_step_equals_the_loop_over_layers(name, residual_from, with_context, drawn, numbers):
    """The stored state of a layer is h^l, without the residual sum."""
    stack, p = drawn(Stack(CELLS[name], 3, 4, 3, residual_from, context_size=2 if with_context else 0))
    xs, context = numbers(2, 5, 3), numbers(2, 5, 2) if with_context else None
    first = first_states(stack, numbers)
    top, state = steps(stack, xs, stack.start(first), context)
    for n in range(2):
        states = [tuple(part[n].numpy() for part in layer) for layer in first]
        for i in range(5):
            beside = context[n, i].numpy() if with_context else None
            close(top[n, i], paper.stack(name, p, states, xs[n, i].numpy(), residual_from, context=beside))
        for layer, expected in zip(state.cells, states, strict=True):
            for got, want in zip(layer, expected, strict=True):
                close(got[n], want)


@pytest.mark.parametrize("residual_from", [None, 2, 3])
def test_layer_output_dropout_precedes_the_residual_sum(residual_from, drawn, numbers):
    """The outputs equal the loop with the same masks, and the states have no dropout."""
    stack, p = drawn(Stack(CELLS["lstm"], 3, 4, 3, residual_from, DropoutConfig(layer_outputs=0.5)))
    xs, first = numbers(2, 5, 3), first_states(stack, numbers)
    begun = stack.start(first, BatchRng(1), 5)
    masks = begun.masks.outputs.numpy()
    assert masks.shape == (2, 5, 3, 4)
    assert set(masks.flatten()) == {0.0, 2.0}
    top, _ = steps(stack, xs, begun, None)
    for n in range(2):
        states = [tuple(part[n].numpy() for part in layer) for layer in first]
        for i in range(5):
            expected = paper.stack("lstm", p, states, xs[n, i].numpy(), residual_from, masks=masks[n, i])
            close(top[n, i], expected)


@cells
@pytest.mark.parametrize(
    "shares",
    [{}, {"layers": 0.5}, {"state": 0.5}, {"layer_outputs": 0.5}, {"layers": 0.4, "layer_outputs": 0.2, "state": 0.3}],
    ids=str,
)
def test_layer_by_layer_equals_repeated_steps(cell, shares, drawn, numbers):
    """Outputs, states and gradients are equal for the same random numbers, also if the sequence is split."""
    stack, _ = drawn(Stack(CELLS[cell], 3, 4, 3, 2, DropoutConfig(**shares)))
    x = numbers(2, 5, 3).requires_grad_()
    first = first_states(stack, numbers)
    weight = numbers(2, 5, 4)
    results = []
    for way in ("steps", "run", "in two parts"):
        state = stack.start(first, BatchRng(3), 5)
        if way == "steps":
            top, state = steps(stack, x, state, None)
        elif way == "run":
            top, state = layer_by_layer(stack, stack.inputs(x), state)
        else:
            head, state = layer_by_layer(stack, stack.inputs(x[:, :2]), state)
            tail, state = layer_by_layer(stack, stack.inputs(x[:, 2:]), state)
            top = torch.cat([head, tail], 1)
        last = leaves(state.cells)
        total = (top * weight).sum() + sum(leaf.sum() for leaf in last)
        results.append((top, *last, *torch.autograd.grad(total, [x, *stack.parameters()])))
    for found in results[1:]:
        for fast, plain in zip(found, results[0], strict=True):
            torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-12)


def test_layer_masks_vary_by_position_and_state_masks_do_not(numbers):
    stack = Stack(CELLS["lstm"], 3, 40, 3, None, DropoutConfig(layers=0.5, state=0.25)).double()
    noise = stack.start(first_states(stack, numbers), BatchRng(1), 6).masks
    assert noise.layers.shape == (2, 6, 2, 40)
    assert noise.recurrent.shape == (2, 3, 40)
    assert set(noise.layers.unique().tolist()) == {0.0, 2.0}
    assert noise.recurrent.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert not torch.equal(noise.layers[:, 0], noise.layers[:, 1])
    assert not torch.equal(noise.layers[:, :, 0], noise.layers[:, :, 1])
    assert not torch.equal(noise.recurrent[:, 0], noise.recurrent[:, 1])
    assert 0.4 < (noise.layers == 0).double().mean() < 0.6


def test_dropped_unit_still_passes_its_residual(numbers):
    stack = Stack(CELLS["tanh"], 3, 4, 2, 2, DropoutConfig(layers=0.5)).double()
    for parameter in stack.parameters():
        parameter.data.normal_(std=0.5)
    state = stack.start(first_states(stack, numbers), BatchRng(1), 1)
    noise = state.masks
    gone = state._replace(masks=noise._replace(layers=torch.zeros_like(noise.layers)))
    x = stack.inputs(numbers(2, 3))
    top, after = stack.step(x, gone)
    assert after.masks.position == 1
    upper = stack.layers[1]
    expected = upper.step(upper.inputs(torch.zeros(2, 4, dtype=torch.float64)), state.cells[1]).h
    torch.testing.assert_close(top, expected + after.cells[0].h)
