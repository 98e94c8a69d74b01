"""Search speed of models with several sources or with context sentences, relative to the model of one source.

Run it as `python -m benchmarks.sources`; `--output FILE` also writes the table. Sizes are those of `families.py`:
embeddings of 256, decoders of 512 units, vocabularies of 8,000 tokens, and batches of 64 synthetic sentences of about
12 tokens. Each further source has sentences of the same lengths, each context the given number of them. The models are
untrained, so that search continues up to the limit of 20 tokens. Times are CPU times, of encoding and search; the
models take turns, and the best round of each counts.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.families import ADDITIVE, BOTH, GENERAL, GRU, MAX_LENGTH, PAIRS, STACK, VOCABULARY_SIZE, model
from benchmarks.harness import Row, argument_parser, machine_line, parse_arguments, publish, table, time_call
from rnnsearch.config import resolve
from rnnsearch.data.batch import Stream
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.model_scorer import FastestScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import CONTEXT_END, EOS, PAD

BAHDANAU = model(GRU, {"type": "bahdanau-tanh", "readout": 512}, ADDITIVE)
CGRU = model(GRU, {"type": "cgru", "cell": "torch-gru", "readout": 512}, ADDITIVE)
LUONG = model(BOTH, {**STACK, "type": "luong", "readout": 512}, GENERAL)
HIERARCHICAL = {"de@previous": {"type": "hierarchical", "cell": "gru", "size": 256}}


class Case(NamedTuple):
    """A model and the streams that it reads."""

    model: Row  # a `[model]` table
    sources: tuple[tuple[str, int], ...]  # names of the streams and numbers of sentences in each
    combination: Row | None = None  # `[model.sources]`

    @property
    def options(self) -> Row:
        """The `[model]` table with the combination of sources."""
        return self.model if self.combination is None else {**self.model, "sources": self.combination}


ONE = (("de", 1),)
TWO = (("de", 1), ("fr", 1))
MEAN, CONCATENATION, CHILD_SUM = ({"type": name} for name in ("mean", "concatenation", "child-sum"))
CASES: dict[str, tuple[str, Case]] = {
    "bahdanau-tanh, one source": ("", Case(BAHDANAU, ONE)),
    "bahdanau-tanh, two sources, mean": ("bahdanau-tanh, one source", Case(BAHDANAU, TWO, MEAN)),
    "bahdanau-tanh, two sources, concatenation": ("bahdanau-tanh, one source", Case(BAHDANAU, TWO, CONCATENATION)),
    "cgru, one source": ("", Case(CGRU, ONE)),
    "cgru, two sources, mean": ("cgru, one source", Case(CGRU, TWO, MEAN)),
    "luong, one source": ("", Case(LUONG, ONE)),
    "luong, two sources, child-sum": ("luong, one source", Case(LUONG, TWO, CHILD_SUM)),
    "context: 1 sentence, concatenated": ("bahdanau-tanh, one source", Case(BAHDANAU, (("de", 2),))),
    "context: 1 source sentence, stream": (
        "bahdanau-tanh, one source",
        Case(BAHDANAU, (("de", 1), ("de@previous", 1)), CONCATENATION),
    ),
    "context: 1 source and 1 target sentence, streams": (
        "bahdanau-tanh, one source",
        Case(BAHDANAU, (("de", 1), ("de@previous", 1), ("en@previous", 1)), CONCATENATION),
    ),
    "context: 4 source sentences, hierarchical": (
        "bahdanau-tanh, one source",
        Case(BAHDANAU, (("de", 1), ("de@previous", 4)), {**CONCATENATION, "encoders": HIERARCHICAL}),
    ),
}
"""Name of the model with one source, empty for that itself, and the model, by name."""


def make_model(case: Case) -> TranslationModel:
    """Build the model of a case, untrained."""
    names = [name for name, _ in case.sources]
    data: Row = {"source": [n for n in names if "@" not in n], "target": "en", "train": ["none"]}
    if any("@" in name for name in names):
        previous = {"source": "de@previous" in names, "target": "en@previous" in names}
        data |= {"documents": True, "context": {"type": "streams", "sentences": 4, **previous}}
    if len(data["source"]) == 1:
        data["source"] = data["source"][0]
    training = {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}}
    config = resolve({"data": data, "model": case.options, "training": training}).translation
    if case.combination is None:
        return build(config, VOCABULARY_SIZE, VOCABULARY_SIZE, seed=1).eval()
    return build(config, dict.fromkeys(names, VOCABULARY_SIZE), VOCABULARY_SIZE, seed=1).eval()


def make_stream(sentences: int, seed: int) -> Stream:
    """Return the stream of a batch, with some random sentences per row."""
    import torch

    rng = random.Random(seed)
    rows = []
    for _ in range(PAIRS):
        row: list[int] = []
        for _ in range(sentences):
            row += [rng.randrange(4, VOCABULARY_SIZE) for _ in range(rng.randrange(11, 14))] + [CONTEXT_END]
        rows.append(torch.tensor([*row[:-1], EOS]))
    return Stream.from_ids(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD))


def make_search(case: Case, fastest: FastestScorer, beam: int) -> Callable[[], object]:
    """Return a function that translates a batch."""
    sources = {name: make_stream(sentences, seed) for seed, (name, sentences) in enumerate(case.sources)}
    options = SearchOptions(beam=beam, n_best=1, max_ratio=0.0, max_extra=MAX_LENGTH)
    return lambda: (greedy_search if beam == 1 else beam_search)(fastest.scorer, sources, options)


def rows(args: Namespace) -> Iterator[list[object]]:
    """Yield per case the CPU milliseconds per sentence and the speed relative to one source, greedy and beam 5."""
    searches = {}
    descriptions = {}
    for name in args.cases:
        case = CASES[name][1]
        fastest = fastest_scorer(make_model(case), args.precision)
        descriptions[name] = fastest.description
        for beam in (1, 5):
            searches[name, beam] = make_search(case, fastest, beam)
            searches[name, beam]()
    best = dict.fromkeys(searches, float("inf"))
    for _ in range(args.rounds):
        for key, search in searches.items():
            best[key] = min(best[key], time_call(search)[2])
    for name in args.cases:
        row: list[object] = [name]
        for beam in (1, 5):
            baseline = best.get((CASES[name][0], beam))
            row += [1000 * best[name, beam] / PAIRS, None if baseline is None else baseline / best[name, beam]]
        yield [*row, descriptions[name]]


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.set_defaults(threads=1)
    parser.add_argument(
        "--cases", nargs="+", choices=[*CASES], default=[*CASES], metavar="CASE", help="names of models"
    )
    parser.add_argument("--precision", default="auto", help="precision of products")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the best counts")
    args = parse_arguments(parser)
    columns = " | ".join(f"{name}, CPU ms {{:.2f}} | speed {{:.0%}}" for name in ("greedy", "beam 5"))
    publish([machine_line(), "", *table(f"model | {columns} | search", rows(args))], args.output)


if __name__ == "__main__":
    main()
