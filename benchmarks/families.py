"""Training and search speed of every family: in native code, in PyTorch only, and next to a busy process.

Run it as `python -m benchmarks.families`; `--output FILE` also writes the table. Sizes are those of the speed benchmark
(embeddings of 256, decoders of 512 units, vocabularies of 8,000 tokens), with batches of 64 synthetic pairs of about 13
tokens. The models are untrained, so that search continues up to the limit of 20 tokens. Ratios compare two times of one
run, each the best of several rounds of at least half a second. The busy process never sleeps and runs at normal
priority (nice 0) or the lowest (nice 19).
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

from benchmarks.harness import (
    Row,
    argument_parser,
    best_seconds,
    build_model,
    machine_line,
    parse_arguments,
    publish,
    table,
)
from rnnsearch.data.batches import make_batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.decode import make_sources
from rnnsearch.search.model_scorer import fastest_scorer
from rnnsearch.search.options import SearchOptions

VOCABULARY_SIZE = 8000
PAIRS = 64
MAX_LENGTH = 20
MIN_ROUND_SECONDS = 0.5  # long, because the first updates of a process are slower
GRU = {"type": "bidirectional", "cell": "gru", "size": 256}
BOTH = {"type": "stacked", "cell": "lstm", "size": 256, "layers": 2, "direction": "both"}
ADDITIVE = {"score": "additive", "size": 512}
GENERAL = {"score": "general"}
STACK = {"cell": "lstm", "layers": 2, "bridge": "learned"}


def model(encoder: Row, decoder: Row, attention: Row | None = None) -> Row:
    """Return a `[model]` table. The decoder is a GRU of 512 units unless its table says otherwise."""
    options: Row = {
        "embedding": 256,
        "encoder": encoder,
        "decoder": {"cell": "gru", "size": 512, **decoder},
        "dropout": {"embedding": 0.2, "readout": 0.2},
    }
    if attention:
        options["attention"] = attention
    return options


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


def synthetic_pairs() -> list[tuple[list[int], list[int]]]:
    """Return random sentence pairs, the same on every call."""
    rng = random.Random(3)
    pairs = []
    for length in [rng.randrange(11, 14) for _ in range(PAIRS)]:
        source, target = ([rng.randrange(4, VOCABULARY_SIZE) for _ in range(length)] for _ in range(2))
        pairs.append((source, target))
    return pairs


def make_update(model: TranslationModel, precision: str) -> Callable[[], object]:
    """Return a function that performs one training update."""
    import torch  # after rnnsearch, which configures how torch's threads wait

    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    loss = Likelihood(0.0, ())
    batch = make_batch(synthetic_pairs(), range(PAIRS))

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            total = loss(model, batch, BatchRng(1)).total
        total.backward()
        optimiser.step()
        optimiser.zero_grad()

    return update


def make_search(
    model: TranslationModel, beam_size: int, num_sentences: int, precision: str = "auto"
) -> Callable[[], object]:
    """Return a function that translates sentences with the model's fastest scorer; its weights are packed already."""
    import torch

    scorer = fastest_scorer(model, precision).scorer
    ids = [source for source, _ in synthetic_pairs()[:num_sentences]]
    options = SearchOptions(beam=beam_size, n_best=1, max_ratio=0.0, max_extra=MAX_LENGTH)
    sources = make_sources(ids, torch.device("cpu"))
    return lambda: (greedy_search if beam_size == 1 else beam_search)(scorer, sources, options)


@contextmanager
def busy_process(nice: int) -> Iterator[None]:
    """Run a process that uses as much CPU time as it gets."""
    command = ["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def make_tasks(config: Row, precision: str) -> list[Callable[[], object]]:
    """Return the measured functions: an update, greedy search and beam 5 of a batch, greedy search of one sentence.

    Training and search use separate models.
    """
    model = build_model(config, VOCABULARY_SIZE).eval()
    searches = [make_search(model, beam_size, count) for beam_size, count in ((1, PAIRS), (5, PAIRS), (1, 1))]
    return [make_update(build_model(config, VOCABULARY_SIZE), precision), *searches]


def rows(args: Namespace) -> Iterator[list[object]]:
    """Yield per family the times, the speed-up over PyTorch and the relative speed next to a busy process."""
    for name in args.families:
        config = FAMILIES[name]
        tasks = make_tasks(config, args.precision)
        native = [best_seconds(task, args.rounds, MIN_ROUND_SECONDS) for task in tasks]
        fractions = []
        for nice in (0, 19):
            with busy_process(nice):
                slowed = [best_seconds(task, args.rounds, MIN_ROUND_SECONDS) for task in tasks[:2]]
                fractions += [quiet / slow for quiet, slow in zip(native, slowed, strict=False)]
        with patch.dict(os.environ, {"RNNSEARCH_NATIVE": "0"}):
            torch_tasks = make_tasks(config, args.precision)
            pytorch = [best_seconds(task, args.rounds, MIN_ROUND_SECONDS) for task in torch_tasks]
        times = [1000 * seconds for seconds in native]
        yield [name, *times, *(slow / fast for slow, fast in zip(pytorch, native, strict=True)), *fractions]


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES], default=[*FAMILIES])
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="precision of training")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    args = parse_arguments(parser)
    tasks = ("update", "greedy b64", "beam 5 b64", "one sentence")
    times = " | ".join(f"{name}, ms {{:,.1f}}" for name in tasks)
    ratios = " | ".join(f"{name}, speed-up over PyTorch {{:.1f}}x" for name in tasks)
    fractions = " | ".join(f"{name}, speed next to nice {nice} {{:.0%}}" for nice in (0, 19) for name in tasks[:2])
    head = f"family | {times} | {ratios} | {fractions}"
    title = f"Training in {args.precision}, search in the fastest precision on this machine."
    publish([f"{title} {machine_line()}", "", *table(head, rows(args))], args.output)


if __name__ == "__main__":
    main()
