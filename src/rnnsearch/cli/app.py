"""The commands and their help. Each command imports what it needs when it runs."""

from __future__ import annotations

import typer

from rnnsearch.cli import corpora, evaluate, language_model, lexicons, models, serve, train, translate

app = typer.Typer(
    name="rnnsearch",
    help="Train, align, translate with and explain attention-based recurrent translation models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("demo")(train.demo)
app.add_typer(train.app, name="data")
app.command("presets")(train.presets)
app.command("prepare")(train.prepare)
app.command("train")(train.train)
app.command("translate")(translate.translate)
app.command("score")(translate.score)
app.command("align")(translate.align)
app.command("backtranslate")(corpora.backtranslate)
app.command("distil")(corpora.distil)
app.command("filter")(corpora.filter_pairs)
app.add_typer(language_model.app, name="lm")
app.command("evaluate")(evaluate.evaluate)
app.command("report")(evaluate.report)
app.command("inspect")(evaluate.inspect)
app.command("plot")(evaluate.plot)
app.command("candidates")(lexicons.candidates)
app.command("aligner")(lexicons.aligner)
app.command("dictionary")(lexicons.dictionary)
app.command("calibrate")(lexicons.calibrate)
app.command("ensemble")(models.ensemble)
app.command("tune")(evaluate.tune)
app.command("prune")(models.prune)
app.command("reranker")(models.reranker)
app.command("export")(models.export)
app.command("import")(models.import_model)
app.command("serve")(serve.serve)


def _version(asked: bool) -> bool:
    if asked:
        from rnnsearch import __version__

        typer.echo(f"rnnsearch {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Train, align, translate with and explain attention-based recurrent translation models."""
