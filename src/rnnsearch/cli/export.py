"""`rnnsearch export`: a model folder as one file, for translation without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import Model


def export(
    model: Model,
    output: Annotated[Path, typer.Argument(help="The file to write, as en-de.rnn.", show_default=False)],
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
) -> None:
    """Write a model as one file that `rnnsearch-runtime` translates with, without PyTorch."""
    from rnnsearch.export import export as write

    size = write(model, output, precision, candidates)
    say(f"{output}: {size / 1e6:.1f} MB, {precision}")
