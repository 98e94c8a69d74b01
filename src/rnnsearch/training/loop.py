"""The training loop: batches -> loss -> gradients -> update, with evaluation, checkpoints and resumption.

Everything random in an update comes from the run's seed and the update's number, so a resumed run
continues bit for bit on the same device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, optim

from rnnsearch.config import RunConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.errors import Interrupted, TrainingError
from rnnsearch.models.checkpoint import save_weights, weights
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.loss import Model, ObjectiveOf
from rnnsearch.training.device import precision
from rnnsearch.training.interrupt import interruptible
from rnnsearch.training.optimisers import clip
from rnnsearch.training.progress import Reporter
from rnnsearch.training.schedules import Schedule
from rnnsearch.training.state import State, load_state, save_state
from rnnsearch.training.validation import Assessor

SEED_STRIDE = 1_000_003
"""Keeps the seeds of one run's updates apart from another run's."""


@dataclass
class Trainer(Generic[Model]):
    """One training run. `folder` holds its checkpoints; `new_best` is told when the weights are the best so far."""

    config: RunConfig
    model: Model
    optimiser: optim.Optimizer
    schedule: Schedule
    objective: ObjectiveOf[Model]
    batches: Batches
    validation: Assessor[Model] | None
    device: torch.device
    folder: Path
    reporter: Reporter
    new_best: Callable[[Trainer[Model]], None]

    def __post_init__(self) -> None:
        self.state = State()
        self.base_rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.last_saved = time.monotonic()

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.folder / "last"

    def resume(self) -> None:
        """Go on from the last checkpoint."""
        self.state = load_state(self.last, self.model, self.optimiser)
        self.schedule.restore(self.state.schedule)

    def save(self) -> None:
        """Write the checkpoint to resume from."""
        self.state.schedule = self.schedule.state()
        save_state(self.last, self.state, self.model, self.optimiser)
        self.last_saved = time.monotonic()

    def run(self) -> str:
        """Train until a limit is reached; returns which. Errors: Interrupted after saving; TrainingError."""
        with interruptible() as asked:
            if self.state.pending:
                self._evaluate(asked)
            while True:
                for group in self._groups():
                    reason = self._finished()
                    if reason:
                        return self._end(reason)
                    self._update(group)
                    if self._due_for_evaluation():
                        self._evaluate(asked)
                    self._stop_if(asked)
                    if time.monotonic() - self.last_saved > 60 * self.config.training.save_minutes:
                        self.save()
                self.state.epoch, self.state.batch = self.state.epoch + 1, 0
                if self.config.training.evaluate_every is None:
                    self._evaluate(asked)

    def _groups(self) -> Iterator[list[Batch]]:
        """The rest of this epoch, `accumulate` batches at a time."""
        size = self.config.training.batch.accumulate
        group: list[Batch] = []
        for batch in self.batches.epoch(self.state.epoch, skip=self.state.batch):
            group.append(batch.to(self.device))
            if len(group) == size:
                yield group
                group = []
        if group:
            yield group

    def epochs(self) -> float:
        """Passes over the training data so far."""
        return self.state.epoch + self.state.batch / self.batches.count(self.state.epoch)

    def _finished(self) -> str | None:
        limits, state = self.config.training, self.state
        if limits.max_updates is not None and state.update >= limits.max_updates:
            return f"{limits.max_updates} updates done (training.max_updates)"
        if limits.max_epochs is not None and self.epochs() >= limits.max_epochs:
            return f"{limits.max_epochs:g} epochs done (training.max_epochs)"
        if limits.max_minutes is not None and state.seconds >= 60 * limits.max_minutes:
            return f"{limits.max_minutes:g} minutes of training done (training.max_minutes)"
        if limits.patience is not None and state.worse >= limits.patience:
            return f"{state.worse} evaluations without a better dev score (training.patience)"
        return None

    def _end(self, reason: str) -> str:
        if self.state.evaluated < self.state.update:
            self._evaluate(lambda: False)
        self.save()
        return reason

    def _stop_if(self, asked: Callable[[], bool]) -> None:
        if asked():
            self.save()
            raise Interrupted(
                f"training was interrupted at update {self.state.update}; its state is saved in {self.last}: "
                "go on with --resume"
            )

    def _update(self, group: list[Batch]) -> None:
        """One update of the parameters from the summed gradients of a group of batches."""
        begin = time.monotonic()
        state, training = self.state, self.config.training
        epoch = self.epochs()  # before this update: the first of epoch 6 has five epochs behind it
        state.update += 1
        state.batch += len(group)
        nll, norm = self._gradients(group)
        self.schedule.progressed(self._done())
        rate = self.schedule.factor(state.update, epoch)
        for base, param_group in zip(self.base_rates, self.optimiser.param_groups, strict=True):
            param_group["lr"] = base * rate
        self.optimiser.step()
        sentences, tokens = sum(b.sentences for b in group), sum(b.target_tokens for b in group)
        seconds = time.monotonic() - begin
        state.seconds += seconds
        state.nll += nll
        state.sentences += sentences
        state.tokens += tokens
        self.reporter.update(
            {
                "update": state.update,
                "epoch": self.epochs(),
                "nll_per_word": nll / tokens,
                "tokens_per_second": tokens / seconds,
                "padding": self.batches.padding_waste,
                "learning_rate": self.base_rates[0] * rate,
                "gradient_norm": norm,
                "seconds": state.seconds,
                "seconds_left": self._seconds_left(),
            }
        )
        if training.checkpoint_every is not None and state.update % training.checkpoint_every == 0:
            save_weights(self.folder / f"update-{state.update}.safetensors", weights(self.model))

    def _gradients(self, group: list[Batch]) -> tuple[float, float]:
        """Fill the gradients; returns the summed NLL and the gradients' norm before clipping.

        A batch too large for the GPU's memory is halved and the whole group done again.
        """
        training = self.config.training
        by_sentence = training.normalise == "sentences"
        count = sum(b.sentences if by_sentence else b.target_tokens for b in group)
        draws = Draws(self.config.training.seed * SEED_STRIDE + self.state.update, self.device)
        self.optimiser.zero_grad(set_to_none=True)
        nll = torch.zeros((), device=self.device)
        for number, batch in enumerate(group):
            fits = True
            try:
                with precision(self.device, training.precision):
                    loss = self.objective(self.model, batch, draws)
                (loss.total / count).backward()  # type: ignore[no-untyped-call]
                nll += loss.nll
            except torch.OutOfMemoryError:
                fits = False  # and no more in here: the exception keeps what the failed pass had allocated
            if not fits:
                return self._gradients(self._halved(group, number))
        norm = clip(self.parameters, training.clip_norm, training.clip_value)
        nll_sum, norm_value = torch.stack([nll, norm.to(nll.dtype)]).tolist()
        if not (math.isfinite(nll_sum) and math.isfinite(norm_value)):
            self._refuse(group, nll_sum, norm_value)
        return nll_sum, norm_value

    def _halved(self, group: list[Batch], number: int) -> list[Batch]:
        batch = group[number]
        if batch.sentences == 1:
            raise TrainingError(
                f"training pair {batch.indices[0] + 1} ({batch.source.shape[1]} and {batch.target.shape[1]} symbols) "
                f"alone does not fit into the memory of {self.device}; lower training.max_length or the model's sizes"
            )
        torch.cuda.empty_cache()
        self.reporter.message(
            f"update {self.state.update}: {batch.sentences} sentences do not fit into memory; split and tried again"
        )
        return [*group[:number], *batch.split(), *group[number + 1 :]]

    def _refuse(self, group: list[Batch], nll: float, norm: float) -> None:
        """Save the batch that gave a NaN or infinite loss and say so; the weights are those before it."""
        path = self.folder / f"not-finite-update-{self.state.update}.safetensors"
        tensors: dict[str, Tensor] = {}
        for number, batch in enumerate(group):
            tensors |= {f"{number}.source": batch.source, f"{number}.target": batch.target}
            tensors[f"{number}.indices"] = torch.tensor(batch.indices)
        save_weights(path, tensors)
        pairs = ", ".join(str(index + 1) for batch in group for index in batch.indices[:8])
        raise TrainingError(
            f"the loss of update {self.state.update} is not finite (NLL {nll}, gradient norm {norm}); its batch "
            f"(training pairs {pairs}, ...) is saved in {path} and the weights were not changed by it; "
            "lower the learning rate or set training.clip_norm"
        )

    def _done(self) -> float:
        """The share of the run that is done, by the nearest of its limits; 0 where it has none."""
        limits, state = self.config.training, self.state
        shares = [0.0]
        if limits.max_minutes is not None:
            shares.append(state.seconds / (60 * limits.max_minutes))
        if limits.max_updates is not None:
            shares.append((state.update - 1) / limits.max_updates)
        if limits.max_epochs is not None:
            shares.append(self.epochs() / limits.max_epochs)
        return min(1.0, max(shares))

    def _seconds_left(self) -> float | None:
        """Of training, by the nearest of the limits that can be foreseen."""
        limits, state = self.config.training, self.state
        left = []
        if limits.max_minutes is not None:
            left.append(60 * limits.max_minutes - state.seconds)
        if limits.max_updates is not None:
            left.append(state.seconds / state.update * (limits.max_updates - state.update))
        if limits.max_epochs is not None:
            left.append(state.seconds / self.epochs() * (limits.max_epochs - self.epochs()))
        return max(0.0, min(left)) if left else None

    def _due_for_evaluation(self) -> bool:
        every = self.config.training.evaluate_every
        return every is not None and self.state.update % every == 0

    def _evaluate(self, asked: Callable[[], bool]) -> None:
        """Score the dev set, note whether it is the best so far, and save."""
        state, training = self.state, self.config.training
        state.pending = True
        if self.validation is None:
            state.evaluated, state.pending = state.update, False
            self.new_best(self)
            self.save()
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
        if training.average > 0:
            self._keep_for_average()
        if row["best"]:
            self.new_best(self)
        self.reporter.evaluated(row)
        self.save()

    def score_dev(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """The dev scores of the model as it is now, a row for the history; None if `stop` asked to leave.

        `best`: whether they are the best so far, by the run's metric; they are then what is to be beaten.
        """
        assert self.validation is not None
        state, training = self.state, self.config.training
        with precision(self.device, training.precision):
            score = self.validation.score(self.model, self.objective, training.dev_bleu, stop)
        if score is None:
            return None
        value = score.value(training.metric)
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
            "dev_bleu": score.bleu,
            **({} if score.aer is None else {"dev_aer": score.aer}),
            "best": better,
        }

    def _keep_for_average(self) -> None:
        """Keep the weights of the last `average` evaluations."""
        keep = self.config.training.average
        save_weights(self.folder / f"evaluated-{self.state.update}.safetensors", weights(self.model))
        for path in self.to_average()[:-keep]:
            path.unlink()

    def to_average(self) -> list[Path]:
        """The kept weights of the last evaluations, oldest first."""
        return sorted(self.folder.glob("evaluated-*.safetensors"), key=lambda p: int(p.stem.rpartition("-")[2]))
