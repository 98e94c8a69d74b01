"""The cached table of timings decides if an operation runs natively or in the library."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rnnsearch.accel import recurrences
from rnnsearch.models.cells import GRU
from rnnsearch.ops import autotune, autotune_cases, linear, loss
from rnnsearch.ops.native import library
from rnnsearch.search.model_scorer import fastest_scorer
from tests.untrained import BAHDANAU, untrained

KERNELS = (
    autotune.PRODUCT,
    autotune.WEIGHT_GRADIENT,
    autotune.GRU,
    autotune.LSTM,
    autotune.RNNSEARCH,
    autotune.SOFTMAX,
    autotune.PACKED,
)


def times(native=2.0, torch=1.0, **kernels):
    """Return the timing of each kernel and type; `kernels` replaces the timings of some kernels by name."""
    found = []
    for kernel in KERNELS:
        for kind in ("fp32", "bf16", *(["int8"] if kernel == autotune.PACKED else [])):
            ways = kernels.get(kernel.split()[0], {"native": native, "torch": torch})
            found.append(autotune.Timing(kernel, kind, "1 x 1", 1.0, ways))
    return found


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Start with an empty cache, count the measurements, and return `times` as their result."""
    if library.library() is None:
        pytest.skip(library.unavailable_reason())
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path))
    found = {"times": times(), "count": 0}

    def measure():
        found["count"] += 1
        return found["times"]

    monkeypatch.setattr(autotune, "_measure", measure)
    autotune.register_cases(autotune_cases.cases)
    autotune.reset()
    yield found
    autotune.reset()


def files():
    return sorted((Path(os.environ["RNNSEARCH_CACHE"]) / "native").glob("*.json"))


@pytest.mark.parametrize("serves", ["native", "torch"])
def test_fastest_implementation_is_chosen(serves, measured, monkeypatch):
    measured["times"] = times(**{"native": 2.0, "torch": 2.0, serves: 1.0})
    own, kind, called = serves == "native", torch.float32, []
    x, w = torch.randn(300, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True)
    for module, name in ((linear, "native_product"), (loss, "native_softmax_loss")):
        run = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, run=run, name=name, **b: called.append(name) or run(*a, **b))
    assert linear.product_is_native(torch.device("cpu"), kind) == own
    linear.product(x.detach(), w.detach(), kind)
    assert called == (["native_product"] if own else [])
    linear.weight_gradient(torch.randn(300, 6), x.detach(), kind)
    assert called == ["native_product"] * (2 * own)
    linear.linear(x, w).sum().backward()
    assert called == ["native_product"] * (5 * own)
    called.clear()
    loss.cross_entropy(x.detach(), w.detach(), torch.zeros(6), torch.zeros(300, dtype=torch.int64), 0.1)
    assert ("native_softmax_loss" in called) == own
    assert recurrences.runs_natively(GRU(8, 8), torch.zeros(1, 1, 24)) == own
    model = untrained(BAHDANAU).model
    assert recurrences.runs_natively(model.decoder, torch.zeros(1, 1, 24)) == own
    assert fastest_scorer(model, "fp32").description.startswith("native search" if own else "PyTorch")
    assert fastest_scorer(model, "int8").description == "native search, int8"
    assert measured["count"] == 1


def test_each_kernel_is_chosen_separately(measured):
    measured["times"] = times(softmax={"native": 1.0, "torch": 3.0}, GRU={"native": 1.0, "torch": 3.0})
    ways = {kernel: autotune.implementation(kernel, torch.bfloat16) for kernel in KERNELS}
    assert {kernel for kernel, way in ways.items() if way == autotune.NATIVE} == {autotune.SOFTMAX, autotune.GRU}


def test_fastest_dtype_of_search_is_chosen(measured):
    seconds = {"fp32": 3.0, "bf16": 2.0, "int8": 1.0}
    measured["times"] = [
        autotune.Timing(autotune.PACKED, kind, "1", 1.0, {"native": own, "torch": 4.0}) for kind, own in seconds.items()
    ]
    assert autotune.fastest_search_dtype(("bf16", "fp32")) == "bf16"
    assert autotune.fastest_search_dtype(("fp32",)) == "fp32"
    measured["times"][1].seconds["native"] = 3.5
    assert autotune.fastest_search_dtype(("bf16", "fp32")) == "fp32"
    measured["times"][1].seconds["native"] = measured["times"][0].seconds["native"] = 5.0
    assert autotune.fastest_search_dtype(("bf16", "fp32")) is None


def test_onednn_is_chosen_if_fastest(measured, monkeypatch):
    if not linear.has_onednn():
        pytest.skip("this torch has no oneDNN")
    measured["times"] = times(product={"native": 3.0, "torch": 2.0, "onednn": 1.0})
    called, run = [], linear.onednn_product
    monkeypatch.setattr(linear, "onednn_product", lambda *given: called.append(1) or run(*given))
    x, w = torch.randn(5, 7), torch.randn(3, 7)
    torch.testing.assert_close(linear.product(x, w, torch.float32), x @ w.t())
    assert called


@pytest.mark.parametrize("part", [torch.zeros(6, 9)[:, :5], torch.zeros(6, 9)[:, :5].t()])
def test_onednn_gets_dense_matrices(part):
    found = linear.without_gaps(part)
    assert torch.equal(found, part)
    assert found.is_contiguous() or found.t().is_contiguous()


def test_timings_are_averaged_over_sizes():
    own = [{"native": 1.0, "torch": 4.0}, {"native": 3.0, "torch": 1.0}]
    table = autotune.TimingTable(
        {}, [autotune.Timing(autotune.SOFTMAX, "fp32", str(n), 1.0, each) for n, each in enumerate(own)]
    )
    assert table.fastest(autotune.SOFTMAX, "fp32") == autotune.NATIVE
    assert table.fastest(autotune.SOFTMAX, "bf16") == autotune.TORCH
    assert table.peak_gflops("fp32") == 0.0


def test_new_process_reuses_the_stored_choice(measured, caplog):
    caplog.set_level(logging.INFO)
    assert autotune.implementation(autotune.GRU, torch.float32) == autotune.TORCH
    assert [record.levelname for record in caplog.records] == ["INFO"]
    measured["times"] = times(native=0.1)
    for _ in range(2):
        autotune.reset()
        assert autotune.implementation(autotune.GRU, torch.float32) == autotune.TORCH
    assert measured["count"] == 1
    assert len(files()) == 1


@pytest.mark.parametrize("changed", ["processor", "torch", "threads", "library", "instruction sets"])
def test_stored_choice_is_invalidated_by_changes(changed, measured, monkeypatch):
    threads = torch.get_num_threads()
    autotune.table()
    autotune.reset()
    try:
        if changed == "processor":
            monkeypatch.setattr(autotune, "processor_name", lambda: "Z80")
        elif changed == "torch":
            monkeypatch.setattr(torch, "__version__", "9.9")
        elif changed == "threads":
            torch.set_num_threads(threads + 1)
        elif changed == "library":
            monkeypatch.setattr(autotune, "library", lambda: type("Other", (), {"_name": "/x/other-1.so"}))
        else:
            monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
        autotune.table()
    finally:
        torch.set_num_threads(threads)
    assert measured["count"] == len(files()) == 2


def test_each_process_uses_one_table(measured):
    """Search threads with another number of threads do not measure again."""
    autotune.table()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        autotune.table()
    finally:
        torch.set_num_threads(threads)
    assert measured["count"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:50],
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace('"threads"', '"cores"'),
        lambda text: text.replace("2.0", "-2.0"),
        lambda text: text.replace("2.0", '"fast"'),
        lambda text: json.dumps({**json.loads(text), "cases": []}),
    ],
)
def test_damaged_table_is_rebuilt(damage, measured):
    autotune.table()
    (path,) = files()
    whole = path.read_text(encoding="utf-8")
    path.write_text(damage(whole), encoding="utf-8")
    for _ in range(2):
        autotune.reset()
        assert autotune.implementation(autotune.GRU, torch.float32) == autotune.TORCH
    assert measured["count"] == 2
    assert path.read_text(encoding="utf-8") == whole


@pytest.mark.usefixtures("measured")
def test_unwritable_cache_folder_is_tolerated(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path / "file"))
    assert autotune.implementation(autotune.GRU, torch.float32) == autotune.TORCH


def test_forced_native_code_is_not_timed(measured, monkeypatch):
    for said in ("1", library.runnable_variants()[0].name):
        monkeypatch.setenv(library.SWITCH, said)
        assert {autotune.implementation(kernel, torch.float32) for kernel in KERNELS} == {autotune.NATIVE}
        assert autotune.fastest_search_dtype(("bf16", "fp32")) == "bf16"
    assert measured["count"] == 0
    assert files() == []


AT_ONCE = """
import sys, time, pathlib
from rnnsearch.ops import autotune
folder, own = pathlib.Path(sys.argv[1]), sys.argv[2]
def measure():
    (folder / own).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
    seconds = {"native": 1.0, "torch": 2.0} if own == "a" else {"native": 2.0, "torch": 1.0}
    return [autotune.Timing(autotune.GRU, "fp32", "1", 1.0, seconds)]
autotune._measure = measure
print(autotune.table().fastest(autotune.GRU, "fp32"))
"""


@pytest.mark.usefixtures("measured")
def test_concurrent_processes_choose_the_same(tmp_path):
    (tmp_path / "begun").mkdir()
    environment = {**os.environ, library.SWITCH: "0", "RNNSEARCH_CACHE": str(tmp_path)}
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, tmp_path / "begun", own], stdout=subprocess.PIPE, env=environment, text=True
        )
        for own in "ab"
    ]
    said = [process.communicate(timeout=120)[0] for process in begun]
    assert said[0] == said[1] and said[0] in ("native\n", "torch\n")
    assert len(files()) == 1 and not list((tmp_path / "native").glob("*.new"))
    seconds = json.loads(files()[0].read_text(encoding="utf-8"))["cases"][0]["seconds"]
    assert min(seconds, key=seconds.get) == said[0].strip()


IMPORTED = """
import rnnsearch.accel.registry, rnnsearch.search.model_scorer, rnnsearch.ops.device
from rnnsearch.ops import autotune
assert not autotune._tables
"""


def test_nothing_is_timed_at_import():
    environment = {name: value for name, value in os.environ.items() if name != library.SWITCH}
    subprocess.run([sys.executable, "-c", IMPORTED], check=True, timeout=120, env=environment)


def test_timing_does_not_depend_on_the_callers_context(monkeypatch, tmp_path):
    """Timing runs in a separate thread, without the caller's autocast, inference mode and fake tensors."""
    if library.library() is None:
        pytest.skip(library.unavailable_reason())
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path))
    monkeypatch.setattr(autotune, "MAX_REPETITIONS", 1)
    for name, smaller in (("UNITS", 16), ("VOCABULARY", 40)):
        monkeypatch.setattr(autotune_cases, name, smaller)
    autotune.register_cases(autotune_cases.cases)
    autotune.reset()
    try:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), FakeTensorMode():
            found = autotune.table()
    finally:
        autotune.reset()
    for kernel in KERNELS:
        for kind in ("fp32", "bf16"):
            means = found.mean_seconds(kernel, kind)
            assert {autotune.NATIVE, autotune.TORCH} <= means.keys(), (kernel, kind)
            assert all(seconds > 0 for seconds in means.values())
    assert autotune.NATIVE in found.mean_seconds(autotune.PACKED, "int8")


def test_implementations_of_a_product_agree(monkeypatch):
    monkeypatch.setattr(autotune_cases, "UNITS", 16)
    for case in autotune_cases.cases():
        if case.kernel in (autotune.PRODUCT, autotune.WEIGHT_GRADIENT):
            first, *others = (run(0).float() for run in case.candidates.values())
            for other in others:
                assert (other - first).norm() < 0.01 * first.norm()
