"""Greedy and beam search on a GPU, from recordings and kernel by kernel: speed, and if the translations are equal.

Run it as `python benchmarks/gpu_search.py`; it takes about a minute, prints each row when it is measured, and starts no
row after `--seconds`. The models have the size of the toolkit comparison and that of RNNsearch-50 (`speed/model.py`)
with random weights, so every sentence is translated to about its maximum length, which is its own number of words.
Speed is in target tokens without EOS per second, over all batches of the fourth pass; recordings are made in those
before it.

`--ahead` and `--compact` measure other values of `MAX_STEPS_AHEAD`, and finished sentences that stay in the batch.
"""

from __future__ import annotations

import os
import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import argument_parser, build_model, parse_arguments
from benchmarks.speed.model import PAPER, RIVALS_SIZE, model
from rnnsearch.accel.cuda_graphs import SWITCH
from rnnsearch.search import recorded
from rnnsearch.search.decode import decode_all
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import Scorer

SIZES = {"rivals": (RIVALS_SIZE, 10_000, (5, 25)), "paper": (PAPER, 30_000, (20, 30))}
"""Name -> sizes of the model, vocabulary, and range of the lengths of sentences."""
SEARCHES = {"greedy": 1, "beam 5": 5}
Sentences = Sequence[Sequence[int]]


@contextmanager
def recordings(enabled: bool) -> Iterator[None]:
    """Allow or forbid recordings."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1" if enabled else "0"
    yield
    if before is None:
        del os.environ[SWITCH]
    else:
        os.environ[SWITCH] = before


def random_sentences(count: int, vocabulary: int, lengths: tuple[int, int]) -> list[list[int]]:
    """Return sentences of random words."""
    generator = random.Random(1)
    return [[generator.randrange(4, vocabulary) for _ in range(generator.randint(*lengths))] for _ in range(count)]


def timed(scorer: Scorer, sentences: Sentences, options: SearchOptions, batch: int) -> tuple[float, list[Hypothesis]]:
    """Return the seconds of a search and the best hypotheses."""
    start = time.perf_counter()
    results = decode_all(scorer, sentences, options, batch)
    return time.perf_counter() - start, [hypotheses[0] for hypotheses in results]


def measure(name: str, scorer: Scorer, sentences: Sentences, options: SearchOptions, args: Namespace) -> str:
    """Return a row: seconds of a first pass, tokens per second with and without recordings, and differences."""
    with recordings(True):
        first, _ = timed(scorer, sentences, options, args.batch)
        for _ in range(2):  # shapes that have occurred several times are recorded, too
            timed(scorer, sentences, options, args.batch)
        seconds, best = timed(scorer, sentences, options, args.batch)
    tokens = sum(len(hypothesis.ids) for hypothesis in best)
    row = f"| {name} | {tokens / first:,.0f} | {tokens / seconds:,.0f} |"
    if args.kernels == 0:
        return row
    few = sentences[: args.kernels * args.batch]  # searches kernel by kernel are slow
    with recordings(False):
        timed(scorer, few[: args.batch], options, args.batch)
        kernel_seconds, expected = timed(scorer, few, options, args.batch)
    kernel_speed = sum(len(hypothesis.ids) for hypothesis in expected) / kernel_seconds
    with recordings(True):
        _, best = timed(scorer, few, options, args.batch)
    equal = sum(one.ids == other.ids for one, other in zip(best, expected, strict=True))
    pairs = [(one, other) for one, other in zip(best, expected, strict=True) if one.ids == other.ids]
    difference = max((abs(one.score - other.score) for one, other in pairs), default=0.0)
    ratio = tokens / seconds / kernel_speed
    return f"{row} {kernel_speed:,.0f} | {ratio:.1f} | {equal} of {len(few)} | {difference:.1e} |"


def parts(scorer: Scorer) -> Iterator[str]:
    """Yield the time of each recording, replayed by itself."""
    recorder = recorded.find_recorder(scorer)
    if recorder is None:
        return
    for (rows, _), recording in recorder.recordings().items():
        step = _replay_milliseconds(recording.replay)
        if recording.start is None:
            yield f"{rows} sentences: step {step:.3f} ms"
        else:
            start = _replay_milliseconds(recording.start.replay)
            positions = next(iter(recording.start.ids.values())).shape[1]
            shape = f"{rows} sentences of {positions} positions"
            yield f"{shape}: step {step:.3f} ms, encoder and first step {start:.3f} ms"


def _replay_milliseconds(replay: Callable[[], None], repetitions: int = 20) -> float:
    """Return the time of one replay on the device."""
    replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repetitions):
        replay()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / repetitions


def settings(args: Namespace) -> Iterator[tuple[str, ModelScorer, Sentences, SearchOptions]]:
    """Yield the rows to measure."""
    for name in args.scales:
        sizes, vocabulary, lengths = SIZES[name]
        network = build_model(model(sizes), vocabulary).eval().to(args.device)
        sentences = random_sentences(args.sentences, vocabulary, lengths)
        for precision, (search, beam) in product(args.precisions, SEARCHES.items()):
            scorer = ModelScorer(network, tf32=precision == "tf32")
            options = SearchOptions(beam=beam, max_ratio=1.0, max_extra=0)
            yield f"{name}, {search}, {precision}", scorer, sentences, options


def main() -> None:
    """Measure all rows and print them."""
    parser = argument_parser(__doc__)
    parser.add_argument("--scales", nargs="+", choices=SIZES, default=list(SIZES), help="Sizes of random models.")
    parser.add_argument("--precisions", nargs="+", choices=["tf32", "fp32"], default=["tf32", "fp32"], help="Products.")
    parser.add_argument("--device", default="cuda", help="Device of the model.")
    parser.add_argument("--batch", type=int, default=64, help="Sentences per batch.")
    parser.add_argument("--sentences", type=int, default=1024, help="Random sentences to translate.")
    parser.add_argument("--kernels", type=int, default=4, help="Batches to translate kernel by kernel.")
    parser.add_argument("--seconds", type=float, default=50.0, help="Start no row after this time.")
    parser.add_argument("--ahead", type=int, nargs="+", default=[], help="Values of MAX_STEPS_AHEAD to compare.")
    parser.add_argument("--compact", action="store_true", help="Compare with sentences that stay in the batch.")
    args = parse_arguments(parser)
    start = time.monotonic()
    part = Namespace(batch=args.batch, kernels=0)  # of the variants, whose ratio is the same
    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    print(f"{device}, torch {torch.__version__}, {args.batch} sentences per batch", flush=True)
    print("| search | first pass, tokens/s | recorded, tokens/s | kernel by kernel | ratio | equal | max difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    details = list[str]()
    for name, scorer, sentences, options in settings(args):
        variants = [(f"{name}, {steps} steps ahead", "MAX_STEPS_AHEAD", steps) for steps in args.ahead]
        if args.compact:
            variants.append((f"{name}, all rows stay", "ROW_MULTIPLE", args.batch))
        if time.monotonic() - start < args.seconds:
            print(measure(name, scorer, sentences, options, args), flush=True)
        for title, constant, value in variants:
            if time.monotonic() - start > args.seconds:
                break
            default = getattr(recorded, constant)
            setattr(recorded, constant, value)
            print(measure(title, scorer, sentences, options, part), flush=True)
            setattr(recorded, constant, default)
        details += [f"{name}: {part}" for part in parts(scorer)]
        recorded.forget(scorer.recording_owner)
    print("", *details, sep="\n")


if __name__ == "__main__":
    main()
