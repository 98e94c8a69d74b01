"""Search speed of models with several sources or with context sentences, relative to the model of one source.

Run it as `python -m benchmarks.sources`; `--output FILE` also writes the table. Sizes are those of `families.py`:
embeddings of 256, decoders of 512 units, vocabularies of 8,000 tokens, and batches of 64 synthetic sentences of about
12 tokens. Each further source has sentences of the same lengths, each context the given number of them. The models are
untrained, so that search continues up to the limit of 20 tokens. Times are CPU times, of encoding and search; the
models take turns, and the best round of each counts. Each model is also searched step by step in PyTorch, with native
products only, as models without native search are.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.families import ADDITIVE, BOTH, GENERAL, GRU, MAX_LENGTH, PAIRS, STACK, VOCABULARY_SIZE, model
from benchmarks.harness import Row, argument_parser, machine_line, parse_arguments, publish, table, time_call
from rnnsearch.accel.search import packed_model
from rnnsearch.config import resolve
from rnnsearch.data.batch import Stream
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer, native_dtype
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import Scorer
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import CONTEXT_END, EOS, PAD

BAHDANAU = model(GRU, {"type": "bahdanau-tanh", "readout": 512}, ADDITIVE)
CGRU = model(GRU, {"type": "cgru", "cell": "torch-gru", "readout": 512}, ADDITIVE)
LUONG = model(BOTH, {**STACK, "type": "luong", "readout": 512}, GENERAL)
BEAMS = (1, 5)
HIERARCHICAL = {"de@previous": {"type": "hierarchical", "cell": "gru", "size": 256}}


class Case(NamedTuple):
    """A model and the streams that it reads."""

    baseline: str  # name of the model with one source; empty for that itself
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
BAHDANAU_NAME = "bahdanau-tanh, one source"
CASES: dict[str, Case] = {
    BAHDANAU_NAME: Case("", BAHDANAU, ONE),
    "bahdanau-tanh, two sources, mean": Case(BAHDANAU_NAME, BAHDANAU, TWO, MEAN),
    "bahdanau-tanh, two sources, concatenation": Case(BAHDANAU_NAME, BAHDANAU, TWO, CONCATENATION),
    "cgru, one source": Case("", CGRU, ONE),
    "cgru, two sources, mean": Case("cgru, one source", CGRU, TWO, MEAN),
    "luong, one source": Case("", LUONG, ONE),
    "luong, two sources, child-sum": Case("luong, one source", LUONG, TWO, CHILD_SUM),
    "1 previous source sentence, concatenated words": Case(BAHDANAU_NAME, BAHDANAU, (("de", 2),)),
    "1 previous source sentence, stream, mean": Case(BAHDANAU_NAME, BAHDANAU, (("de", 1), ("de@previous", 1)), MEAN),
    "1 previous source sentence, stream, concatenation": Case(
        BAHDANAU_NAME, BAHDANAU, (("de", 1), ("de@previous", 1)), CONCATENATION
    ),
    "1 previous source and target sentence, streams, mean": Case(
        BAHDANAU_NAME, BAHDANAU, (("de", 1), ("de@previous", 1), ("en@previous", 1)), MEAN
    ),
    "1 previous source and target sentence, streams, concatenation": Case(
        BAHDANAU_NAME, BAHDANAU, (("de", 1), ("de@previous", 1), ("en@previous", 1)), CONCATENATION
    ),
    "4 previous source sentences, hierarchical": Case(
        BAHDANAU_NAME,
        BAHDANAU,
        (("de", 1), ("de@previous", 4)),
        {**CONCATENATION, "encoders": HIERARCHICAL},
    ),
}


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


def make_search(case: Case, scorer: Scorer, beam: int) -> Callable[[], object]:
    """Return a function that translates a batch."""
    sources = {name: make_stream(sentences, seed) for seed, (name, sentences) in enumerate(case.sources)}
    options = SearchOptions(beam=beam, n_best=1, max_ratio=0.0, max_extra=MAX_LENGTH)
    return lambda: (greedy_search if beam == 1 else beam_search)(scorer, sources, options)


def pytorch_scorer(model: TranslationModel, precision: str) -> Scorer:
    """Return the scorer of a model without native search, with native products."""
    dtype = native_dtype(model.device, precision)
    packed = None if dtype is None else packed_model(model, dtype)
    return ModelScorer(model if packed is None else packed)


def rows(args: Namespace) -> Iterator[list[object]]:
    """Yield per case, for greedy search and a beam of 5, the CPU time, and the speed relative to others."""
    searches: dict[tuple[str, int, bool], Callable[[], object]] = {}
    descriptions = {}
    for name in args.cases:
        case = CASES[name]
        model = make_model(case)
        fastest = fastest_scorer(model, args.precision)
        descriptions[name] = fastest.description
        for beam in BEAMS:
            searches[name, beam, True] = make_search(case, fastest.scorer, beam)
            searches[name, beam, False] = make_search(case, pytorch_scorer(model, args.precision), beam)
    best = dict.fromkeys(searches, float("inf"))
    for _ in range(args.rounds):
        for key, search in searches.items():
            best[key] = min(best[key], time_call(search)[2])
    for name in args.cases:
        row: list[object] = [name]
        for beam in BEAMS:
            seconds = best[name, beam, True]
            baseline = best.get((CASES[name].baseline, beam, True))
            relative = None if baseline is None else baseline / seconds
            row += [1000 * seconds / PAIRS, relative, best[name, beam, False] / seconds]
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
    columns = []
    for beam in BEAMS:
        search = "greedy" if beam == 1 else f"beam {beam}"
        columns.append(f"{search}, CPU ms per sentence {{:.2f}} | of one source {{:.0%}} | over PyTorch {{:.1f}}x")
    head = f"model | {' | '.join(columns)} | search"
    publish([machine_line(), "", *table(head, rows(args))], args.output)


if __name__ == "__main__":
    main()
