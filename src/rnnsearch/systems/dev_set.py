"""The dev set of a translation model during training, and the metrics that need translations or alignments.

`TranslationSystem.validation` (`translation.py`) combines them with the NLL (`systems.dev_scores`).

Every process evaluates its part of the dev set; `DevSet.gather` restores the order, so all processes must call it
equally often. Scores are compared between evaluations of a run, so a changed tokenization or search changes which
weights are best. Tests: tests/training/test_dev_set.py, tests/training/test_alignment_metric.py.

Axes: I target positions, J source positions.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.align.aligner import Aligner
from rnnsearch.config import SearchConfig
from rnnsearch.config.sequence import ReadWriteOptions
from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import make_batch
from rnnsearch.data.characters import NO_CHARACTERS, WordCharacters
from rnnsearch.data.corpus import Row
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.objectives.sequence.objective import REWARD_SUM
from rnnsearch.objectives.sequence.read_write import LAGGING_SUM, PROPORTION_SUM, score_decisions
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import LengthLimit, SearchOptions
from rnnsearch.search.read_write import roll_out
from rnnsearch.search.reattend import copied_attention
from rnnsearch.systems.dev_scores import DevBatches
from rnnsearch.systems.system import System
from rnnsearch.text.alignments import (
    Link,
    Links,
    drop_punctuation,
    token_attention,
    word_links,
    word_of_token,
)
from rnnsearch.text.tokenizer import Segmented, SourceIds
from rnnsearch.utils.distributed import Processes

Result = TypeVar("Result")


class DevSet:
    """Sentence pairs, segmented once, sorted by length, and shared out among processes."""

    def __init__(
        self, pairs: Sequence[Row], system: System[Any], processes: Processes, aligner: Aligner | None = None
    ) -> None:
        """Segment the pairs.

        Args:
            pairs: The dev set, which is the same in all processes.
            system: Segments the pairs.
            processes: All processes of the training run; each translates and aligns a part of the pairs.
            aligner: Annotates the pairs like the training text, if the text is annotated.
        """
        self.pairs = pairs
        self.system = system
        self.target = system.target
        self.processes = processes
        has_several_texts = system.has_several_texts
        sources = system.segment_sources([pair.texts[:-1] if has_several_texts else pair.source for pair in pairs])
        self.targets = system.segment_targets([pair.target for pair in pairs], sources, aligner)
        # Contexts of previous target sentences are references, also for BLEU.
        self.sources = system.with_context(sources, [pair.document for pair in pairs], self.targets)
        self.source_ids = [source.spelled_ids for source in self.sources]
        self.target_ids = [target.spelled_ids for target in self.targets]
        # Pairs of similar length are in one batch, which then has little padding.
        self.order = sorted(range(len(pairs)), key=lambda n: (len(self.target_ids[n]), len(self.source_ids[n])))
        self.own_indices = processes.shard(self.order)  # pairs that this process translates and aligns

    def make_batches(self, objective: Objective[Model], rows: int, device: torch.device) -> DevBatches[Model]:
        """Return the batches of this process, of `rows` pairs of similar length each."""
        pairs = [(*self._source_streams(n), self.target_ids[n]) for n in range(len(self.pairs))]
        system = self.system
        return make_dev_batches(
            objective, pairs, self.order, rows, system.direction, device, self.processes, system.spellings
        )

    def _source_streams(self, pair: int) -> tuple[Sequence[int] | None, ...]:
        """Return the ids of each source stream of a pair, None if it does not have the source."""
        ids = self.source_ids[pair]
        names = self.system.direction.sources
        by_source = ids.by_source if isinstance(ids, SourceIds) else {names[0]: ids}
        return tuple(by_source.get(name) for name in names)

    def gather(self, own: list[Result]) -> list[Result]:
        """Return the results of all processes in the order of the dev set, given those for `own_indices`."""
        # `all_gather` returns the results in the order before `shard`, which is sorted by length.
        results = dict(zip(self.order, self.processes.all_gather(own), strict=True))
        return [results[n] for n in range(len(results))]


def make_dev_batches(
    objective: Objective[Model],
    rows: Sequence[tuple[Sequence[int] | None, ...]],
    order: Sequence[int],
    batch_rows: int,
    direction: Direction,
    device: torch.device,
    processes: Processes,
    spellings: WordCharacters = NO_CHARACTERS,
) -> DevBatches[Model]:
    """Return the dev batches of this process.

    Args:
        objective: Objective whose NLL is computed.
        rows: Ids of each source and of the target.
        order: Indices of the rows; neighbours are in one batch.
        batch_rows: Maximum number of rows of a batch.
        direction: Streams of the rows.
        device: Device of the model.
        processes: All processes of the training run.
        spellings: Characters and copies of unknown words to include.
    """
    batches = []
    starts = range(0, len(order), batch_rows)
    for indices in processes.shard([order[start : start + batch_rows] for start in starts]):
        batches.append(make_batch([rows[n] for n in indices], indices, direction, spellings))
    num_tokens = sum(len(row[-1] or ()) + 1 for row in rows)  # with EOS
    return DevBatches(objective, batches, len(rows), num_tokens, device, processes)


@dataclass(frozen=True)
class Bleu:
    """BLEU of greedy translations."""

    dev: DevSet
    language: str
    """Target language, which determines BLEU's tokenizer."""
    search: SearchConfig
    """Default search options of the run."""

    def __call__(self, model: TranslationModel) -> float:
        dev = self.dev
        options = SearchOptions(beam=1, max_ratio=self.search.max_ratio, max_extra=self.search.max_extra)
        sources = [dev.source_ids[n] for n in dev.own_indices]
        # Packed again at each evaluation, because training has changed the weights.
        scorer = fastest_scorer(model, "fp32").scorer
        results = decode_all(scorer, sources, options, self.search.batch_sentences, make_batch=dev.system.make_sources)
        texts = dev.gather([dev.target.join(hypotheses[0].ids) for hypotheses in results])
        return corpus_bleu(texts, [pair.target for pair in dev.pairs], self.language)


@dataclass(frozen=True)
class PolicyScores:
    """Scores of the translations with the more probable decisions of an agent, which reads and writes."""

    dev: DevSet
    language: str
    """Target language, which determines BLEU's tokenizer."""
    options: ReadWriteOptions
    """Rewards."""
    search: SearchConfig
    """Default search options of the run."""
    has_bleu: bool
    """True if BLEU is reported."""

    def __call__(self, model: TranslationModel) -> dict[str, float]:
        """Return the mean reward, average lagging and average proportion, in tokens, and BLEU."""
        dev = self.dev
        limit = LengthLimit(self.search.max_ratio, self.search.max_extra)
        sums = np.zeros(3)
        texts = []
        for start in range(0, len(dev.own_indices), self.search.batch_sentences):
            indices = dev.own_indices[start : start + self.search.batch_sentences]
            sources = dev.system.make_sources([dev.source_ids[n] for n in indices], model.device)
            decisions = roll_out(model, sources, limit)
            references = [dev.target_ids[n] for n in indices]
            _, statistics = score_decisions(decisions, references, self.options, dev.target.join)
            sums += [float(statistics[name]) for name in (REWARD_SUM, LAGGING_SUM, PROPORTION_SUM)]
            texts += [dev.target.join(words) for words in decisions.words()]
        totals = np.array(dev.processes.sum(*sums.tolist())) / len(dev.pairs)
        scores = dict(zip(("reward", "lagging", "proportion"), totals.tolist(), strict=True))
        if self.has_bleu:
            references_text = [pair.target for pair in dev.pairs]
            scores["bleu"] = corpus_bleu(dev.gather(texts), references_text, self.language)
        return scores


class AlignmentErrorRate:
    """Alignment error rate, from 0 to 1, of attention to the references against gold word alignments."""

    def __init__(self, dev: DevSet, gold: Sequence[Links], attends_read_words: bool, batch_sentences: int) -> None:
        """Prepare the words of the dev set.

        Args:
            dev: The dev set.
            gold: Gold links per pair.
            attends_read_words: True if the attention of a token is that of the next step.
            batch_sentences: Number of pairs aligned together.
        """
        self.dev = dev
        self.gold = gold
        self.of_read_words = attends_read_words
        self.batch_sentences = batch_sentences
        self.source_words = list(map(self._words, dev.sources))
        self.target_words = list(map(self._words, dev.targets))

    def __call__(self, model: TranslationModel) -> float:
        dev = self.dev
        sources = [dev.source_ids[n] for n in dev.own_indices]
        targets = [dev.target_ids[n] for n in dev.own_indices]
        size = self.batch_sentences
        make = dev.system.make_sources
        if dev.system.can("copy"):
            attentions = copied_attention(model, sources, targets, make, size)
        else:
            hypotheses = force_decode_all(ModelScorer(model), sources, targets, batch_sentences=size, make_batch=make)
            attentions = [hypothesis.attention for hypothesis in hypotheses]
        links = []
        for n, attention in zip(dev.own_indices, attentions, strict=True):
            (weights,) = attention.values()  # of the only source
            links.append(self._links(n, weights[:, dev.sources[n].num_context_ids :]))
        return alignment_error(dev.gather(links), self.gold).aer

    @staticmethod
    def _words(sentence: Segmented) -> list[int]:
        """Return the index of the word that each token is aligned as, NO_WORD for punctuation within a word."""
        words = word_of_token(sentence.text, sentence.offsets)
        return drop_punctuation(words, sentence.text, sentence.offsets)

    def _links(self, pair: int, attention: NDArray[np.float32]) -> Set[Link]:
        """Return the word links of a pair, given the attention weights [I, J] of its tokens."""
        columns, rows = self.source_words[pair], self.target_words[pair]
        # [I, J]: without the row of EOS.
        weights = token_attention(attention, len(rows), self.of_read_words)
        return word_links(weights[:, : len(columns)], columns, rows)
