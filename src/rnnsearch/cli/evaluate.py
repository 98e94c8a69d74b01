"""`rnnsearch evaluate`, `report` and `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rnnsearch.cli.io import both_lines, same_lines, say, use_threads
from rnnsearch.cli.options import Beam, By, Device, Model, Threads
from rnnsearch.text.spans import AlignedBy

if TYPE_CHECKING:
    from rnnsearch.evaluate.assess import Assessment
    from rnnsearch.text.alignments import Links
    from rnnsearch.translate import Translator

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
    from rnnsearch.evaluate.assess import assess, training_counts
    from rnnsearch.evaluate.report import read_grouped, require_places, write_assessment
    from rnnsearch.files import write_json
    from rnnsearch.loading import load

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
    from rnnsearch.evaluate.assess import record

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
    from rnnsearch.evaluate.report import write_run_report

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
    from rnnsearch.cli.inspection import show, show_machine

    if model is None and (config or not machine):
        raise typer.BadParameter("give a model folder, or --machine alone")
    if threads is not None and not machine:
        raise typer.BadParameter("--threads has no effect without --machine")
    if model is not None:
        show(model, config)
    if machine:
        show_machine(threads)
