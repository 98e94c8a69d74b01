"""Replays of a recorded pass with new inputs equal the pass and its backward pass, and memory is bounded.

A GPU records kernels. Without one, a recording is the Python function that launches them: it reads and writes the
same memory on each call. Recordings of all systems are tested in tests/properties/test_recorded.py.
"""

import gc
import weakref

import pytest
import torch
from torch import nn

from rnnsearch.accel import cuda_graphs
from rnnsearch.accel.cuda_graphs import MIN_OCCURRENCES, PassRecorder, Workspace
from rnnsearch.models.batch_rng import BatchRng
from tests.objectives.passes import again


@pytest.fixture
def recorder():
    return PassRecorder(again)


class Net(nn.Module):
    """Module with two outputs, only one of which reads `own`; `never` is unused."""

    def __init__(self):
        super().__init__()
        self.table, self.own = nn.Embedding(7, 4), nn.Linear(4, 3)
        self.never = nn.Parameter(torch.ones(2))


def forward(model, tensors, rng):
    x = model.table(tensors[0])
    if rng is not None:
        x = x * rng.mask(x.shape, 0.5, x)
    return {"x": x, "y": (model.own(x).tanh(), None), "ids": tensors[0] + 1}


def ids(seed, *shape):
    return torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(seed))


def results(run, model, seed, which=("x", "y"), shape=(3, 5), rng=None):
    """Return the outputs, the gradients of a sum over some of them, and the next random number."""
    model.zero_grad()
    made = run(forward, model, [ids(seed, *shape)], rng)
    asked = {"x": made["x"], "y": made["y"][0]}
    sum(((1 + n) * asked[name].pow(2)).sum() for n, name in enumerate(which)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    rest = [] if rng is None else [rng.uniform((3,), torch.zeros(1))]
    return [made["x"].detach(), made["y"][0].detach(), made["ids"], *gradients, *rest]


def plainly(forward, model, tensors, rng):
    return forward(model, tensors, rng)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("which", [("x", "y"), ("y",), ("x",)])
@pytest.mark.parametrize("drawn", [True, False])
def test_replay_with_other_inputs_equals_the_pass(recorder, which, drawn):
    model, kept = Net(), []
    for seed in range(MIN_OCCURRENCES + 3):
        rng = [BatchRng(seed) if drawn else None for _ in range(2)]
        expected = results(plainly, model, seed, which, rng=rng[0])
        assert_same(results(recorder.run, model, seed, which, rng=rng[1]), expected)
        kept.append(len(recorder))
    assert kept == [0] * MIN_OCCURRENCES + [1] * 3
    assert model.never.grad is None and (model.own.weight.grad is None) == (which == ("x",))


def test_row_subset_uses_the_random_numbers_of_the_batch(recorder):
    model = Net()
    for seed in range(MIN_OCCURRENCES + 3):
        rows, rng = [seed % 3, 4, 5], [BatchRng(seed), BatchRng(seed)]
        for each in rng:
            each.select_rows(rows, batch_size=6)
        expected = results(plainly, model, seed, rng=rng[0])
        assert_same(results(recorder.run, model, seed, rng=rng[1]), expected)
    assert len(recorder) == 1


def test_backward_from_other_outputs_than_recorded(recorder):
    model, pattern = Net(), [("y",)] * (MIN_OCCURRENCES + 2) + [("x",), ("x", "y"), ("y",)]
    for seed, which in enumerate(pattern):
        expected = results(plainly, model, seed, which, rng=BatchRng(seed))
        assert_same(results(recorder.run, model, seed, which, rng=BatchRng(seed)), expected)


def test_two_forward_passes_before_backward(recorder):
    """Recordings share memory, so values between a forward and a backward pass must not be overwritten."""
    model = Net()
    for seed in range(MIN_OCCURRENCES + 3):
        expected = [results(plainly, model, seed + n) for n in range(2)]
        model.zero_grad()
        made = [recorder.run(forward, model, [ids(seed + n, 3, 5)], None) for n in range(2)]
        for n in (0, 1):
            model.zero_grad()
            (made[n]["x"].pow(2).sum() + 2 * made[n]["y"][0].pow(2).sum()).backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            assert_same(gradients, expected[n][3:])
    assert len(recorder) == 1


def test_forward_without_backward_does_not_block_others(recorder):
    model = Net()
    for seed in range(MIN_OCCURRENCES):
        results(recorder.run, model, seed)
    left = recorder.run(forward, model, [ids(0, 3, 5)], None)
    assert recorder._open() is not None
    del left
    gc.collect()
    assert recorder._open() is None
    assert_same(results(recorder.run, model, 9), results(plainly, model, 9))


def test_moved_weights_are_recorded_again(recorder):
    model = Net()
    for seed in range(MIN_OCCURRENCES + 1):
        results(recorder.run, model, seed)
    assert len(recorder) == 1 and not recorder._occurrences
    model.table.weight.data = model.table.weight.data + 1.0
    assert_same(results(recorder.run, model, 1), results(plainly, model, 1))
    assert len(recorder._occurrences) == 1


def test_frozen_weights_get_no_gradient(recorder):
    model = Net()
    model.table.weight.requires_grad_(False)
    for seed in range(MIN_OCCURRENCES + 2):
        assert_same(results(recorder.run, model, seed, ("y",)), results(plainly, model, seed, ("y",)))
    assert len(recorder) == 1


def test_autocast_products_equal_those_without_recording(recorder):
    model = Net()
    for seed in range(MIN_OCCURRENCES + 2):
        with torch.autocast("cpu", torch.bfloat16):
            expected = results(plainly, model, seed)
            found = results(recorder.run, model, seed)
        assert_same(found, expected)
    assert found[1].dtype == torch.bfloat16
    assert_same(results(recorder.run, model, 1), results(plainly, model, 1))  # fp32 needs another recording


def test_least_recently_used_recordings_are_dropped(recorder, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_RECORDINGS", 2)
    model, often = Net(), MIN_OCCURRENCES + 1
    for size in [1] * often + [2] * often + [1] + [3] * often:
        results(recorder.run, model, 1, shape=(size, 2))
    assert [key[1][0][0] for key in recorder._recordings] == [(1, 2), (3, 2)]


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted when stream is capturing"), None])
def test_unrecordable_pass_runs_normally(error, caplog):
    tries = []

    def fails(*_):
        tries.append(1)
        raise torch.OutOfMemoryError("no room") if error is None else error

    recorder, model = PassRecorder(fails), Net()
    for seed in range(2 * MIN_OCCURRENCES + 2):
        assert_same(results(recorder.run, model, seed), results(plainly, model, seed))
    assert len(recorder) == 0
    # If memory was short, recording is tried again; if recording is impossible, it is not.
    assert len(tries) == (2 if error is None else 1)
    assert [record.levelname for record in caplog.records] == ([] if error is None else ["WARNING"])


def test_counting_shapes_is_bounded(recorder, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_COUNTED_SHAPES", 4)
    model = Net()
    for size in range(1, 50):
        results(recorder.run, model, 1, shape=(size, 2))
    assert len(recorder._occurrences) <= 4


def test_second_backward_runs_the_pass(recorder):
    model = Net()
    for seed in range(MIN_OCCURRENCES + 1):
        results(recorder.run, model, seed)
    made = recorder.run(forward, model, [ids(1, 3, 5)], None)
    loss = made["x"].pow(2).sum() + 2 * made["y"][0].pow(2).sum()
    for _ in range(2):
        model.zero_grad()
        loss.backward(retain_graph=True)
        found = [parameter.grad for parameter in model.parameters()]
        results(recorder.run, model, 2)  # overwrites values that the first backward pass has read
        assert_same(found, results(plainly, model, 1)[3:])


def test_recordings_are_freed_with_their_model():
    model = Net()
    cuda_graphs._RECORDERS[model] = PassRecorder(again)
    cuda_graphs.forget(model)
    assert model not in cuda_graphs._RECORDERS
    cuda_graphs.forget(model)


def test_workspaces_double_when_they_grow():
    space, pieces = Workspace(), set()
    for size in range(1, 2_000):
        pieces.add(space.like([torch.ones(128 * size)])[0].untyped_storage().data_ptr())
    assert len(pieces) <= 12


def test_workspace_address_is_stable_until_it_grows():
    space, asked = Workspace(), [torch.ones(3, 5), torch.ones(2, dtype=torch.bool), torch.ones(4, dtype=torch.int64)]
    first, second = space.like(asked), space.like(asked[:1])
    assert [(one.shape, one.dtype) for one in first] == [(one.shape, one.dtype) for one in asked]
    assert first[0].data_ptr() == second[0].data_ptr()
    for number, one in enumerate(first):
        one.fill_(number)
    assert [one.unique().tolist() for one in first] == [[0.0], [True], [2]]
    assert space.like([torch.ones(9_000)])[0].data_ptr() != first[0].data_ptr()


def test_nothing_is_recorded_without_a_gpu():
    model = Net()
    for seed in range(MIN_OCCURRENCES + 2):
        results(cuda_graphs.run_recorded, model, seed)
    assert model not in cuda_graphs._RECORDERS
    # A CUDA graph keeps no reference to the Python function that launched its kernels.
    recorder = cuda_graphs._RECORDERS[model] = PassRecorder(lambda work, _: work() or (lambda: None))
    for seed in range(MIN_OCCURRENCES + 2):
        results(recorder.run, model, seed)
    assert len(recorder) == 1
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None and not cuda_graphs._RECORDERS


@pytest.mark.cuda
@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("which", [("x", "y"), ("y",)])
def test_cuda_graph_equals_the_pass(switch, which, monkeypatch):
    monkeypatch.setenv(cuda_graphs.SWITCH, switch)
    model = Net().cuda()

    def on_gpu(forward, model, tensors, rng):
        return cuda_graphs.run_recorded(forward, model, [tensor.cuda() for tensor in tensors], rng)

    def by_kernel(forward, model, tensors, rng):
        return forward(model, [tensor.cuda() for tensor in tensors], rng)

    for seed in range(MIN_OCCURRENCES + 3):
        expected = results(by_kernel, model, seed, which)
        found = results(on_gpu, model, seed, which)
        for one, other in zip(found, expected, strict=True):
            assert one is None if other is None else torch.allclose(one, other, rtol=1e-5)
    assert (len(cuda_graphs._RECORDERS[model]) if model in cuda_graphs._RECORDERS else 0) == int(switch)
