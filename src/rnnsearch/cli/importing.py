"""`rnnsearch import`: a model of another toolkit as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import NewFolder


def import_model(
    checkpoint: Annotated[
        Path, typer.Argument(help="Its file, as model_step_5000.pt or best.ckpt.", show_default=False)
    ],
    output: NewFolder,
    source: Annotated[str, typer.Option(help="The source language's code, as en.", show_default=False)],
    target: Annotated[str, typer.Option(help="The target language's code, as de.", show_default=False)],
    toolkit: Annotated[
        Literal["opennmt-py", "joeynmt"], typer.Option("--from", help="Which toolkit's.")
    ] = "opennmt-py",
) -> None:
    """Make a model folder of a recurrent model that OpenNMT-py 3 or JoeyNMT has trained; it translates as it did."""
    from rnnsearch.importing import import_joeynmt, import_opennmt_py

    importers = {"opennmt-py": import_opennmt_py, "joeynmt": import_joeynmt}
    made = importers[toolkit](checkpoint, output, source, target)
    say(
        f"{output}: {made.parameters:,} parameters ({made.encoder}, {made.decoder}), {made.vocabularies[0]:,} source "
        f"and {made.vocabularies[1]:,} target symbols; text must be cut into these as for {toolkit}"
    )
