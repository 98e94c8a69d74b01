"""Train five small systems for a fixed number of updates, and compare their dev NLL with recorded bounds.

    python -m benchmarks.quality
    python -m benchmarks.quality --systems "luong, local-p"

Speed benchmarks do not show that a change makes models worse. The systems cover different cells, decoders, attention
mechanisms and outputs; they are trained on the demo's English-German corpus, which is downloaded at first use. Rounding
differs between processors, and training amplifies it, so each bound is `TOLERANCE` above the measured NLL. The exit
status is 1 if a system exceeds its bound. docs/results/quality.md has the last table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.harness import argument_parser, log, machine_line, parse_arguments, publish, table
from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.prepare import prepare
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.training.progress import Screen
from rnnsearch.training.run import train

UPDATES = 250
TOLERANCE = 0.03  # fraction of the NLL


class QualitySystem(NamedTuple):
    """A system and the dev NLL per sentence that it had after `UPDATES` updates."""

    tables: Mapping[str, Any]
    measured_nll: float

    @property
    def bound(self) -> float:
        """The largest NLL that is accepted."""
        return self.measured_nll * (1 + TOLERANCE)


SYSTEMS = {
    "RNNsearch": QualitySystem({"preset": "small"}, 54.78),
    "luong, local-p": QualitySystem({"preset": "luong-local-p-small"}, 46.73),
    "cgru": QualitySystem({"preset": "cgru-small"}, 52.81),
    "copynet": QualitySystem({"preset": "copynet-small"}, 35.75),
    "adaptive softmax": QualitySystem({"preset": "adaptive-small"}, 40.46),
}


class Result(NamedTuple):
    """Outcome of one training."""

    name: str
    parameters: int
    minutes: float
    dev_nll: float

    @property
    def is_within(self) -> bool:
        """True if the NLL does not exceed the bound of the system."""
        return self.dev_nll <= SYSTEMS[self.name].bound


def system_config(system: QualitySystem, threads: int) -> RunConfig:
    """Return the config of a system."""
    training = {"max_updates": UPDATES, "evaluate_every": UPDATES, "dev_bleu": False, "seed": 1, "threads": threads}
    tables = {
        **system.tables,
        "data": {"source": "en", "target": "de", "corpus": "tatoeba-en-de", "aligner": False},
        "training": training,
    }
    return resolve(tables)


def train_system(name: str, system: QualitySystem, threads: int) -> Result:
    """Train a system and return its dev NLL."""
    config = system_config(system, threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with Screen(Console(stderr=True)) as screen:
            train(config, prepare(config, folder / "data"), folder / "model", screen)
        facts = load_training_facts(folder / "model")
    return Result(name, facts["parameters"], 60 * facts["hours"], best_evaluation(facts)["dev_nll"])


def report(results: list[Result]) -> list[str]:
    """Return the lines of the page."""
    rows = []
    for result in results:
        verdict = "yes" if result.is_within else "NO"
        bound = SYSTEMS[result.name].bound
        rows.append([result.name, result.parameters, result.minutes, result.dev_nll, bound, verdict])
    head = "System | Parameters {:,} | Minutes {:.1f} | Dev NLL {:.2f} | Bound {:.2f} | Within"
    return ["# Quality after a few updates", "", *table(head, rows), machine_line()]


def main() -> None:
    """Train the systems and print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, metavar="SYSTEM")
    options = parse_arguments(parser)
    results = []
    for name in options.systems:
        log(f"training {name}")
        results.append(train_system(name, SYSTEMS[name], options.threads))
        log(f"{name}: dev NLL {results[-1].dev_nll:.2f}, bound {SYSTEMS[name].bound:.2f}")
    publish(report(results), options.output)
    if not all(result.is_within for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
