"""What text of the target language alone is worth beside few pairs: the tutorial's scenarios, row by row.

    python reproduce/monolingual.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/monolingual.py ... --pairs 10000 --sentences 26000

The first `--pairs` pairs of the training text are the corpus; the target sides of those that come after them, as many
as `--sentences` says, are the text without a translation. A model of the other direction, of the same pairs,
translates it back. All systems are trained as the preset says (`--preset`), until the dev score no longer falls or the
preset's last epoch. --output gets table.md (BLEU and chrF of the test set with 95% intervals, and each row's difference
from the pairs alone with a paired bootstrap), monolingual.json, and a model folder each. Interrupted, it goes on where
it stopped; a system with a result is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import add_data, add_run, first_pairs, prepared_once, require_known, resolved, trained
from compared import compared

from rnnsearch.cli.app import app
from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.files import write_text

ALONE, REVERSE = "pairs alone", "reverse"
MADE: dict[str, tuple[str, ...]] = {
    "back-translated, greedy": ("--beam", "1"),
    "back-translated, beam 5": ("--beam", "5"),
    "back-translated, sampled": ("--sample",),
    "back-translated, sampled, tagged": ("--sample", "--tag", "<bt>"),
}
"""Options of `rnnsearch backtranslate`."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--pairs", type=int, default=10_000, help="pairs of the training text that are the corpus")
    parser.add_argument("--sentences", type=int, help="of the target side of the others, at most; all if not given")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--rows", nargs="+", default=list(MADE), metavar="ROW", help=", ".join(MADE))
    add_run(parser, output="runs/reproduce-monolingual")
    args = parser.parse_args()
    require_known(parser, "row", args.rows, MADE)
    if args.train is None:
        parser.error("the corpus must be files (--train), which are cut in two")
    return args


def turned(data: dict[str, Any]) -> dict[str, Any]:
    """`[data]` of the other direction."""
    files = {part: [data[part]] if isinstance(data[part], str) else data[part] for part in ("train", "dev", "test")}
    other = {part: ["|".join(reversed(spec.split("|"))) for spec in specs] for part, specs in files.items()}
    return {
        "source": data["target"],
        "target": data["source"],
        **other,
        "dev": other["dev"][0],
        "test": other["test"][0],
    }


def main() -> None:
    """Train, translate back, score and write."""
    args = arguments()
    data, others = first_pairs(args, args.pairs)
    rest = args.output / f"rest.{args.target}"
    write_text(rest, "".join(f"{line}\n" for line in others[: args.sentences]))

    def system(name: str, data: dict[str, Any]) -> tuple[str, RunConfig, Prepared]:
        config = resolved(name, {"preset": args.preset, "data": data}, args.set)
        return name, config, prepared_once(config, args.output / f"data, {name}")

    def translated_back(name: str) -> Path:
        """The text's translations, by the model of the other direction."""
        reverse, made = args.output / REVERSE, args.output / f"{name}.{args.source}".replace(" ", "-")
        if not made.is_file():
            _, config, prepared = system(REVERSE, turned(data))
            trained(config, prepared, reverse, REVERSE)
            app(["backtranslate", str(reverse), str(rest), "-o", str(made), *MADE[name]], standalone_mode=False)
        return made

    def systems() -> Iterator[tuple[str, RunConfig, Prepared]]:
        yield system(ALONE, data)
        for name in args.rows:
            yield system(name, data | {"train": [*data["train"], f"{translated_back(name)}|{rest}"]})

    sys.stdout.write(f"{compared(systems(), args.output, 'monolingual')}\n")


if __name__ == "__main__":
    main()
