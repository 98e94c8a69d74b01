"""Work in shards (`--engine`), which a killed run resumes: translation of lines and preparation of corpora.

The work is done by the package `bulk`. Tests: tests/commands/test_bulk.py, tests/bulk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from typer import BadParameter

from rnnsearch.cli.io import count_pairs, error_console, input_chunks, pair_chunks, print_message

if TYPE_CHECKING:
    from rnnsearch.bulk import Counts, Engine
    from rnnsearch.cli.options import BulkGroup, FileGroup
    from rnnsearch.cli.translate_lines import TranslateOptions
    from rnnsearch.config import RunConfig
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.data.progress import Progress

PASS_NAMES = {"clean": "cleaning", "count": "counting", "encode": "segmenting"}
"""Verb of the message about resumption by the function of the pass."""


def require_files(bulk: BulkGroup, files: FileGroup) -> None:
    """Raise BadParameter if an engine is given without files to work on."""
    for option, path in {"-i, --input": files.input, "-o, --output": files.output}.items():
        if bulk.engine is not None and path is None:
            raise BadParameter(f"--engine needs {option}: only files can be resumed")


def run_in_shards(options: TranslateOptions, input: Path, outputs: dict[str, Path], bulk: BulkGroup) -> Counts:
    """Translate a file in shards, print the messages about its lines and return the counts of all lines.

    Args:
        outputs: Output files by the names in `translate_lines`.

    Raises:
        RnnsearchError: A file or model cannot be read, an option is not supported, or Ray is missing or fails.
    """
    from rnnsearch import __version__
    from rnnsearch.bulk import OnRay, digest, local, run, store_at
    from rnnsearch.cli.translate_lines import OUTPUT
    from rnnsearch.data.corpus import check_files

    check_files([input])
    if options.parallel is not None:
        count_pairs(input, options.parallel)
    hardware = options.hardware
    uses_gpu = hardware.device.startswith("cuda")
    engine: Engine = local
    local_options = options
    if bulk.engine == "ray":
        engine = OnRay(bulk.actors, hardware.threads or 1, int(uses_gpu))
        # The models are loaded here as well, to find errors before workers start. This machine may have no GPU.
        local_options = replace(options, hardware=replace(hardware, device="cpu"))
    translator = local_options()
    if bulk.engine == "ray" and not uses_gpu:
        translator.translator.prepare()  # native code is timed once, before several processes need it
    worker_options = replace(options.with_absolute_paths(), hardware=replace(hardware, threads=hardware.threads or 1))
    if options.parallel is None:
        chunks = input_chunks(input, translator.chunk_size)
    else:
        chunks = pair_chunks(input, options.parallel, translator.chunk_size)
    with shard_progress(outputs[OUTPUT], "translating", "lines") as show_progress:
        done = run(
            chunks,
            {"input": digest(input), "version": __version__, **options.fingerprint()},
            (lambda: translator) if bulk.engine == "local" else worker_options,
            outputs,
            store_at(bulk.store or f"{outputs[OUTPUT]}.partial"),
            engine,
            bulk.rows or 1,
            show_progress,
        )
    for message in done.messages:
        print_message(message)
    return done.counts


@contextmanager
def shard_progress(path: Path, description: str, units: str) -> Iterator[Callable[[int, int], None]]:
    """Provide a progress function for `bulk.run`: a bar, and a message if an earlier run has done some of the work.

    Args:
        path: Output file, for the message.
        units: What is counted, for the message.
    """
    from rich.progress import Progress

    bar = Progress(console=error_console())

    def show(done: int, total: int) -> None:
        if not bar.tasks:
            if done:
                print_message(f"{path}: resuming after {done:,} of {total:,} {units}")
            bar.add_task(description, total=total)
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
    show_stage: Progress,
    bulk: BulkGroup,
    processes: int | None,
) -> Prepared:
    """Prepare a corpus in shards.

    Raises:
        RnnsearchError: The corpus is invalid (see `bulk.prepare`), or Ray is missing or fails.
    """
    from rnnsearch.bulk import OnCores, OnRay, prepare, store_at

    store = store_at(bulk.store or f"{folder}.partial")
    engine_context = OnRay(bulk.actors) if bulk.engine == "ray" else OnCores(processes)
    show_pass = _pass_progress(folder, show_stage)
    with engine_context as engine:
        return prepare(config, folder, store, engine, bulk.rows or 1, None, show_stage, show_pass)


def _pass_progress(folder: Path, show_stage: Progress) -> Callable[[str, int, int], None]:
    """Return a progress function for `bulk.prepare`, which shows the shards of a pass as progress of its stage.

    If an earlier run has finished shards of a pass, it prints a message.
    """
    from rnnsearch.data import prepare

    stages = {
        "clean": prepare.READING,
        "count": prepare.COUNTING,
        "encode": prepare.WRITING,
    }
    started: set[str] = set()

    def show(name: str, done: int, total: int) -> None:
        if name not in started and done:
            print_message(f"{folder}: resuming after {done:,} of {total:,} shards of {PASS_NAMES[name]}")
        started.add(name)
        show_stage(stages[name], done, total, "shards")

    return show
