"""`rnnsearch export`: a model folder as one file, for translation without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import Model


def export(
    model: Model,
    output: Annotated[Path, typer.Argument(help="The file to write, as en-de.rnn, or the folder.", show_default=False)],
    precision: Annotated[
        Literal["int4", "int8", "bf16", "fp32"],
        typer.Option(help="Of the weights in the file, and of products with them; int4: embeddings and output alone."),
    ] = "int8",
    candidates: Annotated[
        int | None,
        typer.Option(
            help="Put candidate lists of so many translations in; 0: none. Without it, as the model's search has it.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        Literal["engine", "web"],
        typer.Option("--format", help="engine: one file; web: a folder, a page that translates in the browser."),
    ] = "engine",
) -> None:
    """Write a model as one file that `rnnsearch-runtime` translates with, without PyTorch; or as a web page."""
    if form == "web":
        if candidates:
            raise typer.BadParameter("go with --format engine alone", param_hint="--candidates")
        from rnnsearch.web.folder import export_page

        page, size = export_page(model, output, precision)
        say(f"{output}: a page of {page / 1e6:.2f} MB, and a model of {size / 1e6:.1f} MB, {precision}")
        return
    from rnnsearch.export import export as write

    size = write(model, output, precision, candidates)
    say(f"{output}: {size / 1e6:.1f} MB, {precision}")
