"""The commands of `rnnsearch`, in the panels of `rnnsearch --help` and docs/commands.md.

Command modules import numpy, torch and the rest of the package only inside their functions: `--help` must be fast.

`main` in this package runs `app`. A command is an entry in `PANELS`; after a change, generate docs/commands.md again
with `scripts/commands_page.py`. Tests: tests/test_docs.py, tests/commands/test_usage.py.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from rnnsearch.cli import adapt, corpora, evaluate, language_model, lexicons, models, serve, train, translate
from rnnsearch.cli.panels import PanelCommand, PanelGroup

app = typer.Typer(
    cls=PanelGroup,
    name="rnnsearch",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

PANELS: dict[str, dict[str, typer.Typer | Callable[..., None]]] = {
    "Train": {
        "demo": train.demo,
        "presets": train.presets,
        "prepare": train.prepare,
        "train": train.train,
        "adapt": adapt.adapt,
        "lm": language_model.app,
        "report": evaluate.report,
        "inspect": evaluate.inspect,
    },
    "Translate and align": {
        "translate": translate.translate,
        "score": translate.score,
        "align": translate.align,
        "plot": evaluate.plot,
        "dictionary": lexicons.dictionary,
    },
    "Evaluate and tune": {
        "evaluate": evaluate.evaluate,
        "compare": evaluate.compare,
        "contrast": evaluate.contrast,
        "tune": evaluate.tune,
        "reranker": models.reranker,
        "calibrate": lexicons.calibrate,
        "candidates": lexicons.candidates,
        "aligner": lexicons.aligner,
    },
    "Models": {
        "ensemble": models.ensemble,
        "extract": models.extract,
        "prune": models.prune,
        "import": models.import_model,
        "export": models.export,
    },
    "Corpora": {
        "data": corpora.data_app,
        "backtranslate": corpora.backtranslate,
        "distil": corpora.distil,
        "synthesise": corpora.synthesise,
        "filter": corpora.filter_pairs,
    },
    "Serve": {
        "serve": serve.serve,
    },
}

for panel, commands in PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, cls=PanelCommand, rich_help_panel=panel)(command)


def _print_version(is_given: bool) -> bool:
    if is_given:
        from rnnsearch import __version__

        typer.echo(f"rnnsearch {__version__}")
        raise typer.Exit
    return is_given


@app.callback(
    help="Train, evaluate, inspect and serve recurrent machine translation models with attention, and translate and "
    "align text."
)
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Declare the options of `rnnsearch` without a command."""
