"""Search and forced decoding of any number of sentences, in batches of similar length; results are in input order.

`decode_all` and `force_decode_all` are the entry points of this package. On the CPU, batches are searched in parallel,
one per thread.

Before changing it: results must not depend on the batches or the threads, and an error names the sentence by its index
in the call (`SentenceError`). Tests: tests/properties/test_plan.py.

Axes: B sentences, T tokens with EOS.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rnnsearch.accel.cuda_graphs import graphs_are_enabled
from rnnsearch.config.data import ArrayConfig
from rnnsearch.data.arrays import ArrayIds
from rnnsearch.data.batch import Stream
from rnnsearch.data.characters import Characters
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.batching import batches_longest_first, max_batch_sentences
from rnnsearch.search.beam import BeamSearch, beam_search, greedy_search
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.constraints import max_lengths, score_columns
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import BLOCKED, EMPTY, Hypothesis, SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import MEAN_LOG_PROB, Ranking
from rnnsearch.search.sampling import Variant
from rnnsearch.search.scorer import SOURCE, Scorer, Sources, map_hidden_states
from rnnsearch.search.workers import MIN_SENTENCES_PER_THREAD, single_threaded_pool
from rnnsearch.text.tokenizer import SourceIds, SpelledIds
from rnnsearch.text.vocabulary import EOS, PAD
from rnnsearch.utils.tensors import select

MAX_ATTENTION_WEIGHTS = 1 << 25
"""Attention weights that a batch may have to store; batches of long sentences are smaller."""
Ids = Sequence[int]
MakeSources = Callable[[Sequence[Ids], torch.device], Sources]
"""Creates a batch on a device from the sentences' ids (without EOS)."""
Progress = Callable[[int], None]
"""Called with the number of sentences done so far."""
Result = TypeVar("Result")


def pad_with_eos(sentences: Sequence[Ids]) -> Tensor:
    """Return the ids [B, T] of sentences, each followed by EOS and padding."""
    width = max(map(len, sentences))
    return torch.tensor([[*ids, EOS, *[PAD] * (width - len(ids))] for ids in sentences])


def make_sources(
    sentences: Sequence[Ids], device: torch.device, characters: Characters | None = None, name: str = SOURCE
) -> Sources:
    """Return a batch with one source.

    Args:
        sentences: Token ids without EOS; with `characters`, sentences that are `SpelledIds`.
        device: Device of the batch.
        characters: Character inventory of a model that composes tokens from characters.
        name: Name of the source.
    """
    padded = pad_with_eos(sentences)
    if characters is None:
        return {name: Stream.from_ids(padded).to(device)}
    unknown: list[list[str]] = []
    for ids in sentences:
        unknown.append(ids.unknown if isinstance(ids, SpelledIds) else [])
    return {name: Stream.from_ids(padded, characters.character_table(padded, unknown)).to(device)}


def make_several_sources(
    sentences: Sequence[Ids],
    device: torch.device,
    names: Sequence[str],
    arrays: Mapping[str, ArrayConfig] | None = None,
) -> Sources:
    """Return a batch with several sources.

    A sentence that has no source at all is read as an empty one in the first.

    Args:
        sentences: Sentences, `SourceIds` or ids of the first source.
        device: Device of the batch.
        names: Names of the sources.
        arrays: Options of the sources that are arrays.
    """
    rows: list[Mapping[str, Ids]] = []
    for sentence in sentences:
        rows.append(sentence.by_source if isinstance(sentence, SourceIds) else {names[0]: sentence})
    sources = {}
    for name in names:
        if arrays and name in arrays:
            missing = np.zeros((0, arrays[name].features), np.float32)
            found = [row.get(name) for row in rows]
            values = [ids.values if isinstance(ids, ArrayIds) else missing for ids in found]
            sources[name] = Stream.from_arrays(values, width=1).to(device)
            continue
        column = []
        for row in rows:
            reads_end = row.get(name) or (name == names[0] and not any(row.values()))
            column.append([*row.get(name, ()), EOS] if reads_end else [])
        width = max(1, *map(len, column))
        padded = torch.tensor([[*ids, *[PAD] * (width - len(ids))] for ids in column])
        sources[name] = Stream.from_ids(padded).to(device)
    return sources


@dataclass(frozen=True)
class DecodePlan:
    """Sentences of a call whose source depends on the translations of others.

    Examples are document translation, which reads the sentence before, and translation through another language.
    """

    depends_on: Mapping[int, Sequence[int]]
    """Sentence index -> indices of the sentences whose translations it needs; missing ones need none."""
    make_source: Callable[[int, Sequence[Hypothesis]], Sequence[int]]
    """Returns a sentence's ids without EOS, given its index and the best hypotheses that it needs, in their order."""

    def waves(self, sentences: int) -> Iterator[list[int]]:
        """Yield the sentence indices in ascending order, each wave when all before it have been translated.

        Raises:
            RnnsearchError: The dependencies are cyclic, or on sentences that are not in the call.
        """
        yield from waves(self.depends_on, sentences)


def waves(depends_on: Mapping[int, Sequence[int]], sentences: int) -> Iterator[list[int]]:
    """Yield sentence indices in waves (see `DecodePlan`).

    Raises:
        RnnsearchError: The dependencies are cyclic, or on sentences that are not in the call.
    """
    sorter = TopologicalSorter({index: depends_on.get(index, ()) for index in range(sentences)})
    indices = set(depends_on)
    for dependencies in depends_on.values():
        indices.update(dependencies)
    for index in indices:
        if not 0 <= index < sentences:
            raise RnnsearchError(f"a plan must refer to the {sentences} sentences (counting from 0); got {index}")
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = error.args[1]
        raise RnnsearchError(f"the sentences of a plan must not wait for each other; got the cycle {cycle}") from None
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        yield ready
        sorter.done(*ready)


def decode_all(
    scorer: Scorer,
    sentences: Sequence[Ids],
    options: SearchOptions,
    batch_sentences: int = 64,
    *,
    candidates: ColumnChooser | None = None,
    plan: DecodePlan | None = None,
    make_batch: MakeSources = make_sources,
    progress: Progress | None = None,
) -> list[list[Hypothesis]]:
    """Return the translations of each sentence, best first: at least one, at most `n_best`.

    An empty sentence has one empty translation, and is not searched. A sentence for which the options allow no
    translation has `BLOCKED`. A beam of 1 without a variant is greedy search.

    Args:
        scorer: Scorer to use.
        sentences: Source token ids without EOS.
        options: Options of the search; its entries per sentence are in the order of `sentences`.
        batch_sentences: Maximum number of sentences per batch.
        candidates: Chooses the tokens that a batch's translations may consist of; by default the whole vocabulary.
        plan: Sentences whose source depends on other translations; by default none does.
        make_batch: Creates a batch from ids.
        progress: Called after every batch.

    Raises:
        SentenceError: A score is NaN or an option does not fit, with the index among `sentences`.
        SearchCancelled: `options.is_cancelled` returns True.
    """
    options.require_one_entry_per_sentence(len(sentences))
    results = _Results([[EMPTY] for _ in sentences], progress)
    source_ids = list(sentences)

    def batch_size(length: int) -> int:
        steps = options.max_ratio * length + options.max_extra + 1  # with EOS
        return max_batch_sentences(batch_sentences, options.beam, length + 1, steps, MAX_ATTENTION_WEIGHTS)

    def make_sources(batch: list[int]) -> Sources:
        options.raise_if_cancelled()
        return make_batch([source_ids[i] for i in batch], scorer.device)

    def begin(batch: list[int]) -> BeamSearch:
        sources = make_sources(batch)
        with _renumber_errors(batch):
            begun = BeamSearch(scorer, sources, options.select(batch), candidates)
            begun.begin()
            return begun

    def search(batch: list[int]) -> list[list[Hypothesis]]:
        sources = make_sources(batch)
        batch_options = options.select(batch)
        with _renumber_errors(batch):
            if options.variant is not None:
                return search_variant(scorer, sources, batch_options, options.variant, candidates)
            if options.beam == 1:
                return greedy_search(scorer, sources, batch_options, candidates)
            return beam_search(scorer, sources, batch_options, candidates)

    # A GPU runs one batch at a time.
    threads = torch.get_num_threads() if scorer.device.type == "cpu" else 1
    waves = [range(len(source_ids))] if plan is None else plan.waves(len(source_ids))
    for wave in waves:
        if plan is not None:
            # The sentences that they depend on are in earlier waves and have been translated.
            for i in plan.depends_on.keys() & wave:
                source_ids[i] = plan.make_source(i, [results.values[j][0] for j in plan.depends_on[i]])
        lengths = {i: len(source_ids[i]) for i in wave}
        batches = _split_for_threads(list(batches_longest_first(lengths, batch_size)), threads)
        results.report(list(lengths.values()).count(0))  # empty sentences are done
        if graphs_are_enabled(scorer.device) and options.variant is None:
            searches = _search_overlapping(begin, batches)
        else:
            searches = _search_in_parallel(search, batches, threads)
        for batch, hypotheses in zip(batches, searches, strict=True):
            results.add(batch, hypotheses)
    return results.values


def force_decode_all(
    scorer: Scorer,
    sentences: Sequence[Ids],
    targets: Sequence[Ids],
    ranking: Ranking = MEAN_LOG_PROB,
    batch_sentences: int = 64,
    *,
    make_batch: MakeSources = make_sources,
    progress: Progress | None = None,
) -> list[Hypothesis]:
    """Return the given target of each sentence as a hypothesis (see `force_decode`).

    Pairs of two empty sentences are not scored; an empty source with a target is read as EOS.

    Args:
        scorer: Scorer to use.
        sentences: Source token ids without EOS.
        targets: Target token ids without EOS.
        ranking: Score of the hypotheses.
        batch_sentences: Maximum number of sentences per batch.
        make_batch: Creates a batch from ids.
        progress: Called after every batch.

    Raises:
        RnnsearchError: The numbers of sources and targets differ.
        SentenceError: A score is NaN, with the index among `sentences`.
    """
    if len(sentences) != len(targets):
        raise RnnsearchError(f"targets must be as many as the sources ({len(sentences)}); got {len(targets)}")
    results = _Results([EMPTY for _ in sentences], progress)
    results.report(sum(not x and not y for x, y in zip(sentences, targets, strict=True)))
    for batch in pair_batches(sentences, targets, batch_sentences, MAX_ATTENTION_WEIGHTS):
        sources = make_batch([sentences[i] for i in batch], scorer.device)
        with _renumber_errors(batch):
            results.add(batch, force_decode(scorer, sources, [targets[i] for i in batch], ranking))
    return results.values


def pair_batches(
    sentences: Sequence[Ids], targets: Sequence[Ids], batch_sentences: int, max_weights: int
) -> Iterator[list[int]]:
    """Yield batches of the indices of all non-empty pairs, of similar length.

    Args:
        sentences: Source token ids.
        targets: Target token ids.
        batch_sentences: Maximum number of pairs per batch.
        max_weights: Limit of the attention weights of a batch.
    """

    def batch_size(tokens: int) -> int:
        half = tokens // 2 + 1  # source * target is largest if both are equally long
        return max_batch_sentences(batch_sentences, 1, half, float(half), max_weights)

    lengths = {i: len(x) + len(y) for i, (x, y) in enumerate(zip(sentences, targets, strict=True))}
    return batches_longest_first(lengths, batch_size)


def search_variant(
    scorer: Scorer,
    sources: Sources,
    options: SearchOptions,
    variant: Variant,
    candidates: ColumnChooser | None = None,
) -> list[list[Hypothesis]]:
    """Search each sentence as several copies in one beam search; the copies are encoded only once.

    Returns:
        The n best hypotheses of all copies of each sentence, finished ones first, each group in descending order of
        the score; [BLOCKED] if no copy has any.

    Raises:
        SentenceError: A score is NaN.
    """
    copies = variant.copies(options.beam)
    width = options.beam // copies
    sentences = len(next(iter(sources.values())).ids)
    rows = torch.arange(sentences, device=scorer.device).repeat_interleave(copies)  # [B * copies]
    repeated = _select_rows(sources, rows)
    # compact_at=0: finished copies leave the batch at once, so that they no longer influence the others.
    copy_options = replace(options.select(rows.tolist()), beam=width, n_best=width, variant=None, compact_at=0.0)
    selector = variant.selector(sources, copies, max_lengths(repeated, copy_options))
    try:
        copies_scorer = variant.wrap_scorer(_CopiedRows(scorer, sources, rows), sources, copies)
        by_copy = beam_search(copies_scorer, repeated, copy_options, candidates, selector)
    except SentenceError as error:
        raise error.renumbered(error.sentence // copies) from None
    by_sentence = []
    for first in range(0, len(by_copy), copies):
        hypotheses = [h for group in by_copy[first : first + copies] for h in group if not h.blocked]
        if variant.distinct:
            hypotheses = list({h.ids: h for h in hypotheses}.values())
        by_sentence.append(hypotheses)
    if variant.rescored:
        # The columns of the search, so that scores are normalised over the same tokens.
        columns = score_columns(scorer, repeated, copy_options, candidates).ids
        by_sentence = _rescore(scorer, sources, by_sentence, options, columns)
    results = []
    for hypotheses in by_sentence:
        best = sorted(hypotheses, key=lambda h: (not h.finished, -h.score))[: options.n_best]
        results.append(best or [BLOCKED])
    return results


def _select_rows(sources: Sources, rows: Tensor) -> Sources:
    return {name: Stream.from_ids(stream.ids[rows]) for name, stream in sources.items()}


def _rescore(
    scorer: Scorer,
    sources: Sources,
    by_sentence: list[list[Hypothesis]],
    options: SearchOptions,
    columns: Tensor | None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence with the scores of `scorer`."""
    hypotheses = [h for group in by_sentence for h in group]
    if not hypotheses:
        return by_sentence
    sentences = [n for n, group in enumerate(by_sentence) for _ in group]
    rows = torch.tensor(sentences, device=scorer.device)
    # One flat batch of all hypotheses of all sentences, divided again below.
    rescored = iter(
        force_decode(
            _CopiedRows(scorer, sources, rows),
            _select_rows(sources, rows),
            [h.ids for h in hypotheses],
            options.ranking,
            [h.finished for h in hypotheses],
            columns,
        )
    )
    return [[next(rescored) for _ in group] for group in by_sentence]


class _CopiedRows:
    """A Scorer of copies of the rows of `sources`, each of which is encoded once."""

    def __init__(self, scorer: Scorer, sources: Sources, rows: Tensor) -> None:
        self._scorer = scorer
        self._sources = sources
        self._rows = rows
        self.vocabulary = scorer.vocabulary
        self.normalised = scorer.normalised
        self.device = scorer.device
        self.step = scorer.step

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[object, object]:
        """Encode each source once and copy its row; `sources` (already repeated) is not read."""
        copied: tuple[object, object] = select(self._scorer.start(self._sources, columns), self._rows)
        return copied

    def map_hidden(self, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
        return map_hidden_states(self._scorer, state, function)


class _Results(Generic[Result]):
    """The results so far, in the order of the sentences."""

    def __init__(self, values: list[Result], progress: Progress | None) -> None:
        self.values = values
        self._progress = progress
        self._done = 0

    def add(self, batch: Sequence[int], values: Sequence[Result]) -> None:
        """Store the results of a batch."""
        for i, value in zip(batch, values, strict=True):
            self.values[i] = value
        self.report(len(batch))

    def report(self, count: int) -> None:
        """Report that `count` more sentences are done."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done)


@contextmanager
def _renumber_errors(batch: Sequence[int]) -> Iterator[None]:
    """Convert sentence indices in errors from the batch to the call."""
    try:
        yield
    except SentenceError as error:
        raise error.renumbered(batch[error.sentence]) from None


def _split_for_threads(batches: list[list[int]], threads: int) -> list[list[int]]:
    """Return as many batches as there are threads, if there are fewer and the sentences suffice.

    Sentences are dealt out in turn, so that all batches have long and short ones and end at about the same time. The
    batches stay as they are if this would make one larger than the batch with the longest sentences.
    """
    order = [i for batch in batches for i in batch]
    count = min(threads, len(order) // MIN_SENTENCES_PER_THREAD)
    if count <= len(batches) or len(order) > count * len(batches[0]):
        return batches
    return [order[first::count] for first in range(count)]


def _search_overlapping(
    begin: Callable[[list[int]], BeamSearch], batches: list[list[int]]
) -> Iterator[list[list[Hypothesis]]]:
    """Yield the results of searches in order: each is made while a GPU runs the first steps of the next search."""
    current: BeamSearch | None = None
    try:
        for i in range(len(batches) + 1):
            previous = current
            if previous is not None:
                with _renumber_errors(batches[i - 1]):
                    previous.complete()
            current = begin(batches[i]) if i < len(batches) else None
            if previous is not None:
                yield previous.hypotheses()
    finally:
        if current is not None:
            current.cancel()


def _search_in_parallel(
    search: Callable[[list[int]], list[list[Hypothesis]]], batches: list[list[int]], threads: int
) -> Iterator[list[list[Hypothesis]]]:
    """Yield the results of `search` in order, with one batch per thread at a time; a failure starts no more batches."""
    workers = min(threads, len(batches))
    if workers <= 1:
        yield from map(search, batches)
        return
    with single_threaded_pool(workers) as pool:
        yield from pool.map(search, batches)
