"""Several processes that train together do what one does: the same updates, scores and ends, whoever is interrupted."""

from __future__ import annotations

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

from rnnsearch import processes as several
from rnnsearch.data.batches import Batch
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, DataError, Interrupted, RnnsearchError, TrainingError
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss
from rnnsearch.processes import Lost, Processes
from rnnsearch.systems import translation
from rnnsearch.training import gradient_sum
from rnnsearch.training.gradient_sum import GradientSum
from rnnsearch.training.run import train
from rnnsearch.weights import read_weights

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


def close(one: Any, other: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Two checkpoints (see `standing`) of the same run, but for rounding."""
    assert one[0].keys() == other[0].keys()
    for name, tensor in one[0].items():
        torch.testing.assert_close(tensor, other[0][name], rtol=rtol, atol=atol, msg=lambda text, n=name: f"{n} {text}")
    _alike(one[1], other[1])


def _alike(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _alike(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _alike(a, b)
    else:
        assert one == (pytest.approx(other, rel=1e-3) if isinstance(one, float) else other)


HARD = {
    "model": {"attention": {"normaliser": "hard"}},
    "objective": {"reinforce": {"baseline": "average", "decay": 0.5}},
}
RUNS: dict[str, dict[str, Any]] = {
    "dropout, clipped": {"clip_norm": 0.5, "evaluate_every": 4, "dev_bleu": True},
    "accumulated, by tokens": {"normalise": "tokens", "batch": {"accumulate": 3}},
    "fewer pairs than processes": {"batch": {"sentences": 43}},
    "averaged": {"evaluate_every": 2, "average": 2},
    "hard attention": {"tables": HARD, "batch": {"accumulate": 2}},
    "two directions": {"tables": {"objective": {"symmetry": 0.1}}},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_same_batches_make_the_same_updates(
    together: Any, configure: Any, prepared: Prepared, recorder: Any, standing: Any, tmp_path: Path, name: str
) -> None:
    """Dropout and all: what is drawn for a sentence does not depend on who works on it."""
    config = configure(**{"optimiser": MOMENTUM, "max_updates": 5} | RUNS[name])
    alone, told = tmp_path / "alone", recorder()
    train(config, prepared, alone, told)

    def work(processes: Processes) -> list[str]:
        tell = recorder()
        train(config, prepared, tmp_path / "together", tell, processes=processes)
        return [str(row["update"]) for row in tell.updates] + tell.messages

    first, second = together(work)
    assert second == [], "the first process speaks for all"
    assert first[:5] == ["1", "2", "3", "4", "5"]
    assert "on 2 processes, each on 1 thread of" in first[5]
    close(standing(alone), standing(tmp_path / "together"))
    models = [read_weights(folder / "model.safetensors") for folder in (alone, tmp_path / "together")]
    for key, tensor in models[0].items():
        torch.testing.assert_close(tensor, models[1][key], rtol=1e-4, atol=1e-6)


def test_three_processes_with_nothing_for_one_of_them(
    together: Any, configure: Any, prepared: Prepared, recorder: Any, standing: Any, tmp_path: Path
) -> None:
    """44 pairs in batches of 7: the last has two pairs for three processes."""
    config = configure(optimiser=MOMENTUM, max_epochs=1, batch={"sentences": 7})
    train(config, prepared, tmp_path / "alone", recorder())
    together(lambda p: train(config, prepared, tmp_path / "together", recorder(), processes=p), world=3)
    close(standing(tmp_path / "alone"), standing(tmp_path / "together"))


@dataclass(frozen=True)
class SignalAt(Likelihood):
    """Ctrl-C in one process, right after an update; recorders are told in the first alone, so a thread's clock is not
    needed: the signal comes from within the objective."""

    call: int = 1
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, model: TranslationModel, batch: Batch, draws: Draws | None) -> Loss:
        if draws is not None and next(self.calls) == self.call:
            signal.raise_signal(signal.SIGTERM)
        return super().__call__(model, batch, draws)


def test_a_run_goes_on_with_other_numbers_of_processes(
    together: Any, configure: Any, prepared: Prepared, recorder: Any, standing: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """2 -> 1 -> 2; the second process alone is told to stop, in the middle of an epoch of accumulated batches."""
    folder = tmp_path / "together"

    def config(updates: int) -> Any:
        return configure(optimiser=MOMENTUM, batch={"accumulate": 2}, max_updates=updates, evaluate_every=3)

    def interrupted(processes: Processes) -> None:
        if not processes.first:
            monkeypatch.setattr(translation, "likelihood", lambda *_: SignalAt(call=4))
        train(config(8), prepared, folder, recorder(), processes=processes)

    train(config(8), prepared, tmp_path / "alone", recorder())
    stopped = together(interrupted)
    text = f"training was interrupted at update 2; its state is saved in {folder / 'checkpoints' / 'last'}: "
    assert stopped == [(Interrupted, f"{text}go on with --resume")] * 2
    train(config(6), prepared, folder, recorder(), resume=True)
    together(lambda p: train(config(8), prepared, folder, recorder(), resume=True, processes=p))
    close(standing(tmp_path / "alone"), standing(folder))


def test_bf16_sums_are_near_and_alike_in_all_processes(
    together: Any, configure: Any, prepared: Prepared, recorder: Any, standing: Any, tmp_path: Path
) -> None:
    for kind in ("fp32", "bf16"):
        config = configure(optimiser=MOMENTUM, max_updates=3, all_reduce=kind)
        together(lambda p, c=config, k=kind: train(c, prepared, tmp_path / k, recorder(), processes=p))
    fp32, bf16 = standing(tmp_path / "fp32"), standing(tmp_path / "bf16")
    assert any(not torch.equal(tensor, bf16[0][name]) for name, tensor in fp32[0].items())
    close(fp32, bf16, rtol=0.05, atol=0.01)
    with pytest.raises(ConfigError, match=r"training.all_reduce: has no effect with one process"):
        train(configure(max_updates=1, all_reduce="bf16"), prepared, tmp_path / "alone", recorder())


def test_a_pass_done_again_sends_nothing_twice(
    together: Any, configure: Any, prepared: Prepared, recorder: Any, standing: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """In the second process a batch does not fit into memory, as its backward pass finds when it has sent a part."""
    config = configure(optimiser=MOMENTUM, max_updates=3, batch={"accumulate": 2})
    train(config, prepared, tmp_path / "alone", recorder())

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *_grads: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def work(processes: Processes) -> int:
        monkeypatch.setattr(gradient_sum, "BUCKET", 64)
        sent: list[int] = []
        send = GradientSum._send

        def count(self: GradientSum) -> None:
            sent.append(len(self._sent))
            send(self)

        monkeypatch.setattr(GradientSum, "_send", count)

        class FullIn(Likelihood):
            def __call__(self, model: TranslationModel, batch: Batch, draws: Draws | None) -> Loss:
                if draws is None or processes.first or batch.sentences <= 2:
                    return super().__call__(model, batch, draws)
                full = model.encoder.register_forward_hook(  # so that the decoder's gradients are made before
                    lambda _m, _i, out: out._replace(annotations=Full.apply(out.annotations))
                )
                try:
                    return super().__call__(model, batch, draws)
                finally:
                    full.remove()

        monkeypatch.setattr(translation, "likelihood", lambda *_: FullIn())
        train(config, prepared, tmp_path / "together", recorder(), processes=processes)
        assert sent == sorted(range(max(sent) + 1)) * 3
        return max(sent)

    assert min(together(work)) > 3
    close(standing(tmp_path / "alone"), standing(tmp_path / "together"))


def test_what_one_process_finds_ends_all_and_is_said_once(
    together: Any, configure: Any, prepared: Prepared, recorder: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    config = configure(optimiser=MOMENTUM, max_updates=5)

    def work(processes: Processes) -> tuple[str, str, bool]:
        class Refused(Likelihood):
            def __call__(self, model: TranslationModel, batch: Batch, draws: Draws | None) -> Loss:
                if processes.rank == 1:
                    raise TrainingError("the second process does not like it")
                return super().__call__(model, batch, draws)

        monkeypatch.setattr(translation, "likelihood", lambda *_: Refused())
        try:
            train(config, prepared, tmp_path / "run", recorder(), processes=processes)
        except RnnsearchError as error:
            mine = processes.is_mine_to_say(error)
            if processes.rank == 1:
                dist.destroy_process_group()  # as the end of a process does
            return type(error).__name__, str(error), mine
        raise AssertionError("it should not have ended well")

    (lost, text, first), (kind, found, second) = together(work)
    assert (kind, found, second) == ("TrainingError", "the second process does not like it", True)
    assert (lost, first) == ("Lost", False)
    assert text.startswith("another process of this run has ended, so training stopped; its last checkpoint is whole")


def test_an_error_of_the_first_process_is_that_of_all_and_said_once(together: Any) -> None:
    def work(processes: Processes) -> tuple[str, bool]:
        def refuse() -> None:
            raise DataError("no such file")

        try:
            processes.once(refuse)
        except RnnsearchError as error:
            return str(error), processes.is_mine_to_say(error)
        raise AssertionError

    results = together(work, world=3)
    assert [text for text, _ in results] == ["no such file"] * 3
    assert sorted(mine for _, mine in results) == [False, False, True]


def test_a_lost_process_is_said_where_it_said_nothing_itself(together: Any) -> None:
    results = together(lambda processes: processes.is_mine_to_say(Lost("gone")))
    assert sorted(results) == [False, True]


def test_processes_that_see_other_data_are_refused(
    together: Any, configure: Any, prepared: Prepared, recorder: Any, tmp_path: Path
) -> None:
    def work(processes: Processes) -> None:
        facts = prepared.facts | ({} if processes.first else {"sha256": "0" * 64})
        seen = Prepared(prepared.folder, facts)
        train(configure(max_updates=1), seen, tmp_path / "run", recorder(), processes=processes)

    for kind, text in together(work):
        assert kind is TrainingError
        assert text.startswith(f"{tmp_path / 'run'}: all processes must see the same prepared data and checkpoint")


def test_the_alignment_metric_is_of_all_processes(
    together: Any, configure: Any, aligned: Prepared, recorder: Any, tmp_path: Path
) -> None:
    data = {"alignments": ["train.align"], "dev_alignments": "dev.align"}
    config = configure({"data": data}, optimiser=MOMENTUM, max_updates=2, metric="aer")
    train(config, aligned, tmp_path / "alone", recorder())
    together(lambda p: train(config, aligned, tmp_path / "together", recorder(), processes=p))
    one, two = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("alone", "together"))
    assert two["history"][0]["dev_aer"] == pytest.approx(one["history"][0]["dev_aer"])
    assert two["device"].startswith("2 processes, each on ")


def test_processes_started_again_with_the_same_store_find_each_other() -> None:
    """Of another number the second time; and what the first left is there the third."""
    store = dist.HashStore()

    def names(ranks: range, world: int) -> list[str]:
        with ThreadPoolExecutor(world) as pool:
            tries = [pool.submit(several._round, store, rank, world) for rank in ranks]
            return [found.result(timeout=20) for found in tries]

    first, second, third = names(range(2), 2), names(range(3), 3), names(range(2), 2)
    assert len(set(first)) == len(set(second)) == len(set(third)) == 1
    assert len({first[0], second[0], third[0]}) == 3
