"""`rnnsearch distil`: a student's training text as its teacher translates it (Kim & Rush 2016, sections 3.2, 3.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rnnsearch.cli.bulk import Actors, EngineOfMany, Rows, Store, check_engine, in_shards
from rnnsearch.cli.io import require_distinct, say
from rnnsearch.cli.options import Batch, Beam, Device, LineByLine, MaxSource, PrecisionOfProducts, Threads
from rnnsearch.cli.searching import Mean, Weights, asked_weights


def distil(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="The teacher's model folder; several are one model, an ensemble.",
            metavar="TEACHER...",
            show_default=False,
        ),
    ],
    source: Annotated[Path, typer.Argument(help="Source text of the training pairs, a line each.", show_default=False)],
    output_file: LineByLine,
    interpolate: Annotated[
        Path | None,
        typer.Option(
            help="The target text, line by line: of all that the beam finds, take what is closest to it (by BLEU).",
            show_default=False,
        ),
    ] = None,
    beam: Beam = None,
    weights: Weights = None,
    mean: Mean = None,
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
    """Translate training text by a teacher, for a smaller and faster student to learn from.

    One line in is one line out; `SOURCE|OUTPUT` is then a corpus for `data.train`. Begun again, it goes on.
    """
    require_distinct({"--output": output_file}, [source, interpolate])
    check_engine(engine, store, rows, actors)
    shares = asked_weights(weights)
    from rnnsearch.cli.translating import EMPTY, OUTPUT, Asked

    asked = Asked(
        models=tuple(models),
        source=str(source),
        model_options=(None, None, None, precision, shares, mean),
        beam=beam,
        closest_to=interpolate,
        max_source=max_source,
        batch=batch,
        device=device,
        threads=threads,
    )
    counts = in_shards(asked, source, {OUTPUT: output_file}, engine, store, rows, actors)
    if empty := counts.get(EMPTY, 0):
        say(f"{empty:,.0f} lines have no translation; preparation leaves them out")
