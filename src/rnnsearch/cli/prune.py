"""`rnnsearch prune`: a model with most of its weights zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch.cli.io import say
from rnnsearch.cli.options import Model, NewFolder

if TYPE_CHECKING:
    from rnnsearch.systems.pruning import Pruning

SIZES = {"fp32": 4, "bf16": 2}
"""Bytes of a number."""


def prune(
    model: Model,
    output: NewFolder,
    share: Annotated[
        float,
        typer.Option(help="Of all weights in matrices, from 0 to below 1, those pruned before among them."),
    ] = 0.8,
    scheme: Annotated[
        Literal["class-blind", "class-uniform", "class-distribution"],
        typer.Option(help="Which: the smallest of all, of each class, or by each class's standard deviation."),
    ] = "class-uniform",
) -> None:
    """Make a model folder whose weights nearest to zero are zero; training goes on from it with them staying so."""
    if not 0 <= share < 1:
        raise typer.BadParameter(f"--share must be at least 0 and below 1; got {share:g}")
    from rnnsearch.systems.pruning import prune
    from rnnsearch.text.columns import columns

    made = prune(model, output, share, scheme)
    for line in [*columns(_classes(made)), "", *columns(_bytes(made))]:
        typer.echo(line)
    bound = {
        "class-blind": "those of a size up to {:.4g}",
        "class-distribution": "those up to {:.4g} standard deviations of their class",
    }
    told = "" if made.bound is None else f"; {bound[scheme].format(made.bound)}"
    say(f"{output}: {made.all.zeros / made.all.weights:.1%} of the weights are zero ({scheme}{told})")
    say(f'to train it on as it is: training.begin_from = "{output}" and training.keep_zeros = true')


def _classes(made: Pruning) -> list[list[str]]:
    rows = [["class", "weights", "zeros", "share"]]
    for one in (*made.classes, made.all):
        rows.append([one.name, f"{one.weights:,}", f"{one.zeros:,}", f"{one.zeros / one.weights:.1%}"])
    return [*rows, ["biases, vectors", f"{made.others:,}", "", "never"]]


def _bytes(made: Pruning) -> list[list[str]]:
    """What all weights weigh."""
    rows = [["bytes", "dense", "bitmask and values", "share"]]
    for name, size in SIZES.items():
        dense, sparse = made.weighed(size)
        rows.append([name, f"{dense:,}", f"{sparse:,}", f"{sparse / dense:.1%}"])
    return rows
