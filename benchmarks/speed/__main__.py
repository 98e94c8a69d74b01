"""Command line of the speed benchmark. Everything is measured in one run on one machine."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from benchmarks.harness import publish
from benchmarks.speed import gpu
from benchmarks.speed import rivals as others
from benchmarks.speed.workers import WorkerError

# The modules of the measurements on a CPU import torch, which would delay those on a GPU.
if TYPE_CHECKING:
    from benchmarks.speed.plan import Plan


class HasName(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """The name."""


Named = TypeVar("Named", bound=HasName)
GPU_OPTIONS = ("scales", "batches", "precisions", "modes", "minutes")
"""Options of measurements on a GPU only."""


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
    add("--device", default="cpu", help="cuda: training and search on the GPU, at the rivals' and the paper's size")
    add("--scales", help="cuda: comma-separated sizes of the model: rivals, paper (default: both)")
    add("--batches", help="cuda: comma-separated numbers of sentences per batch (default: 64, 512; 80, 512)")
    add("--precisions", help="cuda: comma-separated: bf16, fp32 (default: both; the first is measured first)")
    add("--modes", help="cuda: comma-separated: recorded, kernels (default: both)")
    add("--minutes", type=float, help="cuda: time limit of this call; the next call continues")
    add("--smoke", action="store_true", help="measure rnnsearch at toy size, in seconds")
    add("--fresh", action="store_true", help="discard the finished rows of earlier calls")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and save the report; return the exit status."""
    options = parse_options(arguments)
    if options.fresh:
        shutil.rmtree(options.scratch, ignore_errors=True)
    command = shlex.join(["python", "-m", "benchmarks.speed", *(sys.argv[1:] if arguments is None else arguments)])
    try:
        if options.device == "cpu":
            _measure_on_cpu(options, command)
        else:
            gpu.run(_gpu_plan(options), options.output or options.scratch, options.name, command)
    except (ValueError, WorkerError) as error:
        sys.stderr.write(f"benchmarks.speed: {error}\n")
        return 1
    return 0


def _measure_on_cpu(options: argparse.Namespace, command: str) -> None:
    from benchmarks.speed.plan import Measurement
    from benchmarks.speed.table import report

    results = Measurement(_plan(options)).run()
    results.machine["command"] = command
    lines = report(results)
    folder = options.output or options.scratch
    if options.curves:
        from benchmarks.speed.curves import measure_curves

        lines += measure_curves(folder, options.scratch, options.threads, toy=options.smoke)
    publish(lines, folder / f"{options.name}.md", results.__dict__)


def _plan(options: argparse.Namespace) -> Plan:
    """Create the plan of measurements on the CPU.

    Raises:
        ValueError: An option is invalid.
    """
    from benchmarks.speed.ours import SEARCH_SETTINGS, TRAINING_SETTINGS
    from benchmarks.speed.plan import Plan, smoke

    if unused := [name for name in GPU_OPTIONS if getattr(options, name) is not None]:
        raise ValueError(f"--{unused[0]} needs --device cuda")
    scratch = options.scratch.resolve()
    if options.smoke:
        return smoke(scratch, options.threads, options.quality)
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
    )


def _gpu_plan(options: argparse.Namespace) -> gpu.GpuPlan:
    """Create the plan of measurements on a GPU.

    Raises:
        ValueError: An option is invalid.
    """
    if others.choose(options.rivals):
        raise ValueError(f"--rivals must be none with --device {options.device}; got {options.rivals}")
    scratch = options.scratch.resolve()
    if options.smoke:
        plan = gpu.toy_plan(scratch, options.threads, options.device)
    else:
        data = others.text_folder(options.data).resolve()
        plan = gpu.GpuPlan(scratch, options.threads, options.peers, data, device=options.device)
    plan = replace(
        plan,
        minutes=options.minutes,
        scales=_select(plan.scales, "--scales", options.scales),
        precisions=_choose(gpu.PRECISIONS, "--precisions", options.precisions),
        modes=_choose(gpu.MODES, "--modes", options.modes),
    )
    if options.batches is not None:
        batches = options.batches.split(",")
        if not all(batch.isdecimal() and int(batch) for batch in batches):
            raise ValueError(f"--batches must be positive numbers, such as 64,512; got {options.batches}")
        plan = replace(plan, batches=[int(batch) for batch in batches])
    return plan


def _choose(choices: Sequence[str], option: str, names: str | None) -> Sequence[str]:
    """Return the choices with these names, in the order of the names.

    Raises:
        ValueError: A name is unknown.
    """
    chosen = choices if names is None else names.split(",")
    if unknown := [name for name in chosen if name not in choices]:
        raise ValueError(f"{option} must be some of {', '.join(choices)}; got {unknown[0]}")
    return chosen


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
    # `timeout` and schedulers end programs by SIGTERM: the finished rows are reported as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
