"""`rnnsearch evaluate`, `compare`, `contrast`, `report`, `inspect`, `plot` and `tune`.

The commands call `evaluation`, `inspect.py` and `metrics/plots`. Parameters and help texts are docs/commands.md, which
a test compares. Tests: tests/commands/test_evaluate.py, tests/evaluation/test_tuning.py, tests/plots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, BadParameter, Option

from rnnsearch.cli.io import (
    print_message,
    read_parallel_documents,
    read_parallel_lines,
    read_sources,
    require_equal_lengths,
)
from rnnsearch.cli.options import AlignBy, Beam, Device, HardwareGroup, Model, SourceFile, TargetFile, ZeroShotGroup
from rnnsearch.cli.panels import OptionGroup, expand_groups
from rnnsearch.text.alignment_types import AlignedBy, Unit

if TYPE_CHECKING:
    from rnnsearch.evaluation.assess import Assessment
    from rnnsearch.evaluation.tuning import Trial
    from rnnsearch.metrics.run_bootstrap import RunsDifference
    from rnnsearch.search.options import SearchOptions
    from rnnsearch.text.alignments import Links
    from rnnsearch.text.several_sources import SourceText
    from rnnsearch.translator.translator import Translator


@dataclass(frozen=True)
class ComparisonGroup(OptionGroup):
    """Further files that translations are compared with."""

    also: Annotated[
        list[Path] | None, Option(help="Further references of the same sentences; can be given several times.")
    ] = None
    alignments: Annotated[
        Path | None, Option(help="Gold word alignments (Pharaoh: i-j sure, ipj possible); adds AER.")
    ] = None
    by: AlignBy = None
    baseline: Annotated[
        Path | None, Option(help="Translations of another system; adds a paired bootstrap test against it.")
    ] = None

    def check(self) -> None:
        if self.by is not None and self.alignments is None:
            raise BadParameter("--by has no effect without --alignments")


@expand_groups
def evaluate(
    model: Model,
    source: Annotated[Path, Argument(help="Source text, or arrays (.npy), of the test set.", show_default=False)],
    reference: Annotated[Path, Argument(help="Reference translations.", show_default=False)],
    *,
    comparison: ComparisonGroup,
    documents: Annotated[
        bool,
        Option(
            "--documents",
            help="Empty lines separate documents, in all files but --alignments: a model with data.context reads "
            "previous sentences, and the scores of whole documents (d-BLEU) are added.",
        ),
    ] = False,
    report: Annotated[
        Path | None, Option(help="Folder for translations, scores, plots, heat maps and report.html.")
    ] = None,
    training_text: Annotated[
        Path | None,
        Option(help="Target side of the training text; adds the accuracy of rare words.", show_default="the run's"),
    ] = None,
    sentences: Annotated[
        Path | None,
        Option(
            help="For --report: source sentences, optionally with a tab and the name of a group, plotted by their "
            "encoder states."
        ),
    ] = None,
    no_card: Annotated[bool, Option("--no-card", help="Do not add the scores to the model card.")] = False,
    output: Annotated[Path | None, Option("-o", "--output", help="Write the scores (JSON) to this file.")] = None,
    beam: Beam = None,
    direction: ZeroShotGroup,
    hardware: HardwareGroup,
) -> None:
    """Translate a test set and score it.

    Prints BLEU, chrF and TER with sacreBLEU signatures, BLEU without unknown words, and scores by sentence length.
    """
    from rnnsearch.evaluation.assess import training_counts
    from rnnsearch.evaluation.report import read_grouped_sentences, require_writable_outputs, write_assessment
    from rnnsearch.translator.loading import load
    from rnnsearch.utils.files import write_json

    if sentences is not None and report is None:
        raise BadParameter("--sentences has no effect without --report")
    require_writable_outputs(report, output)
    hardware.set_threads()
    loaded = load(model, hardware.device)
    translator = direction.select(loaded)
    grouped_sentences = read_grouped_sentences(sentences) if sentences is not None else None
    is_multiway = len(loaded.directions) > 1
    # The run of a multi-way model has the counts of one of its target languages.
    counts = None if is_multiway and training_text is None else training_counts(model, training_text)
    name = model.resolve().name
    assessment = _assess(translator, name, source, reference, comparison, translator.options(beam), counts, documents)
    typer.echo(assessment.evaluation.to_text())
    if output is not None:
        write_json(output, assessment.evaluation.as_dict())
    if report is not None:
        page = write_assessment(report, translator, model, assessment, source.name, grouped_sentences)
        typer.echo(f"report: {page}")
    if not no_card:
        test_set = f"{source.name} ({'-'.join(translator.languages)})" if is_multiway else source.name
        _record_on_card(model, assessment, test_set)


def _assess(
    translator: Translator,
    name: str,
    source: Path,
    reference: Path,
    comparison: ComparisonGroup,
    options: SearchOptions,
    counts: Mapping[str, int] | None,
    has_documents: bool,
) -> Assessment:
    """Read the files of a test set, translate it, and return the scores under the name of the system."""
    from rnnsearch.evaluation.assess import assess

    also = comparison.also or []
    compared = [] if comparison.baseline is None else [comparison.baseline]
    documents: list[int] | None = None
    sources: Sequence[SourceText]
    if has_documents:
        translator.require_one_source("evaluating documents")
        (sources, references, *rest), documents = read_parallel_documents(source, reference, *also, *compared)
    else:
        sources, references = read_sources(source, reference, translator.sources, translator.system.arrays)
        rest = [read_parallel_lines(reference, path)[1] for path in (*also, *compared)]
    more_references = rest[: len(also)]
    baseline = None
    if comparison.baseline is not None:
        baseline = (comparison.baseline.name, rest[-1])
    gold = None
    if comparison.alignments is not None:
        links = _read_gold_links(translator, comparison.by, comparison.alignments, source, len(sources))
        gold = (str(comparison.alignments), links)
    return assess(
        translator,
        sources,
        references,
        name,
        options,
        baseline,
        gold,
        counts,
        more_references=more_references,
        align_by=comparison.by,
        documents=documents,
    )


def _read_gold_links(
    translator: Translator, by: AlignedBy | None, alignments: Path, source: Path, num_sentences: int
) -> list[Links]:
    """Read gold word alignments.

    Raises:
        ModelError: The model cannot align.
        DataError: The file is invalid, or its number of lines differs from that of the source text.
    """
    from rnnsearch.cli.pairs import report_missing_aligner
    from rnnsearch.text.alignments import read_pharaoh

    # Called for its check, so that the error comes before those of the file.
    translator.require_alignments(by)
    report_missing_aligner(translator, by)
    links = read_pharaoh(alignments)
    require_equal_lengths(source, num_sentences, alignments, len(links))
    return links


def _record_on_card(model: Path, assessment: Assessment, test_set: str) -> None:
    """Add the scores to the model card; print a message if that is impossible."""
    from rnnsearch.errors import RnnsearchError
    from rnnsearch.evaluation.assess import record

    try:
        record(model, assessment, test_set)
    except RnnsearchError as error:
        print_message(f"the scores were not added to the model card: {error}")


@expand_groups
def compare(
    reference: Annotated[Path, Argument(help="References, one per line.", show_default=False)],
    translations: Annotated[
        list[Path],
        Argument(help="Translations by each run of a system.", show_default=False),
    ],
    *,
    baseline: Annotated[
        list[Path], Option(help="Translations by a run of the other system; once per run.", show_default=False)
    ],
    also: Annotated[
        list[Path] | None, Option(help="Further references of the same sentences; can be given several times.")
    ] = None,
    language: Annotated[
        str, Option(help="Target language, which selects BLEU's tokenizer for text without spaces.")
    ] = "",
    samples: Annotated[int, Option(min=40, max=100_000, help="Number of bootstrap samples.")] = 1000,
    output: Annotated[Path | None, Option("-o", "--output", help="Write the result (JSON) to this file.")] = None,
) -> None:
    """Compare two systems, each trained several times.

    Prints the mean BLEU and chrF of both systems, their difference with its 95% interval, and a p-value. The bootstrap
    resamples sentences and runs, so that the difference between two seeds is not mistaken for one between systems.
    """
    from dataclasses import asdict

    from rnnsearch.metrics.run_bootstrap import hierarchical_bootstrap
    from rnnsearch.utils.files import require_writable_file, write_json

    if output is not None:
        require_writable_file(output)
    files = (*translations, *baseline, *(also or []))
    texts = [read_parallel_lines(reference, path) for path in files]
    references = texts[0][0]
    others = [lines for _, lines in texts]
    first, second = len(translations), len(translations) + len(baseline)
    differences = hierarchical_bootstrap(
        others[:first],
        others[first:second],
        references,
        samples=samples,
        language=language,
        more_references=others[second:],
    )
    for row in _comparison_rows(differences):
        typer.echo(row)
    if min(len(translations), len(baseline)) == 1:
        print_message("a system with one run says nothing about the difference between its seeds")
    if output is not None:
        write_json(output, {"samples": samples, "differences": [asdict(difference) for difference in differences]})


def _comparison_rows(differences: Sequence[RunsDifference]) -> list[str]:
    """Return a line per metric: the mean and range of both systems' scores, the difference and its interval, and p."""
    rows = []
    for d in differences:
        systems = []
        for scores in (d.system, d.baseline):
            spread = f" ({min(scores):.2f} to {max(scores):.2f}, {len(scores)} runs)" if len(scores) > 1 else " (1 run)"
            systems.append(f"{sum(scores) / len(scores):.2f}{spread}")
        low, high = d.interval
        rows.append(
            f"{d.name}: {systems[0]} against {systems[1]}: {d.difference:+.2f} [{low:+.2f}, {high:+.2f}], "
            f"p = {d.p_value:.4f} ({d.signature})"
        )
    return rows


@expand_groups
def contrast(
    model: Model,
    examples: Annotated[
        Path,
        Argument(
            help="Examples: TSV (context, source, correct and incorrect translations) or JSON lines (.jsonl).",
            show_default=False,
        ),
    ],
    *,
    no_context: Annotated[
        bool, Option("--no-context", help="Score each sentence without its context, for comparison.")
    ] = False,
    output: Annotated[
        Path | None, Option("-o", "--output", help="Write accuracies and margins (JSON) to this file.")
    ] = None,
    direction: ZeroShotGroup,
    hardware: HardwareGroup,
) -> None:
    """Compare correct translations with wrong ones.

    Measures how often the correct translation is the more probable one. Prints the accuracy and its 95% interval, of
    all examples and of each group.
    """
    from rnnsearch.evaluation import contrastive
    from rnnsearch.translator.loading import load
    from rnnsearch.utils.files import require_writable_file, write_json

    if output is not None:
        require_writable_file(output)
    hardware.set_threads()
    translator = direction.select(load(model, hardware.device))
    if no_context:
        translator.require_context()
    result = contrastive.contrast(translator, examples, not no_context)
    typer.echo(result.to_text())
    if output is not None:
        write_json(output, result.as_dict())


def report(
    model: Annotated[Path, Argument(help="Folder of a run, finished or not.", show_default=False)],
    output: Annotated[
        Path | None,
        Option("-o", "--output", help="Page to write.", show_default="report.html in the folder"),
    ] = None,
) -> None:
    """Write a web page about a training run.

    The page contains learning curves, data, settings and scores.
    """
    from rnnsearch.evaluation.report import write_run_report

    page = output or model / "report.html"
    write_run_report(model, page)
    typer.echo(str(page))


def inspect(
    model: Annotated[Path | None, Argument(help="Model folder, as written by `rnnsearch train`.")] = None,
    config: Annotated[bool, Option("--config", help="Also print the resolved config.")] = False,
    machine: Annotated[
        bool, Option("--machine", help="Print the speed of each kernel on this machine, and which one is used.")
    ] = False,
    threads: Annotated[
        int | None, Option(min=1, max=1024, help="Number of CPU threads of --machine.", show_default="all cores")
    ] = None,
) -> None:
    """Show a model's components, training and scores."""
    from rnnsearch.cli.inspect import print_machine, print_model

    if model is None and (config or not machine):
        raise BadParameter("needs a model folder or --machine")
    if threads is not None and not machine:
        raise BadParameter("--threads has no effect without --machine")
    if model is not None:
        print_model(model, config)
    if machine:
        print_machine(threads)


@expand_groups
def plot(
    model: Model,
    sentence: Annotated[str, Argument(help="Source sentence.", show_default=False)],
    *,
    target: Annotated[str | None, Option(help="Align this translation instead of the model's.")] = None,
    output: Annotated[
        Path | None, Option("-o", "--output", help="Image file: .png, .svg or .pdf.", show_default="the terminal")
    ] = None,
    unit: Annotated[Unit, Option(help="Unit of rows and columns: words, or tokens (symbols), with EOS.")] = "words",
    beam: Beam = None,
    direction: ZeroShotGroup,
    device: Device = "cpu",
) -> None:
    """Plot the attention for one sentence."""
    from rnnsearch.metrics.plots import require_matplotlib
    from rnnsearch.metrics.plots.terminal import text_heatmap
    from rnnsearch.translator.loading import load

    if output is not None:
        require_matplotlib()  # before the model is loaded

    translator = direction.select(load(model, device))
    # Called for its check, before the sentence is translated.
    translator.require_alignments("attention")
    if target is None:
        [[translation]] = translator.n_best([sentence], translator.options(beam))
    else:
        [translation] = translator.score([sentence], [target])
    if output is not None:
        print_message(str(translation.plot(output, unit)))
        return
    attention, columns, rows = translation.heatmap_data(unit)
    links = translation.attended if unit == "words" else translation.attended_tokens
    typer.echo(f"{translation.text}\n")
    typer.echo(text_heatmap(attention, columns, rows, scale=True, links=links))


# `rnnsearch tune`.


@expand_groups
def tune(
    model: Model,
    source: SourceFile,
    reference: TargetFile,
    *,
    lm: Annotated[
        Path | None, Option(help="Language model: also tune its weight, and add it to the folder if it helps.")
    ] = None,
    metric: Annotated[Literal["bleu", "chrf"], Option(help="Metric to optimise.")] = "bleu",
    values: Annotated[
        list[str] | None,
        Option(
            help="Values of one setting, such as beam=1,5,10; can be given several times. Settings: beam, "
            "length_penalty, coverage_penalty, language_model_weight and, for an ensemble, weight_2, weight_3, ... "
            "Other settings are not changed.",
            show_default="common values of each",
        ),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the table without changing the model's folder.")] = False,
    hardware: HardwareGroup,
) -> None:
    """Find the best search settings.

    Translates a dev set with many settings and writes the best ones, with a table, to the model's folder.
    """
    hardware.set_threads()
    settings = None if values is None else dict(map(_parse_values, values))
    from rnnsearch.evaluation.tuning import TABLE_FILE, Tuning
    from rnnsearch.systems.folder import load_translation_config
    from rnnsearch.translator.confidence import CALIBRATION_FILE

    data = load_translation_config(model).data
    sources, references = read_sources(source, reference, data.sources, data.arrays)
    tuning = Tuning(model, sources, references, metric, lm, hardware.device, settings)
    best = tuning.run(lambda tried: print_message(_tried_line(tried, metric)))
    typer.echo(tuning.table(), nl=False)
    changed = {name: value for name, value in best.settings.items() if value != tuning.start[name]}
    if not changed:
        print_message("the settings are unchanged: no others were better")
    if dry_run:
        return
    tuning.write()
    if changed:
        listed = ", ".join(f"{name} = {value:g}" for name, value in changed.items())
        print_message(f"{model}: {listed} ({model / TABLE_FILE})")
        if (model / CALIBRATION_FILE).is_file():
            print_message("the calibration is for the previous settings: run `rnnsearch calibrate` again")


def _parse_values(text: str) -> tuple[str, list[int | float]]:
    """Return the name and the values of a setting, such as beam=1,5,10."""
    name, equals, numbers = text.partition("=")
    values: list[int | float] = []
    try:
        for number in numbers.split(","):
            value = float(number)
            values.append(int(value) if value.is_integer() else value)
    except ValueError:
        values = []
    if not equals or not values:
        raise BadParameter(f"--values must be a setting, = and comma-separated numbers; got {text}")
    return name, values


def _tried_line(tried: Trial, metric: str) -> str:
    settings = "  ".join(f"{name} {value:g}" for name, value in tried.settings.items())
    return f"{settings}  {metric} {tried.score:.2f}  {tried.seconds:.1f} s"
