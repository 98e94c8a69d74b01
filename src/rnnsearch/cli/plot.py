"""`rnnsearch plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import Beam, Device, Model
from rnnsearch.text.spans import Unit


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
    from rnnsearch.loading import load
    from rnnsearch.plots.terminal import draw

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
