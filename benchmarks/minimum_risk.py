"""Measure an update by minimum risk training, compared with separate passes over its translations.

    python -m benchmarks.minimum_risk runs/en-de corpus/train.en corpus/train.de --samples 20

Rows, in seconds of processor time per batch (best of --rounds, measured in turn):

- one pass: forward and backward pass of the likelihood over one translation per sentence
- K passes: K + 1 times the above
- grouped pass: forward and backward pass over the reference and K samples per sentence with one memory
- drawing: sampling K translations per sentence
- rewards: BLEU of all samples
- update: all of an update except the optimiser's step

Only one thread runs, and the sampled translations are those of the model, so a trained model shows realistic lengths.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rnnsearch.accel.registry import choose
from rnnsearch.accel.verification import Conditions
from rnnsearch.config import BatchConfig
from rnnsearch.config.sequence import MinimumRiskOptions
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.hypotheses import (
    LengthLimit,
    current_scorer,
    group_by_length,
    sample_translations,
    unroll_hypotheses,
    unscored,
    weighted_nll,
)
from rnnsearch.objectives.sequence.objective import Generation
from rnnsearch.objectives.sequence.policy_gradient import MinimumRisk, join_per_sentence
from rnnsearch.ops.device import precision
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System
from rnnsearch.utils.tables import as_markdown

LIMIT = LengthLimit(2.0, 10)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path, help="text file")
    parser.add_argument("target", type=Path, help="its translation")
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    return parser.parse_args()


def first_batch(system: System, args: argparse.Namespace) -> Batch:
    """Return a batch of the first lines of the text."""
    names = (*system.direction.sources, system.direction.target)
    rows = {}
    for name, path in zip(names, (args.source, args.target), strict=True):
        lines = path.read_text(encoding="utf-8").split("\n")[: args.sentences]
        rows[name] = system.tokenizers[name].ids(lines)
    batches = Batches(ParallelIds.from_rows(rows), BatchConfig(sentences=args.sentences), None, 1)
    [batch] = batches.epoch(0)
    return batch


def processor_seconds(function: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def make_functions(system: System, batch: Batch, args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return the functions to measure by name."""
    model = system.model
    generation = Generation(system.target.join, LIMIT)
    objective = MinimumRisk(MinimumRiskOptions(samples=args.samples), Likelihood(), generation)
    samples = sample_translations(current_scorer(model), batch, args.samples, 1, LIMIT)
    hypotheses = join_per_sentence(unscored(batch.target.ids), samples, batch.sentences)

    def one_pass() -> None:
        with precision(model.device, args.precision):
            loss = Likelihood()(model, batch, None)
        loss.total.backward()

    def grouped_pass() -> None:
        with precision(model.device, args.precision):
            memories = model.encode(batch.sources)
            losses = []
            for group in group_by_length(hypotheses, batch.sentences):
                readout = unroll_hypotheses(model, group.hypotheses, memories).readout
                weights = torch.ones(group.hypotheses.ids.shape)
                losses.append(weighted_nll(model, group.hypotheses, readout, weights))
        torch.stack(losses).sum().backward()

    def score() -> None:
        objective.start_rewards(samples, batch)()

    def update() -> None:
        with precision(model.device, args.precision):
            loss = objective(model, batch, BatchRng(1))
        loss.total.backward()

    return {
        "one pass": one_pass,
        "grouped pass": grouped_pass,
        "drawing": lambda: sample_translations(current_scorer(model), batch, args.samples, 1, LIMIT),
        "rewards": score,
        "update": update,
    }


def main() -> None:
    """Measure all functions in turn and print the table."""
    args = parse_arguments()
    torch.set_num_threads(1)
    system = load_system(args.model)
    choose(system.model, conditions=Conditions.of_training(args.precision))
    batch = first_batch(system, args)
    functions = make_functions(system, batch, args)
    best = {name: processor_seconds(function) for name, function in functions.items()}  # warms up, too
    for _ in range(args.rounds):
        for name, function in functions.items():
            best[name] = min(best[name], processor_seconds(function))
    passes = args.samples + 1
    seconds = {"one pass": best.pop("one pass")}
    seconds[f"{passes} passes"] = passes * seconds["one pass"]
    seconds |= best
    rows = [["", "Seconds", f"Relative to {passes} passes"]]
    for name, value in seconds.items():
        rows.append([name, f"{value:.3f}", f"{value / seconds[f'{passes} passes']:.2f}"])
    sys.stdout.write(as_markdown(rows))


if __name__ == "__main__":
    main()
