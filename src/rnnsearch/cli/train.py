"""`rnnsearch prepare`, `train`, `demo` and `presets`.

`cli/app.py` registers the commands. Modules that import torch are imported inside functions, which keeps `--help` fast.
The folder of a run is `folder` in the run file or `runs/<name>`, with the prepared data in `data/`.

Tests: tests/commands/test_train.py, tests/commands/test_prepare.py, tests/commands/test_torchrun.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, BadParameter, Option

from rnnsearch.cli.bulk import prepare_in_shards
from rnnsearch.cli.io import error_console, preparation_progress, print_message
from rnnsearch.cli.options import PrepareBulkGroup
from rnnsearch.cli.panels import expand_groups

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.data.progress import Progress
    from rnnsearch.evaluation.assess import Assessment
    from rnnsearch.utils.distributed import Processes


RunFile = Annotated[Path, Argument(help="Run file (TOML); see examples/.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Override options: --set training.seed=2 text.vocabulary=4000."),
]


@expand_groups
def prepare(
    run_file: RunFile,
    *,
    settings: Settings = None,
    processes: Annotated[
        int | None, Option(min=1, help="Number of processes.", show_default="as many as cores")
    ] = None,
    bulk: PrepareBulkGroup,
) -> None:
    """Clean a corpus and learn its vocabulary.

    Writes memory-mapped token ids, and prints what was left out of the corpus and why.
    """
    from rnnsearch.ops.native.library import build_in_background

    if processes is not None and bulk.engine == "ray":
        raise BadParameter("--processes has no effect with --engine ray; use --actors")
    config = _load_run_config(run_file, settings)
    build_in_background()

    def make(folder: Path, show_stage: Progress) -> Prepared:
        if bulk.engine is not None:
            return prepare_in_shards(config, folder, show_stage, bulk, processes)
        from rnnsearch.data.prepare import prepare as prepare_at_once

        return prepare_at_once(config, folder, progress=show_stage, processes=processes)

    _print_preparation_report(_prepare_with_progress(_data_folder(config, _run_folder(config, run_file)), make))


def train(
    run_file: RunFile,
    resume: Annotated[bool, Option("--resume", help="Continue from the last checkpoint, if there is one.")] = False,
    settings: Settings = None,
) -> None:
    """Train a model from a run file.

    Prepares the corpus first, if that has not been done. Ctrl-C saves a checkpoint; --resume continues from it.
    """
    from rnnsearch import config as run_config
    from rnnsearch.errors import Interrupted, RnnsearchError
    from rnnsearch.utils.distributed import joined_processes

    with joined_processes() as processes:
        try:
            config = _load_run_config(run_file, settings)
            folder = _run_folder(config, run_file)
            _run(config, folder, resume, processes, run_config.preset_of(run_file, settings or ()))
        except RnnsearchError as error:
            if processes.should_report(error):
                raise
            raise typer.Exit(130 if isinstance(error, Interrupted) else 1) from None
        if processes.is_first:
            print_message(f"The model is in {folder}. Next: {next_command(folder)}, rnnsearch inspect {folder}")


def next_command(folder: Path) -> str:
    """Return a command that uses the trained model in a folder."""
    from rnnsearch import config as run_config
    from rnnsearch.systems.folder import CONFIG

    # The stored config, which names the directions instead of "all".
    config = run_config.load(folder / CONFIG)
    if config.model.kind == "language-model":
        return f"rnnsearch lm sample {folder}"
    if not isinstance(config.model, run_config.MultiwayConfig) or len(config.data.pairs) == 1:
        return f"rnnsearch translate {folder}"
    source, target = config.data.pairs[0]
    return f"rnnsearch translate {folder} --from {source} --to {target}"


def _load_run_config(run_file: Path, settings: list[str] | None) -> RunConfig:
    """Load a run file and check it.

    Raises:
        ConfigError: The run file has problems; those of single options and of combinations are reported together.
    """
    from rnnsearch import config as run_config
    from rnnsearch.errors import ConfigError

    problems: list[str] = []
    try:
        config = run_config.load(run_file, settings or ())
    except ConfigError as error:
        if not isinstance(error.valid_part, run_config.RunConfig):
            raise
        problems = error.problems
        config = error.valid_part
    from rnnsearch.training.run import check

    problems += [f"{run_file}: {problem}" for problem in check(config)]
    if problems:
        raise ConfigError(problems)
    return config


def _run_folder(config: RunConfig, run_file: Path) -> Path:
    """Return the folder of a run: `folder`, relative to the run file, or `runs/<name>` in the working directory."""
    if config.folder is not None:
        return config.base / config.folder
    return Path("runs") / (config.name or run_file.stem)


def _data_folder(config: RunConfig, folder: Path) -> Path:
    """Return the folder of the prepared data of a run in `folder`."""
    from rnnsearch.data.prepared import DATA_FOLDER

    if config.data.prepared is not None:
        return config.base / config.data.prepared
    return folder / DATA_FOLDER


def _prepared_data(config: RunConfig, folder: Path) -> Prepared:
    """Return the prepared data of a run; prepare the corpus if that has not been done, without its word aligner.

    The aligner is learned after training (`training/run.py`).
    """
    from rnnsearch.data.prepare import prepare as prepare_at_once
    from rnnsearch.data.prepared import FACTS_FILE, Prepared

    data = _data_folder(config, folder)
    if (data / FACTS_FILE).is_file():
        return Prepared.open(data, config)
    return _prepare_with_progress(
        data, lambda folder, show_stage: prepare_at_once(config, folder, progress=show_stage, learn_aligner=False)
    )


def _prepare_with_progress(folder: Path, make: Callable[[Path, Progress], Prepared]) -> Prepared:
    with preparation_progress() as show_stage:
        prepared = make(folder, show_stage)
    print_message(f"prepared {prepared.facts['pairs']:,} training {prepared.unit} in {folder}")
    return prepared


def _print_preparation_report(prepared: Prepared) -> None:
    """Print what was left out of the corpus and why, with examples, and what the vocabulary covers."""
    facts = prepared.facts
    cleaning = prepared.report
    print_message(f"{cleaning['read']:,} {prepared.unit} read, {cleaning['kept']:,} kept")
    for reason, row in cleaning["rejected"].items():
        print_message(f"  {row['count']:,} left out: {reason}; for example")
        for example in row["examples"]:
            print_message(f"    {example}")
    print_message(
        f"{facts['pairs']:,} {prepared.unit} for training, {facts['dev']:,} for dev, {facts['test']:,} for test"
    )
    if facts["left_out_by_split"]:
        print_message(f"  {facts['left_out_by_split']:,} left out: they share a sentence with the dev or test set")
    for warning in prepared.warnings:
        print_message(f"warning: {warning}")
    for name, array in prepared.facts["arrays"].items():
        print_message(f"{name}: arrays of {array['features']:,} features, {array['rows']:,} rows")
    for language in prepared.tokenizers:
        role = language  # of several source languages
        if language == prepared.direction.target:
            role = "target"
        elif len(facts["sides"]) == 2:
            role = "source"
        print_message(
            f"{role}: {facts['symbols'][language]:,} tokens, vocabulary of {facts['vocabulary'][language]:,}, "
            f"{facts['unknown'][language]:.2%} unknown"
        )


def _run(
    config: RunConfig, folder: Path, resume: bool, processes: Processes | None = None, preset: str | None = None
) -> str:
    """Prepare the corpus if necessary, print the options that differ from the preset, and train.

    Returns:
        Why training ended.
    """
    from rnnsearch import config as run_config
    from rnnsearch.data.prepared import FACTS_FILE
    from rnnsearch.ops.native.library import build_in_background
    from rnnsearch.systems.folder import CONFIG
    from rnnsearch.training.progress import ReporterGroup, Screen
    from rnnsearch.training.run import train as train_run
    from rnnsearch.training.run_folder import check_run_folder
    from rnnsearch.utils.distributed import Processes, was_restarted

    def prepare_first() -> None:
        if not (_data_folder(config, folder) / FACTS_FILE).is_file():
            check_run_folder(config, folder, resume)  # before anything is written to a folder that is not a run's
        _prepared_data(config, folder)

    build_in_background()  # while the corpus is prepared
    processes = processes or Processes()
    resume = resume or processes.any(was_restarted())
    processes.run_on_first(prepare_first)
    prepared = _prepared_data(config, folder)
    if not processes.is_first:
        return train_run(config, prepared, folder, ReporterGroup(), resume, processes)
    for warning in prepared.warnings:
        print_message(f"warning: {warning}")
    print_message(f"{run_config.summary(config, preset)}\n(all options: {folder / CONFIG})\n")
    with Screen(error_console()) as screen:
        return train_run(config, prepared, folder, screen, resume, processes)


# `rnnsearch demo`.

DemoPair = Literal["en-de", "de-en", "en-fr", "fr-en", "en-es", "es-en"]
SHOWN_SENTENCES = 4
SHOWN_LENGTHS = range(6, 11)  # words of a source sentence


def demo(
    pair: Annotated[DemoPair, Option(help="Language pair.")] = "en-de",
    runs: Annotated[Path, Option(help="Parent of the model folder.")] = Path("runs"),
    minutes: Annotated[float, Option(min=0.01, help="Maximum training time in minutes.")] = 9.5,
) -> None:
    """Train a translator in about ten minutes.

    Trains on real sentences, evaluates on a test set and shows translations with their alignments. An interrupted
    demo continues when it is started again.
    """
    from rnnsearch.data.corpora.catalog import find
    from rnnsearch.evaluation.assess import assess, record, training_counts
    from rnnsearch.evaluation.report import write_assessment
    from rnnsearch.metrics.plots import has_matplotlib
    from rnnsearch.translator.loading import load

    folder = runs / f"demo-{pair}"
    corpus = find(f"tatoeba-{pair}")
    config = _write_demo_run_file(folder, pair, minutes)
    print_message(f"{corpus.attribution}. Licence: {corpus.licence}.")
    end_reason = _run(config, folder, resume=True, preset="demo")
    print_message(f"Trained: {end_reason}. Now evaluating on the test set, which was not used in training.")
    translator = load(folder)
    test = _prepared_data(config, folder).test
    sources = [sentences.source for sentences in test]
    references = [sentences.target for sentences in test]
    assessment = assess(translator, sources, references, folder.name, counts=training_counts(folder))
    test_set = f"{corpus.name}, test split"
    record(folder, assessment, test_set)
    page = None
    if has_matplotlib():
        page = write_assessment(folder / "evaluation", translator, folder, assessment, test_set)
    _print_sample_translations(assessment)
    typer.echo(assessment.evaluation.to_text())
    _print_next_steps(folder, page, config)


def _write_demo_run_file(folder: Path, pair: str, minutes: float) -> RunConfig:
    """Write the run file of the demo to its folder, as an example for the user, and load it."""
    from rnnsearch import config as run_config
    from rnnsearch.utils.files import write_text

    source, _, target = pair.partition("-")
    path = folder / "run.toml"
    # The lexical model is not in the preset, on which the results of docs/results depend.
    write_text(
        path,
        f'preset = "demo"\nfolder = "."\n\n[data]\nsource = "{source}"\ntarget = "{target}"\n'
        f'corpus = "tatoeba-{pair}"\n\n[model]\nlexical = true\n\n[training]\nmax_minutes = {minutes}\n',
    )
    return run_config.load(path)


def _print_sample_translations(assessment: Assessment) -> None:
    """Print some translations of the test set with their attention weights."""
    from rnnsearch.metrics.plots.terminal import text_heatmap

    candidates = [
        number
        for number, translation in enumerate(assessment.translations)
        if len(translation.source_words) in SHOWN_LENGTHS
    ]
    step = max(1, len(candidates) // SHOWN_SENTENCES)
    for position, number in enumerate(candidates[::step][:SHOWN_SENTENCES]):
        translation = assessment.translations[number]
        typer.echo(f"\nsource:      {translation.source}")
        typer.echo(f"translation: {translation.text}")
        typer.echo(f"reference:   {assessment.references[number]}\n")
        if translation.word_attention is not None and translation.words:
            heatmap = text_heatmap(
                translation.word_attention,
                translation.source_words,
                translation.words,
                100,
                position == 0,
                translation.attended,
            )
            typer.echo(heatmap)
    typer.echo("")


def _print_next_steps(folder: Path, page: Path | None, config: RunConfig) -> None:
    from rnnsearch.metrics.plots import MISSING

    report = f"no report was written: {MISSING}" if page is None else f"the report with attention heat maps in {page}"
    typer.echo(
        f"""
The model is in {folder}/ (card.md describes it), {report}.

Next steps:
  rnnsearch serve {folder}                               open its page in a browser: translation as you type
  echo "..." | rnnsearch translate {folder}                      translate {config.data.source} text, line by line
  rnnsearch translate {folder} -i in.txt -o out.txt --alignments out.align
  rnnsearch inspect {folder}                                     show components, training and scores
  rnnsearch train {folder}/run.toml --resume --set training.max_minutes=60 training.max_epochs=60
  cp {folder}/run.toml mine.toml                                 then set data.train to your own files

(If rnnsearch is not found, activate the environment first: . .venv/bin/activate)"""
    )


# `rnnsearch presets`.

# The first sentence of a description, not ended by "al." or "eq.".
_FIRST_SENTENCE = re.compile(r".*?\.(?<!al\.)(?<!eq\.)(?= |$)")


def presets(
    name: Annotated[str | None, Argument(help="Preset to print completely, instead of the list.")] = None,
) -> None:
    """List the presets, or print one.

    A run file uses the settings of a preset as its defaults (`preset = "small"`).
    """
    import tomli_w

    from rnnsearch.config import preset, preset_description, preset_names

    if name is not None:
        settings = tomli_w.dumps(preset(name))
        typer.echo(f"{preset_description(name)}\n\n{settings}", nl=False)
        return
    width = max(map(len, preset_names()))
    for preset_name in preset_names():
        summary = _FIRST_SENTENCE.findall(preset_description(preset_name))[0]
        typer.echo(f"{preset_name:{width}}  {summary}")
