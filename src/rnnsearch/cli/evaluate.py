"""`rnnsearch evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rnnsearch.cli.io import both_lines, output, say


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder.", show_default=False)],
    source: Annotated[Path, typer.Argument(help="The test set's source text.", show_default=False)],
    reference: Annotated[Path, typer.Argument(help="Its reference translations.", show_default=False)],
    alignments: Annotated[
        Path | None, typer.Option(help="Gold word alignments (Pharaoh; i-j sure, ipj possible): adds AER.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Another system's translations: adds a paired bootstrap against them.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="A folder for translations, scores, plots, heat maps and report.html.")
    ] = None,
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
    beam: Annotated[int | None, typer.Option(min=1, help="Beam width.  [default: the model's]")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Translate a test set and score it: BLEU, chrF and TER with signatures, without unknown words, by length."""
    import json

    from rnnsearch.assess import assess, record, training_counts
    from rnnsearch.errors import DataError, RnnsearchError
    from rnnsearch.reporting import read_grouped, write_assessment
    from rnnsearch.text.alignments import read_pharaoh
    from rnnsearch.translate import load

    if sentences is not None and report is None:
        raise typer.BadParameter("--sentences has no effect without --report")
    translator = load(model, device)
    sources, references = both_lines(source, reference)
    other = (baseline.name, both_lines(reference, baseline)[1]) if baseline else None
    if alignments:
        translator.require_attention()
    gold = (str(alignments), read_pharaoh(alignments)) if alignments else None
    if gold and len(gold[1]) != len(sources):
        raise DataError(
            f"{source} and {alignments} must have the same number of lines; got {len(sources):,} and {len(gold[1]):,}"
        )
    shown = read_grouped(sentences) if sentences is not None else None
    counts = training_counts(model, training_text)
    assessment = assess(
        translator, sources, references, model.resolve().name, translator.options(beam), other, gold, counts
    )
    typer.echo(assessment.evaluation.to_text())
    if output_file is not None:
        with output(output_file) as out:
            out.write(json.dumps(assessment.evaluation.as_dict(), indent=1, ensure_ascii=False) + "\n")
    if report is not None:
        page = write_assessment(report, translator, model, assessment, source.name, shown)
        typer.echo(f"report: {page}")
    if not no_card:
        try:
            record(model, assessment, source.name)
        except RnnsearchError as error:
            say(f"the scores are not on the model's card: {error}")
