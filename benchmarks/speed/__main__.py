"""The command line of the benchmark: what to measure, in one run on one machine."""

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
from benchmarks.speed.ours import TRAININGS, WAYS, Setting, Way
from benchmarks.speed.plan import Measurement, Plan, smoke
from benchmarks.speed.table import report

Named = TypeVar("Named", Setting, Way)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    add = parser.add_argument
    add("--rivals", default="onmt,joeynmt,eole", help="some of onmt, joeynmt, eole, or none")
    add("--peers", type=Path, help="folder of the rivals' scripts (default: PEERS_SCRIPTS, ../shared/peers)")
    add("--data", type=Path, help="folder of Multi30k's text (default: ../shared/data/multi30k-en-de)")
    add("--scratch", type=Path, default=Path("runs/speed"), help="where rows and runs are kept")
    add("--output", type=Path, help="folder for the report (default: the scratch folder)")
    add("--name", default="speed", help="of the report: NAME.md and NAME.json")
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--updates", type=int, default=others.LEAST, help="of each rival's training")
    add("--bleu-updates", type=int, default=others.FOUR_EPOCHS, help="of OpenNMT-py's training to 35.5 BLEU; 0: none")
    add("--trainings", help="some of our ways of training, by name, with commas (default: all)")
    add("--ways", help="some of our ways of searching, by name, with commas (default: all)")
    add("--model", type=Path, help="a model that this benchmark trained before: decode with it, train none to BLEU")
    add("--quality", action="store_true", help="also what the fast paths cost in quality")
    add("--curves", action="store_true", help="also cost curves, as figures")
    add("--device", default="cpu", help="cuda: training on the GPU alone, at the rivals' size and the paper's")
    add("--smoke", action="store_true", help="everything of ours at toy size, in seconds")
    add("--fresh", action="store_true", help="measure rows anew that an earlier call has finished")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Measure, print and save. Returns the exit status."""
    options = arguments(given)
    if options.fresh:
        shutil.rmtree(options.scratch, ignore_errors=True)
    try:
        plan = _plan(options)
    except ValueError as error:
        sys.stderr.write(f"benchmarks.speed: {error}\n")
        return 1
    found = Measurement(plan).all()
    found.machine["command"] = shlex.join(["python", "-m", "benchmarks.speed", *(given or sys.argv[1:])])
    lines = report(found)
    folder = options.output or options.scratch
    if options.curves:
        from benchmarks.speed.curves import draw

        lines += draw(folder, options.scratch, options.threads, toy=options.smoke)
    publish(lines, folder / f"{options.name}.md", found.__dict__)
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    """What to measure. Errors: ValueError, one sentence."""
    scratch = options.scratch.resolve()
    if options.smoke:
        return smoke(scratch, options.threads, options.quality)
    if options.device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"--device {options.device} needs a CUDA device; torch finds none here")
    chosen = others.chosen(options.rivals)
    scripts = others.scripts(options.peers) if chosen else None
    own = None if chosen else scratch / "tokens"
    return Plan(
        scratch=scratch,
        tokens=others.tokens(options.peers, options.data, own),
        threads=options.threads,
        trainings=_some(TRAININGS, "--trainings", options.trainings),
        ways=_some(WAYS, "--ways", options.ways),
        rivals=chosen,
        scripts=scripts,
        rival_updates=options.updates,
        bleu_updates=options.bleu_updates,
        model=options.model,
        quality=options.quality,
        device=options.device,
    )


def _some(known: Sequence[Named], option: str, names: str | None) -> list[Named]:
    """Those of the names given, in their order of measurement. Errors: ValueError for an unknown one."""
    by_name = {each.name: each for each in known}
    wanted = list(by_name) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in by_name]:
        raise ValueError(f"{option} must be some of {', '.join(by_name)}; got {unknown[0]}")
    return [each for name, each in by_name.items() if name in wanted]


if __name__ == "__main__":
    sys.exit(main())
