"""Compare models that read previous sentences with models that do not, on the chapters of a Bible corpus.

    python reproduce/documents.py --seeds 1 2 3
    python reproduce/documents.py --corpus bible-hbo-en --systems "no context" concatenation

A document is a chapter. Every 13th chapter is in the dev set, and the one after it in the test set. Systems:

- no context: sentence by sentence
- concatenation: the previous verse and a separator before the verse (Tiedemann & Scherrer 2017)
- source stream: a second encoder and attention over the previous verse (Jean et al. 2017)
- source and target streams: another one over the translation of the previous verse
- hierarchical: four previous verses, one vector each (Sordoni et al. 2015), and an attention over them

Output in the folder of the corpus: SEED/table.md (test BLEU and chrF, and the difference from the first system with a
paired bootstrap test), runs.md (the means over seeds, with a bootstrap over seeds and sentences), the translations, and
one model folder per system. An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from common import FEW_UNITS, add_aligned_corpus_option, add_run_options, prepare_once, require_known, resolve_config
from comparison import System, compare_systems, write_runs

from rnnsearch.data.corpora.bible import AlignedPair
from rnnsearch.data.corpora.catalog import Corpus, find, read_chapters
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_text

CHAPTERS_PER_HELD_OUT = 13
PARTS = ("train", "dev", "test")


def streams(source: str, sentences: int = 1, target: bool = False, hierarchical: bool = False) -> dict[str, Any]:
    """Return the `[data]` and `[model]` tables of a system whose context is further sources."""
    sources: dict[str, Any] = {"type": "concatenation"}
    if hierarchical:
        sources["encoders"] = {f"{source}@previous": {"type": "hierarchical", "cell": "gru", "size": 128}}
    context = {"type": "streams", "sentences": sentences, "target": target}
    return {"data": {"context": context}, "model": {"sources": sources}}


def tables_by_system(source: str) -> dict[str, dict[str, Any]]:
    """Return the tables of the run file that differ between systems, by the name of the system."""
    return {
        "no context": {},
        "concatenation": {"data": {"context": {"type": "concatenation", "sentences": 1}}},
        "source stream": streams(source),
        "source and target streams": streams(source, target=True),
        "hierarchical": streams(source, sentences=4, hierarchical=True),
    }


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    names = list(tables_by_system(""))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_aligned_corpus_option(parser)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--preset", default="small")
    parser.add_argument("--systems", nargs="+", default=names, metavar="SYSTEM", help="; ".join(names))
    add_run_options(parser, output="runs/reproduce-documents")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, names)
    return args


def write_chapters(corpus: Corpus, folder: Path) -> None:
    """Write the text of each part, with an empty line after each chapter."""
    chapters: dict[str, list[list[AlignedPair]]] = {part: [] for part in PARTS}
    for index, chapter in enumerate(read_chapters(corpus)):
        chapters[{0: "dev", 1: "test"}.get(index % CHAPTERS_PER_HELD_OUT, "train")].append(chapter)
    for part, documents in chapters.items():
        for column, language in enumerate((corpus.source, corpus.target)):
            text = "".join("".join(f"{verse[column]}\n" for verse in chapter) + "\n" for chapter in documents)
            write_text(folder / f"{part}.{language}", text)


def read_documents(path: Path) -> list[list[str]]:
    """Return the verses of each chapter of a file."""
    documents = path.read_text(encoding="utf-8").removesuffix("\n\n").split("\n\n")
    return [document.split("\n") for document in documents]


def plan_systems(args: argparse.Namespace, corpus: Corpus, text: Path, seed: int) -> Iterator[System]:
    """Yield the systems of a seed."""
    documents = read_documents(text / f"test.{corpus.source}")
    files = {part: f"{text}/{part}.{corpus.source}|{text}/{part}.{corpus.target}" for part in PARTS}
    for name in args.systems:
        system = tables_by_system(corpus.source)[name]
        data = {"source": corpus.source, "target": corpus.target, "documents": True, "aligner": False}
        tables = {
            "preset": args.preset,
            "data": data | files | {"train": [files["train"]]} | system.get("data", {}),
            "model": FEW_UNITS | system.get("model", {}),
            "training": {"seed": seed},
        }
        config = resolve_config(name, tables, args.set)
        translate = partial(translate_chapters, documents)
        yield System(name, config, prepare_once(config, args.output), translate)


def translate_chapters(documents: Sequence[Sequence[str]], folder: Path, sources: list[str]) -> list[str]:
    """Return the translations of all verses by the model in a folder, each in the context of its chapter."""
    assert list(chain.from_iterable(documents)) == sources
    return [verse.text for verse in chain.from_iterable(load(folder).translate_documents(documents))]


def main() -> None:
    """Train and score all systems and write the tables."""
    args = parse_arguments()
    args.output = args.output.absolute() / args.corpus
    corpus = find(args.corpus)
    text = args.output / "text"
    if not all((text / f"{part}.{corpus.target}").is_file() for part in PARTS):
        write_chapters(corpus, text)
    folders = [args.output / str(seed) for seed in args.seeds]
    for seed, folder in zip(args.seeds, folders, strict=True):
        table = compare_systems(plan_systems(args, corpus, text, seed), folder, "documents")
        sys.stdout.write(f"seed {seed}\n\n{table}\n")
    references = list(chain.from_iterable(read_documents(text / f"test.{corpus.target}")))
    sys.stdout.write(write_runs(args.output / "runs.md", folders, args.systems, references, corpus.target))


if __name__ == "__main__":
    main()
