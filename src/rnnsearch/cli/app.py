"""The commands and their help. Each command imports what it needs when it runs."""

from __future__ import annotations

import typer

from rnnsearch.cli import (
    data,
    demo,
    distilling,
    ensemble,
    evaluate,
    export,
    filtering,
    importing,
    language,
    lexicons,
    monolingual,
    plot,
    presets,
    prune,
    reranker,
    serve,
    train,
    translate,
    tune,
)

app = typer.Typer(
    name="rnnsearch",
    help="Train, align, translate with and explain attention-based recurrent translation models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.command("presets")(presets.presets)
app.command("prepare")(train.prepare)
app.command("train")(train.train)
app.command("translate")(translate.translate)
app.command("score")(translate.score)
app.command("align")(translate.align)
app.command("backtranslate")(monolingual.backtranslate)
app.command("distil")(distilling.distil)
app.command("filter")(filtering.filter_pairs)
app.add_typer(language.app, name="lm")
app.command("evaluate")(evaluate.evaluate)
app.command("report")(evaluate.report)
app.command("inspect")(evaluate.inspect)
app.command("plot")(plot.plot)
app.command("candidates")(lexicons.candidates)
app.command("aligner")(lexicons.aligner)
app.command("dictionary")(lexicons.dictionary)
app.command("calibrate")(lexicons.calibrate)
app.command("ensemble")(ensemble.ensemble)
app.command("tune")(tune.tune)
app.command("prune")(prune.prune)
app.command("reranker")(reranker.reranker)
app.command("export")(export.export)
app.command("import")(importing.import_model)
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
