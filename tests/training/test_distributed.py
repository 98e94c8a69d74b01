"""Distributed training: several processes make the updates of one, and stop together."""

import itertools
import json
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rnnsearch.data.batches import Batch
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, DataError, Interrupted, RnnsearchError, TrainingError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss
from rnnsearch.systems import translation
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.pruning import prune, read_pruned
from rnnsearch.training import gradients
from rnnsearch.training.gradients import GradientReducer
from rnnsearch.utils.distributed import Processes, ProcessLost, _agree_on_prefix
from rnnsearch.utils.weights import read_weights
from tests.training.toys import ALIGNED, HARD_ATTENTION

# Forked processes need not import anything again; this process has no threads when it forks.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

MOMENTUM = {"type": "sgd", "learning_rate": 0.2, "momentum": 0.9}
Work = Callable[[Processes], Any]


def _run_process(work: Work, rank: int, world_size: int, store_path: str, pipe: Any) -> None:
    try:
        store = dist.FileStore(store_path, world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        dist.all_reduce(torch.zeros(1))
        pipe.send((work(Processes(rank, world_size, rank, store)), None))
    except BaseException as error:
        pipe.send((None, (type(error), str(error), traceback.format_exc())))


@pytest.fixture
def run_in_processes(tmp_path: Path) -> Callable[..., list[Any]]:
    """Return a function that calls `work` in several processes.

    It returns the result of each, or the class and the text of the RnnsearchError that it raised.
    """
    context = multiprocessing.get_context("fork")
    calls = iter(range(100))

    def run(work: Work, world_size: int = 2) -> list[Any]:
        store_path = str(tmp_path / f"store-{next(calls)}")
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        processes = []
        for rank in range(world_size):
            args = (work, rank, world_size, store_path, pipes[rank][1])
            processes.append(context.Process(target=_run_process, args=args))
        for process in processes:
            process.start()
        try:
            outcomes = [pipe.recv() if pipe.poll(120) else (None, (TimeoutError, "", "")) for pipe, _ in pipes]
        finally:
            for process in processes:
                process.join(10)
                process.kill()
        results = []
        for value, error in outcomes:
            if error is not None and not issubclass(error[0], RnnsearchError):
                raise AssertionError(error[2])
            results.append(value if error is None else error[:2])
        return results

    return run


@pytest.fixture
def assert_close_checkpoints(read_checkpoint: Any) -> Callable[..., None]:
    """Return a function that checks that the last checkpoints of two runs are equal up to rounding."""

    def compare(run: str, other_run: str, rtol: float = 1e-4, atol: float = 1e-6) -> None:
        _assert_close(read_checkpoint(run), read_checkpoint(other_run), rtol, atol)

    return compare


def _assert_close(a: Any, b: Any, rtol: float, atol: float) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _assert_close(a[key], b[key], rtol, atol)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for a_item, b_item in zip(a, b, strict=True):
            _assert_close(a_item, b_item, rtol, atol)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-3)
    else:
        assert a == b


RUNS: dict[str, dict[str, Any]] = {
    "dropout, clipped": {"clip_norm": 0.5, "evaluate_every": 4, "dev_bleu": True},
    "accumulated, by tokens": {"normalise": "tokens", "batch": {"accumulate": 3}},
    "fewer pairs than processes": {"batch": {"sentences": 43}},
    "averaged": {"evaluate_every": 2, "average": 2},
    "hard attention": {"tables": HARD_ATTENTION, "batch": {"accumulate": 2}},
    "two directions": {"tables": {"objective": {"symmetry": 0.1}}},
}


@pytest.mark.parametrize("name", RUNS)
def test_processes_make_the_updates_of_one_process(run_in_processes, learn, assert_close_checkpoints, tmp_path, name):
    """The random numbers of a sentence, such as its dropout mask, do not depend on the process."""
    training = {"optimiser": MOMENTUM, "max_updates": 5} | RUNS[name]
    learn("single", **training)

    def work(processes: Processes) -> list[str]:
        recorder = learn("distributed", processes=processes, **training)
        return [str(row["update"]) for row in recorder.updates] + recorder.messages

    first, second = run_in_processes(work)
    assert second == [], "only the first process reports"
    assert first[:5] == ["1", "2", "3", "4", "5"]
    assert "on 2 processes, each on 1 thread of" in first[5]
    assert_close_checkpoints("single", "distributed")
    models = [read_weights(tmp_path / folder / "model.safetensors") for folder in ("single", "distributed")]
    for key, tensor in models[0].items():
        torch.testing.assert_close(tensor, models[1][key], rtol=1e-4, atol=1e-6)


def test_pruned_weights_stay_zero_in_all_processes(run_in_processes, learn, assert_close_checkpoints, tmp_path):
    learn("first", max_updates=1)
    prune(tmp_path / "first", tmp_path / "pruned", 0.6, "class-uniform")
    training = {"begin_from": str(tmp_path / "pruned"), "keep_zeros": True, "clip_norm": 0.5, "max_updates": 2}
    learn("single", **training)
    run_in_processes(lambda processes: learn("distributed", processes=processes, **training))
    assert_close_checkpoints("single", "distributed")
    tensors = read_weights(tmp_path / "distributed" / "model.safetensors")
    masks = read_pruned(tmp_path / "distributed", load_system(tmp_path / "distributed").model)
    assert all(bool((tensors[name][mask] == 0).all()) and mask.any() for name, mask in masks.items())


def test_batch_with_fewer_rows_than_processes(run_in_processes, learn, assert_close_checkpoints):
    """44 pairs in batches of 7: the last batch has two pairs for three processes."""
    training = {"optimiser": MOMENTUM, "max_epochs": 1, "batch": {"sentences": 7}}
    learn("single", **training)
    run_in_processes(lambda processes: learn("distributed", processes=processes, **training), world_size=3)
    assert_close_checkpoints("single", "distributed")


def test_gradients_of_rare_words_reach_all_processes(run_in_processes, learn, assert_close_checkpoints):
    """Batches of one pair per process: sometimes only one of them has words of a class of the output layer."""
    tables = {"model": {"output": {"type": "adaptive", "cutoffs": [6, 9, 11], "factor": 1.5}}}
    training = {"optimiser": MOMENTUM, "max_updates": 8, "batch": {"sentences": 2}}
    learn("single", tables, **training)
    run_in_processes(lambda processes: learn("distributed", tables, processes=processes, **training))
    assert_close_checkpoints("single", "distributed")


def test_gradient_of_one_process_is_applied_in_all(run_in_processes, monkeypatch):
    def work(processes: Processes) -> list[list[float] | None]:
        monkeypatch.setattr(gradients, "BUCKET_BYTES", 16)
        parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]  # two per bucket
        reducer = GradientReducer(parameters, processes, torch.bfloat16)
        reducer.begin()
        used = [parameters[0], parameters[1 + processes.rank]]  # no process uses the last one
        with reducer.sending():
            sum((parameter * 3).sum() for parameter in used).backward()
        reducer.finish()
        return [None if parameter.grad is None else parameter.grad.tolist() for parameter in parameters]

    assert run_in_processes(work) == [[[6.0, 6.0], [3.0, 3.0], [3.0, 3.0], None]] * 2


@dataclass(frozen=True)
class SignalAt(Likelihood):
    """Raises SIGTERM in a call of the objective: only the first process has a recorder that could do it."""

    call: int = 1
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        if rng is not None and next(self.calls) == self.call:
            signal.raise_signal(signal.SIGTERM)
        return super().__call__(model, batch, rng)


def test_run_resumes_with_another_number_of_processes(
    run_in_processes, learn, assert_close_checkpoints, tmp_path, monkeypatch
):
    """2 -> 1 -> 2 processes; only the second one gets the signal, within an epoch of accumulated batches."""
    training = {"optimiser": MOMENTUM, "batch": {"accumulate": 2}, "evaluate_every": 3}

    def train_until_signal(processes: Processes) -> None:
        if not processes.is_first:
            monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: SignalAt(call=4))
            monkeypatch.setattr("rnnsearch.training.run.estimate", lambda *_: None)  # its passes would count
        learn("distributed", processes=processes, **training, max_updates=8)

    learn("single", **training, max_updates=8)
    stopped = run_in_processes(train_until_signal)
    last = tmp_path / "distributed" / "checkpoints" / "last"
    text = f"training was interrupted at update 2; its state is saved in {last}; continue with --resume"
    assert stopped == [(Interrupted, text)] * 2
    learn("distributed", resume=True, **training, max_updates=6)
    run_in_processes(
        lambda processes: learn("distributed", resume=True, processes=processes, **training, max_updates=8)
    )
    assert_close_checkpoints("single", "distributed")


def test_bf16_all_reduce_is_close_and_equal_in_all_processes(
    run_in_processes, learn, read_checkpoint, assert_close_checkpoints
):
    for dtype in ("fp32", "bf16"):
        run_in_processes(lambda p, d=dtype: learn(d, processes=p, optimiser=MOMENTUM, max_updates=3, all_reduce=d))
    fp32, bf16 = read_checkpoint("fp32")[0], read_checkpoint("bf16")[0]
    assert any(not torch.equal(tensor, bf16[name]) for name, tensor in fp32.items())
    assert_close_checkpoints("fp32", "bf16", rtol=0.05, atol=0.01)
    with pytest.raises(ConfigError, match=r"training.all_reduce: has no effect with one process"):
        learn("single", max_updates=1, all_reduce="bf16")


def test_repeated_pass_sends_nothing_twice(run_in_processes, learn, assert_close_checkpoints, monkeypatch):
    """In the second process, the backward pass runs out of memory after some gradients have been sent."""
    training = {"optimiser": MOMENTUM, "max_updates": 3, "batch": {"accumulate": 2}}
    learn("single", **training)

    class OutOfMemory(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *_grads: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def work(processes: Processes) -> int:
        monkeypatch.setattr(gradients, "BUCKET_BYTES", 64)
        sent: list[int] = []
        send = GradientReducer._send_next_bucket

        def count(self: GradientReducer) -> None:
            sent.append(len(self._sent))
            send(self)

        monkeypatch.setattr(GradientReducer, "_send_next_bucket", count)

        class OutOfMemoryLikelihood(Likelihood):
            def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
                if rng is None or processes.is_first or batch.sentences <= 2:
                    return super().__call__(model, batch, rng)
                hook = model.encoder.register_forward_hook(  # after the decoder's gradients have been computed
                    lambda _m, _i, out: out._replace(annotations=OutOfMemory.apply(out.annotations))
                )
                try:
                    return super().__call__(model, batch, rng)
                finally:
                    hook.remove()

        monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: OutOfMemoryLikelihood())
        learn("distributed", processes=processes, **training)
        assert sent == sorted(range(max(sent) + 1)) * 3
        return max(sent)

    assert min(run_in_processes(work)) > 3
    assert_close_checkpoints("single", "distributed")


def test_error_in_one_process_ends_all_and_is_reported_once(run_in_processes, learn, monkeypatch):
    def work(processes: Processes) -> tuple[str, str, bool]:
        class FailingLikelihood(Likelihood):
            def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
                if processes.rank == 1:
                    raise TrainingError("the second process fails")
                return super().__call__(model, batch, rng)

        monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: FailingLikelihood())
        try:
            learn(processes=processes, optimiser=MOMENTUM, max_updates=5)
        except RnnsearchError as error:
            should_report = processes.should_report(error)
            if processes.rank == 1:
                dist.destroy_process_group()  # as when a process ends
            return type(error).__name__, str(error), should_report
        raise AssertionError("training should have failed")

    (first_error, first_text, first_reports), second = run_in_processes(work)
    assert second == ("TrainingError", "the second process fails", True)
    assert (first_error, first_reports) == ("ProcessLost", False)
    assert first_text.startswith(
        "another process of this run has ended, so training stopped; its last checkpoint is intact"
    )


def test_error_of_first_process_is_raised_in_all_and_reported_once(run_in_processes):
    def work(processes: Processes) -> tuple[str, bool]:
        def fail() -> None:
            raise DataError("no such file")

        try:
            processes.run_on_first(fail)
        except RnnsearchError as error:
            return str(error), processes.should_report(error)
        raise AssertionError

    results = run_in_processes(work, world_size=3)
    assert [text for text, _ in results] == ["no such file"] * 3
    assert sorted(should_report for _, should_report in results) == [False, False, True]


def test_lost_process_is_reported_once_if_it_reported_nothing(run_in_processes):
    results = run_in_processes(lambda processes: processes.should_report(ProcessLost("ended")))
    assert sorted(results) == [False, True]


def test_processes_with_different_data_are_rejected(run_in_processes, learn, prepared, tmp_path):
    def work(processes: Processes) -> None:
        facts = prepared.facts | ({} if processes.is_first else {"sha256": "0" * 64})
        learn(data=Prepared(prepared.folder, facts), processes=processes, max_updates=1)

    for error, text in run_in_processes(work):
        assert error is TrainingError
        assert text.startswith(f"{tmp_path / 'run'}: all processes must see the same prepared data and checkpoint")


def test_alignment_metric_covers_all_processes(run_in_processes, learn, aligned, tmp_path):
    run = {"tables": ALIGNED, "data": aligned, "optimiser": MOMENTUM, "max_updates": 2, "metric": "aer"}
    learn("single", **run)
    run_in_processes(lambda processes: learn("distributed", processes=processes, **run))
    single = json.loads((tmp_path / "single" / "training.json").read_text())
    distributed = json.loads((tmp_path / "distributed" / "training.json").read_text())
    assert distributed["history"][0]["dev_aer"] == pytest.approx(single["history"][0]["dev_aer"])
    assert distributed["device"].startswith("2 processes, each on ")


def test_restarted_processes_agree_on_a_new_prefix():
    """The store still has the entries of earlier processes, whose number may differ."""
    store = dist.HashStore()

    def prefixes(world_size: int) -> list[str]:
        with ThreadPoolExecutor(world_size) as pool:
            futures = [pool.submit(_agree_on_prefix, store, rank, world_size) for rank in range(world_size)]
            return [future.result(timeout=20) for future in futures]

    first = prefixes(2)
    second = prefixes(3)
    third = prefixes(2)
    assert len(set(first)) == len(set(second)) == len(set(third)) == 1
    assert len({first[0], second[0], third[0]}) == 3
