"""`rnnsearch filter`: the pairs of a noisy corpus that models of both directions find adequate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rnnsearch.cli.bulk import Actors, EngineOfMany, Rows, Store, check_engine, in_shards, progress
from rnnsearch.cli.io import (
    count_pairs,
    joined_pairs,
    line_pairs,
    output,
    require_distinct,
    same_lines,
    say,
    use_threads,
)
from rnnsearch.cli.options import (
    Batch,
    Beam,
    Device,
    LineByLine,
    MaxSource,
    Model,
    PrecisionOfProducts,
    SourceFile,
    TargetFile,
    Threads,
)
from rnnsearch.cli.search_options import (
    Mean,
    Sample,
    Seed,
    Temperature,
    TopK,
    TopP,
    Weights,
    asked_variant,
    asked_weights,
)

if TYPE_CHECKING:
    from rnnsearch.evaluation.filtering import Numbers, PairScores


# `rnnsearch distil`: a student's training text as its teacher translates it (Kim & Rush 2016, sections 3.2, 3.3).


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
    from rnnsearch.cli.translate_lines import EMPTY, OUTPUT, Asked

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


Files = tuple[Path, Path]
SCORES = "scores"
"""What comes of pairs, by name."""


def filter_pairs(
    source: SourceFile,
    target: TargetFile,
    scores: Annotated[
        Path,
        typer.Option(help="A score a line: written here where a model is given, else read.", show_default=False),
    ],
    forward: Annotated[Path | None, typer.Option(help="Score by this model, from source to target.")] = None,
    reverse: Annotated[Path | None, typer.Option(help="Score by this model, from target to source.")] = None,
    kept_files: Annotated[
        Files | None, typer.Option("-o", "--output", help="Write what is kept here: its source, and its target.")
    ] = None,
    share: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Keep this share, the best.")] = None,
    threshold: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Keep scores of this and more.")] = None,
    max_symbols: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most symbols of a side; a pair with a longer one scores 0.")
    ] = 200,
    precision: PrecisionOfProducts = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Score sentence pairs by how well they translate each other, by models of both directions or one; keep the best.

    One pair in is one score out, from 0 to 1. Scoring that is begun again goes on.
    """
    models = {name: model for name, model in (("forward", forward), ("reverse", reverse)) if model is not None}
    if not models and kept_files is None:
        raise typer.BadParameter("there must be models (--forward, --reverse), files for what is kept (-o), or both")
    if kept_files is not None and share is None and threshold is None:
        raise typer.BadParameter("-o needs --share, --threshold or both")
    if kept_files is None and (share is not None or threshold is not None):
        raise typer.BadParameter("--share and --threshold have no effect without -o")
    use_threads(threads)
    written = {"--scores": scores, **dict(zip(("-o", "its second file"), kept_files or (), strict=False))}
    require_distinct(written, [source, target])
    pairs = count_pairs(source, target)
    if models:
        from rnnsearch.evaluation.filtering import PairScores
        from rnnsearch.translator.loading import load

        loaded = {name: load(model, device, precision=precision) for name, model in models.items()}
        _score((source, target), scores, models, PairScores(**loaded), max_symbols)
    if kept_files is not None:
        _keep((source, target), pairs, scores, kept_files, share, threshold)


def _score(texts: Files, path: Path, models: dict[str, Path], scores: PairScores, most: int) -> None:
    """Write the score of each pair, in shards, which a killed run goes on with."""
    from rnnsearch import bulk
    from rnnsearch.cli.translate_lines import CHUNK_BATCHES, fits

    model = scores.model
    sides = (model.source, model.target) if scores.forward is not None else (model.target, model.source)

    def score(pairs: Sequence[str], _: int) -> bulk.Done:
        columns = zip(*(pair.split("\n") for pair in pairs), strict=True)
        fitting = [
            [line if fits(line, most, tokenizer) else "" for line in column]
            for column, tokenizer in zip(columns, sides, strict=True)
        ]
        return bulk.Done({SCORES: "".join(f"{score:.6g}\n" for score in scores(*fitting))}, [], {})

    about = {
        **dict(zip(("source", "target"), map(bulk.digest, texts), strict=True)),
        **{name: bulk.digest(folder) for name, folder in models.items()},
        "precision": model.config.search.precision,
        "device": model.device.type,
        "max symbols": most,
    }
    portions = joined_pairs(*texts, CHUNK_BATCHES * model.config.search.batch_sentences)
    store = bulk.store_at(f"{path}.partial")
    with progress(path, "scoring", "pairs") as show:
        bulk.run(portions, about, lambda: score, {SCORES: path}, store, bulk.local, progress=show)


def _keep(
    texts: Files, total: int, path: Path, kept_files: Files, share: float | None, threshold: float | None
) -> None:
    """Write the pairs that are kept."""
    from rnnsearch.evaluation.filtering import kept

    scores = _read(path)
    same_lines(texts[0], total, path, len(scores))
    keep = kept(scores, share, threshold or 0.0)
    with ExitStack() as stack:
        files = [stack.enter_context(output(path)) for path in kept_files]
        for pair, wanted in zip(line_pairs(*texts), keep, strict=True):
            if wanted:
                for file, line in zip(files, pair, strict=True):
                    file.write(f"{line}\n")
    least = f", with scores of {scores[keep].min():.3g} and more" if keep.any() else ""
    say(f"{keep.sum():,} of {total:,} pairs kept{least}")


def _read(path: Path) -> Numbers:
    """Scores, one a line."""
    import numpy as np

    from rnnsearch.data.corpus import read_lines
    from rnnsearch.errors import DataError

    def number(n: int, line: str) -> float:
        try:
            return float(line)
        except ValueError:
            raise DataError(f'{path}:{n}: must be a number; got "{line}"') from None

    return np.array([number(n, line) for n, line in enumerate(read_lines(path), 1)])


# `rnnsearch backtranslate`: training pairs from text of the target language alone.


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
    from rnnsearch.cli.translate_lines import EMPTY, OUTPUT, Asked

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
