"""Compare the architectures on the same parallel data, each trained until its dev score stops improving.

    python reproduce/systems.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/systems.py ... --pairs 10000 --systems RNNsearch low-resource    a part of the training text

All systems are small enough to train on a laptop. They share the recipe of the preset `small`, except those with a
preset of their own. Since segmentation may differ between systems, NLL is reported per sentence.

Output: table.md (test BLEU and chrF with 95% intervals, and the difference from the first system with a paired
bootstrap test), systems.json, and one model folder per system. An interrupted run resumes where it stopped; systems
with a stored result are not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from common import (
    add_data_options,
    add_run_options,
    data_table,
    first_pairs,
    prepare_once,
    require_known,
    resolve_config,
)
from comparison import System, compare_systems

from rnnsearch.config import RunConfig

GRU = {"cell": "gru", "size": 512}
STACKED = {"type": "stacked", "size": 256, "layers": 2, "direction": "both"}
LSTMS = {"type": "luong-input-feeding", "cell": "lstm", "size": 512, "layers": 2}
# Settings of each system that differ from the preset `small`, or another preset.
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


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--pairs", type=int, help="use only the first so many training pairs")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help=", ".join(SYSTEMS))
    add_run_options(parser, output="runs/reproduce-systems")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    if args.pairs is not None and args.train is None:
        parser.error("--pairs needs files (--train)")
    return args


def system_config(args: argparse.Namespace, name: str, data: dict[str, Any]) -> RunConfig:
    """Return the resolved config of a system."""
    return resolve_config(name, {"preset": "small", "data": data, **SYSTEMS[name]}, args.set)


def main() -> None:
    """Train and score all systems and write the table."""
    args = parse_arguments()
    data = data_table(args) if args.pairs is None else first_pairs(args, args.pairs)[0]

    def systems() -> Iterator[System]:
        for name in args.systems:
            config = system_config(args, name, data)
            # Systems with the same segmentation share the prepared corpus.
            folder = args.output / "-".join(map(str, config.text.model_dump().values()))
            yield System(name, config, prepare_once(config, folder))

    sys.stdout.write(f"{compare_systems(systems(), args.output, 'systems')}\n")


if __name__ == "__main__":
    main()
