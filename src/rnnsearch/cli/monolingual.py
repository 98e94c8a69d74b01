"""`rnnsearch backtranslate`: training pairs from text of the target language alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rnnsearch.cli.bulk import Actors, EngineOfMany, Rows, Store, check_engine, in_shards
from rnnsearch.cli.io import require_distinct, say
from rnnsearch.cli.options import Batch, Beam, Device, LineByLine, MaxSource, Model, PrecisionOfProducts, Threads
from rnnsearch.cli.searching import Sample, Seed, Temperature, TopK, TopP, asked_variant


def backtranslate(
    model: Model,
    text: Annotated[Path, typer.Argument(help="Text in the model's source language, a line each.", show_default=False)],
    output_file: LineByLine,
    beam: Beam = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    tag: Annotated[str | None, typer.Option(help="A word to put before each line, such as <bt>.")] = None,
    max_source: MaxSource = 200,
    precision: PrecisionOfProducts = None,
    batch: Batch = None,
    engine: EngineOfMany = "local",
    store: Store = None,
    rows: Rows = None,
    actors: Actors = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate text of the TARGET language back, by a model of the other direction: more training pairs.

    One line in is one line out; `OUTPUT|TEXT` is then a corpus for `data.train`. Begun again, it goes on.
    """
    if tag is not None and (not tag.strip() or len(tag.split()) != 1):
        raise typer.BadParameter(f'--tag must be one word; got "{tag}"')
    require_distinct({"--output": output_file}, [text])
    check_engine(engine, store, rows, actors)
    variant = asked_variant(sample, temperature, top_k, top_p, seed)
    from rnnsearch.cli.translating import EMPTY, OUTPUT, Asked

    asked = Asked(
        models=(model,),
        source=str(text),
        model_options=(None, None, None, precision),
        beam=beam,
        search_options=(None, None, False, None, variant),
        tag=tag,
        max_source=max_source,
        batch=batch,
        device=device,
        threads=threads,
    )
    counts = in_shards(asked, text, {OUTPUT: output_file}, engine, store, rows, actors)
    if empty := counts.get(EMPTY, 0):
        say(f"{empty:,.0f} lines have no translation; preparation leaves them out")
