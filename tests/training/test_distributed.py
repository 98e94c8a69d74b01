"""Several processes that train together do what one does: the same updates, scores and ends, whoever is interrupted."""

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
from rnnsearch.utils import distributed as several
from rnnsearch.utils.distributed import ProcessLost, Processes
from rnnsearch.utils.weights import read_weights
from tests.training.toys import ALIGNED, HARD

# Forked, so that nothing is imported twice; this process has no threads of its own when it forks.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

MOMENTUM = {"type": "sgd", "learning_rate": 0.2, "momentum": 0.9}
Work = Callable[[Processes], Any]


def _process(work: Work, rank: int, world: int, place: str, pipe: Any) -> None:
    try:
        store = dist.FileStore(place, world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        dist.all_reduce(torch.zeros(1))
        pipe.send((work(Processes(rank, world, rank, store)), None))
    except BaseException as error:
        pipe.send((None, (type(error), str(error), traceback.format_exc())))


@pytest.fixture
def together(tmp_path: Path) -> Callable[..., list[Any]]:
    """Calls a function in two processes or more; returns what each returned, or (class, text) of what it raised."""
    context = multiprocessing.get_context("fork")
    calls = iter(range(100))

    def run(work: Work, world: int = 2) -> list[Any]:
        place = str(tmp_path / f"store-{next(calls)}")
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        started = [
            context.Process(target=_process, args=(work, rank, world, place, pipes[rank][1])) for rank in range(world)
        ]
        for process in started:
            process.start()
        try:
            found = [pipe.recv() if pipe.poll(120) else (None, (TimeoutError, "", "")) for pipe, _ in pipes]
        finally:
            for process in started:
                process.join(10)
                process.kill()
        for _, raised in found:
            if raised is not None and not issubclass(raised[0], RnnsearchError):
                raise AssertionError(raised[2])
        return [value if raised is None else raised[:2] for value, raised in found]

    return run


@pytest.fixture
def close(standing: Any) -> Callable[..., None]:
    """Two runs stand where they do, but for rounding."""

    def compare(one: str, other: str, rtol: float = 1e-4, atol: float = 1e-6) -> None:
        _alike(standing(one), standing(other), rtol, atol)

    return compare


def _alike(one: Any, other: Any, rtol: float, atol: float) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _alike(one[key], other[key], rtol, atol)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _alike(a, b, rtol, atol)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)
    else:
        assert one == (pytest.approx(other, rel=1e-3) if isinstance(one, float) else other)


RUNS: dict[str, dict[str, Any]] = {
    "dropout, clipped": {"clip_norm": 0.5, "evaluate_every": 4, "dev_bleu": True},
    "accumulated, by tokens": {"normalise": "tokens", "batch": {"accumulate": 3}},
    "fewer pairs than processes": {"batch": {"sentences": 43}},
    "averaged": {"evaluate_every": 2, "average": 2},
    "hard attention": {"tables": HARD, "batch": {"accumulate": 2}},
    "two directions": {"tables": {"objective": {"symmetry": 0.1}}},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_same_batches_make_the_same_updates(together, learn, close, tmp_path, name):
    """Dropout and all: what is drawn for a sentence does not depend on who works on it."""
    training = {"optimiser": MOMENTUM, "max_updates": 5} | RUNS[name]
    learn("alone", **training)

    def work(processes: Processes) -> list[str]:
        told = learn("together", processes=processes, **training)
        return [str(row["update"]) for row in told.updates] + told.messages

    first, second = together(work)
    assert second == [], "the first process speaks for all"
    assert first[:5] == ["1", "2", "3", "4", "5"]
    assert "on 2 processes, each on 1 thread of" in first[5]
    close("alone", "together")
    models = [read_weights(tmp_path / folder / "model.safetensors") for folder in ("alone", "together")]
    for key, tensor in models[0].items():
        torch.testing.assert_close(tensor, models[1][key], rtol=1e-4, atol=1e-6)


def test_pruned_weights_stay_zero_in_all_processes(together, learn, close, tmp_path):
    learn("first", max_updates=1)
    prune(tmp_path / "first", tmp_path / "pruned", 0.6, "class-uniform")
    training = {"begin_from": str(tmp_path / "pruned"), "keep_zeros": True, "clip_norm": 0.5, "max_updates": 2}
    learn("alone", **training)
    together(lambda processes: learn("together", processes=processes, **training))
    close("alone", "together")
    tensors = read_weights(tmp_path / "together" / "model.safetensors")
    masks = read_pruned(tmp_path / "together", load_system(tmp_path / "together").model)
    assert all(bool((tensors[name][mask] == 0).all()) and mask.any() for name, mask in masks.items())


def test_three_processes_with_nothing_for_one_of_them(together, learn, close):
    """44 pairs in batches of 7: the last has two pairs for three processes."""
    training = {"optimiser": MOMENTUM, "max_epochs": 1, "batch": {"sentences": 7}}
    learn("alone", **training)
    together(lambda processes: learn("together", processes=processes, **training), world=3)
    close("alone", "together")


def test_rare_words_that_one_process_alone_has_are_learned_in_all(together, learn, close):
    """A pair in each of two processes: now the one, now the other has no word of some group of the output."""
    tables = {"model": {"output": {"type": "adaptive", "cutoffs": [6, 9, 11], "factor": 1.5}}}
    training = {"optimiser": MOMENTUM, "max_updates": 8, "batch": {"sentences": 2}}
    learn("alone", tables, **training)
    together(lambda processes: learn("together", tables, processes=processes, **training))
    close("alone", "together")


def test_a_gradient_that_one_process_alone_has_is_that_of_all(together, monkeypatch):
    def work(processes: Processes) -> list[list[float] | None]:
        monkeypatch.setattr(gradients, "BUCKET_BYTES", 16)
        parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]  # two in a bucket
        total = GradientReducer(parameters, processes, torch.bfloat16)
        total.begin()
        used = [parameters[0], parameters[1 + processes.rank]]  # and the last by none
        with total.sending():
            sum((parameter * 3).sum() for parameter in used).backward()
        total.finish()
        return [None if parameter.grad is None else parameter.grad.tolist() for parameter in parameters]

    assert together(work) == [[[6.0, 6.0], [3.0, 3.0], [3.0, 3.0], None]] * 2


@dataclass(frozen=True)
class SignalAt(Likelihood):
    """Ctrl-C in one process, right after an update; recorders are told in the first alone, so a thread's clock is not
    needed: the signal comes from within the objective."""

    call: int = 1
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        if rng is not None and next(self.calls) == self.call:
            signal.raise_signal(signal.SIGTERM)
        return super().__call__(model, batch, rng)


def test_a_run_goes_on_with_other_numbers_of_processes(together, learn, close, tmp_path, monkeypatch):
    """2 -> 1 -> 2; the second process alone is told to stop, in the middle of an epoch of accumulated batches."""
    training = {"optimiser": MOMENTUM, "batch": {"accumulate": 2}, "evaluate_every": 3}

    def interrupted(processes: Processes) -> None:
        if not processes.is_first:
            monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: SignalAt(call=4))
            monkeypatch.setattr("rnnsearch.training.run.estimate", lambda *_: None)  # whose passes are none of these
        learn("together", processes=processes, **training, max_updates=8)

    learn("alone", **training, max_updates=8)
    stopped = together(interrupted)
    last = tmp_path / "together" / "checkpoints" / "last"
    text = f"training was interrupted at update 2; its state is saved in {last}; continue with --resume"
    assert stopped == [(Interrupted, text)] * 2
    learn("together", resume=True, **training, max_updates=6)
    together(lambda processes: learn("together", resume=True, processes=processes, **training, max_updates=8))
    close("alone", "together")


def test_bf16_sums_are_near_and_alike_in_all_processes(together, learn, standing, close):
    for kind in ("fp32", "bf16"):
        together(lambda p, k=kind: learn(k, processes=p, optimiser=MOMENTUM, max_updates=3, all_reduce=k))
    fp32, bf16 = standing("fp32")[0], standing("bf16")[0]
    assert any(not torch.equal(tensor, bf16[name]) for name, tensor in fp32.items())
    close("fp32", "bf16", rtol=0.05, atol=0.01)
    with pytest.raises(ConfigError, match=r"training.all_reduce: has no effect with one process"):
        learn("alone", max_updates=1, all_reduce="bf16")


def test_a_pass_done_again_sends_nothing_twice(together, learn, close, monkeypatch):
    """In the second process a batch does not fit into memory, as its backward pass finds when it has sent a part."""
    training = {"optimiser": MOMENTUM, "max_updates": 3, "batch": {"accumulate": 2}}
    learn("alone", **training)

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *_grads: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def work(processes: Processes) -> int:
        monkeypatch.setattr(gradients, "BUCKET_BYTES", 64)
        sent: list[int] = []
        send = GradientReducer._send

        def count(self: GradientReducer) -> None:
            sent.append(len(self._sent))
            send(self)

        monkeypatch.setattr(GradientReducer, "_send", count)

        class FullIn(Likelihood):
            def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
                if rng is None or processes.is_first or batch.sentences <= 2:
                    return super().__call__(model, batch, rng)
                full = model.encoder.register_forward_hook(  # so that the decoder's gradients are made before
                    lambda _m, _i, out: out._replace(annotations=Full.apply(out.annotations))
                )
                try:
                    return super().__call__(model, batch, rng)
                finally:
                    full.remove()

        monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: FullIn())
        learn("together", processes=processes, **training)
        assert sent == sorted(range(max(sent) + 1)) * 3
        return max(sent)

    assert min(together(work)) > 3
    close("alone", "together")


def test_what_one_process_finds_ends_all_and_is_said_once(together, learn, monkeypatch):
    def work(processes: Processes) -> tuple[str, str, bool]:
        class Refused(Likelihood):
            def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
                if processes.rank == 1:
                    raise TrainingError("the second process does not like it")
                return super().__call__(model, batch, rng)

        monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: Refused())
        try:
            learn(processes=processes, optimiser=MOMENTUM, max_updates=5)
        except RnnsearchError as error:
            mine = processes.should_report(error)
            if processes.rank == 1:
                dist.destroy_process_group()  # as the end of a process does
            return type(error).__name__, str(error), mine
        raise AssertionError("it should not have ended well")

    (lost, text, first), (kind, found, second) = together(work)
    assert (kind, found, second) == ("TrainingError", "the second process does not like it", True)
    assert (lost, first) == ("Lost", False)
    assert text.startswith("another process of this run has ended, so training stopped; its last checkpoint is whole")


def test_an_error_of_the_first_process_is_that_of_all_and_said_once(together):
    def work(processes: Processes) -> tuple[str, bool]:
        def refuse() -> None:
            raise DataError("no such file")

        try:
            processes.run_on_first(refuse)
        except RnnsearchError as error:
            return str(error), processes.should_report(error)
        raise AssertionError

    results = together(work, world=3)
    assert [text for text, _ in results] == ["no such file"] * 3
    assert sorted(mine for _, mine in results) == [False, False, True]


def test_a_lost_process_is_said_where_it_said_nothing_itself(together):
    results = together(lambda processes: processes.is_mine_to_say(ProcessLost("gone")))
    assert sorted(results) == [False, True]


def test_processes_that_see_other_data_are_refused(together, learn, prepared, tmp_path):
    def work(processes: Processes) -> None:
        facts = prepared.facts | ({} if processes.is_first else {"sha256": "0" * 64})
        learn(data=Prepared(prepared.folder, facts), processes=processes, max_updates=1)

    for kind, text in together(work):
        assert kind is TrainingError
        assert text.startswith(f"{tmp_path / 'run'}: all processes must see the same prepared data and checkpoint")


def test_the_alignment_metric_is_of_all_processes(together, learn, aligned, tmp_path):
    run = {"tables": ALIGNED, "data": aligned, "optimiser": MOMENTUM, "max_updates": 2, "metric": "aer"}
    learn("alone", **run)
    together(lambda processes: learn("together", processes=processes, **run))
    one, two = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("alone", "together"))
    assert two["history"][0]["dev_aer"] == pytest.approx(one["history"][0]["dev_aer"])
    assert two["device"].startswith("2 processes, each on ")


def test_processes_started_again_with_the_same_store_find_each_other():
    """Of another number the second time; and what the first left is there the third."""
    store = dist.HashStore()

    def names(ranks: range, world: int) -> list[str]:
        with ThreadPoolExecutor(world) as pool:
            tries = [pool.submit(several._round, store, rank, world) for rank in ranks]
            return [found.result(timeout=20) for found in tries]

    first, second, third = names(range(2), 2), names(range(3), 3), names(range(2), 2)
    assert len(set(first)) == len(set(second)) == len(set(third)) == 1
    assert len({first[0], second[0], third[0]}) == 3
