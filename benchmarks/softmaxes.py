"""Time to equal dev scores: training with the full softmax, shortlists, partitions, noise words or classes.

    python -m benchmarks.softmaxes --train train.en train.de --dev val.en val.de

All trainings run at the same time, with one thread each, so that other programs slow them alike. The model is that of
the preset `small` over words, with separate embeddings and a constant learning rate, in batches of 64 sentences. The
table has the updates, and the training time without evaluations, until a run's dev NLL, and its BLEU by greedy search
over all words, are as good as those of the full softmax at its last evaluations, by interpolation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, argument_parser, log, machine_line, parse_arguments, publish, table

FULL = "full softmax"
METHODS: dict[str, list[str]] = {
    FULL: [],
    "shortlist": ["objective.shortlist={samples=2000}"],
    "partition": ["objective.partition=6000"],
    "BlackOut": ['objective.contrast={type="blackout"}'],
    "hierarchical": ['model.output={type="hierarchical"}'],
    "tree": ['model.output={type="tree"}'],
    "adaptive": ['model.output={type="adaptive",cutoffs=[2000]}'],
}
"""Settings of the run file by method."""
SCORES = (("dev_nll_per_word", -1), ("dev_bleu", 1))
"""Names of the dev scores; -1 if lower is better."""


def run_file(args: Namespace) -> str:
    """Return the run file that all trainings share."""
    files = [json.dumps("|".join(str(path.absolute()) for path in paths)) for paths in (args.train, args.dev)]
    return f"""name = "run"
preset = "small"
[data]
source = "en"
target = "de"
train = [{files[0]}]
dev = {files[1]}
prepared = "data"
aligner = false
[text]
type = "words"
joint = "unset"
vocabulary = {args.vocabulary}
[model]
tie = "none"
[training]
batch = {{ tokens = "unset", sentences = 64 }}
schedule = {{ type = "constant", warmup = 200 }}
optimiser = {{ learning_rate = 1e-3 }}
label_smoothing = 0.0
patience = "unset"
average = 0
threads = 1
precision = "{args.precision}"
max_epochs = {args.epochs}
evaluate_every = {args.evaluate_every}
"""


def train(args: Namespace) -> None:
    """Train all methods that have no result in the scratch folder yet, at the same time."""
    args.scratch.mkdir(parents=True, exist_ok=True)
    (args.scratch / "run.toml").write_text(run_file(args), encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rnnsearch"]
    if not (args.scratch / "data").exists():
        subprocess.run([*command, "prepare", "run.toml"], cwd=args.scratch, env=environment, check=True)
    processes = []
    for name in args.methods:
        if not log_file(args, name).exists():
            settings = [f"--set={setting}" for setting in METHODS[name]]
            words = [*command, "train", "run.toml", f"--set=name={folder_name(name)}", *settings]
            log(" ".join(words))
            processes.append(subprocess.Popen(words, cwd=args.scratch, env=environment))
    failed = [process.args for process in processes if process.wait()]
    if failed:
        raise SystemExit(f"failed: {failed}")


def folder_name(method: str) -> str:
    """Return the name of a method's run folder."""
    return method.replace(",", "").replace(" ", "-")


def log_file(args: Namespace, method: str) -> Path:
    """Return the log of a method's training."""
    return Path(args.scratch) / "runs" / folder_name(method) / "log.jsonl"


def evaluations(args: Namespace, method: str) -> list[Row]:
    """Return the evaluations of a training so far."""
    path = log_file(args, method)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["kind"] == "dev"]


def reached(score: float, rows: list[Row], key: str, sign: int) -> tuple[float, float] | None:
    """Return the update and the time at which a score is reached, interpolated; None if it is not.

    Args:
        score: Score to reach.
        rows: Evaluations of a training, in order.
        key: Name of the score.
        sign: -1 if lower scores are better, else 1.
    """
    for before, after in zip([None, *rows], rows, strict=False):
        if sign * after[key] < sign * score:
            continue
        if before is None or after[key] == before[key]:
            return after["update"], after["seconds"]
        fraction = (score - before[key]) / (after[key] - before[key])
        update, seconds = (before[axis] + fraction * (after[axis] - before[axis]) for axis in ("update", "seconds"))
        return update, seconds
    return None


def rows(args: Namespace) -> Iterator[list[object]]:
    """Yield a row per method: time per update, updates to the scores of the full softmax, and the last scores."""
    levels = evaluations(args, FULL)[-args.levels :]
    for name in args.methods:
        results = evaluations(args, name)
        if not results:
            continue
        last = results[-1]
        cells: list[object] = [name, 1000 * last["seconds"] / last["update"]]
        for key, sign in SCORES:
            for level in levels:
                result = reached(level[key], results, key, sign)
                cells.append("not reached" if result is None else f"{result[0]:,.0f} ({result[1]:,.0f} s)")
        yield [*cells, last["epoch"], last["dev_nll_per_word"], last["dev_bleu"]]


def main() -> None:
    """Train, and print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--train", nargs=2, type=Path, required=True, help="source and target text")
    parser.add_argument("--dev", nargs=2, type=Path, required=True, help="source and target text of the dev set")
    parser.add_argument("--vocabulary", type=int, default=30_000, help="maximum number of words per language")
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--evaluate-every", type=int, default=219, help="updates between evaluations")
    parser.add_argument("--levels", type=int, default=3, help="evaluations of the full softmax to compare with")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--scratch", type=Path, default=Path("runs/softmaxes"))
    parser.add_argument("--report", action="store_true", help="only print the table of the trainings so far")
    args = parse_arguments(parser)
    if not args.report:
        train(args)
    levels = evaluations(args, FULL)[-args.levels :]
    columns = [f"updates to NLL {level['dev_nll_per_word']:.2f}" for level in levels]
    columns += [f"updates to {level['dev_bleu']:.1f} BLEU" for level in levels]
    head = " | ".join(["training", "ms per update {:,.0f}", *columns, "epochs {:.1f}", "dev NLL {:.3f}", "BLEU {:.1f}"])
    publish([machine_line(), "", *table(head, rows(args))], args.output)


if __name__ == "__main__":
    main()
