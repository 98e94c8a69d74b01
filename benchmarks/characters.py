"""What characters cost: models that read or spell words by them, or have them for symbols, beside words and BPE.

Run it as `python -m benchmarks.characters --train en.txt de.txt`; `--output FILE` also writes the table. All have the
preset `small`'s decoder and are untrained. Training is of the same batch of sentence pairs by each, cut as each cuts
text; search is greedy, of the same sentences, to a length that the references have on average. A time is the best of
some rounds, which the models take in turn, so that a busy machine is as busy for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, machine_line, parsed, parser, publish, seconds_of, table
from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.data.corpus import read_lines
from rnnsearch.models.draws import Draws
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all
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
    """A whole config of these tables."""
    return resolve({"data": {"source": "en", "target": "de", "train": ["x.tsv"]}, **tables})


def system_of(config: RunConfig, columns: tuple[list[str], ...]) -> TranslationSystem:
    """An untrained system over the text's symbols."""
    tokenizers = {}
    for side, kind, lines in zip(config.data.sides, config.text.types, columns, strict=True):
        tokenizers[side] = TRAINERS[kind](lines, config.text.vocabulary or 8000, 1)
    return TranslationSystem.make(config, tokenizers, 1)


def update_of(system: TranslationSystem, pairs: list[Pair]) -> Callable[[], object]:
    """One update of training, in bf16."""
    import torch  # after rnnsearch, which says how its threads wait

    rows = [
        tuple(t.segment([text])[0].spelled for t, text in zip((system.source, system.target), pair, strict=True))
        for pair in pairs
    ]
    batch = make_batch(rows, range(len(rows)), system.direction, system.spellings)
    optimiser, loss = torch.optim.Adam(system.model.parameters(), fused=True), system.objective()

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            total = loss(system.model, batch, Draws(1)).total
        total.backward()
        optimiser.step()
        optimiser.zero_grad()

    return update


def search_of(config: RunConfig, columns: tuple[list[str], ...], pairs: list[Pair]) -> Callable[[], object]:
    """Greedy search of the pairs' sources; its spelling, where the model spells, among it."""
    system = system_of(config, columns)
    system.model.eval()
    scorer = system.fastest("auto").scorer
    sources = [system.source.segment([source])[0].spelled for source, _ in pairs]
    mean = round(sum(len(system.target.ids([target])[0]) for _, target in pairs) / len(pairs)) + 1
    options = SearchOptions(beam=1, max_ratio=0.0, max_extra=mean)

    def search() -> None:
        found = decode_all(scorer, sources, options, make=system.sources)
        if system.can("spell"):
            unknown = [(s, h[0].ids) for s, h in zip(sources, found, strict=True) if 1 in h[0].ids]
            system.spell([s for s, _ in unknown], [ids for _, ids in unknown], 1)

    return search


def rows(given: Any) -> Iterator[list[object]]:
    """Each model's target words a second, and their share of the word model's."""
    columns = tuple(list(read_lines(path)) for path in given.train)
    every = list(zip(*columns, strict=True))
    pairs = every[:: max(1, len(every) // given.pairs)][: given.pairs]
    words = sum(len(target.split()) for _, target in pairs)
    works: dict[str, list[Callable[[], object]]] = {}
    for name in given.models:
        config = config_of(MODELS[name])
        works[name] = [update_of(system_of(config, columns), pairs), search_of(config, columns, pairs)]
    best: dict[str, list[float]] = {name: [float("inf")] * 2 for name in works}
    for _ in range(given.rounds):
        for name, own in works.items():
            times = [seconds_of(work, 1, 0.3) for work in own]
            best[name] = [min(pair) for pair in zip(best[name], times, strict=True)]
    first = best[given.models[0]]
    for name, times in best.items():
        shares = [(slow / own) for slow, own in zip(first, times, strict=True)]
        yield [name, *(words / seconds for seconds in times), *shares]


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--train", nargs=2, type=Path, required=True, help="text, line by line, of both languages")
    made.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    made.add_argument("--pairs", type=int, default=64)
    made.add_argument("--rounds", type=int, default=3)
    given = parsed(made)
    first = given.models[0]
    head = (
        "model | training, target words/s {:,.0f} | greedy, target words/s {:,.0f} | "
        f"training beside {first} {{:.0%}} | greedy beside {first} {{:.0%}}"
    )
    publish(
        [f"Training in bf16, search in the fastest precision here. {machine_line()}", "", *table(head, rows(given))],
        given.output,
    )


if __name__ == "__main__":
    main()
