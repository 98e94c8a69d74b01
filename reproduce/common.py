"""Shared helpers of the scripts: options, corpus preparation, training, cached results, alignments by eflomal."""

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
from rnnsearch.data.corpora.catalog import CORPORA
from rnnsearch.data.corpus import Row
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import FACTS_FILE, Prepared
from rnnsearch.errors import did_you_mean
from rnnsearch.metrics.significance import Comparison
from rnnsearch.text.alignments import SYMMETRISATIONS, Link, read_pharaoh, symmetrise
from rnnsearch.text.vocabulary import EOS, PAD
from rnnsearch.training.progress import Screen
from rnnsearch.training.run import check, train
from rnnsearch.utils.files import write_json, write_text

CHUNK_PAIRS = 2_000  # training pairs held in memory as text at a time
FEW_UNITS = {
    "embedding": 128,
    "encoder": {"size": 128},
    "attention": {"size": 128},
    "decoder": {"size": 256, "maxout": 128},
}
"""`[model]` table that reduces the preset `small` for a few thousand pairs."""


def add_data_options(parser: argparse.ArgumentParser, corpus: str) -> None:
    """Add the options that `data_table` reads: a corpus of the catalogue (default: `corpus`) or text files."""
    parser.add_argument("--corpus", default=corpus, choices=sorted(CORPORA))
    parser.add_argument("--train", nargs="+", help="your own training files instead: 'a.en|a.fr' or a.tsv")
    parser.add_argument("--dev", help="your own dev files")
    parser.add_argument("--test", help="your own test files")
    parser.add_argument("--source", help="source language code of your own files")
    parser.add_argument("--target", help="target language code of your own files")


def add_aligned_corpus_option(parser: argparse.ArgumentParser) -> None:
    """Add `--corpus`, limited to the corpora with manual word alignments."""
    aligned = sorted(name for name, corpus in CORPORA.items() if corpus.aligned)
    parser.add_argument("--corpus", default="bible-grc-en", choices=aligned)


def add_run_options(parser: argparse.ArgumentParser, output: str) -> None:
    """Add `--set` and `--output`."""
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="as in `rnnsearch train`")
    parser.add_argument("--output", type=Path, default=Path(output), help="folder for models and results")


def require_known(parser: argparse.ArgumentParser, noun: str, names: Sequence[str], known: Iterable[str]) -> None:
    """Exit with a usage error if one of the names is unknown."""
    choices = list(known)
    for name in names:
        if name not in choices:
            parser.error(f"unknown {noun} {name}{did_you_mean(name, choices)}; choose from: {'; '.join(choices)}")


def data_table(args: argparse.Namespace) -> dict[str, Any]:
    """Return the `[data]` table of the run file."""
    if args.train is None:
        return catalog_data(args.corpus)
    held_out = {part: value for part in ("dev", "test") if (value := getattr(args, part)) is not None}
    return {"source": args.source, "target": args.target, "train": args.train, **held_out}


def catalog_data(name: str) -> dict[str, Any]:
    """Return the `[data]` table of a corpus of the catalogue."""
    corpus = CORPORA[name]
    return {"source": corpus.source, "target": corpus.target, "corpus": corpus.name}


def first_pairs(args: argparse.Namespace, count: int) -> tuple[dict[str, Any], list[str]]:
    """Write the first `count` training pairs into the output folder.

    Returns:
        The `[data]` table with these pairs as training text, and the target side of the remaining pairs.
    """
    data = data_table(args)
    args.output.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*(spec.split("|") for spec in data["train"]), strict=True))
    paths = [args.output / f"train.{language}" for language in (args.source, args.target)]
    lines = list[str]()
    for files, path in zip(columns, paths, strict=True):
        lines = [line for file in files for line in read_lines(Path(file.strip()))]
        write_text(path, "".join(f"{line}\n" for line in lines[:count]))
    return data | {"train": ["|".join(map(str, paths))]}, lines[count:]


def resolve_config(name: str, tables: dict[str, Any], settings: Sequence[str]) -> RunConfig:
    """Return a system's config with the settings of `--set`; exit with a message if it is invalid."""
    config = run_config.resolve(tables, settings, Path.cwd())
    if problems := check(config):
        sys.exit("\n".join(f"{name}: {problem}" for problem in problems))
    return config


def prepare_once(config: RunConfig, output: Path) -> Prepared:
    """Prepare the corpus in `output/data`, or open it if an earlier run prepared it."""
    folder = output / "data"
    return Prepared.open(folder, config) if (folder / FACTS_FILE).is_file() else prepare(config, folder)


def train_or_resume(config: RunConfig, prepared: Prepared, folder: Path, name: str) -> None:
    """Train a system into its model folder, resuming an interrupted run."""
    with Screen(Console(stderr=True)) as screen:
        screen.message(f"== {name}")
        train(config, prepared, folder, screen, resume=True)


def sources_and_references(pairs: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Return the source sentences and their references."""
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def scores_with_intervals(scores: Comparison) -> list[str]:
    """Return BLEU and chrF as text, each with its 95% interval."""
    return [f"{scores[name].system:.1f} ± {scores[name].system_interval:.1f}" for name in ("BLEU", "chrF2")]


def cached(path: Path, compute: Callable[[], Any]) -> Any:
    """Return the JSON value stored at `path`, computing and storing it first if there is none."""
    if not path.is_file():
        write_json(path, compute())
    return read_json(path)


def read_json(path: Path) -> Any:
    """Return the JSON value stored at `path`."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def eflomal_links(
    sources: Sequence[str], targets: Sequence[str], folder: Path, last: int
) -> dict[str, list[set[Link]]]:
    """Align a corpus with eflomal (pip install eflomal; Östling & Tiedemann 2016) in both directions.

    Args:
        folder: Folder for the alignment files.
        last: Number of pairs at the end of the corpus whose links are returned.

    Returns:
        The links of each pair by direction (`forward`, `backward`) and by symmetrisation method.
    """
    try:
        from eflomal import Aligner
    except ImportError:
        sys.exit("eflomal is not installed: pip install eflomal (or run without it)")
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.align" for name in ("forward", "backward")}
    texts = ([f"{line}\n" for line in column] for column in (sources, targets))
    Aligner().align(*texts, links_filename_fwd=str(files["forward"]), links_filename_rev=str(files["backward"]))
    links = {name: [set(line.possible) for line in read_pharaoh(path)[-last:]] for name, path in files.items()}
    for method in SYMMETRISATIONS:
        pairs = zip(links["forward"], links["backward"], strict=True)
        links[method] = [symmetrise(forward, backward, method) for forward, backward in pairs]
    return links


def training_text(prepared: Prepared) -> Iterator[list[str]]:
    """Yield the source and target text of each training pair."""
    names = prepared.train.names
    for start in range(0, len(prepared.train), CHUNK_PAIRS):
        rows = np.arange(start, min(start + CHUNK_PAIRS, len(prepared.train)))
        columns = []
        for name in names:
            tokenizer = prepared.tokenizers[name]
            unknown = prepared.train.unknown_words(name, rows)
            column = []
            for padded, words in zip(prepared.train.padded(name, rows), unknown, strict=True):
                ids = [id for id in padded.tolist() if id not in (PAD, EOS)]
                positions = [position for position, id in enumerate(ids) if id in tokenizer.unknown_ids]
                column.append(tokenizer.join_with_offsets(ids, dict(zip(positions, words, strict=True))).text)
            columns.append(column)
        yield from map(list, zip(*columns, strict=True))


def learn_dictionary(prepared: Prepared, path: Path, max_words: int = 1) -> Path:
    """Write a dictionary extracted from the word-aligned training text, unless the file exists.

    Args:
        max_words: Maximum length of an entry's phrases, in words.

    Returns:
        The path.
    """
    if not path.is_file():
        assert prepared.aligner is not None
        dictionary = Dictionary(max_words)
        pairs = list(training_text(prepared))
        for start in range(0, len(pairs), CHUNK_PAIRS):
            chunk = pairs[start : start + CHUNK_PAIRS]
            all_links = prepared.aligner.links([Pair.from_words(*pair) for pair in chunk])
            for pair, links in zip(chunk, all_links, strict=True):
                dictionary.add(pair[0], pair[1], links)
        entries = dictionary.entries(2, 0.1)
        write_text(path, "".join(f"{entry.source}\t{entry.target}\n" for entry in entries))
    return path
