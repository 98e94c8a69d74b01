"""`--engine` and what goes with it: work in shards, which a killed run goes on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch import __version__, bulk
from rnnsearch.cli.io import console, count_pairs, input_portions, joined_pairs, say

if TYPE_CHECKING:
    from rnnsearch.cli.translate_lines import Asked
    from rnnsearch.config import RunConfig
    from rnnsearch.data.corpora import download
    from rnnsearch.data.prepared import Prepared

EngineName = Literal["local", "ray"]
Engine = Annotated[
    EngineName | None,
    typer.Option(help="Work in shards, and go on where a killed run was: local, in this process; ray, on a cluster."),
]
Store = Annotated[
    str | None,
    typer.Option(help="Keep shards in this folder, or at this URL (s3://..).  [default: OUTPUT.partial]"),
]
EngineOfMany = Annotated[EngineName, typer.Option(help="What translates: this process, or a cluster.")]
Rows = Annotated[int | None, typer.Option(min=1, help="Lines a shard, at least.  [default: 16 batches]")]
Actors = Annotated[
    int | None, typer.Option(min=1, help="Processes of --engine ray, at most.  [default: as there is room]")
]
PASSES = {"clean": "cleaning", "count": "counting", "learn_cut": "aligning", "encode": "segmenting"}
"""What is said of the passes over a corpus."""


def check_engine(engine: str | None, store: str | None, rows: int | None, actors: int | None) -> None:
    """Errors: BadParameter for options without effect."""
    for name, given in {"store": store, "rows": rows}.items():
        if given is not None and engine is None:
            raise typer.BadParameter(f"--{name} has no effect without --engine")
    if actors is not None and engine != "ray":
        raise typer.BadParameter("--actors has no effect without --engine ray")


def check_files_given(engine: str | None, input: Path | None, output: Path | None) -> None:
    """Errors: BadParameter where an engine has no files to work on."""
    for name, path in {"-i, --input": input, "-o, --output": output}.items():
        if engine is not None and path is None:
            raise typer.BadParameter(f"--engine needs {name}: what goes on after a break is a file")


def in_shards(
    asked: Asked,
    input: Path,
    outputs: dict[str, Path],
    engine: EngineName,
    store: str | None,
    rows: int | None,
    actors: int | None,
) -> bulk.Counts:
    """Translate a file to files, in shards; the counts of all lines. What is to be said of lines is said at the end.

    Errors: those of `Asked`, of reading the file and of `bulk.run`; RnnsearchError without Ray where that is asked for.
    """
    from rnnsearch.cli.translate_lines import OUTPUT
    from rnnsearch.data.corpus import check_files

    check_files([input])
    if asked.closest_to is not None:
        count_pairs(input, asked.closest_to)
    on_gpu = asked.device.startswith("cuda")
    does: bulk.Engine = bulk.local
    if engine == "ray":
        does = bulk.OnRay(actors, asked.threads or 1, int(on_gpu))
    # Faults of what is asked for are found here, where there may be no GPU, before any other process begins.
    here = (replace(asked, device="cpu") if engine == "ray" else asked)()
    if engine == "ray" and not on_gpu:
        here.translator.prepare()  # native code is timed before several processes do it at once
    elsewhere = replace(asked.anywhere(), threads=asked.threads or 1)
    with progress(outputs[OUTPUT], "translating", "lines") as show:
        told = bulk.run(
            _portions(input, asked.closest_to, here.portion),
            {"input": bulk.digest(input), "version": __version__, **asked.about()},
            (lambda: here) if engine == "local" else elsewhere,
            outputs,
            bulk.store_at(store or f"{outputs[OUTPUT]}.partial"),
            does,
            rows or 1,
            show,
        )
    for message in told.said:
        say(message)
    return told.counts


def _portions(input: Path, beside: Path | None, size: int) -> Iterator[list[str]]:
    """The lines of a file up to `size` of them at a time, each with that of another file behind a line feed, if there
    is one."""
    if beside is None:
        return input_portions(input, size)
    return joined_pairs(input, beside, size)


@contextmanager
def progress(path: Path, doing: str, units: str) -> Iterator[Callable[[int, int], None]]:
    """What `bulk.run` tells of how far it is: a bar, and at first what an earlier run has done of the file `path`."""
    from rich.progress import Progress

    bar = Progress(console=console())

    def show(done: int, total: int) -> None:
        if not bar.tasks:
            if done:
                say(f"{path}: goes on after {done:,} of {total:,} {units}")
            bar.add_task(doing, total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield show
    finally:
        if bar.tasks:
            bar.stop()


def prepare_in_shards(
    config: RunConfig,
    folder: Path,
    downloading: download.Progress,
    engine: EngineName,
    store: str | None,
    rows: int | None,
    actors: int | None,
    processes: int | None,
) -> Prepared:
    """Prepare a corpus in shards. Errors: those of `bulk.prepare`; RnnsearchError without Ray where it is asked for."""
    place = bulk.store_at(store or f"{folder}.partial")
    on = bulk.OnRay(actors) if engine == "ray" else bulk.OnCores(processes)
    with on as does, _progress_of_passes(folder) as show:
        return bulk.prepare(config, folder, place, does, rows or 1, None, downloading, show)


@contextmanager
def _progress_of_passes(folder: Path) -> Iterator[Callable[[str, int, int], None]]:
    """What `bulk.prepare` tells: a bar for each pass."""
    with ExitStack() as stack:
        bars: dict[str, Callable[[int, int], None]] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                stack.close()  # one bar at a time
                bars[name] = stack.enter_context(progress(folder, PASSES[name], f"shards of {PASSES[name]}"))
            bars[name](done, total)

        yield show
