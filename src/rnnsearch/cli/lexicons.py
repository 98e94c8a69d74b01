"""`rnnsearch aligner`, `candidates`, `dictionary` and `calibrate`: what sentence pairs say of words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rnnsearch.cli.io import both_lines, output, require_distinct, same_lines, say, use_threads
from rnnsearch.cli.options import By, Device, Model, Output, SourceFile, TargetFile, Threads

if TYPE_CHECKING:
    from rnnsearch.align.aligner import Aligner
    from rnnsearch.text.alignments import Link

PORTION = 10_000
"""Sentence pairs that are aligned together."""


def aligner(model: Model, source: SourceFile, target: TargetFile) -> None:
    """Learn a word aligner from sentence pairs (the training data, or more) and put it into a model's folder.

    A run does so by itself, unless `[data] aligner` is false.
    """
    from rnnsearch.align.aligner import FOLDER, ROWS
    from rnnsearch.systems.folder import translating_config
    from rnnsearch.utils.files import locked

    translating_config(model)
    sources, targets = both_lines(source, target)
    with locked(model):
        learned = _learned(sources, targets)
        learned.save(model / FOLDER)
    used = f"learned from {min(len(sources), ROWS):,} sentence pairs, cut in {len(learned.cuts)} ways"
    say(f"{model / FOLDER}: {used}; links have a weight of {learned.threshold:g} or more")


def candidates(model: Model, source: SourceFile, target: TargetFile) -> None:
    """Learn candidate lists from sentence pairs (the training data, best) and put them into a model's folder.

    `translate --candidates N`, or `candidates` in the `[search]` of its config, then uses them.
    """
    from rnnsearch.search.candidates import FILE, learn, save
    from rnnsearch.systems.folder import load_system

    system = load_system(model)
    system.require("translate")
    sources, targets = both_lines(source, target)
    tables = learn(system.source.ids(sources), system.target.ids(targets), len(system.source), len(system.target))
    save(model, tables)
    known = int((tables["translations"][:, 0] >= 0).sum())
    say(f"{model / FILE}: translations of {known:,} of {len(system.source):,} source symbols")


def dictionary(
    source: SourceFile,
    target: TargetFile,
    output_file: Output = None,
    model: Annotated[
        Path | None, typer.Option(help="Align by this model folder, not by what the text teaches.")
    ] = None,
    by: By = None,
    alignments: Annotated[Path | None, typer.Option(help="Links that are there already, in a Pharaoh file.")] = None,
    words: Annotated[int, typer.Option(min=1, max=10, help="Most words of an entry, on either side.")] = 3,
    min_count: Annotated[int, typer.Option(min=1, help="How often an entry must have been seen.")] = 2,
    min_probability: Annotated[float, typer.Option(min=0.0, max=1.0, help="Least p(target | source).")] = 0.1,
    device: Device = "cpu",
) -> None:
    """Learn a dictionary from sentence pairs: source, target, p(target | source) and count (TSV), the best first.

    It is what `translate --dictionary` and `search.dictionary` read.
    """
    if model is not None and alignments is not None:
        raise typer.BadParameter("--model has no effect with --alignments")
    if model is None and by is not None:
        raise typer.BadParameter("--by has no effect without --model")
    require_distinct({"--output": output_file}, [source, target, alignments])
    from rnnsearch.align.dictionary import Dictionary

    sources, targets = both_lines(source, target)
    learned = Dictionary(words)
    if alignments is not None:
        links = _given_links(alignments, source, sources, targets)
    elif model is not None:
        from rnnsearch.translator.loading import load

        links = iter(load(model, device).align(sources, targets, by=by))
    else:
        links = _links(_learned(sources, targets), sources, targets)
    for pair in zip(sources, targets, links, strict=True):
        learned.add(*pair)
    count = 0
    with output(output_file) as out:
        for entry in learned.entries(min_count, min_probability):
            out.write(f"{entry.source}\t{entry.target}\t{entry.probability:.4f}\t{entry.seen}\n")
            count += 1
    if not count:
        say("no entries: the text is too small, or --min-count and --min-probability are too high")


def calibrate(
    model: Model,
    source: SourceFile,
    reference: TargetFile,
    threads: Threads = None,
    device: Device = "cpu",
) -> None:
    """Learn from a dev set how sure to be of a word: the model folder then says it of each translation."""
    use_threads(threads)
    from rnnsearch.systems.folder import require_whole
    from rnnsearch.translator.confidence import CONFIDENCE, learned
    from rnnsearch.translator.loading import load

    require_whole(model)  # `load` takes an engine file, too, in which nothing can be kept
    sources, references = both_lines(source, reference)
    found = learned(load(model, device).translate(sources), references)
    found.save(model / CONFIDENCE)
    say(
        f"{model / CONFIDENCE}: of {found.words:,} words {found.right:.1%} are right; on sentences that it has not "
        f"seen, a word's confidence is {found.error:.1%} off (expected calibration error)"
    )


def _learned(sources: Sequence[str], targets: Sequence[str]) -> Aligner:
    from rnnsearch.align.aligner import learn_aligner
    from rnnsearch.data.workers import Pool, cores

    with Pool(cores()) as pool:
        return learn_aligner(sources, targets, pool.map)


def _links(aligner: Aligner, sources: Sequence[str], targets: Sequence[str]) -> Iterator[Collection[Link]]:
    from rnnsearch.align.aligner import Pair

    for begin in range(0, len(sources), PORTION):
        some = slice(begin, begin + PORTION)
        yield from aligner.links([Pair.of_words(*pair) for pair in zip(sources[some], targets[some], strict=True)])


def _given_links(
    path: Path, source: Path, sources: Sequence[str], targets: Sequence[str]
) -> Iterator[Collection[Link]]:
    """Errors: DataError for a file of other pairs."""
    from rnnsearch.errors import DataError
    from rnnsearch.text.alignments import read_pharaoh, words

    rows = read_pharaoh(path)
    same_lines(source, len(sources), path, len(rows))
    for number, (links, *texts) in enumerate(zip(rows, sources, targets, strict=True), 1):
        sizes = [len(words(text)) for text in texts]
        if any(link[side] >= sizes[side] for link in links.possible for side in (0, 1)):
            raise DataError(f"{path}:{number}: links words that its sentences of {sizes[0]} and {sizes[1]} lack")
        yield links.sure
