"""The training loop: batches -> loss -> gradients -> update, with evaluation, checkpoints and resumption.

`training/run.py` builds a `Trainer` from a config and calls `run`. Random numbers of an update depend only on the run's
seed and the update's number, so a resumed run continues bit for bit on the same CPU (up to rounding on a GPU). If
several processes train, each runs this loop and makes the same updates; decisions that depend on a clock or a signal
are made by the first process for all of them.

On a GPU the loop runs ahead: loss and norm of an update are read some updates later, and always before a checkpoint or
an evaluation. Nothing in an update may wait for the device.

Before changing it: everything that decides the next update must be in `TrainingState` (`checkpoint.py`), or a resumed
run differs.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor

from rnnsearch.config import TrainingConfig
from rnnsearch.data.batches import Batch
from rnnsearch.data.mixed_batches import MixedBatches, TrainingBatches
from rnnsearch.data.workers import Prefetcher
from rnnsearch.errors import Interrupted
from rnnsearch.objectives.loss import Model
from rnnsearch.ops.device import precision
from rnnsearch.systems.dev_scores import HIGHER_IS_BETTER
from rnnsearch.training.checkpoint import TrainingState, interruptible, load_state, save_state
from rnnsearch.training.gradients import count_examples
from rnnsearch.training.progress import Reporter
from rnnsearch.training.schedules import SCHEDULES
from rnnsearch.training.tasks import Task
from rnnsearch.training.updates import Updater, UpdateResults
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.weights import save_model_weights

ALL_STOPPED = "no direction is left to train (training.direction_patience)"
"""Reason why training ended."""
EVALUATED_WEIGHTS_GLOB = "evaluated-*.safetensors"
"""Weights saved at evaluations for averaging; the file name holds the update."""


MAX_UNREAD_UPDATES = 8
"""Updates that a GPU may be behind the training loop: Python prepares the next ones meanwhile."""


class _Update(NamedTuple):
    """An update whose results have not been read yet."""

    group: list[Batch]
    """Batches of the update."""
    results: UpdateResults
    """Results on the device."""
    row: dict[str, Any]
    """Row for the reporter, without results."""


@dataclass
class Trainer(Generic[Model]):
    """One training run.

    Attributes:
        training: Options of `[training]`.
        task: Model, objective and evaluation on the dev set.
        batches: Training batches of this process.
        device: Device of the model.
        folder: Folder of the checkpoints.
        reporter: Receiver of updates, evaluations and messages.
        on_new_best: Called when the dev score is the best so far; saves the model folder.
        processes: Processes that train together.
        on_best_direction: Called with the name of a direction when its dev score is the best so far.
    """

    training: TrainingConfig
    task: Task[Model]
    batches: TrainingBatches
    device: torch.device
    folder: Path
    reporter: Reporter
    on_new_best: Callable[[], None]
    processes: Processes = field(default_factory=Processes)
    on_best_direction: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.state = TrainingState()
        self.model = self.task.model
        self.optimiser = self.task.optimiser
        # Before the schedule changes the rates for the first time.
        self.base_rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.schedule = SCHEDULES[self.training.schedule.type](self.training.schedule)
        self.updater = Updater(
            self.training, self.task, self.batches, self.device, self.folder, self.reporter, self.processes
        )
        self._unread: deque[_Update] = deque()
        self.last_saved = time.monotonic()

    @property
    def last_checkpoint(self) -> Path:
        """The checkpoint to resume from."""
        return self.folder / "last"

    def resume(self) -> None:
        """Load the last checkpoint."""
        self.state = load_state(self.last_checkpoint, self.task)
        self.schedule.state = self.state.schedule
        self.updater.clipping.state = self.state.norms
        # The run may have ended between the checkpoint and the model folder; save the model again.
        if self.state.evaluated == self.state.update > 0 and not self.state.pending:
            row = self.state.history[-1] if self.task.validation is not None else {"best": True}
            if row["best"] and "averaged" not in row:
                self.on_new_best()
            directions: Sequence[str] = row.get("best_directions", ())  # type: ignore[assignment]
            for direction in directions:
                self.on_best_direction(direction)

    def save(self) -> None:
        """Write the checkpoint to resume from."""
        # An update that is not finite stops the run before it is saved.
        self._read_results()
        self.state.schedule = self.schedule.state
        self.state.norms = self.updater.clipping.state
        if self.processes.is_first:
            save_state(self.last_checkpoint, self.state, self.task)
        self.last_saved = time.monotonic()

    def run(self) -> str:
        """Train until a limit is reached and return which one.

        Raises:
            Interrupted: After a signal; the state is saved.
            TrainingError: If the loss is not finite.
        """
        evaluate_every = self.training.evaluate_every
        with (
            closing(self.task.objective),
            interruptible() as interrupted,
            closing(Prefetcher(self._device_batches())) as prefetched,
        ):
            if self.state.pending:
                self._evaluate(interrupted)
            while True:
                waited = prefetched.waited
                for group in self._groups(prefetched):
                    # Before each update, so that resuming a run that is over makes none.
                    if reason := self._end_reason():
                        return self._end(reason)
                    self._update(group, prefetched.waited - waited)
                    if evaluate_every is not None and self.state.update % evaluate_every == 0:
                        self._evaluate(interrupted)
                        if self._stopped_directions == self._directions:
                            return self._end(ALL_STOPPED)
                    self._stop_if(interrupted)
                    if time.monotonic() - self.last_saved > 60 * self.training.save_minutes:
                        self.save()
                    waited = prefetched.waited
                self.state.epoch += 1
                self.state.batch = 0
                if evaluate_every is None:
                    self._evaluate(interrupted)
                    if self._stopped_directions == self._directions:
                        return self._end(ALL_STOPPED)

    @property
    def _directions(self) -> set[str]:
        """The names of the directions that are trained; of a bilingual model, a name that never stops.

        Tasks of a multi-way model are trained as long as any direction is.
        """
        directions = self.batches.directions if isinstance(self.batches, MixedBatches) else (self.batches.direction,)
        return {direction.name for direction in directions}

    @property
    def _stopped_directions(self) -> set[str]:
        """The names of the directions that are no longer trained."""
        patience = self.training.direction_patience
        if patience is None:
            return set()
        return {name for name, worse in self.state.worse_directions.items() if worse >= patience}

    def _update(self, group: list[Batch], waited: float) -> None:
        """Update the parameters once, from a group of batches for which the loop waited some seconds."""
        start = time.monotonic()
        # Epoch and progress before this update: the first update of the sixth epoch is at epoch 5.0.
        epoch = self.epochs()
        progress = self._progress()
        self.state.update += 1
        self.state.batch += len(group)

        learning_rate = self.optimiser.defaults["lr"] * self._set_learning_rate(epoch, progress)
        self.task.objective.before_update(self.state.update, epoch)
        results = self.updater.run(group, self.state.update)
        row = self._count(group, learning_rate, time.monotonic() - start + waited, waited)
        self._unread.append(_Update(group, results, row))
        self._read_results(MAX_UNREAD_UPDATES if self.device.type == "cuda" else 0)

        checkpoint_every = self.training.checkpoint_every
        if checkpoint_every is not None and self.state.update % checkpoint_every == 0:
            self._read_results()
            if self.processes.is_first:
                save_model_weights(self.folder / f"update-{self.state.update}.safetensors", self.model)

    def _set_learning_rate(self, epoch: float, progress: float) -> float:
        """Set the scheduled learning rate of each parameter group and return the schedule's factor."""
        factor = self.schedule.factor(self.state.update, epoch, progress)
        for base, group in zip(self.base_rates, self.optimiser.param_groups, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(base * factor)  # recorded updates read this memory
            else:
                group["lr"] = base * factor
        return factor

    def _count(self, group: list[Batch], learning_rate: float, seconds: float, waited: float) -> dict[str, Any]:
        """Add an update to the running sums, and return its row for the reporter without results from the device."""
        sentences, tokens = count_examples(group)
        state = self.state
        state.seconds += seconds
        state.waited += waited
        state.sentences += sentences
        state.tokens += tokens
        return {
            "update": state.update,
            "epoch": self.epochs(),
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "waiting": waited / seconds,
            "padding": self.batches.padding_waste,
            "learning_rate": learning_rate,
            "seconds": state.seconds,
            "seconds_left": self._seconds_left(),
        }

    def _read_results(self, max_unread: int = 0) -> None:
        """Read the results of all updates but the last few from the device, check and report them.

        Args:
            max_unread: Number of updates whose results may stay unread, so that a GPU is never idle.

        Raises:
            TrainingError: If the loss of an update is not finite.
        """
        while len(self._unread) > max_unread:
            group, results, row = self._unread.popleft()
            nll, norm, accepted, reported = results.read()
            self.updater.gradients.check_finite(group, row["update"], nll, norm)
            self.state.nll += nll
            if not accepted:
                self.reporter.message(f"update {row['update']}: skipped; its gradient norm is unusual ({norm:,.3g})")
            self.reporter.update({**row, "nll_per_word": nll / row["tokens"], "gradient_norm": norm, **reported})

    def _device_batches(self) -> Iterator[Batch | None]:
        """Yield all remaining batches on the device, and None at the end of each epoch."""
        epoch = self.state.epoch
        skip = self.state.batch
        pin = self.device.type == "cuda"
        while True:
            for batch in self.batches.epoch(epoch, skip):
                # The prefetching thread copies from pinned memory while the GPU computes.
                yield (batch.pinned() if pin else batch).to(self.device)
            yield None
            epoch += 1
            skip = 0

    def _groups(self, batches: Iterator[Batch | None]) -> Iterator[list[Batch]]:
        """Yield the rest of this epoch, `training.batch.accumulate` batches at a time."""
        group: list[Batch] = []
        for batch in batches:
            if batch is None:
                break
            if batch.direction.name in self._stopped_directions:
                self.state.batch += 1  # a resumed run leaves it out, too
                continue
            group.append(batch)
            if len(group) == self.training.batch.accumulate:
                yield group
                group = []
        # The last group of an epoch may be smaller; its loss is divided by its own size.
        if group:
            yield group

    def epochs(self) -> float:
        """Return the number of passes over the training data so far."""
        return self.state.epoch + self.state.batch / self.batches.count(self.state.epoch)

    def _limits(self) -> list[tuple[str, float]]:
        """Return each limit of the run as a phrase, and the fraction of it that is used up."""
        training = self.training
        limits = [
            ("updates", "max_updates", training.max_updates, float(self.state.update)),
            ("epochs", "max_epochs", training.max_epochs, self.epochs()),
            ("minutes of training", "max_minutes", training.max_minutes, self.state.seconds / 60),
        ]
        phrases = []
        for unit, name, limit, used in limits:
            if limit is not None:
                number = str(limit) if isinstance(limit, int) else f"{limit:g}"
                phrases.append((f"{number} {unit} done (training.{name})", used / limit))
        return phrases

    def _end_reason(self) -> str | None:
        """Return why training is over, or None."""
        reasons = [reason for reason, fraction in self._limits() if fraction >= 1]
        if reasons:
            return reasons[0]
        patience = self.training.patience
        if patience is not None and self.state.worse >= patience:
            return f"{self.state.worse} evaluations without a better dev score (training.patience)"
        return None

    def _end(self, reason: str) -> str:
        if self.state.evaluated < self.state.update:
            self._evaluate(lambda: False)
        self.save()
        return reason

    def _progress(self) -> float:
        """Return the fraction of the run that is done, by its nearest limit; 0 if it has none."""
        return min(1.0, max((fraction for _, fraction in self._limits()), default=0.0))

    def _seconds_left(self) -> float | None:
        """Return the estimated seconds of training until the nearest limit, or None."""
        seconds = self.state.seconds
        left = [seconds / fraction - seconds for _, fraction in self._limits()]
        return max(0.0, min(left)) if left else None

    def _stop_if(self, interrupted: Callable[[], bool]) -> None:
        """Save and raise Interrupted if any process received a signal."""
        # All processes use the first one's clock, so that they reach a time limit at the same update.
        first_seconds = self.state.seconds if self.processes.is_first else 0.0
        self.state.seconds, stop = self.processes.sum(first_seconds, float(interrupted()))
        if stop:
            self.save()
            raise Interrupted(
                f"training was interrupted at update {self.state.update}; its state is saved in "
                f"{self.last_checkpoint}; continue with --resume"
            )

    def _evaluate(self, interrupted: Callable[[], bool]) -> None:
        """Score the dev set, record whether it is the best so far, and save."""
        self._read_results()
        state = self.state
        state.pending = True  # stays set in the checkpoint if a signal ends the evaluation
        # Without a dev set, the latest model is the best.
        if self.task.validation is None:
            state.evaluated = state.update
            state.pending = False
            self._save_checkpoint_and_model(best=True)
            return
        stopped = self._stopped_directions
        row = self.evaluate_dev(interrupted)
        if row is None:
            self._stop_if(interrupted)
            return
        self._count_directions(row)
        state.worse = 0 if row["best"] else state.worse + 1
        self.schedule.evaluated(row["best"])
        state.history.append(row)
        state.evaluated = state.update
        state.pending = False
        state.nll = 0.0
        state.sentences = state.tokens = 0
        if self.training.average > 0 and self.processes.is_first:
            self._save_for_averaging()
        self.reporter.evaluated(row)
        # After the row is in the history: `resume` reads from it whether the model must be saved.
        self._save_checkpoint_and_model(best=row["best"], best_directions=row.get("best_directions", ()))
        for direction in sorted(self._stopped_directions - stopped):
            self.reporter.message(
                f"{direction} is no longer trained: {state.worse_directions[direction]} evaluations without a better "
                "dev score (training.direction_patience)"
            )

    def _count_directions(self, row: dict[str, Any]) -> None:
        """Record the directions of a multi-way model whose dev score is the best so far."""
        state = self.state
        metric = self.training.metric
        stopped = self._stopped_directions
        best = []
        prefix = f"dev_{metric} "
        # Directions that are frozen have scores, too.
        scores = {key.removeprefix(prefix): score for key, score in row.items() if key.startswith(prefix)}
        for name, score in scores.items():
            if score is None:
                continue
            cost = -score if metric in HIGHER_IS_BETTER else score
            # A diverged model is never the best.
            is_best = math.isfinite(cost) and cost < state.best_directions.get(name, math.inf)
            if is_best:
                state.best_directions[name] = cost
                best.append(name)
            # A direction that has stopped may still become better by what it shares, but stays out.
            if name in self._directions - stopped:
                state.worse_directions[name] = 0 if is_best else state.worse_directions.get(name, 0) + 1
        if state.best_directions:
            row["best_directions"] = sorted(best)

    def _save_checkpoint_and_model(self, best: bool, best_directions: Sequence[str] = ()) -> None:
        # The checkpoint comes first: a model folder without one would be taken for another run's. If the run ends
        # between the two, `resume` saves the model.
        self.save()
        if best:
            self.on_new_best()
        for direction in best_directions:
            self.on_best_direction(direction)

    def evaluate_dev(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Return the dev scores of the current weights as a row of the history, or None if `stop` returned True.

        `row["best"]` is True if the score is the best so far by the run's metric; it then becomes the score to beat.
        """
        state = self.state
        with precision(self.device, self.training.precision):
            score = self.task.dev_score(stop)
        if score is None:
            return None
        cost = score.cost(self.training.metric)
        # A diverged model is never the best.
        best = math.isfinite(cost) and (state.best is None or cost < state.best)
        if best:
            state.best = cost
        return {
            "update": state.update,
            "epoch": self.epochs(),
            "seconds": state.seconds,
            "train_nll": state.nll / max(1, state.sentences),
            "train_nll_per_word": state.nll / max(1, state.tokens),
            "dev_nll": score.nll,
            "dev_nll_per_word": score.nll_per_token,
            "dev_perplexity": math.exp(min(score.nll_per_token, 100.0)),  # no overflow
            **{f"dev_{name}": value for name, value in score.metrics.items()},
            "best": best,
        }

    def _save_for_averaging(self) -> None:
        """Save the weights and remove all but those of the last `training.average` evaluations."""
        save_model_weights(self.folder / f"evaluated-{self.state.update}.safetensors", self.model)
        for path in self.evaluated_weights()[: -self.training.average]:
            path.unlink()

    def evaluated_weights(self) -> list[Path]:
        """Return the saved weights of the last evaluations, oldest first."""
        paths = self.folder.glob(EVALUATED_WEIGHTS_GLOB)
        return sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))
