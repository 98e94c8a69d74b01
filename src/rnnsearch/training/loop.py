"""The training loop: batches -> loss -> gradients -> update, with evaluation, checkpoints and resumption.

Everything random in an update comes from the run's seed and the update's number, so a resumed run continues bit for bit
on the same CPU (but for rounding on a GPU). Where several processes train, all run this loop and make the same updates;
what a clock or a signal decides, the first process decides for all.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import torch

from rnnsearch.config import TrainingConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.workers import Ahead
from rnnsearch.errors import Interrupted
from rnnsearch.objectives.loss import Model
from rnnsearch.ops.device import precision
from rnnsearch.training.checkpoint import State, interruptible, load_state, save_state
from rnnsearch.training.gradients import Gradients, Task, size
from rnnsearch.training.optimisers import UsualNorms, make_optimiser
from rnnsearch.training.progress import Reporter
from rnnsearch.training.schedules import SCHEDULES
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.weights import save_weights, weights

EVALUATED = "evaluated-*.safetensors"
"""Weights that are kept for their mean, by the update of their evaluation."""


@dataclass
class Trainer(Generic[Model]):
    """One training run. `folder` holds its checkpoints; `new_best` is told when the weights are the best so far."""

    training: TrainingConfig
    task: Task[Model]
    batches: Batches
    device: torch.device
    folder: Path
    reporter: Reporter
    new_best: Callable[[], None]
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        self.state = State()
        self.model = self.task.model
        self.optimiser = make_optimiser(self.task.groups, self.training.optimiser)
        self.base_rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.schedule = SCHEDULES[self.training.schedule.type](self.training.schedule)
        self.usual = UsualNorms(self.training.clip_deviations, self.state.norms)
        self.gradients = Gradients(
            self.training, self.task, self.batches, self.device, self.folder, self.reporter, self.processes
        )
        self.last_saved = time.monotonic()

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.folder / "last"

    def resume(self) -> None:
        """Go on from the last checkpoint."""
        self.state = load_state(self.last, self.model, self.optimiser)
        self.task.tables.settle(self.optimiser)
        self.schedule.state, self.usual.state = self.state.schedule, self.state.norms
        if self.state.evaluated == self.state.update > 0 and not self.state.pending:
            row = self.state.history[-1] if self.task.validation is not None else {"best": True}
            if row["best"] and "averaged" not in row:
                self.new_best()

    def save(self) -> None:
        """Write the checkpoint to resume from."""
        self.state.schedule = self.schedule.state
        if self.processes.first:
            save_state(self.last, self.state, self.model, self.optimiser)
        self.last_saved = time.monotonic()

    def run(self) -> str:
        """Train until a limit is reached; returns which. Errors: Interrupted after saving; TrainingError."""
        every = self.training.evaluate_every
        with interruptible() as asked, closing(Ahead(self._batches())) as ahead:
            if self.state.pending:
                self._evaluate(asked)
            while True:
                waited = ahead.waited
                for group in self._groups(ahead):
                    reason = self._finished()
                    if reason:
                        if self.state.evaluated < self.state.update:
                            self._evaluate(lambda: False)
                        self.save()
                        return reason
                    self._update(group, ahead.waited - waited)
                    if every is not None and self.state.update % every == 0:
                        self._evaluate(asked)
                    self._stop_if(asked)
                    if time.monotonic() - self.last_saved > 60 * self.training.save_minutes:
                        self.save()
                    waited = ahead.waited
                self.state.epoch, self.state.batch = self.state.epoch + 1, 0
                if every is None:
                    self._evaluate(asked)

    def _batches(self) -> Iterator[Batch | None]:
        """All batches from now on, on the device, with None at the end of each epoch."""
        epoch, skip = self.state.epoch, self.state.batch
        cuda = self.device.type == "cuda"
        while True:
            for batch in self.batches.epoch(epoch, skip):
                yield (batch.pinned() if cuda else batch).to(self.device)
            yield None
            epoch, skip = epoch + 1, 0

    def _groups(self, ahead: Iterator[Batch | None]) -> Iterator[list[Batch]]:
        """The rest of this epoch, `accumulate` batches at a time."""
        group: list[Batch] = []
        for batch in ahead:
            if batch is None:
                break
            group.append(batch)
            if len(group) == self.training.batch.accumulate:
                yield group
                group = []
        if group:
            yield group

    def epochs(self) -> float:
        """Passes over the training data so far."""
        return self.state.epoch + self.state.batch / self.batches.count(self.state.epoch)

    def _limits(self) -> list[tuple[str, float]]:
        """What ends the run, in words, and which share of it is done."""
        training = self.training
        limits = [
            ("updates", "max_updates", training.max_updates, float(self.state.update)),
            ("epochs", "max_epochs", training.max_epochs, self.epochs()),
            ("minutes of training", "max_minutes", training.max_minutes, self.state.seconds / 60),
        ]
        return [
            (f"{limit if isinstance(limit, int) else format(limit, 'g')} {what} done (training.{name})", used / limit)
            for what, name, limit, used in limits
            if limit is not None
        ]

    def _finished(self) -> str | None:
        reasons = [reason for reason, share in self._limits() if share >= 1]
        if not reasons and self.training.patience is not None and self.state.worse >= self.training.patience:
            return f"{self.state.worse} evaluations without a better dev score (training.patience)"
        return reasons[0] if reasons else None

    def _done(self) -> float:
        """The share of the run that is done, by the nearest of its limits; 0 where it has none."""
        return min(1.0, max((share for _, share in self._limits()), default=0.0))

    def _seconds_left(self) -> float | None:
        """Of training, by the nearest of the limits that can be foreseen."""
        seconds = self.state.seconds
        left = [seconds / share - seconds for _, share in self._limits()]
        return max(0.0, min(left)) if left else None

    def _stop_if(self, asked: Callable[[], bool]) -> None:
        """Errors: Interrupted, after saving, where any process was asked to stop."""
        seconds, stop = self.processes.sum(self.state.seconds if self.processes.first else 0.0, float(asked()))
        self.state.seconds = seconds
        if stop:
            self.save()
            raise Interrupted(
                f"training was interrupted at update {self.state.update}; its state is saved in {self.last}: "
                "go on with --resume"
            )

    def _update(self, group: list[Batch], waited: float) -> None:
        """One update of the parameters from the summed gradients of a group of batches, for which the loop waited."""
        begin = time.monotonic()
        state, training = self.state, self.training
        epoch, done = self.epochs(), self._done()  # before this update: the first of epoch 6 has five epochs behind it
        state.update += 1
        state.batch += len(group)
        nll, norm, parts = self.gradients.fill(group, state.update)
        rate = self.schedule.factor(state.update, epoch, done)
        for base, param_group in zip(self.base_rates, self.optimiser.param_groups, strict=True):
            param_group["lr"] = base * rate
        if self.usual.has(norm):
            self.task.tables.step(self.optimiser)
            with torch.no_grad():
                self.task.objective.after_update(self.model, parts)
            self.task.zeros.hold()
        else:
            self.reporter.message(f"update {state.update}: left out; its gradient's norm is unusual ({norm:,.3g})")
        sentences, tokens = size(group)
        seconds = time.monotonic() - begin + waited
        state.seconds += seconds
        state.waited += waited
        state.nll += nll
        state.sentences += sentences
        state.tokens += tokens
        self.reporter.update(
            {
                "update": state.update,
                "epoch": self.epochs(),
                "tokens": tokens,
                "nll_per_word": nll / tokens,
                "tokens_per_second": tokens / seconds,
                "waiting": waited / seconds,
                "padding": self.batches.padding_waste,
                "learning_rate": self.optimiser.defaults["lr"] * rate,
                "gradient_norm": norm,
                "seconds": state.seconds,
                "seconds_left": self._seconds_left(),
            }
        )
        every = training.checkpoint_every
        if every is not None and state.update % every == 0 and self.processes.first:
            save_weights(self.folder / f"update-{state.update}.safetensors", weights(self.model))

    def _evaluate(self, asked: Callable[[], bool]) -> None:
        """Score the dev set, note whether it is the best so far, and save."""
        state, training = self.state, self.training
        state.pending = True
        if self.task.validation is None:
            state.evaluated, state.pending = state.update, False
            self._keep(best=True)
            return
        row = self.score_dev(asked)
        if row is None:
            self._stop_if(asked)
            return
        state.worse = 0 if row["best"] else state.worse + 1
        self.schedule.evaluated(row["best"])
        state.history.append(row)
        state.evaluated, state.pending = state.update, False
        state.nll, state.sentences, state.tokens = 0.0, 0, 0
        if training.average > 0 and self.processes.first:
            self._keep_for_average()
        self.reporter.evaluated(row)
        self._keep(best=row["best"])

    def _keep(self, best: bool) -> None:
        """The checkpoint first: weights in the model folder without one would be taken for another run's. `resume`
        makes up for an end between the two."""
        self.save()
        if best:
            self.new_best()

    def score_dev(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """The dev scores of the model as it is now, a row for the history; None if `stop` asked to leave.

        `best`: whether they are the best so far, by the run's metric; they are then what is to be beaten.
        """
        assert self.task.validation is not None
        state, training = self.state, self.training
        with precision(self.device, training.precision):
            score = self.task.validation.score(self.model, stop)
        if score is None:
            return None
        value = score.cost(training.metric)
        better = math.isfinite(value) and (state.best is None or value < state.best)
        if better:
            state.best = value
        return {
            "update": state.update,
            "epoch": self.epochs(),
            "seconds": state.seconds,
            "train_nll": state.nll / max(1, state.sentences),
            "train_nll_per_word": state.nll / max(1, state.tokens),
            "dev_nll": score.nll,
            "dev_nll_per_word": score.per_word,
            "dev_perplexity": math.exp(min(score.per_word, 100.0)),
            **{f"dev_{name}": value for name, value in score.others.items()},
            "best": better,
        }

    def _keep_for_average(self) -> None:
        """Keep the weights of the last `average` evaluations."""
        keep = self.training.average
        save_weights(self.folder / f"evaluated-{self.state.update}.safetensors", weights(self.model))
        for path in self.to_average()[:-keep]:
            path.unlink()

    def to_average(self) -> list[Path]:
        """The kept weights of the last evaluations, oldest first."""
        return sorted(self.folder.glob(EVALUATED), key=lambda p: int(p.stem.rpartition("-")[2]))
