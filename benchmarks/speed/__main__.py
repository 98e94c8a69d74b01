"""Command line of the speed benchmark. Everything is measured in one run on one machine."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.harness import publish
from benchmarks.speed import rivals as others
from benchmarks.speed.ours import SEARCH_SETTINGS, TRAINING_SETTINGS, SearchSetting, TrainingSetting
from benchmarks.speed.plan import Measurement, Plan, smoke
from benchmarks.speed.table import report

Named = TypeVar("Named", TrainingSetting, SearchSetting)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    add = parser.add_argument
    add("--rivals", default="onmt,joeynmt,eole", help="comma-separated: onmt, joeynmt, eole; or none")
    add("--peers", type=Path, help="folder of the rivals' scripts (default: PEERS_SCRIPTS, ../shared/peers)")
    add("--data", type=Path, help="folder of Multi30k's text (default: ../shared/data/multi30k-en-de)")
    add("--scratch", type=Path, default=Path("runs/speed"), help="folder for rows and runs")
    add("--output", type=Path, help="folder for the report (default: the scratch folder)")
    add("--name", default="speed", help="name of the report: NAME.md and NAME.json")
    add("--threads", type=int, default=os.cpu_count() or 1, help="number of CPU threads")
    add("--updates", type=int, default=others.MIN_UPDATES, help="training updates per rival")
    add(
        "--bleu-updates",
        type=int,
        default=others.FOUR_EPOCHS,
        help="training updates of OpenNMT-py to 35.5 BLEU; 0 to skip",
    )
    add("--trainings", help="comma-separated names of training settings (default: all)")
    add("--ways", help="comma-separated names of search settings (default: all)")
    add("--model", type=Path, help="model of an earlier run of this benchmark to decode with, instead of training one")
    add("--quality", action="store_true", help="also measure the quality of the fast paths")
    add("--curves", action="store_true", help="also plot cost curves")
    add("--device", default="cpu", help="cuda: only train on the GPU, at the rivals' and the paper's size")
    add("--smoke", action="store_true", help="measure rnnsearch at toy size, in seconds")
    add("--fresh", action="store_true", help="discard the finished rows of earlier calls")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and save the report; return the exit status."""
    options = parse_options(arguments)
    if options.fresh:
        shutil.rmtree(options.scratch, ignore_errors=True)
    try:
        plan = _plan(options)
    except ValueError as error:
        sys.stderr.write(f"benchmarks.speed: {error}\n")
        return 1
    results = Measurement(plan).run()
    results.machine["command"] = shlex.join(["python", "-m", "benchmarks.speed", *(arguments or sys.argv[1:])])
    lines = report(results)
    folder = options.output or options.scratch
    if options.curves:
        from benchmarks.speed.curves import measure_curves

        lines += measure_curves(folder, options.scratch, options.threads, toy=options.smoke)
    publish(lines, folder / f"{options.name}.md", results.__dict__)
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    """Create the plan.

    Raises:
        ValueError: An option is invalid.
    """
    scratch = options.scratch.resolve()
    if options.smoke:
        return smoke(scratch, options.threads, options.quality)
    if options.device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"--device {options.device} needs a CUDA device; torch finds none")
    chosen = others.choose(options.rivals)
    scripts = others.scripts(options.peers) if chosen else None
    token_folder = None if chosen else scratch / "tokens"
    return Plan(
        scratch=scratch,
        tokens=others.load_tokens(options.peers, options.data, token_folder),
        threads=options.threads,
        trainings=_select(TRAINING_SETTINGS, "--trainings", options.trainings),
        searches=_select(SEARCH_SETTINGS, "--ways", options.ways),
        rivals=chosen,
        scripts=scripts,
        rival_updates=options.updates,
        bleu_updates=options.bleu_updates,
        model=options.model,
        quality=options.quality,
        device=options.device,
    )


def _select(settings: Sequence[Named], option: str, names: str | None) -> list[Named]:
    """Return the settings with these names, in the order of measurement.

    Raises:
        ValueError: A name is unknown.
    """
    by_name = {setting.name: setting for setting in settings}
    wanted = list(by_name) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in by_name]:
        raise ValueError(f"{option} must be some of {', '.join(by_name)}; got {unknown[0]}")
    return [setting for name, setting in by_name.items() if name in wanted]


if __name__ == "__main__":
    sys.exit(main())
