"""Train a list of systems side by side on one GPU or CPU, within a time limit, and continue in the next call.

    python -m reproduce.queue reproduce/queues/multi30k-pending.toml --data multi30k-en-de --minutes 13
    python -m reproduce.queue my-queue.toml --device cpu --jobs 2

A queue file lists trainings (a run file, or a preset for the queue's `[data]`; `set` overrides options) and test sets:

    set = ["training.dev_bleu=false"]     # for all trainings
    [data]                                # for the trainings with a preset
    source = "en"
    target = "de"
    train = ["train.en|train.de"]         # relative to --data
    dev = "val.en|val.de"
    [tests]
    flickr2016 = "test_2016_flickr.en|test_2016_flickr.de"
    [[training]]
    name = "RNMT+"
    preset = "rnmt-plus-small"            # or: run = "my-run.toml"
    set = ["training.max_minutes=60"]
    pairs = 20000                         # only the first training pairs
    beam = 5                              # of the evaluation
    tests = ["flickr2016"]                # default: all

Each training is a process `rnnsearch train`. As many run at a time as there are cores and as fit into the free memory
of the GPU, which is measured before each start. They share the GPU by NVIDIA's multi-process service, if it is
installed, and otherwise take turns. Trainings with the same text share one prepared corpus. Shortly before the time
limit, or after Ctrl-C, they save their state; the next call continues them and skips finished ones. A finished training
is evaluated on its test sets.

Output: table.md and queue.json (BLEU and chrF of finished trainings; what is unfinished is marked), written after each
result; logs/, one log per process; and models/, one model folder per training.
"""

# This folder has no __init__.py: as a regular package it would hide the standard library's `queue` from the scripts of
# the parent folder, which Python puts on the path.
from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from reproduce.queue.gpu import free_mib, shared_gpu
from reproduce.queue.plan import load_plan
from reproduce.queue.results import PAGE, Progress, write_results
from reproduce.queue.runner import Memory, Runner
from rnnsearch.errors import RnnsearchError


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduce.queue", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("file", type=Path, help="queue file (TOML)")
    add("--minutes", type=float, help="time limit of this call")
    add("--margin", type=float, default=20.0, help="seconds before the limit at which trainings save their state")
    add("--data", type=Path, help="folder of the text (default: the folder of the queue file)")
    add("--output", type=Path, help="folder for models and results (default: runs/queue-NAME)")
    add("--device", help="device of all trainings, such as cuda or cpu (default: that of each run file)")
    add("--jobs", type=int, help="maximum number of processes at a time (default: number of cores)")
    add("--memory", type=float, default=4096.0, help="MiB of GPU memory of a training until it has been measured")
    args = parser.parse_args(arguments)
    for name in ("minutes", "jobs", "memory"):
        if getattr(args, name) is not None and getattr(args, name) <= 0:
            parser.error(f"--{name} must be positive; got {getattr(args, name)}")
    if args.margin < 0:
        parser.error(f"--margin must not be negative; got {args.margin}")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run the queue; return 0 if everything is done, 1 after an error and 3 if something is left to do."""
    args = parse_arguments(arguments)
    command = shlex.join(["python", "-m", "reproduce.queue", *(sys.argv[1:] if arguments is None else arguments)])
    output = (args.output or Path("runs") / f"queue-{args.file.stem}").resolve()
    device = [] if args.device is None else [f"training.device={args.device}"]
    try:
        plan = load_plan(args.file, (args.data or args.file.parent).resolve(), output, device)
        all_progress = [Progress.load(training) for training in plan.trainings]
    except RnnsearchError as error:
        sys.stderr.write(f"{error}\n")
        return 1

    def write() -> None:
        write_results(plan, all_progress, output, command)

    devices = {training.config.training.device for training in plan.trainings}
    free = free_mib() if devices != {"cpu"} else None
    uses_gpu = free is not None or any(device.startswith("cuda") for device in devices)
    slots = args.jobs or len(os.sched_getaffinity(0))
    messages: list[str] = []
    with shared_gpu(uses_gpu, messages) as variables:
        for message in messages:
            _print(message)
        memory = Memory(free_mib if uses_gpu else lambda: None, args.memory)
        # A limit shorter than the margin leaves time to train.
        margin = args.margin if args.minutes is None else min(args.margin, 60 * args.minutes / 2)
        Runner(all_progress, output, slots, memory, args.minutes, margin, variables, write, _print).run()
    write()
    sys.stdout.write((output / PAGE).read_text(encoding="utf-8"))
    if any(progress.error for progress in all_progress):
        return 1
    return 0 if all(progress.is_done for progress in all_progress) else 3


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
