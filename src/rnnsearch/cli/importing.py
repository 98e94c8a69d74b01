"""`rnnsearch import`: a model of another toolkit as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import say


def import_model(
    checkpoint: Annotated[Path, typer.Argument(help="Its file, as model_step_5000.pt.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to make.", show_default=False)],
    source: Annotated[str, typer.Option(help="The source language's code, as en.", show_default=False)],
    target: Annotated[str, typer.Option(help="The target language's code, as de.", show_default=False)],
    toolkit: Annotated[Literal["opennmt-py"], typer.Option("--from", help="Which toolkit's.")] = "opennmt-py",
) -> None:
    """Make a model folder of a recurrent model that OpenNMT-py 3 has trained; it translates as it did there."""
    from rnnsearch.importing import import_opennmt_py

    made = import_opennmt_py(checkpoint, output, source, target)
    say(
        f"{output}: {made.parameters:,} parameters ({made.encoder}, {made.decoder}), {made.vocabularies[0]:,} source "
        f"and {made.vocabularies[1]:,} target symbols; text must be cut into these as for {toolkit}"
    )
