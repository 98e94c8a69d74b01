"""`rnnsearch adapt`: fine-tune a model on new text.

The command is thin over `evaluation/adaptation.py`. Tests: tests/commands/test_adapt.py.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from rnnsearch.cli.io import error_console, print_message
from rnnsearch.cli.options import Model, OutputFolder


def adapt(
    model: Model,
    pairs: Annotated[
        list[str],
        Argument(help="New text: a TSV file, or two files as 'new.en|new.de'.", metavar="PAIRS", show_default=False),
    ],
    output: OutputFolder,
    old: Annotated[
        list[str] | None,
        Option(help="Old text to mix in, in the form of PAIRS.", show_default="the prepared data of MODEL"),
    ] = None,
    epochs: Annotated[
        float | None, Option(min=0.01, help="Number of epochs.", show_default="by the amount of text")
    ] = None,
    minutes: Annotated[float | None, Option(min=0.01, help="Maximum training time in minutes.")] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Override options of the run: --set training.seed=2."),
    ] = None,
) -> None:
    """Adapt a model to new text.

    Trains a copy of the model on new sentence pairs, mixed with old ones so that it does not forget them, and
    compares both models on held-out pairs. The copy keeps tokenizers, aligner and candidate lists, and is calibrated
    if the model is. Called again, it continues an interrupted adaptation.
    """
    # In this function, `adapt` is the function below, not the command.
    from rnnsearch.evaluation.adaptation import AdaptationOptions, adapt
    from rnnsearch.training.progress import Screen
    from rnnsearch.utils.tables import align_columns

    options = AdaptationOptions(tuple(old or ()), epochs, minutes, tuple(settings or ()))
    with Screen(error_console()) as screen:
        result = adapt(model, pairs, output, options, screen)
    rows = [["held-out text", "pairs", "BLEU before", "after", "chrF before", "after"]]
    for row in result.comparisons:
        scores = (row.bleu_before, row.bleu_after, row.chrf_before, row.chrf_after)
        rows.append([row.text, f"{row.pairs:,}", *(f"{score:.1f}" for score in scores)])
    typer.echo("\n".join(align_columns(rows)))
    print_message(f"The adapted model is in {output}. Next: rnnsearch translate {output}, rnnsearch inspect {output}")
