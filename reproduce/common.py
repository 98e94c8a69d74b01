"""What the scripts have in common: their options, the corpus prepared once, a system trained, results kept."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from rnnsearch import config as run_config
from rnnsearch.align.aligner import Pair
from rnnsearch.align.dictionary import Dictionary
from rnnsearch.config import RunConfig
from rnnsearch.data.catalog import CORPORA
from rnnsearch.data.corpus import Row
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import FACTS, Prepared
from rnnsearch.errors import did_you_mean
from rnnsearch.files import write_json, write_text
from rnnsearch.metrics.significance import Comparison
from rnnsearch.text.alignments import SYMMETRISATIONS, Link, read_pharaoh, symmetrise
from rnnsearch.text.vocabulary import EOS, PAD
from rnnsearch.training.progress import Screen
from rnnsearch.training.run import check, train

PORTION = 2_000
"""Training pairs in memory as text at a time."""


def add_data(parser: argparse.ArgumentParser, corpus: str) -> None:
    """The options that `data_tables` reads: a listed corpus, `corpus` if not given, or files."""
    parser.add_argument("--corpus", default=corpus, choices=sorted(CORPORA))
    parser.add_argument("--train", nargs="+", help="your own training files instead: a.en|a.fr or a.tsv")
    parser.add_argument("--dev")
    parser.add_argument("--test")
    parser.add_argument("--source", help="language code of your own files")
    parser.add_argument("--target")


def add_aligned(parser: argparse.ArgumentParser) -> None:
    """`--corpus`, of those with word alignments."""
    aligned = sorted(name for name, corpus in CORPORA.items() if corpus.aligned)
    parser.add_argument("--corpus", default="bible-grc-en", choices=aligned)


def add_run(parser: argparse.ArgumentParser, output: str) -> None:
    """`--set` and `--output`."""
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="as in `rnnsearch train`")
    parser.add_argument("--output", type=Path, default=Path(output))


def require_known(parser: argparse.ArgumentParser, what: str, given: Sequence[str], known: Iterable[str]) -> None:
    """End the script where one that is asked for is none of those there are."""
    there = list(known)
    for name in given:
        if name not in there:
            parser.error(f"there is no {what} {name}{did_you_mean(name, there)}; those there are: {'; '.join(there)}")


def data_tables(args: argparse.Namespace) -> dict[str, Any]:
    """The run file's `[data]`."""
    if args.train is None:
        return listed(args.corpus)
    held_out = {part: value for part in ("dev", "test") if (value := getattr(args, part)) is not None}
    return {"source": args.source, "target": args.target, "train": args.train, **held_out}


def first_pairs(args: argparse.Namespace, count: int) -> tuple[dict[str, Any], list[str]]:
    """`[data]` of the first `count` pairs of the files' training text, written into the script's output; and the target
    side of the other pairs."""
    data = data_tables(args)
    args.output.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*(spec.split("|") for spec in data["train"]), strict=True))
    names = [args.output / f"train.{language}" for language in (args.source, args.target)]
    rows = list[str]()
    for files, name in zip(columns, names, strict=True):
        rows = [row for file in files for row in lines(Path(file.strip()))]
        write_text(name, "".join(f"{row}\n" for row in rows[:count]))
    return data | {"train": ["|".join(map(str, names))]}, rows[count:]


def listed(name: str) -> dict[str, Any]:
    """`[data]` of a listed corpus."""
    corpus = CORPORA[name]
    return {"source": corpus.source, "target": corpus.target, "corpus": corpus.name}


def resolved(name: str, tables: dict[str, Any], settings: Sequence[str]) -> RunConfig:
    """A system's config with the command line's `--set`; a faulty one ends the script."""
    config = run_config.resolve(tables, settings, Path.cwd())
    if faults := check(config):
        sys.exit("\n".join(f"{name}: {fault}" for fault in faults))
    return config


def prepared_once(config: RunConfig, output: Path) -> Prepared:
    """The corpus, prepared once for all systems of a script, whose results go into `output`."""
    folder = output / "data"
    return Prepared.open(folder, config) if (folder / FACTS).is_file() else prepare(config, folder)


def trained(config: RunConfig, prepared: Prepared, folder: Path, name: str) -> None:
    """Train a system into its model folder, or go on where that stopped."""
    with Screen(Console(stderr=True)) as screen:
        screen.message(f"== {name}")
        train(config, prepared, folder, screen, resume=True)


def sides(pairs: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sources and references."""
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def with_intervals(scores: Comparison) -> list[str]:
    """BLEU and chrF, each with its 95% interval."""
    return [f"{scores[name].system:.1f} ± {scores[name].system_interval:.1f}" for name in ("BLEU", "chrF2")]


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What an earlier run of the script has written, or what `make` gives, written."""
    if not path.is_file():
        write_json(path, make())
    return json.loads(path.read_text(encoding="utf-8"))


def lines(path: Path) -> list[str]:
    """A file's lines."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def eflomal(sources: Sequence[str], targets: Sequence[str], folder: Path, last: int) -> dict[str, list[set[Link]]]:
    """The aligner eflomal's links of the `last` pairs of a corpus (pip install eflomal; Ostling & Tiedemann 2016), by
    direction and by way to combine both; its files go into `folder`."""
    try:
        from eflomal import Aligner
    except ImportError:
        sys.exit("the aligner must be installed: pip install eflomal (or leave it out)")
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.align" for name in ("forward", "backward")}
    texts = ([f"{line}\n" for line in side] for side in (sources, targets))
    Aligner().align(*texts, links_filename_fwd=str(files["forward"]), links_filename_rev=str(files["backward"]))
    links = {name: [set(line.possible) for line in read_pharaoh(path)[-last:]] for name, path in files.items()}
    for method in SYMMETRISATIONS:
        pairs = zip(links["forward"], links["backward"], strict=True)
        links[method] = [symmetrise(forward, backward, method) for forward, backward in pairs]
    return links


def training_text(prepared: Prepared) -> Iterator[list[str]]:
    """Source and target of each training pair."""
    names = prepared.train.names
    for begin in range(0, len(prepared.train), PORTION):
        rows = np.arange(begin, min(begin + PORTION, len(prepared.train)))
        columns = []
        for name in names:
            tokenizer, unknown = prepared.tokenizers[name], prepared.train.unknown_words(name, rows)
            column = []
            for padded, own in zip(prepared.train.padded(name, rows), unknown, strict=True):
                ids = [id for id in padded.tolist() if id not in (PAD, EOS)]
                places = [place for place, id in enumerate(ids) if id in tokenizer.unknown]
                column.append(tokenizer.joined(ids, dict(zip(places, own, strict=True))).text)
            columns.append(column)
        yield from map(list, zip(*columns, strict=True))


def dictionary(prepared: Prepared, path: Path, most: int = 1) -> Path:
    """What the training text's links teach of phrases of so many words at most."""
    if not path.is_file():
        assert prepared.aligner is not None
        learned, pairs = Dictionary(most), list(training_text(prepared))
        for begin in range(0, len(pairs), PORTION):
            some = pairs[begin : begin + PORTION]
            for pair, links in zip(some, prepared.aligner.links([Pair.of_words(*p) for p in some]), strict=True):
                learned.add(pair[0], pair[1], links)
        write_text(path, "".join(f"{e.source}\t{e.target}\n" for e in learned.entries(2, 0.1)))
    return path
