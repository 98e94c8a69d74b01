"""Which system should a user take? The families side by side on the same pairs, each trained to its end.

    python reproduce/systems.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/systems.py ... --pairs 10000 --systems RNNsearch low-resource    a part of the training text

Every system is of laptop size, is trained as its own run file says, and stops when its dev score no longer falls. The
text is cut as that run file says, so NLL is compared a sentence. --output gets table.md (BLEU and chrF of the test set
with 95% intervals, and each system's difference from the first one with a paired bootstrap), systems.json, and a model
folder each. Interrupted, it goes on where it stopped; a system with a result is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from common import add_data, add_run, data_tables, first_pairs, prepared_once, require_known, resolved
from compared import Compared, compared

from rnnsearch.config import RunConfig

GRU = {"cell": "gru", "size": 512}
STACKED = {"type": "stacked", "size": 256, "layers": 2, "direction": "both"}
LSTMS = {"type": "luong-input-feeding", "cell": "lstm", "size": 512, "layers": 2}
SYSTEMS: dict[str, dict[str, Any]] = {
    "RNNsearch": {},
    "cGRU": {"model": {"tie": "none", "decoder": {"type": "cgru", **GRU, "maxout": "unset", "readout": 256}}},
    "BiDeep": {
        "model": {
            "tie": "none",
            "encoder": STACKED | {"cell": "gru"},
            "decoder": {"type": "bideep", **GRU, "layers": 2, "transitions": 1, "maxout": "unset", "readout": 256},
        }
    },
    "deep LSTM": {
        "model": {
            "tie": "none",
            "encoder": STACKED | {"cell": "lstm"},
            "attention": {"score": "general", "size": "unset"},
            "decoder": LSTMS | {"bridge": "learned", "maxout": "unset", "readout": 256},
            "dropout": {"layers": 0.3},
        }
    },
    "RNMT+": {"preset": "rnmt-plus-small"},
    "low-resource": {"preset": "low-resource-small"},
}
"""What each has in the place of the preset `small`'s."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--pairs", type=int, help="take so many training pairs alone, from the first on")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help=", ".join(SYSTEMS))
    add_run(parser, output="runs/reproduce-systems")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    if args.pairs is not None and args.train is None:
        parser.error("--pairs needs files (--train)")
    return args


def system_config(args: argparse.Namespace, name: str, data: dict[str, Any]) -> RunConfig:
    """One system's resolved config."""
    return resolved(name, {"preset": "small", "data": data, **SYSTEMS[name]}, args.set)


def main() -> None:
    """Train, score and write."""
    args = arguments()
    data = data_tables(args) if args.pairs is None else first_pairs(args, args.pairs)[0]

    def systems() -> Iterator[Compared]:
        for name in args.systems:
            config = system_config(args, name, data)
            # The corpus, once for all systems that cut text alike.
            folder = args.output / "-".join(map(str, config.text.model_dump().values()))
            yield Compared(name, config, prepared_once(config, folder))

    sys.stdout.write(f"{compared(systems(), args.output, 'systems')}\n")


if __name__ == "__main__":
    main()
