"""`rnnsearch prepare` and `train`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch.cli.bulk import Actors, Engine, check_engine, prepare_in_shards
from rnnsearch.cli.io import console, download_bar, say

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.data.corpora.download import Progress
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.evaluation.assess import Assessment
    from rnnsearch.utils.distributed import Processes


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
    from rnnsearch.utils.distributed import joined

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
    from rnnsearch.training.progress import Screen, Together
    from rnnsearch.training.run import train as train_run
    from rnnsearch.training.run_folder import refuse_other_run
    from rnnsearch.utils.distributed import Processes, restarted

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


# `rnnsearch data list` and `get`.

app = typer.Typer(help="Corpora that can be downloaded, with licence and attribution.", no_args_is_help=True)


@app.command("list")
def list_corpora() -> None:
    """List the corpora by name."""
    from rnnsearch.data.corpora.catalog import CORPORA

    for corpus in CORPORA.values():
        aligned = "; word alignments" if corpus.aligned else ""
        typer.echo(f"{corpus.name:16} {corpus.pairs:>7,} pairs  {corpus.licence}{aligned}\n    {corpus.description}")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name of `rnnsearch data list`.", show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Copy its files here, too.")] = None,
) -> None:
    """Download a corpus, check its hash, split it, and print the folder it lies in."""
    import shutil

    from rnnsearch.data.corpora.catalog import find
    from rnnsearch.data.corpora.catalog import get as fetch
    from rnnsearch.errors import DataError
    from rnnsearch.utils.files import atomic_folder

    corpus = find(name)
    if output is not None and output.exists() and not _replaceable(output):
        raise DataError(f"{output}: must be a new or empty folder, or a corpus got before; got one with other files")
    with download_bar() as bar:
        folder = fetch(name, progress=bar)
    say(f"{corpus.attribution}. Licence: {corpus.licence}.")
    if output is not None:
        with atomic_folder(output.resolve()) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
        folder = output
    typer.echo(str(folder))


def _replaceable(folder: Path) -> bool:
    """Whether a folder holds nothing that a corpus in its place would destroy."""
    return folder.is_dir() and ((folder / "corpus.json").is_file() or not any(folder.iterdir()))


# `rnnsearch demo`: the main job on a corpus that any machine with pip can have.

Pair = Literal["en-de", "de-en", "en-fr", "fr-en", "en-es", "es-en"]
SHOWN = 4
"""Held-out sentences shown with their alignments."""


def demo(
    pair: Annotated[Pair, typer.Option(help="Language pair.")] = "en-de",
    runs: Annotated[Path, typer.Option(help="Where the model folder goes.")] = Path("runs"),
    minutes: Annotated[float, typer.Option(min=0.01, help="Minutes of training at the most.")] = 10.0,
) -> None:
    """Train a translator on real sentences in about ten minutes, score it, and show what it does.

    An interrupted demo goes on where it stopped.
    """
    # MOVED
    from rnnsearch.data.corpora.catalog import find
    from rnnsearch.evaluation.assess import assess, record, training_counts
    from rnnsearch.evaluation.report import write_assessment
    from rnnsearch.translator.loading import load

    folder = runs / f"demo-{pair}"
    corpus = find(f"tatoeba-{pair}")
    config = run_file(folder, pair, minutes)
    say(f"{corpus.attribution}. Licence: {corpus.licence}.")
    reason = run(config, folder, resume=True)
    say(f"Trained: {reason}. Now the test set, which the model has not seen.")
    translator = load(folder)
    test = prepared_data(config, folder).test
    sources, references = [p.source for p in test], [p.target for p in test]
    assessment = assess(translator, sources, references, folder.name, counts=training_counts(folder))
    set_name = f"{corpus.name}, test split"
    record(folder, assessment, set_name)
    page = write_assessment(folder / "evaluation", translator, folder, assessment, set_name)
    _show(assessment)
    typer.echo(assessment.evaluation.to_text())
    _next(folder, page, config)


def run_file(folder: Path, pair: str, minutes: float) -> RunConfig:
    """The demo's run file, written into its folder for the user to copy, and its config."""
    from rnnsearch import config as run_config
    from rnnsearch.utils.files import write_text

    source, _, target = pair.partition("-")
    path = folder / "run.toml"
    write_text(
        path,
        f'preset = "demo"\nfolder = "."\n\n[data]\nsource = "{source}"\ntarget = "{target}"\n'
        f'corpus = "tatoeba-{pair}"\n\n[training]\nmax_minutes = {minutes}\n',
    )
    return run_config.load(path)


def _show(assessment: Assessment) -> None:
    """Draw a few held-out sentences with their alignments."""
    from rnnsearch.metrics.plots.heatmap import draw

    middling = [n for n, t in enumerate(assessment.translations) if 6 <= len(t.source_words) <= 10]
    for shown, number in enumerate(middling[:: max(1, len(middling) // SHOWN)][:SHOWN]):
        t = assessment.translations[number]
        typer.echo(f"\nsource:      {t.source}\ntranslation: {t.text}\nreference:   {assessment.references[number]}\n")
        if t.word_attention is not None and t.words:
            typer.echo(draw(t.word_attention, t.source_words, t.words, 100, shown == 0, t.attended))
    typer.echo("")


def _next(folder: Path, page: Path, config: RunConfig) -> None:
    typer.echo(
        f"""
The model is in {folder}/ (card.md says what it is), its report with attention heat maps in {page}.

What to type next:
  rnnsearch serve {folder}                               open its page in a browser: translation as you type
  echo "..." | rnnsearch translate {folder}                      translate {config.data.source} text, line by line
  rnnsearch translate {folder} -i in.txt -o out.txt --alignments out.align
  rnnsearch inspect {folder}                                     what is inside
  rnnsearch train {folder}/run.toml --resume --set training.max_minutes=60 training.max_epochs=60
  cp {folder}/run.toml mine.toml                                 then name your own files in it: data.train

(If rnnsearch is not found, activate the environment first: . .venv/bin/activate)"""
    )


# `rnnsearch presets`.

_SENTENCE = re.compile(r".*?\.(?<!al\.)(?<!eq\.)(?= |$)")


def presets(
    name: Annotated[str | None, typer.Argument(help="The preset to show whole; without it, a line each.")] = None,
) -> None:
    """The ready-made settings that a run file can begin from (`preset = "small"`)."""
    import tomli_w

    from rnnsearch.config import preset, preset_description, preset_names

    if name is not None:
        whole = tomli_w.dumps(preset(name))
        typer.echo(f"{preset_description(name)}\n\n{whole}", nl=False)
        return
    width = max(map(len, preset_names()))
    for known in preset_names():
        typer.echo(f"{known:{width}}  {_SENTENCE.findall(preset_description(known))[0]}")
