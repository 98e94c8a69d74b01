"""Speed of document translation by models that read previous sentences, relative to sentences by the bilingual model.

Run it as `python -m benchmarks.documents`; `--output FILE` also writes the table. Sizes are those of
`benchmarks.families` (embeddings of 256, encoders of 256 and decoders of 512 units, vocabularies of 8,000 words). The
text consists of synthetic sentences of about 13 words. The models are untrained, so that each translation has the
limit of 20 tokens. All models take turns in each round; speeds are sentences per second of CPU time, which other
processes hardly disturb, and relative speeds are medians over the rounds. Segmentation and detokenization are included.
"""

from __future__ import annotations

import random
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from benchmarks.families import ADDITIVE, GRU, MAX_LENGTH, VOCABULARY_SIZE, model
from benchmarks.harness import Row, argument_parser, log, machine_line, parse_arguments, publish, table, time_call
from rnnsearch.config import resolve
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.words import train_words
from rnnsearch.translator.translator import Translator

WORDS = (11, 14)
"""Range of the number of words per sentence."""
HIERARCHICAL = {"type": "hierarchical", "cell": "gru", "size": 256}
SYSTEMS: dict[str, dict[str, Any]] = {
    "sentences": {},
    "concatenation, 1 sentence": {"context": {"type": "concatenation", "sentences": 1}},
    "source stream, 1 sentence": {"context": {"type": "streams", "sentences": 1}},
    "source and target streams, 1 sentence": {"context": {"type": "streams", "sentences": 1, "target": True}},
    "source and target streams, 1 sentence, mean": {
        "context": {"type": "streams", "sentences": 1, "target": True},
        "sources": {"type": "mean"},
    },
    "hierarchical, 4 sentences": {
        "context": {"type": "streams", "sentences": 4},
        "sources": {"type": "concatenation", "encoders": {"en@previous": HIERARCHICAL}},
    },
}
"""`data.context` and `model.sources` by name; the first is the bilingual model."""


def synthetic_documents(num_documents: int, sentences: int, seed: int) -> list[list[str]]:
    """Return documents of random words."""
    rng = random.Random(seed)
    documents = []
    for _ in range(num_documents):
        lengths = [rng.randrange(*WORDS) for _ in range(sentences)]
        documents.append([" ".join(f"w{rng.randrange(VOCABULARY_SIZE)}" for _ in range(n)) for n in lengths])
    return documents


def make_translator(system: dict[str, Any]) -> Translator:
    """Return an untrained model."""
    data: Row = {"source": "en", "target": "de", "train": ["x.tsv"]}
    options = model(GRU, {"type": "bahdanau-tanh", "readout": 512}, ADDITIVE)
    context = system.get("context")
    if context is not None:
        data |= {"documents": True, "context": context}
        if context["type"] == "streams":
            options["sources"] = system.get("sources", {"type": "concatenation"})
    tables = {
        "data": data,
        "text": {"type": "words", "vocabulary": VOCABULARY_SIZE},
        "model": options,
        "training": {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}},
    }
    vocabulary = train_words([f"w{number}" for number in range(VOCABULARY_SIZE)], VOCABULARY_SIZE, 1)
    return Translator(TranslationSystem.make(resolve(tables), {"en": vocabulary, "de": vocabulary}, 1))


def make_task(translator: Translator, documents: Sequence[Sequence[str]], beam: int) -> Callable[[], object]:
    """Return a function that translates the documents, or all sentences if the model reads no context."""
    options = translator.options(beam, max_length=MAX_LENGTH)
    if translator.system.reads_context:
        return lambda: translator.translate_documents(documents, options)
    sentences = list(chain.from_iterable(documents))
    return lambda: translator.translate(sentences, options)


def rows(args: Namespace) -> Iterator[list[object]]:
    """Yield per model its search, and per beam the sentences per second and the speed relative to sentences."""
    documents = synthetic_documents(args.documents, args.sentences, seed=3)
    translators = {name: make_translator(SYSTEMS[name]) for name in ("sentences", *args.systems)}
    seconds: dict[tuple[str, int], list[float]] = {}
    for number in range(args.rounds + 1):
        for name, translator in translators.items():
            for beam in args.beams:
                _, _, cpu_seconds = time_call(make_task(translator, documents, beam))
                if number:  # the first round warms up
                    seconds.setdefault((name, beam), []).append(cpu_seconds)
        log(f"round {number} of {args.rounds}")
    num_sentences = args.documents * args.sentences
    for name, translator in translators.items():
        cells: list[object] = []
        for beam in args.beams:
            times = seconds[name, beam]
            base = seconds["sentences", beam]
            relative = statistics.median(one / other for one, other in zip(base, times, strict=True))
            cells += [num_sentences / statistics.median(times), relative]
        yield [name, *cells, translator.search.description]


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    names = [name for name in SYSTEMS if name != "sentences"]
    parser.add_argument("--systems", nargs="+", choices=names, default=names, help="models that read context")
    parser.add_argument("--documents", type=int, default=64, help="number of documents, which are read in parallel")
    parser.add_argument("--sentences", type=int, default=4, help="sentences per document")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=5)
    args = parse_arguments(parser)
    columns = " | ".join(f"beam {beam}, sentences/s {{:,.0f}} | relative {{:.0%}}" for beam in args.beams)
    title = f"{args.documents} documents of {args.sentences} sentences. {machine_line()}"
    publish([title, "", *table(f"model | {columns} | search", rows(args))], args.output)


if __name__ == "__main__":
    main()
