"""`rnnsearch export`: a model folder as one file, a page, or graphs, for translation without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import Model

Precision = Literal["int4", "int8", "bf16", "fp32"]


def export(
    model: Model,
    output: Annotated[
        Path, typer.Argument(help="The file to write, as en-de.rnn; for web and onnx, the folder.", show_default=False)
    ],
    form: Annotated[
        Literal["engine", "web", "onnx"],
        typer.Option(
            "--format",
            help="engine: one file for `rnnsearch-runtime`; web: a page that translates in the browser; onnx: two "
            "graphs for any runtime of such.",
        ),
    ] = "engine",
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="Of the weights, and of products with them; int4: embeddings and output alone. onnx: fp32.",
            show_default="int8",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            help="engine: put candidate lists of so many translations in; 0: none. Without it, as the model's search "
            "has it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a model as a file that `rnnsearch-runtime` translates with, as a web page, or as ONNX graphs."""
    if candidates and form != "engine":
        raise typer.BadParameter("goes with --format engine alone", param_hint="--candidates")
    if form == "onnx":
        _graphs(model, output, precision)
    elif form == "web":
        _page(model, output, precision or "int8")
    else:
        from rnnsearch.export import export as write

        precision = precision or "int8"
        say(f"{output}: {write(model, output, precision, candidates) / 1e6:.1f} MB, {precision}")


def _graphs(model: Path, output: Path, precision: Precision | None) -> None:
    from rnnsearch.onnx.folder import export as write

    if precision not in (None, "fp32"):
        raise typer.BadParameter("must be fp32 with --format onnx", param_hint="'--precision'")
    say(f"{output}: {write(model, output) / 1e6:.1f} MB, fp32")
    _tell_of_lists(model)


def _page(model: Path, output: Path, precision: Precision) -> None:
    from rnnsearch.web.folder import export_page

    page, size = export_page(model, output, precision)
    say(f"{output}: a page of {page / 1e6:.2f} MB, and a model of {size / 1e6:.1f} MB, {precision}")
    _tell_of_lists(model)


def _tell_of_lists(model: Path) -> None:
    """Say that the model's candidate lists did not go along, where it searches with such."""
    from rnnsearch.config import load
    from rnnsearch.systems.folder import CONFIG

    if load(model / CONFIG).search.candidates:
        say("its candidate lists are left out: the whole vocabulary is searched there")
