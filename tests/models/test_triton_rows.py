"""Triton's operations on rows of scores equal the definitions, on a GPU or by Triton's interpreter."""

import os

import pytest
import torch

from rnnsearch.ops import rows
from rnnsearch.search.topk import best_continuations_in_blocks

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def device(request):
    """Return a device, or skip it where it needs the interpreter and kernels are compiled, or without Triton."""
    pytest.importorskip("triton")
    if (os.environ.get("TRITON_INTERPRET") == "1") != (request.param == "cpu"):
        pytest.skip("kernels are compiled for a GPU")
    return request.param


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("A", "K", "C", "count"), [(3, 4, 7, 6), (2, 5, 1000, 10), (1, 1, 130, 8), (2, 3, 1285, 50), (1, 2, 3, 12)]
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # -inf - -inf, which is not used
def test_best_continuations_equal_a_stable_sort(device, A, K, C, count, ties):
    from rnnsearch.ops import triton_rows

    generator = torch.Generator().manual_seed(C + count)
    scores = torch.randn(A, K, C, generator=generator)
    prefix = -torch.rand(A, K, generator=generator)
    if ties:
        scores = (scores * 2).round() / 2
        prefix = (prefix * 2).round()
        scores[0, -1, 1] = torch.nan
    scores[0, 0, : C // 2] = -torch.inf
    prefix[-1, 1:] = -torch.inf
    expected = (scores + prefix[:, :, None]).flatten(1).sort(dim=1, descending=True, stable=True).indices[:, :count]
    assert triton_rows.supports_topk(K, C, count)
    assert torch.equal(triton_rows.topk(scores.to(device), prefix.to(device), count).cpu(), expected)
    if not ties:  # of -inf
        finite = best_continuations_in_blocks(scores, prefix, 1)
        assert torch.equal(finite, expected[:, :1])


@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:divide by zero")
@pytest.mark.parametrize("C", [3, 5000])  # one block of columns and several
def test_log_sum_exp(device, C):
    from rnnsearch.ops import triton_rows

    scores = 3 * torch.randn(5, C, generator=torch.Generator().manual_seed(C))
    scores[1, 1:] = -torch.inf
    scores[2] = -torch.inf
    scores[3, 1] = torch.nan
    torch.testing.assert_close(triton_rows.log_sum_exp(scores.to(device)).cpu(), scores.logsumexp(1), equal_nan=True)


def test_large_beams_use_pytorch():
    pytest.importorskip("triton")
    from rnnsearch.ops import triton_rows

    assert triton_rows.supports_topk(5, 32_000, 10)
    assert not triton_rows.supports_topk(50, 32_000, 60) and not triton_rows.supports_topk(5, 32_000, 100)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_kernels_are_checked_before_use(device, monkeypatch, caplog):
    from rnnsearch.ops import triton_rows

    check = rows._triton_is_correct.__wrapped__
    assert check(torch.device(device)) and not caplog.records
    monkeypatch.setattr(triton_rows, "topk", lambda scores, *_: torch.zeros(len(scores), 10, dtype=torch.int64))
    assert not check(torch.device("cpu"))
    monkeypatch.setattr(triton_rows, "topk", lambda *_: 1 / 0)
    assert not check(torch.device("cpu"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_triton_is_not_used_on_a_cpu():
    assert not rows._runs_triton(torch.zeros(1, 2))
