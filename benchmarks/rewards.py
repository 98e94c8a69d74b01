"""Time that an update of minimum risk training waits for the rewards of its translations, by reward.

    python -m benchmarks.rewards --model MODEL --source test.en --reference test.de

An update samples translations, runs the model over them with gradients, and scores them meanwhile. `start` is the time
until the model runs: translations become texts, which worker processes get. `wait` is the time from the end of the
model's pass until the rewards are there, and `waiting` the fraction of both in the update. `one process` is the time
that the rewards of an update take without worker processes. Times are medians over the batches after the first one.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.harness import argument_parser, machine_line, parse_arguments, publish, table
from rnnsearch.config.sequence import REWARDS, MinimumRiskOptions
from rnnsearch.data.batches import Batch, make_batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.hypotheses import Hypotheses
from rnnsearch.objectives.sequence.objective import Generation
from rnnsearch.objectives.sequence.policy_gradient import MinimumRisk
from rnnsearch.objectives.sequence.rewards import Rewards
from rnnsearch.search.options import LengthLimit
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System

Result = TypeVar("Result")
OPTIONS: Mapping[str, dict[str, Any]] = {
    **{name: {"type": name} for name in REWARDS if name != "function"},
    "function": {"type": "function", "function": "benchmarks.rewards:word_overlap"},
}
"""Options of `[objective.sequence.reward]` by name."""


def word_overlap(hypothesis: str, reference: str) -> float:
    """Return the fraction of different words that both texts have: a user's reward."""
    words, reference_words = set(hypothesis.split()), set(reference.split())
    return len(words & reference_words) / max(1, len(words | reference_words))


class TimedRisk(MinimumRisk):
    """Minimum risk training that measures how long it waits for rewards."""

    start_seconds = 0.0
    """Seconds of the last `start_rewards`."""
    wait_seconds = 0.0
    """Seconds of the last wait for rewards."""
    hypotheses: Hypotheses
    """Translations that were scored last."""

    def start_rewards(self, hypotheses: Hypotheses, batch: Batch) -> Callable[[], Rewards]:
        self.hypotheses = hypotheses
        self.start_seconds, wait = timed(partial(super().start_rewards, hypotheses, batch))

        def timed_wait() -> Rewards:
            self.wait_seconds, rewards = timed(wait)
            return rewards

        return timed_wait


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds of a call, and its result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def batches(system: System[Any], args: Namespace) -> Iterator[Batch]:
    """Yield the batches, each of sentences from the whole text."""
    lines = [path.read_text(encoding="utf-8").splitlines() for path in (args.source, args.reference)]
    pairs = list(zip(system.source.ids(lines[0]), system.target.ids(lines[1]), strict=True))
    for number in range(args.batches):
        rows = pairs[number :: len(pairs) // args.sentences][: args.sentences]
        yield make_batch(rows, range(len(rows)), system.direction).to(system.model.device)


def update(objective: TimedRisk, system: System[Any], batch: Batch) -> None:
    """Compute the gradients of an update."""
    system.model.zero_grad()
    objective(system.model, batch, BatchRng(1)).total.backward()  # type: ignore[no-untyped-call]
    if system.model.device.type == "cuda":
        torch.cuda.synchronize()


def seconds_in_one_process(objective: TimedRisk, system: System[Any], batch: Batch) -> float:
    """Return the time of the last rewards without worker processes; equal translations are scored once."""
    words = objective.hypotheses.words()
    K = len(words) // batch.sentences
    texts = list(map(system.target.join, words))  # the first translation of each sentence is its reference
    pairs = dict.fromkeys((text, texts[row - row % K]) for row, text in enumerate(texts))
    return timed(partial(objective.reward.score, *map(list, zip(*pairs, strict=True))))[0]


def reward_rows(system: System[Any], args: Namespace) -> Iterator[list[object]]:
    """Yield a row per reward."""
    search = system.config.search
    generation = Generation(system.target.join, LengthLimit(search.max_ratio, search.max_extra))
    for name in args.rewards:
        options = MinimumRiskOptions.model_validate({"samples": args.samples, "reward": OPTIONS[name]})
        objective = TimedRisk(options, Likelihood(), generation)
        columns: list[list[float]] = []
        with closing(objective):
            for batch in batches(system, args):
                seconds, _ = timed(partial(update, objective, system, batch))
                alone = seconds_in_one_process(objective, system, batch)
                waited = objective.start_seconds + objective.wait_seconds
                columns.append([seconds, objective.start_seconds, objective.wait_seconds, waited / seconds, alone])
        start = min(1, len(columns) - 1)  # the first batch starts the processes
        seconds, started, waited, fraction, alone = map(statistics.median, zip(*columns[start:], strict=True))
        yield [name, seconds, 1000 * started, 1000 * waited, fraction, 1000 * alone]


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, help="source text, one sentence per line")
    parser.add_argument("--reference", type=Path, required=True, help="reference translations")
    parser.add_argument("--rewards", nargs="*", default=list(OPTIONS), choices=OPTIONS, help="rewards [default: all]")
    parser.add_argument("--sentences", type=int, default=64, help="sentences per batch")
    parser.add_argument("--samples", type=int, default=20, help="translations per sentence")
    parser.add_argument("--batches", type=int, default=6, help="batches per reward")
    parser.add_argument("--device", default="cpu", help="device of the model")
    args = parse_arguments(parser)
    system = load_system(args.model)
    system.model.to(args.device)
    head = "reward | update s {:,.2f} | start ms {:,.1f} | wait ms {:,.1f} | waiting {:.1%} | one process ms {:,.1f}"
    publish([machine_line(), "", *table(head, reward_rows(system, args))], args.output)


if __name__ == "__main__":
    main()
