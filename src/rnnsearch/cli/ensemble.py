"""`rnnsearch ensemble`: several models as one model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import NewFolder
from rnnsearch.cli.searching import asked_weights


def ensemble(
    models: Annotated[list[Path], typer.Argument(help="Model folders of one target vocabulary.", show_default=False)],
    output: NewFolder,
    weights: Annotated[str | None, typer.Option(help="One a model, as 2,1,1.  [default: equal]")] = None,
    mean: Annotated[
        Literal["geometric", "arithmetic"], typer.Option(help="Of the models' distributions: AND, or OR.")
    ] = "geometric",
    snapshots: Annotated[
        int | None, typer.Option(min=2, help="The last N weights that the run of one model has kept, as the models.")
    ] = None,
) -> None:
    """Make one model folder of several models, or of several checkpoints of one: every command then takes it."""
    if snapshots is None and len(models) == 1:
        raise typer.BadParameter("an ensemble needs two models, or one and --snapshots")
    if snapshots is not None and len(models) > 1:
        raise typer.BadParameter("--snapshots are of one model; got more")
    shares = asked_weights(weights)
    from rnnsearch.systems import gathered
    from rnnsearch.systems.folder import load_system

    if snapshots is None:
        systems = [load_system(folder) for folder in models]
    else:
        systems = gathered.snapshots(models[0], snapshots)
    folders = models if snapshots is None else models * snapshots
    gathered.gather(output, folders, systems, shares, mean)
    say(f"{output}: an ensemble of {len(systems)} models; `rnnsearch tune` finds their weights")
