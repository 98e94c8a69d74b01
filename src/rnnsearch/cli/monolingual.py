"""`rnnsearch backtranslate`: training pairs from text of the target language alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rnnsearch.cli.io import console, say, use_threads
from rnnsearch.cli.options import Beam, Device, Model, Threads
from rnnsearch.cli.searching import Sample, Seed, Temperature, TopK, TopP, asked_variant
from rnnsearch.cli.translate import CHUNK_BATCHES, Precision, portions


def backtranslate(
    model: Model,
    text: Annotated[Path, typer.Argument(help="Text in the model's source language, a line each.", show_default=False)],
    output_file: Annotated[Path, typer.Option("-o", "--output", help="Write here, line by line.", show_default=False)],
    beam: Beam = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    tag: Annotated[str | None, typer.Option(help="A word to put before each line, such as <bt>.")] = None,
    max_source: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most symbols of a line; the output of a longer one is empty.")
    ] = 200,
    precision: Annotated[Precision | None, typer.Option(help="Of products on the CPU.  [default: the model's]")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sentences a batch.  [default: the model's]")] = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate text of the TARGET language back, by a model of the other direction: more training pairs.

    One line in is one line out; `OUTPUT|TEXT` is then a corpus for `data.train`. Begun again, it goes on.
    """
    if tag is not None and (not tag.strip() or len(tag.split()) != 1):
        raise typer.BadParameter(f'--tag must be one word; got "{tag}"')
    variant = asked_variant(sample, temperature, top_k, top_p, seed)
    use_threads(threads)
    from rich.progress import Progress

    from rnnsearch.cli.resumed import digest, resumed
    from rnnsearch.data.corpus import read_lines
    from rnnsearch.systems.folder import WEIGHTS
    from rnnsearch.translate import load
    from rnnsearch.translation import one_line

    total = sum(1 for _ in read_lines(text, cut=True))
    translator = load(model, device, precision=precision)
    options = translator.options(beam, variant=variant)
    size = batch or translator.config.search.batch_sentences
    about = {
        "text": digest(text),
        "model": digest(model / WEIGHTS),
        "search": str(options),
        "precision": translator.config.search.precision,
        "batch": size,
        "tag": tag,
        "max_source": max_source,
    }
    begin, empty = "" if tag is None else f"{tag} ", 0
    with resumed(output_file, about) as growing, Progress(console=console()) as bar:
        if growing.done:
            say(f"{output_file}: goes on after {growing.done:,} of {total:,} lines")
        task = bar.add_task("translating", total=total, completed=growing.done)
        passed = 0
        for lines in portions(text, CHUNK_BATCHES * size, max_source, translator):
            passed += len(lines)
            if passed <= growing.done:
                continue
            found = [one_line(best[0].text) for best in translator.n_best(lines, options, size)]
            empty += found.count("")
            growing.add([line and f"{begin}{line}" for line in found])
            bar.update(task, completed=passed)
    if empty:
        say(f"{empty:,} lines have no translation; preparation leaves them out")
