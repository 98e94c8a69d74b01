"""Search and forced decoding of any number of sentences: sorted by length, in batches, in the order given."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

from rnnsearch.data.sides import Side
from rnnsearch.data.spelling import Characters
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam
from rnnsearch.search.columns import ColumnChooser
from rnnsearch.search.constraints import SearchOptions, batch_options, require_entries
from rnnsearch.search.forced import forced
from rnnsearch.search.greedy import greedy
from rnnsearch.search.hypothesis import EMPTY, Hypothesis, SentenceError
from rnnsearch.search.plan import Plan
from rnnsearch.search.ranking import MEAN, Ranking
from rnnsearch.search.room import longest_first, sentences_at_once
from rnnsearch.search.scorer import SOURCE, Scorer, Sources
from rnnsearch.search.several import several
from rnnsearch.search.workers import FEWEST, one_thread_each
from rnnsearch.text.tokenizer import Spelled
from rnnsearch.text.vocabulary import EOS, PAD

ATTENDED = 1 << 25
"""Weights of attention that a batch may come to keep, at most: one of long sentences has fewer, too."""
Ids = Sequence[int]
MakeSources = Callable[[Sequence[Ids], torch.device], Sources]
"""Makes a batch on a device from the sentences' ids (without EOS)."""
Progress = Callable[[int], None]
"""Is told the sentences done so far."""
Result = TypeVar("Result")


def ended(sentences: Sequence[Ids]) -> Tensor:
    """Ids [B, T] of sentences, EOS after each, then padding."""
    width = max(map(len, sentences))
    return torch.tensor([[*ids, EOS, *[PAD] * (width - len(ids))] for ids in sentences])


def make_sources(
    sentences: Sequence[Ids], device: torch.device, characters: Characters | None = None, name: str = SOURCE
) -> Sources:
    """The batch of a system with one source: EOS after each sentence, then padding. With `characters`, of sentences
    that are `Spelled`, symbols have their spelling."""
    padded = ended(sentences)
    if characters is None:
        return {name: Side.of(padded).to(device)}
    unknown = [ids.unknown if isinstance(ids, Spelled) else [] for ids in sentences]
    return {name: Side.of(padded, characters.spelling(padded, unknown)).to(device)}


def decode_all(
    scorer: Scorer,
    sentences: Sequence[Ids],
    options: SearchOptions,
    batch_sentences: int = 64,
    *,
    columns: ColumnChooser | None = None,
    plan: Plan | None = None,
    make: MakeSources = make_sources,
    progress: Progress | None = None,
) -> list[list[Hypothesis]]:
    """The translations of each sentence (ids without EOS), best first: at least one, at most `n_best`.

    An empty sentence has one empty translation, and the scorer is not asked; one of which nothing that is allowed was
    found has `BLOCKED`. A beam of one is greedy search, where
    `options.variant` says nothing else.
    `columns` says which symbols a batch's translations are made of; all without it.
    `options.prefix` and `options.spelling` have one entry a sentence. `plan` says which sentences wait for others, and
    what they are then in place of what is given here; without it all are searched together.
    Errors: SentenceError, with the number among `sentences`.
    """
    require_entries(options, len(sentences))
    found, rows = _Found([[EMPTY] for _ in sentences], progress), list(sentences)

    def most(length: int) -> int:
        steps = options.max_ratio * length + options.max_extra + 1
        return sentences_at_once(batch_sentences, options.beam, length + 1, steps, ATTENDED)

    def search(batch: list[int]) -> list[list[Hypothesis]]:
        sources = make([rows[i] for i in batch], scorer.device)
        mine = batch_options(options, batch)
        with _renumbered(batch):
            if options.variant is not None:
                return several(scorer, sources, mine, options.variant, columns)
            return (greedy if options.beam == 1 else beam)(scorer, sources, mine, columns)

    # On the CPU as many batches are searched at a time as torch has threads.
    threads = torch.get_num_threads() if scorer.device.type == "cpu" else 1
    for wave in [range(len(rows))] if plan is None else plan.waves(len(rows)):
        if plan is not None:
            for i in plan.waits.keys() & wave:
                rows[i] = plan.source(i, [found.results[j][0] for j in plan.waits[i]])
        work = {i: len(rows[i]) for i in wave}
        batches = _spread(list(longest_first(work, most)), threads)
        found.tell(list(work.values()).count(0))
        for batch, results in zip(batches, _each(search, batches, threads), strict=True):
            found.add(batch, results)
    return found.results


def forced_all(
    scorer: Scorer,
    sentences: Sequence[Ids],
    targets: Sequence[Ids],
    ranking: Ranking = MEAN,
    batch_sentences: int = 64,
    *,
    make: MakeSources = make_sources,
    progress: Progress | None = None,
) -> list[Hypothesis]:
    """The given target of each sentence as a hypothesis (see `forced`); ids are without EOS on both sides.

    Where both sides are empty the scorer is not asked; an empty source alone is read as EOS.
    Errors: RnnsearchError where the sides differ in number; SentenceError, numbered as in `sentences`.
    """
    if len(sentences) != len(targets):
        raise RnnsearchError(f"targets must be as many as the sources ({len(sentences)}); got {len(targets)}")
    found = _Found([EMPTY for _ in sentences], progress)
    found.tell(sum(not x and not y for x, y in zip(sentences, targets, strict=True)))
    for batch in pair_batches(sentences, targets, batch_sentences, ATTENDED):
        sources = make([sentences[i] for i in batch], scorer.device)
        mine = [targets[i] for i in batch]
        with _renumbered(batch):
            found.add(batch, forced(scorer, sources, mine, ranking))
    return found.results


def pair_batches(
    sentences: Sequence[Ids], targets: Sequence[Ids], batch_sentences: int, attended: int
) -> Iterator[list[int]]:
    """The numbers of the pairs that are not empty, in batches of about as long ones, of so many weights at most."""

    def most(symbols: int) -> int:
        half = symbols // 2 + 1  # there are most pairs of a source's and a target's where both are equally long
        return sentences_at_once(batch_sentences, 1, half, float(half), attended)

    work = {i: len(x) + len(y) for i, (x, y) in enumerate(zip(sentences, targets, strict=True))}
    return longest_first(work, most)


class _Found(Generic[Result]):
    """The results so far, in the order of the sentences."""

    def __init__(self, results: list[Result], progress: Progress | None) -> None:
        self.results = results
        self._progress = progress
        self._done = 0

    def add(self, batch: Sequence[int], results: Sequence[Result]) -> None:
        """Those of some sentences."""
        for i, result in zip(batch, results, strict=True):
            self.results[i] = result
        self.tell(len(batch))

    def tell(self, more: int) -> None:
        """So many more sentences are done."""
        self._done += more
        if self._progress is not None:
            self._progress(self._done)


@contextmanager
def _renumbered(batch: Sequence[int]) -> Iterator[None]:
    """Errors in it are of sentences by their numbers in the call."""
    try:
        yield
    except SentenceError as error:
        raise error.renumbered(batch[error.sentence]) from None


def _spread(batches: list[list[int]], threads: int) -> list[list[int]]:
    """Where there are fewer batches than threads: as many as there are threads, of at least FEWEST sentences each,
    dealt out in turn, so that all have long and short ones and end at about the same time; where so many of the longest
    may be in one batch."""
    order = [i for batch in batches for i in batch]
    shares = min(threads, len(order) // FEWEST)
    if shares <= len(batches) or len(order) > shares * len(batches[0]):
        return batches
    return [order[first::shares] for first in range(shares)]


def _each(
    search: Callable[[list[int]], list[list[Hypothesis]]], batches: list[list[int]], threads: int
) -> Iterator[list[list[Hypothesis]]]:
    """`search` of every batch, in order, so many at a time, each on one thread; of a failure those that wait are not
    begun."""
    workers = min(threads, len(batches))
    if workers <= 1:
        yield from map(search, batches)
        return
    with one_thread_each(workers) as pool:
        yield from pool.map(search, batches)
