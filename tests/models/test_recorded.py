"""Recordings of the recurrences' loops: a replay with other numbers equals the loop, and what is kept is bounded.

A GPU records its kernels. Elsewhere torch's tracer records the operations, under the same terms: what is replayed
depends on shapes alone, reads and writes the same memory, and runs no Python of the loop.
"""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rnnsearch.models.fused import bahdanau, gru_sequence, recorded
from rnnsearch.models.fused.recorded import SEEN, Recorder
from rnnsearch.tensors import lengths_mask

B, I, J, D, A, H = 3, 4, 5, 6, 10, 14
MASK = lengths_mask(torch.tensor([3, 1, 5]), J)


def traced(loop, inputs):
    module = make_fx(loop)(*inputs)
    outputs = module(*inputs)

    def replay():
        for own, new in zip(outputs, module(*inputs), strict=True):
            own.copy_(new)

    return outputs, replay


def numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rnnsearch(seed, device="cpu", kind=torch.float64):
    """What the recurrence gives for numbers of a seed, and all gradients."""
    shapes = [(B, I, 3 * D), (B, D), (B, J, H), (B, J, A), (A, D), (A,), (3 * D, H), (2 * D, D), (D, D)]
    inputs = [(numbers(seed + n, *shape) * 0.5).to(device, kind).requires_grad_() for n, shape in enumerate(shapes)]
    found = bahdanau.unroll(*inputs[:4], MASK.to(device), bahdanau.Weights(*inputs[4:]))
    return with_gradients(found, inputs)


def gru(seed, device="cpu", kind=torch.float64, backward=False):
    inputs = [numbers(seed + n, *shape) for n, shape in enumerate([(B, J, 3 * D), (2 * D, D), (D, D), (B, D)])]
    inputs = [(x * 0.5).to(device, kind).requires_grad_() for x in inputs]
    found = gru_sequence.gru_sequence(inputs[0], MASK.to(device), *inputs[1:3], backward, inputs[3])
    return with_gradients(found, inputs)


def gru_backward(seed, device="cpu", kind=torch.float64):
    return gru(seed, device, kind, backward=True)


def with_gradients(found, inputs):
    total = sum((out * numbers(90 + n, *out.shape).to(out)).sum() for n, out in enumerate(found))
    return [*found, *torch.autograd.grad(total, inputs)]


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder(traced, 1 << 30)
    for module in (bahdanau, gru_sequence):
        monkeypatch.setattr(module, "replayed", made.run)
    return made


@pytest.mark.parametrize("loop", [rnnsearch, gru, gru_backward])
def test_a_replay_with_other_numbers_is_the_loop(loop, monkeypatch):
    expected = [loop(seed) for seed in range(0, 50, 10)]
    recorder, replays = Recorder(traced, 1 << 30), []
    for module in (bahdanau, gru_sequence):
        monkeypatch.setattr(module, "replayed", recorder.run)
    for number, seed in enumerate(range(0, 50, 10)):
        replays.append(len(recorder))
        for got, want in zip(loop(seed), expected[number], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    assert replays == [0] * (SEEN + 1) + [2] * (4 - SEEN)  # forward and backward


def test_outputs_of_two_replays_are_two(recorder):
    """The first layer's states must outlive the second's."""
    one, other = ([*numbers(seed, 3, 4).requires_grad_()] for seed in (1, 2))

    def loop(*rows):
        return (torch.stack(rows).cumsum(0),)

    found = [recorder.run(loop, [row.detach() for row in rows])[0] for rows in [one, other] * SEEN]
    assert len(recorder) == 1
    for n, rows in enumerate([one, other] * SEEN):
        torch.testing.assert_close(found[n], torch.stack(rows).detach().cumsum(0))


def test_search_records_nothing(recorder):
    """Its sentences have all lengths, and no gradients."""
    with torch.no_grad():
        for seed in range(0, 50, 10):
            x, W = numbers(seed, B, J, 3 * D), numbers(1, 2 * D, D)
            gru_sequence.gru_sequence(x, MASK, W, numbers(2, D, D), False)
    assert len(recorder) == 0


def double(x):
    return (2 * x,)


def test_the_least_recently_used_are_forgotten():
    recorder = Recorder(traced, 2 * 2 * 4 * 10)  # two of ten numbers in and ten out
    for shape in [(10,), (5, 2), (2, 5), (10,)] * 4:
        assert torch.equal(*recorder.run(double, [torch.ones(shape)]), torch.full(shape, 2.0))
    assert [key[1][0] for key in recorder._recordings] == [(2, 5), (10,)]


def test_one_that_is_larger_than_all_may_be_is_still_kept():
    recorder = Recorder(traced, 1)
    for _ in range(SEEN + 2):
        recorder.run(double, [torch.ones(9)])
    assert len(recorder) == 1


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted when stream is capturing"), None])
def test_where_nothing_can_be_recorded_the_loop_runs(error, caplog):
    tries = []

    def fails(*_):
        tries.append(1)
        raise torch.OutOfMemoryError("no room") if error is None else error

    recorder = Recorder(fails, 1 << 20)
    for n in range(6):
        assert recorder.run(double, [torch.full((2,), float(n))])[0].tolist() == [2.0 * n] * 2
    assert len(recorder) == 0
    # Too little memory may be enough later; what cannot be recorded once never can.
    assert len(tries) == (6 - SEEN if error is None else 1)
    assert [record.levelname for record in caplog.records] == ([] if error is None else ["WARNING"])


def test_counting_shapes_is_bounded(monkeypatch):
    monkeypatch.setattr(recorded, "KNOWN", 4)
    recorder = Recorder(traced, 1 << 20)
    for size in range(1, 50):
        recorder.run(double, [torch.ones(size)])
    assert len(recorder._seen) <= 4


def test_nothing_is_recorded_without_a_gpu():
    assert recorded.replayed(double, [torch.ones(2)])[0].tolist() == [2.0, 2.0]
    assert not recorded._RECORDERS


@pytest.mark.cuda
@pytest.mark.parametrize("loop", [rnnsearch, gru, gru_backward])
@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_cuda_graph_is_the_loop(loop, switch, monkeypatch):
    monkeypatch.setenv(recorded.OFF, switch)
    monkeypatch.setattr(recorded, "_RECORDERS", {})
    for seed in range(0, 50, 10):
        for got, want in zip(loop(seed, "cuda", torch.float32), loop(seed), strict=True):
            torch.testing.assert_close(got.cpu().double(), want, rtol=1e-3, atol=1e-4)
    kept = [len(recorder) for recorder in recorded._RECORDERS.values()]
    assert kept == ([2] if switch == "1" else [])
