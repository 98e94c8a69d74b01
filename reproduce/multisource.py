"""Compare translation from two sources with translation from each of them, on Tatoeba sentences.

    python reproduce/multisource.py --sources en fr --target de --sizes 5000 0 --seeds 1 2 3

The training text is the first rows that have all three languages (size 0: all of them), so that each system has the
same target sentences. Systems:

- the name of a source: a model of this source only
- early averaging: an encoder and an attention per source, the mean of the contexts (Firat et al. 2016b)
- concatenation: the concatenation of the contexts (Zoph & Knight 2016)

Output: SIZE-SEED/table.md (test BLEU and chrF, and the difference from the first system with a paired bootstrap test),
runs-SIZE.md (the means over seeds, with a bootstrap over seeds and sentences), the translations, and one model folder
per system. An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from common import FEW_UNITS, add_run_options, prepare_once, require_known, resolve_config
from comparison import System, compare_systems, write_runs
from multiway import LANGUAGES, Corpus

TYPES: dict[str, dict[str, Any]] = {
    "early averaging": {"type": "mean"},
    "concatenation": {"type": "concatenation"},
}
"""Table `[model.sources]` by the name of the system."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", default=["en", "fr"], choices=LANGUAGES)
    parser.add_argument("--target", default="de", choices=LANGUAGES)
    parser.add_argument("--sizes", nargs="+", type=int, default=[5_000, 0], help="training rows; 0: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--dev-rows", type=int, default=500, help="sentences of the dev set")
    parser.add_argument("--test-rows", type=int, default=1_000, help="sentences of the test set")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", help=f"a source language; {'; '.join(TYPES)}")
    add_run_options(parser, output="runs/reproduce-multisource")
    args = parser.parse_args()
    if len({*args.sources, args.target}) != len(args.sources) + 1 or len(args.sources) < 2:
        parser.error("--sources and --target must be at least three different languages")
    known = [*args.sources, *TYPES]
    args.systems = args.systems or known
    require_known(parser, "system", args.systems, known)
    return args


def plan_systems(args: argparse.Namespace, corpus: Corpus, size: int, seed: int) -> Iterator[System]:
    """Yield the systems of a size and a seed."""
    files = corpus.common_rows([*args.sources, args.target], size)
    for name in args.systems:
        sources = args.sources if name in TYPES else [name]
        columns = [*sources, args.target]
        tables = {
            "preset": args.preset,
            "data": {
                "source": sources if name in TYPES else name,
                "target": args.target,
                "train": ["|".join(str(files[language]) for language in columns)],
                **corpus.held_out(columns),
            },
            "model": FEW_UNITS | ({"sources": TYPES[name]} if name in TYPES else {}),
            "training": {"seed": seed},
        }
        if name not in TYPES:
            tables["data"]["aligner"] = False
        config = resolve_config(name, tables, args.set)
        yield System(name, config, prepare_once(config, args.output / f"{'+'.join(sources)}-{size or 'all'}"))


def main() -> None:
    """Train and score all systems and write the tables."""
    args = parse_arguments()
    args.output = args.output.absolute()
    corpus = Corpus(args.output / "text", args.dev_rows, args.test_rows)
    references = corpus.lines("test", args.target)
    for size in args.sizes:
        folders = [args.output / f"{size or 'all'}-{seed}" for seed in args.seeds]
        for seed, folder in zip(args.seeds, folders, strict=True):
            table = compare_systems(plan_systems(args, corpus, size, seed), folder, "multisource")
            sys.stdout.write(f"{folder.name}\n\n{table}\n")
        runs = args.output / f"runs-{size or 'all'}.md"
        sys.stdout.write(f"{runs.stem}\n\n{write_runs(runs, folders, args.systems, references, args.target)}\n")


if __name__ == "__main__":
    main()
