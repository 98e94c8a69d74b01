"""Native functions equal their PyTorch definitions with gradients; PyTorch is used if there is no library."""

import os
import stat
import subprocess
import sys

import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.ops import linear as native_product
from rnnsearch.ops import loss, recurrence
from rnnsearch.ops.native import building, library
from rnnsearch.ops.step import AttentionSource, StepBuilder
from rnnsearch.runtime import translator as runtime
from rnnsearch.utils.tensors import lengths_mask


@pytest.fixture(autouse=True)
def compiled():
    if library.unavailable_reason():
        pytest.skip(library.unavailable_reason())


@pytest.fixture(params=library.DTYPE_NAMES, ids=lambda kind: str(kind).removeprefix("torch."))
def kind(request):
    return request.param


def numbers(seed, *shape, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).requires_grad_()


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("V", [5, 16, 50])
def test_native_softmax_and_gradient_equal_pytorch(V, eps, kind):
    M = 7
    logits, bias = numbers(1, M, V, scale=4.0).detach().to(kind), numbers(2, V).detach()
    logits[0, 0], logits[1] = 80.0, -80.0
    target, results = torch.arange(M) % V, []
    target[3] = loss.NO_TARGET
    for run in (loss.native_softmax_loss, loss.torch_softmax_loss):
        changed, d_bias = logits.clone(), torch.ones(V)
        only_scored = run(logits.clone(), bias, target, eps, None)
        found = run(changed, bias, target, eps, d_bias)
        assert all(torch.equal(a, b) for a, b in zip(only_scored, found, strict=True))
        results.append((*found, changed, d_bias))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2 if kind == torch.bfloat16 else 2e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 16, 7), (13, 70, 64), (259, 130, 33), (7, 20, 5000)], ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_products_accept_any_layout(sizes, turned, kind):
    M, N, K = sizes
    x, w = (numbers(n, *shape).detach().to(kind) for n, shape in enumerate([(M, K), (N, K)]))
    laid = [each.t().contiguous().t() if turn else each for each, turn in zip((x, w), turned, strict=True)]
    found = native_product.native_product(*laid, kind)
    expected = x.double() @ w.double().t()
    assert found.dtype == kind
    unrounded = native_product.native_product(*laid, kind, torch.float32)
    assert unrounded.dtype == torch.float32 and torch.equal(unrounded.to(kind), found)
    assert ((unrounded - expected).norm() / expected.norm()).item() < 1e-5
    assert ((found - expected).norm() / expected.norm()).item() < (5e-3 if kind == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 16, 7), (40, 70, 600), (259, 130, 33)], ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("wide", [(True, False), (False, True), (True, True)], ids=str)
def test_wider_inputs_are_rounded(sizes, turned, wide):
    kind, (M, N, K) = torch.bfloat16, sizes
    whole = [numbers(n, *shape).detach() for n, shape in enumerate([(M, K), (N, K)])]
    rounded = [each.to(kind) for each in whole]
    laid = [a if as_it_is else b for a, b, as_it_is in zip(whole, rounded, wide, strict=True)]
    laid = [each.t().contiguous().t() if turn else each for each, turn in zip(laid, turned, strict=True)]
    assert torch.equal(native_product.native_product(*laid, kind), native_product.native_product(*rounded, kind))
    gaps = [torch.stack([each, each], 2)[:, :, 0] for each in laid]
    assert torch.equal(native_product.native_product(*gaps, kind), native_product.native_product(*rounded, kind))


@pytest.mark.parametrize("depth", [0, 40, 2100])  # no pass over the depth, one, two
def test_bias_is_added_before_rounding(kind, depth):
    x, w, bias = (numbers(n, *shape).detach() for n, shape in enumerate([(9, depth), (21, depth), (21,)]))
    x, w = x.to(kind), w.to(kind)
    found = native_product.native_product(x, w, kind, bias=bias)
    assert torch.equal(found, (native_product.native_product(x, w, kind, torch.float32) + bias).to(kind))
    assert torch.equal(native_product.native_product(x, w, kind, bias=bias.double()), found)


def test_product_rows_do_not_depend_on_other_rows(kind):
    x, w = numbers(1, 40, 2100).detach().to(kind), numbers(2, 50, 2100).detach().to(kind)
    whole = native_product.native_product(x, w, kind)
    before = torch.get_num_threads()
    torch.set_num_threads(before % 2 + 1)
    try:
        assert torch.equal(native_product.native_product(x[7:9], w, kind), whole[7:9])
    finally:
        torch.set_num_threads(before)


def test_empty_product_is_zero(kind):
    none = torch.empty(4, 0, dtype=kind)
    assert torch.equal(native_product.native_product(none, none, kind), torch.zeros(4, 4, dtype=kind))
    assert native_product.native_product(torch.empty(0, 3, dtype=kind), torch.ones(2, 3, dtype=kind), kind).shape == (
        0,
        2,
    )


def test_unsupported_dtypes_and_sizes_use_the_definition(kind):
    x = torch.zeros(1, 1, 21)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        assert recurrence.can_run(x, (7,)) == (kind == torch.float32)  # bf16 products need an even size
    assert not recurrence.can_run(x.double())


@pytest.fixture
def unloaded():
    """Clear the cache of loaded libraries before and after the test."""
    library._library.cache_clear()
    yield
    library._library.cache_clear()


def test_native_code_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.library() is None
    assert library.status() == "no native code (RNNSEARCH_NATIVE=0)"
    assert library.native_function("softmax_loss", torch.float32) is None


def test_variant_can_be_selected(monkeypatch):
    for variant in library.runnable_variants():
        monkeypatch.setenv(library.SWITCH, variant.name)
        assert library.chosen_variant() == variant
    monkeypatch.setenv(library.SWITCH, "z80")
    with pytest.raises(RnnsearchError, match=r'^RNNSEARCH_NATIVE: must be 0 or .* on this processor; got "z80"$'):
        library.chosen_variant()


@pytest.mark.parametrize(
    ("machine", "has", "first"),
    [
        ("x86_64", {*building.V4, "avx512_bf16", "avx512_vnni"}, "x86-64-v4-bf16"),
        ("x86_64", {*building.VARIANTS["x86_64"][0].capabilities}, "x86-64-v4-amx"),
        ("AMD64", {*building.V4}, "x86-64-v4"),
        ("x86_64", {*building.V3}, "x86-64-v3"),
        ("x86_64", {"sse2"}, None),
        ("arm64", {"neon"}, "armv8-a"),
        ("aarch64", {"neon", "dot"}, "armv8.2-a"),
        ("aarch64", {"bf16", "i8mm"}, "armv8.6-a"),
        ("riscv64", set(), None),
    ],
)
def test_best_supported_variant_is_chosen(machine, has, first, monkeypatch):
    assert picked(machine, has, monkeypatch) == first


@pytest.mark.parametrize(
    ("maker", "first"), [("AuthenticAMD", "x86-64-v4-bf16"), ("GenuineIntel", "x86-64-v4-vnni"), ("", "x86-64-v4-bf16")]
)
def test_amx_is_unused_if_the_system_denies_it(maker, first, monkeypatch):
    """The next variant multiplies pairs of bf16 values, except on Intel processors, which are slow at it."""
    has = set(building.VARIANTS["x86_64"][0].capabilities)
    assert picked("x86_64", has, monkeypatch, tiles=False, maker=maker) == first
    monkeypatch.setattr(runtime, "cpu_flags", lambda: frozenset(runtime.LINUX_FLAGS.values()))
    monkeypatch.setattr(building, "cpuinfo_field", {"vendor_id": maker}.get)
    assert runtime.best_variant().name == first


def picked(machine, has, monkeypatch, tiles=True, maker="AuthenticAMD"):
    """Return the name of the variant chosen for a processor with these features, or None."""
    monkeypatch.setattr(building, "cpuinfo_field", {"vendor_id": maker}.get)
    monkeypatch.setattr(building.platform, "processor", lambda: "")
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library, "request_amx_tiles", lambda: tiles)
    monkeypatch.setattr(building.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    library.runnable_variants.cache_clear()
    try:
        chosen = library.chosen_variant()
    finally:
        library.runnable_variants.cache_clear()
    return chosen.name if chosen else None


@pytest.mark.usefixtures("unloaded")
def test_missing_compiler_is_tolerated(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.status() == "no native code (no C++ compiler was found)"


@pytest.mark.usefixtures("unloaded")
def test_failing_compiler_is_reported(monkeypatch, tmp_path, caplog):
    compiler = tmp_path / "broken"
    compiler.write_text('#!/bin/sh\necho "x.cpp:1: error: unknown flag" >&2\nexit 1\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path / "cache"))
    assert library.status() == "no native code (it could not be built)"
    assert "x.cpp:1: error: unknown flag" in caplog.text
    assert not list((tmp_path / "cache" / "native").iterdir())


def test_library_is_built_once(empty_library_folder):
    assert library.library() is not None
    (built,) = empty_library_folder.iterdir()
    made = built.stat().st_mtime_ns
    library._library.cache_clear()
    assert library.library() is not None
    assert [path.stat().st_mtime_ns for path in empty_library_folder.iterdir()] == [made]


def rnnsearch_step(x, s_0, annotations, keys, mask, W_a, v_a, C, U):
    """Run the native recurrence of an RNNsearch decoder with a tanh cell."""
    step = StepBuilder(x)
    s, sums, asked = step.state(s_0), step.sums(x.shape[2]), step.sums(keys.shape[2])
    step.input(0, sums)
    read = step.read((s.previous, None))
    step.product(W_a, read, asked)
    step.product(U, read, sums)
    context = step.attend(asked, AttentionSource(keys, annotations, mask, v_a))
    step.product(C, step.read((context, None)), sums)
    step.tanh(sums, s, s.previous)
    step.outputs = [s, context]
    outputs, alphas = recurrence.run(step)
    return [*outputs, alphas]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_repeated_batch_gives_identical_bits(kind, threads):
    """Results do not depend on the order in which threads finish, so a resumed run equals an uninterrupted one."""
    shapes = ((9, 6, 32), (9, 32), (9, 7, 48), (9, 7, 16), (16, 32), (16,), (32, 48), (32, 32))
    inputs = [numbers(n, *shape, scale=0.5) for n, shape in enumerate(shapes)]
    mask, results = lengths_mask(torch.arange(9) % 7 + 1, 7), []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(10):
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
                found = rnnsearch_step(*inputs[:4], mask, *inputs[4:])
            results.append([*found, *torch.autograd.grad(sum(part.square().sum() for part in found), inputs)])
    finally:
        torch.set_num_threads(before)
    first, *others = results
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("own", "wanted"), [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")], ids=str
)
def test_waiting_threads_yield(own, wanted):
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    script = "import os, rnnsearch; print(os.environ.get('GOMP_SPINCOUNT'))"
    said = subprocess.run([sys.executable, "-c", script], env={**kept, **own}, check=True, capture_output=True)
    assert said.stdout.decode().strip() == wanted
