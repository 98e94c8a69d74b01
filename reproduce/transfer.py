"""Compare transfer learning (Zoph et al. 2016) with training from scratch on few Tatoeba pairs.

    python reproduce/transfer.py --child es --parent fr --sizes 3000 --seeds 1 2 3

The parent translates a language into English and is trained on all of its pairs; the child translates another language
into English and is trained on the first pairs of the list. Systems:

- from scratch: the child's model without a parent
- random rows: the parent's source rows at random and its target embeddings frozen, as in the paper
- rows by token: the parent's source rows of the tokens that both languages have; nothing is frozen

Dev and test have sentences in all languages of the corpus, and no training row shares a sentence with them. All
children have the parent of seed 1. Output: CHILD-SIZE-SEED/table.md (test BLEU and chrF of the children, and the
difference from the first system with a paired bootstrap test), runs-CHILD-SIZE.md (the means over seeds, with a
bootstrap over seeds and sentences), parent-PAIR/table.md, the translations, and one model folder per system. An
interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import add_run_options, prepare_once, require_known, resolve_config
from comparison import System, compare_systems, write_runs
from multiway import OTHERS, PIVOT, Corpus, Direction

MODEL = {
    "embedding": 128,
    "tie": "none",  # the output layer is trained while the target embedding is frozen
    "encoder": {"size": 128},
    "attention": {"size": 128},
    "decoder": {"size": 192, "readout": 128},
}
TRAINING = {"evaluate_every": "unset"}  # after each epoch
PARENT = {
    "model": {
        **MODEL,
        "dropout": {"embedding": 0.2, "state": 0.2, "annotations": 0.2, "readout": 0.2, "word": 0.1},
    },
    "training": {
        **TRAINING,
        "schedule": {"type": "linear", "warmup": 400},
        "patience": "unset",
        "max_epochs": 16,
        "seed": 1,
    },
}
"""Tables of the parent: more text needs less dropout and fewer epochs."""
CHILD_TRAINING = {
    **TRAINING,
    "schedule": {"type": "plateau", "patience": 2, "factor": 0.5, "warmup": 400},
    "patience": 8,
    "max_epochs": 120,
}
SYSTEMS: dict[str, dict[str, Any] | None] = {
    "from scratch": None,
    "random rows": {"source": "random", "freeze": ["target_embedding"]},
    "rows by token": {"source": "token"},
}
"""Table `[training.transfer]` by the name of the system."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", default="es", choices=OTHERS, help="source language of the child")
    parser.add_argument("--parent", default="fr", choices=OTHERS, help="source language of the parent")
    parser.add_argument("--sizes", nargs="+", type=int, default=[3_000], help="pairs of the child; 0: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="seeds of the children")
    parser.add_argument("--dev-rows", type=int, default=500, help="sentences of the dev set")
    parser.add_argument("--test-rows", type=int, default=1_000, help="sentences of the test set")
    parser.add_argument("--preset", default="low-resource-small")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help="; ".join(SYSTEMS))
    add_run_options(parser, output="runs/reproduce-transfer")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    if args.child == args.parent:
        parser.error("--child and --parent must be different languages")
    return args


def make_system(args: argparse.Namespace, name: str, tables: dict[str, Any], folder: Path) -> System:
    """Return a system whose corpus is prepared in a folder."""
    tables["data"]["aligner"] = False
    tables["text"] = {"joint": False, **tables.get("text", {})}
    config = resolve_config(name, {"preset": args.preset, **tables}, args.set)
    return System(name, config, prepare_once(config, folder))


def plan_children(args: argparse.Namespace, corpus: Corpus, parent: Path, size: int, seed: int) -> Iterator[System]:
    """Yield the systems of a size and a seed."""
    data = corpus.bilingual(Direction(args.child, PIVOT), size)
    for name in args.systems:
        transfer = SYSTEMS[name]
        training = {**CHILD_TRAINING, "seed": seed}
        tables: dict[str, Any] = {"data": dict(data), "model": MODEL, "training": training}
        if transfer is not None:
            tables["text"] = {"tokenizers": {PIVOT: str(parent)}}
            training |= {"begin_from": str(parent), "transfer": transfer}
        kind = "child" if transfer is None else "child-of-parent"
        yield make_system(args, name, tables, args.output / f"{kind}-{size or 'all'}")


def main() -> None:
    """Train and score the parent and all children and write the tables."""
    args = parse_arguments()
    args.output = args.output.absolute()
    corpus = Corpus(args.output / "text", args.dev_rows, args.test_rows)
    name = f"{args.parent}-{PIVOT}"
    folder = args.output / f"parent-{name}"
    if any(SYSTEMS[system] is not None for system in args.systems):
        tables = {"data": corpus.bilingual(Direction(args.parent, PIVOT), 0), **PARENT}
        table = compare_systems([make_system(args, name, tables, folder)], folder, "parent")
        sys.stdout.write(f"{folder.name}\n\n{table}\n")
    references = corpus.lines("test", PIVOT)
    for size in args.sizes:
        pair = f"{args.child}-{size or 'all'}"
        groups = [args.output / f"{pair}-{seed}" for seed in args.seeds]
        for seed, group in zip(args.seeds, groups, strict=True):
            table = compare_systems(plan_children(args, corpus, folder / name, size, seed), group, "transfer")
            sys.stdout.write(f"{group.name}\n\n{table}\n")
        runs = args.output / f"runs-{pair}.md"
        sys.stdout.write(f"{runs.stem}\n\n{write_runs(runs, groups, args.systems, references, PIVOT)}\n")


if __name__ == "__main__":
    main()
