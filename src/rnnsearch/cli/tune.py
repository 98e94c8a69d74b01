"""`rnnsearch tune`: the search settings that translate a dev set best, put into the model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch.cli.io import both_lines, say, use_threads
from rnnsearch.cli.options import Device, Model, SourceFile, TargetFile, Threads

if TYPE_CHECKING:
    from rnnsearch.evaluate.tuning import Tried


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
    from rnnsearch.confidence import CONFIDENCE
    from rnnsearch.evaluate.tuning import TABLE, Tuning

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
