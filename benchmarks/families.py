"""Training and search of every family: in native code, by PyTorch alone, and beside another program.

Run it as `python -m benchmarks.families`; `--output FILE` also writes the table. Sizes are those of the speed benchmark
(256 units of embedding, 512 of the decoder, 8,000 symbols a side), batches of 64 made-up pairs of some 13 symbols,
models untrained, so that search goes on to a limit of 20 symbols. A ratio is of two times of one run, each the best of
its rounds of half a second or more. The neighbour is a process that computes for ever, at the usual priority or the
lowest (nice 19).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from benchmarks.harness import Row, machine_line, network, parsed, parser, publish, seconds_of, table
from rnnsearch.data.batches import make_batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import make_sources
from rnnsearch.search.greedy import greedy
from rnnsearch.search.model_scorer import fastest

SYMBOLS, PAIRS, LIMIT = 8000, 64, 20
LEAST = 0.5
"""Seconds of a round: the first updates of a process are slower."""
GRU = {"type": "bidirectional", "cell": "gru", "size": 256}
BOTH = {"type": "stacked", "cell": "lstm", "size": 256, "layers": 2, "direction": "both"}
ADDITIVE = {"score": "additive", "size": 512}
GENERAL = {"score": "general"}
STACK = {"cell": "lstm", "layers": 2, "bridge": "learned"}
"""Of `[model.decoder]`: two layers of LSTMs."""


def model(encoder: Row, decoder: Row, attention: Row | None = None) -> Row:
    """`[model]` of these parts; the decoder's table needs what sets it apart."""
    attends = {"attention": attention} if attention else {}
    dropout = {"embedding": 0.2, "readout": 0.2}
    own = {"cell": "gru", "size": 512, **decoder}
    return {"embedding": 256, "encoder": encoder, **attends, "decoder": own, "dropout": dropout}


FAMILIES: dict[str, Row] = {
    "rnnsearch": model(GRU, {"type": "bahdanau-tanh", "readout": 512}, ADDITIVE),
    "coverage": model(
        GRU,
        {"type": "bahdanau-tanh", "readout": 512},
        {**ADDITIVE, "features": ["coverage-neural"], "coverage_size": 10},
    ),
    "cgru": model(GRU, {"type": "cgru", "cell": "torch-gru", "readout": 512}, ADDITIVE),
    "bideep": model(GRU, {"type": "bideep", "readout": 512, "layers": 2, "transitions": 1}, ADDITIVE),
    "sutskever": model(
        {"type": "stacked", "cell": "lstm", "size": 512, "layers": 2, "direction": "forward"},
        {**STACK, "type": "sutskever", "bridge": "copy"},
    ),
    "luong": model(BOTH, {**STACK, "type": "luong", "readout": 512}, GENERAL),
    "luong, input feeding": model(BOTH, {**STACK, "type": "luong-input-feeding", "readout": 512}, GENERAL),
    "luong, input feeding, local-p": model(
        BOTH, {**STACK, "type": "luong-input-feeding", "readout": 512}, {**GENERAL, "window": "local-p", "width": 10}
    ),
    "neubig": model(BOTH, {**STACK, "type": "neubig"}, ADDITIVE),
    "rnmt-plus": model(
        BOTH,
        {**STACK, "type": "rnmt-plus", "cell": "rnmt-lstm"},
        {**ADDITIVE, "score": "multi-head-additive", "heads": 4},
    ),
}


def pairs() -> list[tuple[list[int], list[int]]]:
    """Made-up pairs, the same always."""
    draw = random.Random(3)
    lengths = [draw.randrange(11, 14) for _ in range(PAIRS)]
    return [tuple([draw.randrange(4, SYMBOLS) for _ in range(n)] for _ in range(2)) for n in lengths]  # type: ignore[misc]


def update_of(model: TranslationModel, precision: str) -> Callable[[], object]:
    """One update of training."""
    import torch  # after rnnsearch, which says how its threads wait

    optimiser, loss = torch.optim.Adam(model.parameters(), fused=True), Likelihood(0.0, ())
    batch = make_batch(pairs(), range(PAIRS))

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            total = loss(model, batch, Draws(1)).total
        total.backward()
        optimiser.step()
        optimiser.zero_grad()

    return update


def search_of(model: TranslationModel, width: int, count: int) -> Callable[[], object]:
    """The translation of some sentences by the model's fastest way, from laid-out weights."""
    import torch

    scorer, ids = fastest(model).scorer, [pair[0] for pair in pairs()[:count]]
    options = SearchOptions(beam=width, n_best=1, max_ratio=0.0, max_extra=LIMIT)
    sources = make_sources(ids, torch.device("cpu"))
    return lambda: (greedy if width == 1 else beam)(scorer, sources, options)


@contextmanager
def neighbour(nice: int) -> Iterator[None]:
    """Another program that computes for ever."""
    command = ["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def works(config: Row, precision: str) -> list[Callable[[], object]]:
    """What is measured of a family: an update, greedy search and beam 5 of a batch, greedy search of one sentence. What
    searches is not what learns."""
    model = network(config, SYMBOLS).eval()
    search = [search_of(model, width, count) for width, count in ((1, PAIRS), (5, PAIRS), (1, 1))]
    return [update_of(network(config, SYMBOLS), precision), *search]


def rows(given: Namespace) -> Iterator[list[object]]:
    """A family's times, natively and without, and its quiet speed's share beside a neighbour."""
    for name in given.families:
        config = FAMILIES[name]
        own = works(config, given.precision)
        native = [seconds_of(work, given.rounds, LEAST) for work in own]
        beside = []
        for nice in (0, 19):
            with neighbour(nice):
                slower = [seconds_of(work, given.rounds, LEAST) for work in own[:2]]
                beside += [quiet / slow for quiet, slow in zip(native, slower, strict=False)]
        with patch.dict(os.environ, {"RNNSEARCH_NATIVE": "0"}):
            without = [seconds_of(work, given.rounds, LEAST) for work in works(config, given.precision)]
        times = [1000 * seconds for seconds in native]
        yield [name, *times, *(slow / fast for slow, fast in zip(without, native, strict=True)), *beside]


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--families", nargs="+", choices=[*FAMILIES], default=[*FAMILIES])
    made.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="of training")
    made.add_argument("--rounds", type=int, default=3)
    given = parsed(made)
    what = ("update", "greedy b64", "beam 5 b64", "one sentence")
    times = " | ".join(f"{name}, ms {{:,.1f}}" for name in what)
    ratios = " | ".join(f"{name} to PyTorch alone {{:.1f}}x" for name in what)
    shares = " | ".join(f"{name} beside nice {nice} {{:.0%}}" for nice in (0, 19) for name in what[:2])
    head = f"family | {times} | {ratios} | {shares}"
    title = f"Training in {given.precision}, search in the fastest precision here."
    publish([f"{title} {machine_line()}", "", *table(head, rows(given))], given.output)


if __name__ == "__main__":
    main()
