"""Recordings of the recurrences' loops: a replay with other numbers equals the loop, and what is kept is bounded.

A GPU records its kernels. Elsewhere torch's tracer records the operations, under the same terms: what is replayed
depends on shapes alone, reads and writes the same memory, and runs no Python of the loop.
"""

from functools import partial

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rnnsearch.kernels import bahdanau, gru_sequence, recorded
from rnnsearch.kernels.recorded import OCCURRENCES, LoopRecorder
from rnnsearch.tensors import lengths_mask

B, I, J, D, A, H = 3, 4, 5, 6, 10, 14
MASK = lengths_mask(torch.tensor([3, 1, 5]), J)


def traced(work):
    return make_fx(work)()


def numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rnnsearch(seed, device="cpu", kind=torch.float64):
    """What the recurrence gives for numbers of a seed, and all gradients."""
    shapes = [(B, I, 3 * D), (B, D), (B, J, H), (B, J, A), (A, D), (A,), (3 * D, H), (2 * D, D), (D, D)]
    inputs = [(numbers(seed + n, *shape) * 0.5).to(device, kind).requires_grad_() for n, shape in enumerate(shapes)]
    found = bahdanau.unroll(*inputs[:4], MASK.to(device), bahdanau.Parameters(*inputs[4:]))
    return with_gradients(found, inputs)


def gru(seed, device="cpu", kind=torch.float64, backward=False):
    inputs = [numbers(seed + n, *shape) for n, shape in enumerate([(B, J, 3 * D), (2 * D, D), (D, D), (B, D)])]
    inputs = [(x * 0.5).to(device, kind).requires_grad_() for x in inputs]
    found = gru_sequence.gru_sequence(inputs[0], MASK.to(device), *inputs[1:3], backward, inputs[3])
    return with_gradients(found, inputs)


gru_backward = partial(gru, backward=True)


def with_gradients(found, inputs):
    total = sum((out * numbers(90 + n, *out.shape).to(out)).sum() for n, out in enumerate(found))
    return [*found, *torch.autograd.grad(total, inputs)]


@pytest.fixture
def recorder(monkeypatch):
    made = LoopRecorder(traced)
    for module in (bahdanau, gru_sequence):
        monkeypatch.setattr(module, "replayed", made.run)
    return made


SEEDS = [10 * n for n in range(OCCURRENCES + 4)]


@pytest.mark.parametrize("loop", [rnnsearch, gru, gru_backward], ids=["rnnsearch", "gru", "gru backward"])
def test_a_replay_with_other_numbers_is_the_loop(loop, recorder, monkeypatch):
    with monkeypatch.context() as patch:
        for module in (bahdanau, gru_sequence):
            patch.setattr(module, "replayed", lambda loop, inputs: loop(*inputs))
        expected = [loop(seed) for seed in SEEDS]
    kept = []
    for number, seed in enumerate(SEEDS):
        for got, want in zip(loop(seed), expected[number], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
        kept.append(len(recorder))
    assert kept == [0] * OCCURRENCES + [2] * 4  # forward and backward


def cumulated(*rows):
    return (torch.stack(rows).cumsum(0),)


def test_outputs_of_two_replays_are_two(recorder):
    """The first layer's states must outlive the second's; and all shapes share memory."""
    found = []
    for n in range(OCCURRENCES + 3):
        for shape in ((3, 4), (5, 2)):
            rows = [*numbers(n, *shape)]
            found.append((recorder.run(cumulated, rows)[0], torch.stack(rows).cumsum(0)))
    assert len(recorder) == 2
    for got, want in found:
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_search_records_nothing(recorder, mode):
    """Its sentences have all lengths, and what it records would be of no use in training."""
    W, U = torch.nn.Parameter(numbers(1, 2 * D, D)), torch.nn.Parameter(numbers(2, D, D))
    with mode():
        for seed in SEEDS:
            gru_sequence.gru_sequence(numbers(seed, B, J, 3 * D), MASK, W, U, False)
    assert len(recorder) == 0
    gru(0)
    assert len(recorder._occurred) == 2


def double(x):
    return (2 * x,)


def test_the_least_recently_used_are_forgotten(recorder, monkeypatch):
    monkeypatch.setattr(recorded, "MOST_RECORDINGS", 2)
    often = OCCURRENCES + 1
    for size in [1] * often + [2] * often + [1] + [3] * often:
        assert torch.equal(*recorder.run(double, [torch.ones(size)]), torch.full((size,), 2.0))
    assert [key[1][0] for key in recorder._recordings] == [(1,), (3,)]


def test_what_was_forgotten_must_occur_anew_as_often(monkeypatch):
    monkeypatch.setattr(recorded, "MOST_RECORDINGS", 1)
    tries = []
    recorder = LoopRecorder(lambda work: tries.append(work()) or work)
    for size in [1] * (OCCURRENCES + 2) + [2] * (OCCURRENCES + 2) + [1] * OCCURRENCES:
        recorder.run(double, [torch.ones(size)])
    assert len(tries) == 2
    recorder.run(double, [torch.ones(1)])
    assert len(tries) == 3


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted when stream is capturing"), None])
def test_where_nothing_can_be_recorded_the_loop_runs(error, caplog):
    tries = []

    def fails(_):
        tries.append(1)
        raise torch.OutOfMemoryError("no room") if error is None else error

    recorder = LoopRecorder(fails)
    for n in range(2 * OCCURRENCES + 2):
        assert recorder.run(double, [torch.full((2,), float(n))])[0].tolist() == [2.0 * n] * 2
    assert len(recorder) == 0
    # Too little memory may be enough later; what cannot be recorded once never can.
    assert len(tries) == (2 if error is None else 1)
    assert [record.levelname for record in caplog.records] == ([] if error is None else ["WARNING"])


def test_counting_shapes_is_bounded(recorder, monkeypatch):
    monkeypatch.setattr(recorded, "MOST_COUNTED", 4)
    for size in range(1, 50):
        recorder.run(double, [torch.ones(size)])
    assert len(recorder._occurred) <= 4


def test_nothing_is_recorded_without_a_gpu(monkeypatch):
    monkeypatch.setattr(recorded, "_RECORDERS", {})
    assert recorded.replayed(double, [torch.ones(2)])[0].tolist() == [2.0, 2.0]
    assert not recorded._RECORDERS


@pytest.mark.cuda
@pytest.mark.parametrize("loop", [rnnsearch, gru, gru_backward], ids=["rnnsearch", "gru", "gru backward"])
@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_cuda_graph_is_the_loop(loop, switch, monkeypatch):
    monkeypatch.setenv(recorded.OFF, switch)
    monkeypatch.setattr(recorded, "_RECORDERS", {})
    for seed in SEEDS:
        for got, want in zip(loop(seed, "cuda", torch.float32), loop(seed), strict=True):
            torch.testing.assert_close(got.cpu().double(), want, rtol=1e-3, atol=1e-4)
    kept = [len(recorder) for recorder in recorded._RECORDERS.values()]
    assert kept == ([2] if switch == "1" else [])
