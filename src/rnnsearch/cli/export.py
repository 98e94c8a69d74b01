"""`rnnsearch export`: a model folder as what translates without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import Model


def export(
    model: Model,
    output: Annotated[
        Path, typer.Argument(help="The file to write, as en-de.rnn; for onnx, the folder.", show_default=False)
    ],
    format: Annotated[
        Literal["engine", "onnx"],
        typer.Option(help="engine: one file for `rnnsearch-runtime`; onnx: two graphs for any runtime of such."),
    ] = "engine",
    precision: Annotated[
        Literal["int4", "int8", "bf16", "fp32"] | None,
        typer.Option(
            help="Of the engine's weights, and of products with them; int4: embeddings and output alone.",
            show_default="int8",
        ),
    ] = None,
) -> None:
    """Write a model as a file that `rnnsearch-runtime` translates with, or as ONNX graphs, without PyTorch."""
    if format == "onnx":
        from rnnsearch.onnx.folder import export as write_graphs

        if precision not in (None, "fp32"):
            raise typer.BadParameter("must be fp32 with --format onnx", param_hint="'--precision'")
        say(f"{output}: {write_graphs(model, output) / 1e6:.1f} MB, fp32")
        return
    from rnnsearch.export import export as write

    precision = precision or "int8"
    size = write(model, output, precision)
    say(f"{output}: {size / 1e6:.1f} MB, {precision}")
