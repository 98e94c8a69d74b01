"""Learn the word aligner and align with eflomal: time and memory by number of sentence pairs.

Run it as `python -m benchmarks.aligner --source TEXT.en --target TEXT.de --eflomal PYTHON`, where PYTHON is an
interpreter of another environment with eflomal, which has another licence and is only measured. Both programs
alternate; eflomal aligns both directions, and rnnsearch learns an aligner.

Each sentence pair is a random sequence of pairs of the given texts, so that it has about 20 words.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import (
    argument_parser,
    log,
    machine_line,
    parse_arguments,
    publish,
    run,
    table,
)

MIN_WORDS = 16.5
"""Source words after which a pair is complete, so that it has 20 on average."""
LEARN = """
import sys
from pathlib import Path
from rnnsearch.align.aligner import learn_from_pairs
with open(sys.argv[1], encoding="utf-8") as sources, open(sys.argv[2], encoding="utf-8") as targets:
    pairs = ((source.rstrip("\\n"), target.rstrip("\\n")) for source, target in zip(sources, targets))
    learn_from_pairs(pairs).save(Path(sys.argv[3]))
"""
ALIGN = """
import sys
from eflomal import Aligner
with open(sys.argv[1], encoding="utf-8") as sources, open(sys.argv[2], encoding="utf-8") as targets:
    Aligner().align(sources, targets, links_filename_fwd=f"{sys.argv[3]}.fwd", links_filename_rev=f"{sys.argv[3]}.rev")
"""


def write_pairs(texts: Sequence[tuple[str, str]], num_pairs: int, folder: Path) -> list[Path]:
    """Write joined sentence pairs and return the source file and the target file."""
    rng = random.Random(1)
    paths = [folder / "source", folder / "target"]
    with paths[0].open("w", encoding="utf-8") as sources, paths[1].open("w", encoding="utf-8") as targets:
        for _ in range(num_pairs):
            joined: list[tuple[str, str]] = []
            while sum(len(source.split()) for source, _ in joined) < MIN_WORDS:
                joined.append(texts[rng.randrange(len(texts))])
            for file, sentences in zip((sources, targets), zip(*joined, strict=True), strict=True):
                file.write(f"{' '.join(sentences)}\n")
    return paths


def measure(name: str, command: list[str], files: Sequence[Path], folder: Path, num_pairs: int) -> list[object]:
    """Run a program on the sentence pairs and return its row of the table."""
    log(f"{name}, {num_pairs:,} pairs")
    result = run([*command, *map(str, files), str(folder / name)], folder / f"{name}.log")
    return [name, num_pairs, result.seconds, result.cpu_seconds, result.peak_mib]


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--source", type=Path, nargs="+", required=True, help="source texts")
    parser.add_argument("--target", type=Path, nargs="+", required=True, help="their translations")
    parser.add_argument("--pairs", type=int, nargs="+", default=[200_000])
    parser.add_argument("--rounds", type=int, default=1, help="number of measurements of each program")
    parser.add_argument("--eflomal", help="Python interpreter of an environment with eflomal")
    args = parse_arguments(parser)
    columns = ["".join(path.read_text(encoding="utf-8") for path in paths) for paths in (args.source, args.target)]
    texts = list(zip(*(column.removesuffix("\n").split("\n") for column in columns), strict=True))
    rows = []
    for num_pairs in args.pairs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = write_pairs(texts, num_pairs, folder)
            for _ in range(args.rounds):
                rows.append(measure("rnnsearch", [sys.executable, "-c", LEARN], files, folder, num_pairs))
                if args.eflomal:
                    rows.append(measure("eflomal", [args.eflomal, "-c", ALIGN], files, folder, num_pairs))
    head = "Program | Pairs {:,} | Seconds {:.0f} | Core-seconds {:.0f} | Peak MiB {:,.0f}"
    publish([machine_line(), "", *table(head, rows)], args.output)


if __name__ == "__main__":
    main()
