"""The compiled functions: equal to their twins in PyTorch, gradients too; and what happens where there are none."""

import stat

import pytest
import torch

from rnnsearch.kernels import bahdanau as fused_bahdanau
from rnnsearch.kernels import cross_entropy
from rnnsearch.kernels import gru_sequence as fused_gru
from rnnsearch.kernels.native import bahdanau, gru_sequence, library, softmax_loss
from rnnsearch.kernels.native import product as native_product
from rnnsearch.tensors import lengths_mask

SIZES = [  # sentences, target and source positions, then D, A, H
    (3, 4, 5, 6, 10, 14),
    (5, 3, 4, 48, 32, 64),
    (17, 5, 7, 50, 36, 20),  # more rows than a block, columns that fill no panel
    (1, 1, 1, 16, 16, 16),
]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.1}


@pytest.fixture(autouse=True)
def compiled():
    if library.why_not():
        pytest.skip(library.why_not())


def kinds():
    return [pytest.param(kind, id=str(kind).removeprefix("torch.")) for kind in library.TYPES]


@pytest.fixture(params=kinds())
def kind(request):
    if library.function("gru_forward", "gru_sequence", request.param) is None:
        pytest.skip(f"this processor has no products in {request.param}")
    return request.param


def numbers(seed, *shape, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).requires_grad_()


def outcome(run, inputs, kind):
    """What `run` gives, and the gradients of a random weighting of it."""
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        found = run()
    total = sum((part.float() * numbers(70 + n, *part.shape).detach()).sum() for n, part in enumerate(found))
    return [*found, *torch.autograd.grad(total, inputs)]


def assert_near(found, expected, kind):
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        off = (got - want).float().norm() / want.float().norm().clamp_min(1e-6)
        assert off < TOLERANCE[kind], (got.shape, off)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_recurrence_of_rnnsearch(sizes, threads, kind, monkeypatch):
    B, I, J, D, A, H = sizes
    inputs = [numbers(n, *shape) for n, shape in enumerate(((B, I, 3 * D), (B, D), (B, J, H), (B, J, A)))]
    shapes = ((A, D), (A,), (3 * D, H), (2 * D, D), (D, D))
    weights = fused_bahdanau.Parameters(*(numbers(10 + n, *shape, scale=0.3) for n, shape in enumerate(shapes)))
    mask = lengths_mask(torch.arange(B) % J + 1, J)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            assert bahdanau.can_run(inputs[0], inputs[2], inputs[3], weights.U)
        native = outcome(lambda: fused_bahdanau.unroll(*inputs, mask, weights), [*inputs, *weights], kind)
        monkeypatch.setattr(bahdanau, "can_run", lambda *_: False)
        fallback = outcome(lambda: fused_bahdanau.unroll(*inputs, mask, weights), [*inputs, *weights], kind)
    finally:
        torch.set_num_threads(before)
    assert_near(native, fallback, kind)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("backward", [False, True])
def test_sequence_of_the_gru(sizes, backward, kind, monkeypatch):
    B, _, J, D, *_ = sizes
    x, start = numbers(1, B, J, 3 * D), numbers(2, B, D)
    gates, candidate = numbers(3, 2 * D, D, scale=0.3), numbers(4, D, D, scale=0.3)
    inputs, mask = (x, gates, candidate, start), lengths_mask(torch.arange(B) % J + 1, J)

    def run():
        return fused_gru.gru_sequence(x, mask, gates, candidate, backward, start)

    native = outcome(run, inputs, kind)
    monkeypatch.setattr(gru_sequence, "can_run", lambda *_: False)
    assert_near(native, outcome(run, inputs, kind), kind)


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("V", [5, 16, 50])
@pytest.mark.parametrize("kind", kinds())
def test_softmax_and_its_gradient(V, eps, kind):
    M = 7
    logits, bias = numbers(1, M, V, scale=4.0).detach().to(kind), numbers(2, V).detach()
    logits[0, 0], logits[1] = 80.0, -80.0
    target, results = torch.arange(M) % V, []
    for run in (softmax_loss.softmax_loss, cross_entropy.softmax_loss):
        changed, d_bias = logits.clone(), torch.ones(V)
        only_scored = run(logits.clone(), bias, target, eps, None)
        found = run(changed, bias, target, eps, d_bias)
        assert all(torch.equal(a, b) for a, b in zip(only_scored, found, strict=True))
        results.append((*found, changed, d_bias))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2 if kind == torch.bfloat16 else 2e-5, atol=1e-5)


@pytest.fixture
def own_kind(kind):
    """A type whose products are ours here, not a library's."""
    if not native_product.can_run(kind):
        pytest.skip(f"this processor's products in {kind} are the library's")
    return kind


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 16, 7), (13, 70, 64), (259, 130, 33), (7, 20, 5000)], ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_products_in_any_layout(sizes, turned, own_kind):
    M, N, K = sizes
    x, w = (numbers(n, *shape).detach().to(own_kind) for n, shape in enumerate([(M, K), (N, K)]))
    laid = [each.t().contiguous().t() if turn else each for each, turn in zip((x, w), turned, strict=True)]
    found = native_product.product(*laid)
    expected = x.double() @ w.double().t()
    assert found.dtype == own_kind
    unrounded = native_product.product(*laid, torch.float32)
    assert unrounded.dtype == torch.float32 and torch.equal(unrounded.to(own_kind), found)
    assert ((unrounded - expected).norm() / expected.norm()).item() < 1e-5
    assert ((found - expected).norm() / expected.norm()).item() < (5e-3 if own_kind == torch.bfloat16 else 1e-5)


def test_a_row_of_a_product_is_the_same_whatever_comes_with_it(own_kind):
    x, w = numbers(1, 40, 2100).detach().to(own_kind), numbers(2, 50, 2100).detach().to(own_kind)
    whole = native_product.product(x, w)
    before = torch.get_num_threads()
    torch.set_num_threads(before % 2 + 1)
    try:
        assert torch.equal(native_product.product(x[7:9], w), whole[7:9])
    finally:
        torch.set_num_threads(before)


def test_an_empty_product_is_zero(own_kind):
    none = torch.empty(4, 0, dtype=own_kind)
    assert torch.equal(native_product.product(none, none), torch.zeros(4, 4, dtype=own_kind))
    assert native_product.product(torch.empty(0, 3, dtype=own_kind), torch.ones(2, 3, dtype=own_kind)).shape == (0, 2)


def test_types_and_sizes_without_a_function_are_left_to_the_twin(kind):
    U, x = torch.zeros(7, 7), torch.zeros(1, 1, 21)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        assert gru_sequence.can_run(x, U) == (kind == torch.float32)  # pairs of numbers need an even size
    assert not gru_sequence.can_run(x.double(), U.double())


@pytest.fixture
def unloaded():
    """The libraries as a new process finds them."""
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.mark.usefixtures("unloaded")
def test_switched_off(monkeypatch):
    monkeypatch.setenv(library.OFF, "0")
    assert library.library("softmax_loss") is None
    assert library.status("softmax_loss") == "no native code (RNNSEARCH_NATIVE=0)"
    assert library.function("softmax_loss", "softmax_loss", torch.float32) is None


@pytest.mark.usefixtures("unloaded")
def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.status("softmax_loss") == "no native code (no C++ compiler was found)"


@pytest.mark.usefixtures("unloaded")
def test_a_compiler_that_fails(monkeypatch, tmp_path, caplog):
    compiler = tmp_path / "broken"
    compiler.write_text('#!/bin/sh\necho "x.cpp:1: error: unknown flag" >&2\nexit 1\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path / "cache"))
    assert library.status("softmax_loss") == "no native code (it could not be built)"
    assert "x.cpp:1: error: unknown flag" in caplog.text
    assert not list((tmp_path / "cache" / "native").iterdir())


@pytest.mark.usefixtures("unloaded")
def test_a_library_is_built_once(monkeypatch, tmp_path):
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path))
    assert library.library("softmax_loss") is not None
    (built,) = (tmp_path / "native").iterdir()
    made = built.stat().st_mtime_ns
    library.library.cache_clear()
    assert library.library("softmax_loss") is not None
    assert [path.stat().st_mtime_ns for path in (tmp_path / "native").iterdir()] == [made]


def test_the_same_batch_gives_the_same_bits(kind):
    """Whichever thread ends first: a resumed run is the uninterrupted one."""
    inputs = [numbers(n, *shape) for n, shape in enumerate(((9, 6, 96), (9, 32), (9, 7, 32), (9, 7, 32)))]
    weights = fused_bahdanau.Parameters(
        *(numbers(10 + n, *shape) for n, shape in enumerate(((32, 32), (32,), (96, 32), (64, 32), (32, 32))))
    )
    mask = lengths_mask(torch.arange(9) % 7 + 1, 7)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        first, *others = (
            outcome(lambda: fused_bahdanau.unroll(*inputs, mask, weights), [*inputs, *weights], kind) for _ in range(20)
        )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
