"""`rnnsearch prepare` and `train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rnnsearch.cli.bulk import Actors, Engine, check_engine, prepare_in_shards
from rnnsearch.cli.io import console, download_bar, say

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.data.download import Progress
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.processes import Processes

RunFile = Annotated[Path, typer.Argument(help="A run file (TOML); see examples/.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override options: --set training.seed=2 text.vocabulary=4000."),
]


def prepare(
    run_file: RunFile,
    settings: Settings = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that share the work; as many as cores.", show_default=False)
    ] = None,
    engine: Engine = None,
    store: Annotated[
        str | None,
        typer.Option(help="Keep shards in this folder, or at this URL (s3://..).  [default: DATA.partial]"),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Pairs a shard, at least.  [default: 20000]")] = None,
    actors: Actors = None,
) -> None:
    """Clean a corpus, learn its vocabulary and write memory-mapped ids."""
    check_engine(engine, store, rows, actors)
    if processes is not None and engine == "ray":
        raise typer.BadParameter("--processes has no effect with --engine ray: --actors says how many")
    config = checked(run_file, settings)

    def make(place: Path, bar: Progress) -> Prepared:
        if engine is not None:
            return prepare_in_shards(config, place, bar, engine, store, rows, actors, processes)
        from rnnsearch.data.prepare import prepare as in_one_go

        return in_one_go(config, place, progress=bar, processes=processes)

    report(_prepared_now(data_folder(config, run_folder(config, run_file)), make))


def train(
    run_file: RunFile,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")] = False,
    settings: Settings = None,
) -> None:
    """Train a model (preparing its corpus first where that is not done); Ctrl-C saves, --resume goes on."""
    from rnnsearch.errors import Interrupted, RnnsearchError
    from rnnsearch.processes import joined

    with joined() as processes:
        try:
            config = checked(run_file, settings)
            folder = run_folder(config, run_file)
            run(config, folder, resume, processes)
        except RnnsearchError as error:
            if processes.is_mine_to_say(error):
                raise
            raise typer.Exit(130 if isinstance(error, Interrupted) else 1) from None
        if processes.first:
            use = "translate" if config.model.kind == "translation" else "lm sample"
            say(f"The model is in {folder}. Next: rnnsearch {use} {folder}, rnnsearch inspect {folder}")


def checked(run_file: Path, settings: list[str] | None) -> RunConfig:
    """The resolved config. Errors: ConfigError with every fault, of types and of names and combinations together."""
    from rnnsearch import config as run_config
    from rnnsearch.errors import ConfigError

    faults: list[str] = []
    try:
        config = run_config.load(run_file, settings or ())
    except ConfigError as error:
        if not isinstance(error.rest, run_config.RunConfig):
            raise
        faults, config = error.faults, error.rest
    from rnnsearch.training.run import check

    faults += [f"{run_file}: {fault}" for fault in check(config)]
    if faults:
        raise ConfigError(faults)
    return config


def run_folder(config: RunConfig, run_file: Path) -> Path:
    """Where a run lives: `folder`, relative to the run file, else `runs/<name>` here."""
    if config.folder is not None:
        return config.base / config.folder
    return Path("runs") / (config.name or run_file.stem)


def data_folder(config: RunConfig, folder: Path) -> Path:
    """Where the prepared data of the run in a folder are."""
    return config.base / config.data.prepared if config.data.prepared is not None else folder / "data"


def prepared_data(config: RunConfig, folder: Path) -> Prepared:
    """The run's prepared data, made now where they are not there."""
    from rnnsearch.data.prepare import prepare as make
    from rnnsearch.data.prepared import FACTS, Prepared

    place = data_folder(config, folder)
    if (place / FACTS).is_file():
        return Prepared.open(place, config)
    return _prepared_now(place, lambda place, bar: make(config, place, progress=bar))


def _prepared_now(place: Path, make: Callable[[Path, Progress], Prepared]) -> Prepared:
    with download_bar() as bar:
        prepared = make(place, bar)
    say(f"prepared {prepared.facts['pairs']:,} training pairs in {place}")
    return prepared


def report(prepared: Prepared) -> None:
    """Say what was left out of the corpus and why, with examples, and what the vocabulary covers."""
    facts, cleaning = prepared.facts, prepared.report
    say(f"{cleaning['read']:,} pairs read, {cleaning['kept']:,} kept")
    for reason, row in cleaning["rejected"].items():
        say(f"  {row['count']:,} left out: {reason}; for example")
        for example in row["examples"]:
            say(f"    {example}")
    say(f"{facts['pairs']:,} pairs to train on, {facts['dev']:,} for dev, {facts['test']:,} for test")
    if facts["left_out_by_split"]:
        say(f"  {facts['left_out_by_split']:,} left out: they share a sentence with the dev or test set")
    for warning in prepared.warnings:
        say(f"warning: {warning}")
    for side in facts["sides"]:
        unknown, symbols = facts["unknown"][side], facts["symbols"][side]
        role = "target" if side == prepared.direction.target else "source" if len(facts["sides"]) == 2 else side
        say(f"{role}: {symbols:,} symbols of {facts['vocabulary'][side]:,} kinds, {unknown:.2%} unknown")


def run(config: RunConfig, folder: Path, resume: bool, processes: Processes | None = None) -> str:
    """Prepare where needed, print the config, train; returns why training ended."""
    from rnnsearch import config as run_config
    from rnnsearch.data.prepared import FACTS
    from rnnsearch.processes import Processes, restarted
    from rnnsearch.training.progress import Screen, Together
    from rnnsearch.training.run import train as train_run
    from rnnsearch.training.run_folder import refuse_other_run

    def prepare_first() -> None:
        if not (data_folder(config, folder) / FACTS).is_file():
            refuse_other_run(config, folder, resume)  # before anybody's text comes into a folder that is no run's
        prepared_data(config, folder)

    processes = processes or Processes()
    resume = resume or processes.any(restarted())
    processes.once(prepare_first)
    prepared = prepared_data(config, folder)
    if not processes.first:
        return train_run(config, prepared, folder, Together(), resume, processes)
    for warning in prepared.warnings:
        say(f"warning: {warning}")
    say(run_config.dump(config))
    with Screen(console()) as screen:
        return train_run(config, prepared, folder, screen, resume, processes)
