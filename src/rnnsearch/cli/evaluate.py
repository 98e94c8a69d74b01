"""`rnnsearch evaluate`, `report` and `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch.cli.io import both_lines, same_lines, say, use_threads
from rnnsearch.cli.options import Beam, By, Device, Model, SourceFile, TargetFile, Threads
from rnnsearch.text.alignments import AlignedBy, Unit

if TYPE_CHECKING:
    from rnnsearch.evaluation.assess import Assessment
    from rnnsearch.evaluation.tuning import Tried
    from rnnsearch.text.alignments import Links
    from rnnsearch.translator.translator import Translator


References = Annotated[
    list[Path] | None, typer.Option(help="Further references of the same sentences; once for each file.")
]
ReportFolder = Annotated[
    Path | None, typer.Option(help="A folder for translations, scores, plots, heat maps and report.html.")
]


def evaluate(
    model: Model,
    source: Annotated[Path, typer.Argument(help="The test set's source text.", show_default=False)],
    reference: Annotated[Path, typer.Argument(help="Its reference translations.", show_default=False)],
    also: References = None,
    alignments: Annotated[
        Path | None, typer.Option(help="Gold word alignments (Pharaoh; i-j sure, ipj possible): adds AER.")
    ] = None,
    by: By = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Another system's translations: adds a paired bootstrap against them.")
    ] = None,
    report: ReportFolder = None,
    training_text: Annotated[
        Path | None,
        typer.Option(help="The training text's target side: adds rare words' accuracy.  [default: the run's own]"),
    ] = None,
    sentences: Annotated[
        Path | None,
        typer.Option(help="For --report: source sentences to draw by encoder state; after a tab, a group's name."),
    ] = None,
    no_card: Annotated[bool, typer.Option("--no-card", help="Leave the model's card as it is.")] = False,
    output_file: Annotated[Path | None, typer.Option("-o", "--output", help="Write the scores here (JSON).")] = None,
    beam: Beam = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate a test set and score it: BLEU, chrF and TER with signatures, without unknown words, by length."""
    from rnnsearch.evaluation.assess import assess, training_counts
    from rnnsearch.evaluation.report import read_grouped, require_places, write_assessment
    from rnnsearch.translator.loading import load
    from rnnsearch.utils.files import write_json

    if sentences is not None and report is None:
        raise typer.BadParameter("--sentences has no effect without --report")
    if by is not None and alignments is None:
        raise typer.BadParameter("--by has no effect without --alignments")
    require_places(report, output_file)
    use_threads(threads)
    translator = load(model, device)
    sources, references = both_lines(source, reference)
    more = [both_lines(reference, path)[1] for path in also or ()]
    other = (baseline.name, both_lines(reference, baseline)[1]) if baseline else None
    gold = _gold(translator, by, alignments, source, len(sources)) if alignments else None
    shown = read_grouped(sentences) if sentences is not None else None
    counts = training_counts(model, training_text)
    assessment = assess(
        *(translator, sources, references, model.resolve().name, translator.options(beam), other, gold, counts),
        more=more,
        by=by,
    )
    typer.echo(assessment.evaluation.to_text())
    if output_file is not None:
        write_json(output_file, assessment.evaluation.as_dict())
    if report is not None:
        page = write_assessment(report, translator, model, assessment, source.name, shown)
        typer.echo(f"report: {page}")
    if not no_card:
        _record(model, assessment, source.name)


def _gold(
    translator: Translator, by: AlignedBy | None, alignments: Path, source: Path, sentences: int
) -> tuple[str, list[Links]]:
    """The name of a file of gold word alignments, and what it holds.

    Errors: ModelError for a model that cannot align; DataError where the file is not line by line that of the source's
    `sentences`.
    """
    from rnnsearch.text.alignments import read_pharaoh

    translator.require_alignments(by)
    links = read_pharaoh(alignments)
    same_lines(source, sentences, alignments, len(links))
    return str(alignments), links


def _record(model: Path, assessment: Assessment, test_set: str) -> None:
    """Put the scores on the model's card, or say why that cannot be."""
    from rnnsearch.errors import RnnsearchError
    from rnnsearch.evaluation.assess import record

    try:
        record(model, assessment, test_set)
    except RnnsearchError as error:
        say(f"the scores are not on the model's card: {error}")


def report(
    model: Annotated[Path, typer.Argument(help="The folder of a run, finished or not.", show_default=False)],
    output_file: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the page here.  [default: report.html in the folder]")
    ] = None,
) -> None:
    """Write a run's page: learning curves, what was trained on and left out, settings, measured scores."""
    from rnnsearch.evaluation.report import write_run_report

    page = output_file or model / "report.html"
    write_run_report(model, page)
    typer.echo(str(page))


def inspect(
    model: Annotated[Path | None, typer.Argument(help="A model folder, as `rnnsearch train` makes it.")] = None,
    config: Annotated[bool, typer.Option("--config", help="Print its whole resolved config, too.")] = False,
    machine: Annotated[
        bool, typer.Option("--machine", help="Print how fast each kernel is here, and which one serves.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Show what is inside a model: its parts and their sizes, how it was trained, how well it does, whence it came."""
    from rnnsearch.cli.inspect import show, show_machine

    if model is None and (config or not machine):
        raise typer.BadParameter("give a model folder, or --machine alone")
    if threads is not None and not machine:
        raise typer.BadParameter("--threads has no effect without --machine")
    if model is not None:
        show(model, config)
    if machine:
        show_machine(threads)


# `rnnsearch plot`.


def plot(
    model: Model,
    sentence: Annotated[str, typer.Argument(help="A source sentence.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="Align this translation, not the model's own.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .png, .svg or .pdf.  [default: in the terminal]")
    ] = None,
    unit: Annotated[Unit, typer.Option(help="What rows and columns are; symbols with the end symbol.")] = "words",
    beam: Beam = None,
    device: Device = "cpu",
) -> None:
    """Draw where attention stood for each word of one sentence's translation."""
    from rnnsearch.metrics.plots.heatmap import draw
    from rnnsearch.translator.loading import load

    translator = load(model, device)
    translator.require_alignments("attention")
    if target is None:
        [[translation]] = translator.n_best([sentence], translator.options(beam))
    else:
        [translation] = translator.score([sentence], [target])
    if output is None:
        attention, columns, rows = translation.drawing(unit)
        typer.echo(f"{translation.text}\n")
        links = translation.attended if unit == "words" else translation.attended_tokens
        typer.echo(draw(attention, columns, rows, scale=True, links=links))
    else:
        say(str(translation.plot(output, unit)))


# `rnnsearch tune`: the search settings that translate a dev set best, put into the model folder.


def tune(
    model: Model,
    source: SourceFile,
    reference: TargetFile,
    lm: Annotated[
        Path | None, typer.Option(help="A language model's folder: also find its weight, and keep it if it helps.")
    ] = None,
    metric: Annotated[Literal["bleu", "chrf"], typer.Option(help="What is to be best.")] = "bleu",
    values: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a setting, as beam=1,5,10; once for each of beam, length_penalty, coverage_penalty, "
            "language_model_weight and, of an ensemble's models, weight_2, weight_3, ... Those not named are left as "
            "they are.  [default: some usual values of each]"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the table; change nothing.")] = False,
    threads: Threads = None,
    device: Device = "cpu",
) -> None:
    """Translate a dev set with many search settings and put the best ones into the model's folder, with the table."""
    use_threads(threads)
    chosen = None if values is None else dict(_values(one) for one in values)
    from rnnsearch.evaluation.tuning import TABLE, Tuning
    from rnnsearch.translator.confidence import CONFIDENCE

    sources, references = both_lines(source, reference)
    tuning = Tuning(model, sources, references, metric, lm, device, chosen)
    best = tuning.run(lambda tried: say(_told(tried, metric)))
    typer.echo(tuning.table(), nl=False)
    changed = {name: value for name, value in best.settings.items() if value != tuning.start[name]}
    if not changed:
        say("the settings stay as they are: none was better")
    if dry_run:
        return
    tuning.write()
    if changed:
        now = ", ".join(f"{name} = {value:g}" for name, value in changed.items())
        say(f"{model}: {now} ({model / TABLE})")
        if (model / CONFIDENCE).is_file():
            say("its calibration is of the settings before: run `rnnsearch calibrate` again")


def _values(text: str) -> tuple[str, list[int | float]]:
    """A setting and its values, as beam=1,5,10."""
    name, given, numbers = text.partition("=")
    try:
        found = [float(number) for number in numbers.split(",")]
    except ValueError:
        found = []
    if not given or not found:
        raise typer.BadParameter(f"--values must be a setting's name, = and numbers with commas between; got {text}")
    return name, [int(value) if value.is_integer() else value for value in found]


def _told(tried: Tried, metric: str) -> str:
    settings = "  ".join(f"{name} {value:g}" for name, value in tried.settings.items())
    return f"{settings}  {metric} {tried.score:.2f}  {tried.seconds:.1f} s"
