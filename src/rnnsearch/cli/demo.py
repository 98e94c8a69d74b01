"""`rnnsearch demo`: the main job on a corpus that any machine with pip can have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch.cli.io import say

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.evaluate.assess import Assessment

Pair = Literal["en-de", "de-en", "en-fr", "fr-en", "en-es", "es-en"]
SHOWN = 4
"""Held-out sentences shown with their alignments."""


def demo(
    pair: Annotated[Pair, typer.Option(help="Language pair.")] = "en-de",
    runs: Annotated[Path, typer.Option(help="Where the model folder goes.")] = Path("runs"),
    minutes: Annotated[float, typer.Option(min=0.01, help="Minutes of training at the most.")] = 10.0,
) -> None:
    """Train a translator on real sentences in about ten minutes, score it, and show what it does.

    An interrupted demo goes on where it stopped.
    """
    from rnnsearch.cli.train import prepared_data, run
    from rnnsearch.data.catalog import find
    from rnnsearch.evaluate.assess import assess, record, training_counts
    from rnnsearch.evaluate.report import write_assessment
    from rnnsearch.loading import load

    folder = runs / f"demo-{pair}"
    corpus = find(f"tatoeba-{pair}")
    config = run_file(folder, pair, minutes)
    say(f"{corpus.attribution}. Licence: {corpus.licence}.")
    reason = run(config, folder, resume=True)
    say(f"Trained: {reason}. Now the test set, which the model has not seen.")
    translator = load(folder)
    test = prepared_data(config, folder).test
    sources, references = [p.source for p in test], [p.target for p in test]
    assessment = assess(translator, sources, references, folder.name, counts=training_counts(folder))
    set_name = f"{corpus.name}, test split"
    record(folder, assessment, set_name)
    page = write_assessment(folder / "evaluation", translator, folder, assessment, set_name)
    _show(assessment)
    typer.echo(assessment.evaluation.to_text())
    _next(folder, page, config)


def run_file(folder: Path, pair: str, minutes: float) -> RunConfig:
    """The demo's run file, written into its folder for the user to copy, and its config."""
    from rnnsearch import config as run_config
    from rnnsearch.files import write_text

    source, _, target = pair.partition("-")
    path = folder / "run.toml"
    write_text(
        path,
        f'preset = "demo"\nfolder = "."\n\n[data]\nsource = "{source}"\ntarget = "{target}"\n'
        f'corpus = "tatoeba-{pair}"\n\n[training]\nmax_minutes = {minutes}\n',
    )
    return run_config.load(path)


def _show(assessment: Assessment) -> None:
    """Draw a few held-out sentences with their alignments."""
    from rnnsearch.plots.terminal import draw

    middling = [n for n, t in enumerate(assessment.translations) if 6 <= len(t.source_words) <= 10]
    for shown, number in enumerate(middling[:: max(1, len(middling) // SHOWN)][:SHOWN]):
        t = assessment.translations[number]
        typer.echo(f"\nsource:      {t.source}\ntranslation: {t.text}\nreference:   {assessment.references[number]}\n")
        if t.word_attention is not None and t.words:
            typer.echo(draw(t.word_attention, t.source_words, t.words, 100, shown == 0, t.attended))
    typer.echo("")


def _next(folder: Path, page: Path, config: RunConfig) -> None:
    typer.echo(
        f"""
The model is in {folder}/ (card.md says what it is), its report with attention heat maps in {page}.

What to type next:
  rnnsearch serve {folder}                               open its page in a browser: translation as you type
  echo "..." | rnnsearch translate {folder}                      translate {config.data.source} text, line by line
  rnnsearch translate {folder} -i in.txt -o out.txt --alignments out.align
  rnnsearch inspect {folder}                                     what is inside
  rnnsearch train {folder}/run.toml --resume --set training.max_minutes=60 training.max_epochs=60
  cp {folder}/run.toml mine.toml                                 then name your own files in it: data.train

(If rnnsearch is not found, activate the environment first: . .venv/bin/activate)"""
    )
