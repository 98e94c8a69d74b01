"""Search and forced decoding of any number of sentences: sorted by length, in batches, in the order given."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rnnsearch.data.batch import Side
from rnnsearch.data.characters import Characters
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.batching import longest_first, sentences_at_once
from rnnsearch.search.beam import beam, greedy
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.constraints import max_lengths, score_columns
from rnnsearch.search.forced import forced
from rnnsearch.search.hypothesis import BLOCKED, EMPTY, Hypothesis, SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import MEAN_LOG_PROB, Ranking
from rnnsearch.search.sampling import Variant
from rnnsearch.search.scorer import SOURCE, Scorer, Sources, disturbed
from rnnsearch.search.workers import FEWEST, one_thread_each
from rnnsearch.text.tokenizer import Spelled
from rnnsearch.text.vocabulary import EOS, PAD
from rnnsearch.utils.tensors import select

# A decode plan: which sentences of a call wait for the translations of others (the sentence before it in a document,
# another language's first, ...), and what they are once these are found.


@dataclass(frozen=True)
class Plan:
    """What waits, by number in the call; sentences that `waits` does not name wait for nothing."""

    waits: Mapping[int, Sequence[int]]
    """Sentence -> those that it waits for."""
    source: Callable[[int, Sequence[Hypothesis]], Sequence[int]]
    """(sentence, the best hypothesis of each that it waits for, in that order) -> its ids, without EOS."""

    def waves(self, sentences: int) -> Iterator[list[int]]:
        """The numbers of so many sentences, in rising order, each wave when all before it have been found.

        Errors: RnnsearchError where sentences wait for themselves or for none of the call.
        """
        sorter = TopologicalSorter({number: self.waits.get(number, ()) for number in range(sentences)})
        for number in {*self.waits, *(other for others in self.waits.values() for other in others)}:
            if not 0 <= number < sentences:
                raise RnnsearchError(f"a plan must be of the {sentences} sentences (counting from 0); got {number}")
        try:
            sorter.prepare()
        except CycleError as error:
            ring = error.args[1]
            raise RnnsearchError(f"a plan's sentences must not wait for themselves; got the ring {ring}") from None
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            yield ready
            sorter.done(*ready)


# The search of a `variants.Variant`: each sentence several times in one beam search, its copies encoded once.


def several(
    scorer: Scorer, sources: Sources, options: SearchOptions, variant: Variant, columns: ColumnChooser | None = None
) -> list[list[Hypothesis]]:
    """The n best hypotheses that a sentence's copies have found together; finished ones first, each kind by falling
    score; `BLOCKED` alone where no copy has found any. Errors: as in `beam`."""
    copies = variant.copies(options.beam)
    width, sentences = options.beam // copies, len(next(iter(sources.values())).ids)
    rows = torch.arange(sentences, device=scorer.device).repeat_interleave(copies)
    repeated = _rows(sources, rows)
    own = replace(options.select(rows.tolist()), beam=width, n_best=width, variant=None)
    own = replace(own, compact_at=0.0)  # a copy that has ended has no say in what the others choose
    choose = variant.selector(sources, copies, max_lengths(repeated, own))
    try:
        by = variant.wrap_scorer(_Copied(scorer, sources, rows), sources, copies)
        found = beam(by, repeated, own, columns, choose)
    except SentenceError as error:
        raise error.renumbered(error.sentence // copies) from None
    each = [list(chain.from_iterable(found[first : first + copies])) for first in range(0, len(found), copies)]
    each = [[h for h in hypotheses if not h.blocked] for hypotheses in each]
    if variant.distinct:
        each = [list({h.ids: h for h in hypotheses}.values()) for hypotheses in each]
    if variant.rescored:
        each = _rescored(scorer, sources, each, options, score_columns(scorer, repeated, own, columns).ids)
    best = [sorted(one, key=lambda h: (not h.finished, -h.score))[: options.n_best] for one in each]
    return [own or [BLOCKED] for own in best]


def _rows(sources: Sources, rows: Tensor) -> Sources:
    return {name: Side.of(side.ids[rows]) for name, side in sources.items()}


def _rescored(
    scorer: Scorer, sources: Sources, each: list[list[Hypothesis]], options: SearchOptions, columns: Tensor | None
) -> list[list[Hypothesis]]:
    """Each sentence's hypotheses as `scorer` scores them."""
    flat = list(chain.from_iterable(each))
    if not flat:
        return each
    rows = torch.tensor([n for n, own in enumerate(each) for _ in own], device=scorer.device)
    copied, ended = _Copied(scorer, sources, rows), [h.finished for h in flat]
    again = forced(copied, _rows(sources, rows), [h.ids for h in flat], options.ranking, ended, columns)
    made = iter(again)
    return [[next(made) for _ in own] for own in each]


class _Copied:
    """A Scorer of `rows`, numbers of the rows of `sources`, which are encoded once each."""

    def __init__(self, scorer: Scorer, sources: Sources, rows: Tensor) -> None:
        self._scorer, self._sources, self._rows = scorer, sources, rows
        self.vocabulary, self.normalised, self.device = scorer.vocabulary, scorer.normalised, scorer.device
        self.step = scorer.step

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[object, object]:
        found: tuple[object, object] = select(self._scorer.start(self._sources, columns), self._rows)
        return found

    def disturbed(self, state: Any, by: Callable[[Tensor], Tensor]) -> Any:
        return disturbed(self._scorer, state, by)


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
    options.require_one_entry_per_sentence(len(sentences))
    found, rows = _Found([[EMPTY] for _ in sentences], progress), list(sentences)

    def most(length: int) -> int:
        steps = options.max_ratio * length + options.max_extra + 1
        return sentences_at_once(batch_sentences, options.beam, length + 1, steps, ATTENDED)

    def search(batch: list[int]) -> list[list[Hypothesis]]:
        sources = make([rows[i] for i in batch], scorer.device)
        mine = options.select(batch)
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
    ranking: Ranking = MEAN_LOG_PROB,
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
