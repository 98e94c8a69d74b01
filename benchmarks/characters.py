"""Cost of characters, compared with words and BPE.

The models read or generate words by characters, or have character vocabularies.

Run it as `python -m benchmarks.characters --train en.txt de.txt`; `--output FILE` also writes the table. All models are
untrained and have the decoder of the preset `small`. Each trains on the same batch of sentence pairs, segmented by its
own tokenizer, and translates the same sentences greedily up to the mean length of the references. A time is the best of
several rounds. The models take turns, so that load on the machine affects all of them equally.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, argument_parser, best_seconds, machine_line, parse_arguments, publish, table
from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.data.corpus import read_lines
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.search.decode import decode_all
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.subwords import train_bpe, train_characters
from rnnsearch.text.words import train_words

WORDS = {"preset": "small", "text": {"type": "words", "joint": False, "vocabulary": 10_000}}
MODELS: dict[str, Row] = {
    "words": WORDS,
    "words, LSTM in": WORDS | {"model": {"source_characters": {"type": "lstm"}}},
    "words, bi-LSTM in": WORDS | {"model": {"source_characters": {"type": "bilstm"}}},
    "words, CNN in": WORDS | {"model": {"source_characters": {"type": "cnn"}}},
    "words, n-grams in": WORDS | {"model": {"source_characters": {"type": "ngrams"}}},
    "words, pointer": WORDS | {"model": {"pointer": {}}},
    "words, CopyNet": {"preset": "copynet-small"},
    "hybrid": {"preset": "hybrid-small"},
    "BPE": {"preset": "small", "text": {"joint": False, "vocabulary": 8000}},
    "BPE to characters": {"preset": "characters-out-small", "text": {"vocabulary": 8000}},
    "BPE to characters, bi-scale": {"preset": "bi-scale-small", "text": {"vocabulary": 8000}},
    "characters": {"preset": "characters-small", "text": {"joint": False}},
}
TRAINERS = {"words": train_words, "bpe": train_bpe, "characters": train_characters}
Pair = tuple[str, str]


def config_of(tables: Row) -> RunConfig:
    """Resolve the config of a model."""
    return resolve({"data": {"source": "en", "target": "de", "train": ["x.tsv"]}, **tables})


def system_of(config: RunConfig, columns: tuple[list[str], ...]) -> TranslationSystem:
    """Build an untrained system with tokenizers trained on the source and target lines."""
    tokenizers = {}
    for language, text_type, lines in zip(config.data.languages, config.text.types, columns, strict=True):
        tokenizers[language] = TRAINERS[text_type](lines, config.text.vocabulary or 8000, 1)
    return TranslationSystem.make(config, tokenizers, 1)


def make_update(system: TranslationSystem, pairs: list[Pair]) -> Callable[[], object]:
    """Return a function that performs one training update in bf16."""
    import torch  # after rnnsearch, which configures how torch's threads wait

    rows = [
        tuple(t.segment([text])[0].spelled_ids for t, text in zip((system.source, system.target), pair, strict=True))
        for pair in pairs
    ]
    batch = make_batch(rows, range(len(rows)), system.direction, system.spellings)
    optimiser = torch.optim.Adam(system.model.parameters(), fused=True)
    loss = system.objective()

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            total = loss(system.model, batch, BatchRng(1)).total
        total.backward()
        optimiser.step()
        optimiser.zero_grad()

    return update


def make_search(config: RunConfig, columns: tuple[list[str], ...], pairs: list[Pair]) -> Callable[[], object]:
    """Return a function that translates the pairs' sources greedily, with character-level decoding if available."""
    system = system_of(config, columns)
    system.model.eval()
    scorer = system.fast_scorer("auto").scorer
    sources = [system.source.segment([source])[0].spelled_ids for source, _ in pairs]
    mean_length = round(sum(len(system.target.ids([target])[0]) for _, target in pairs) / len(pairs)) + 1
    options = SearchOptions(beam=1, max_ratio=0.0, max_extra=mean_length)

    def search() -> None:
        hypotheses = decode_all(scorer, sources, options, make_batch=system.make_sources)
        if system.can("spell"):
            unknown = [(s, h[0].ids) for s, h in zip(sources, hypotheses, strict=True) if 1 in h[0].ids]
            system.spell([s for s, _ in unknown], [ids for _, ids in unknown], 1)

    return search


def rows(args: Any) -> Iterator[list[object]]:
    """Yield per model the target words per second in training and search, absolute and relative to the first model."""
    columns = tuple(list(read_lines(path)) for path in args.train)
    all_pairs = list(zip(*columns, strict=True))
    pairs = all_pairs[:: max(1, len(all_pairs) // args.pairs)][: args.pairs]
    num_words = sum(len(target.split()) for _, target in pairs)
    tasks: dict[str, list[Callable[[], object]]] = {}
    for name in args.models:
        config = config_of(MODELS[name])
        tasks[name] = [make_update(system_of(config, columns), pairs), make_search(config, columns, pairs)]
    best: dict[str, list[float]] = {name: [float("inf")] * 2 for name in tasks}
    for _ in range(args.rounds):
        for name, functions in tasks.items():
            times = [best_seconds(function, 1, 0.3) for function in functions]
            best[name] = [min(pair) for pair in zip(best[name], times, strict=True)]
    first_times = best[args.models[0]]
    for name, times in best.items():
        relative = [first_time / time for first_time, time in zip(first_times, times, strict=True)]
        yield [name, *(num_words / seconds for seconds in times), *relative]


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--train", nargs=2, type=Path, required=True, help="parallel text, one file per language")
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS], help="models to measure")
    parser.add_argument("--pairs", type=int, default=64, help="number of sentence pairs")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    args = parse_arguments(parser)
    first = args.models[0]
    head = (
        "model | training, target words/s {:,.0f} | greedy, target words/s {:,.0f} | "
        f"training, relative to {first} {{:.0%}} | greedy, relative to {first} {{:.0%}}"
    )
    title = "Training in bf16, search in the fastest precision on this machine."
    publish([f"{title} {machine_line()}", "", *table(head, rows(args))], args.output)


if __name__ == "__main__":
    main()
