"""What is measured of translations during training: BLEU of the dev set, and its alignment error rate."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.align.aligner import Aligner
from rnnsearch.config import SearchConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.corpus import Row
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all, forced_all
from rnnsearch.search.model_scorer import ModelScorer, fastest
from rnnsearch.search.reattend import copied_attention
from rnnsearch.systems.dev_scores import HeldOut
from rnnsearch.systems.system import System
from rnnsearch.text.alignments import (
    Link,
    Links,
    attention_of_symbols,
    links_of_words,
    without_punctuation,
    word_of_symbol,
)
from rnnsearch.utils.distributed import Processes

Found = TypeVar("Found")


class DevSet:
    """Sentence pairs, segmented once, sorted by length, and shared out among processes."""

    def __init__(
        self, pairs: Sequence[Row], system: System[Any], processes: Processes, aligner: Aligner | None = None
    ) -> None:
        """aligner: what annotates them, if the system's text is annotated."""
        self.pairs = pairs
        self.system = system
        self.target = system.target
        self.processes = processes
        self.sources = system.read([pair.source for pair in pairs])
        self.targets = system.written([pair.target for pair in pairs], self.sources, aligner)
        self.source_ids, self.target_ids = ([s.spelled for s in side] for side in (self.sources, self.targets))
        self.order = sorted(range(len(pairs)), key=lambda n: (len(self.target_ids[n]), len(self.source_ids[n])))
        self.own = processes.share(self.order)
        """The numbers of the pairs that this process translates and aligns."""

    def held_out(self, objective: Objective[Model], rows: int, device: torch.device) -> HeldOut[Model]:
        """The pairs as batches of `rows`, whose sides are named as in training."""
        direction, spellings = self.system.direction, self.system.spellings
        starts = range(0, len(self.order), rows)
        batches = [
            make_batch([(self.source_ids[n], self.target_ids[n]) for n in numbers], numbers, direction, spellings)
            for numbers in self.processes.share([self.order[start : start + rows] for start in starts])
        ]
        tokens = sum(len(ids) + 1 for ids in self.target_ids)
        return HeldOut(objective, batches, len(self.pairs), tokens, device, self.processes)

    def of_all(self, own: list[Found]) -> list[Found]:
        """What every process found for its own pairs, in the order of the dev set."""
        found = dict(zip(self.order, self.processes.gathered(own), strict=True))
        return [found[n] for n in range(len(found))]


@dataclass(frozen=True)
class Bleu:
    """BLEU of greedy translations."""

    dev: DevSet
    language: str
    """The target's, which says how BLEU cuts its text into words."""
    search: SearchConfig

    def __call__(self, model: TranslationModel) -> float:
        dev, search = self.dev, self.search
        options = SearchOptions(beam=1, max_ratio=search.max_ratio, max_extra=search.max_extra)
        sources = [dev.source_ids[n] for n in dev.own]
        scorer, make = fastest(model, "fp32").scorer, dev.system.sources
        found = decode_all(scorer, sources, options, search.batch_sentences, make=make)
        texts = dev.of_all([dev.target.join(best[0].ids) for best in found])
        return corpus_bleu(texts, [pair.target for pair in dev.pairs], self.language)


class AlignmentErrorRate:
    """The alignment error rate of the references, from 0 to 1: attention against gold links of words."""

    def __init__(self, dev: DevSet, gold: Sequence[Links], of_read_words: bool, batch_sentences: int) -> None:
        """of_read_words: whether a symbol's weights are those of the position after it."""
        self.dev = dev
        self.gold = gold
        self.of_read_words = of_read_words
        self.batch_sentences = batch_sentences
        self.source_words, self.target_words = (
            [without_punctuation(word_of_symbol(s.text, s.offsets), s.text, s.offsets) for s in sentences]
            for sentences in (dev.sources, dev.targets)
        )

    def __call__(self, model: TranslationModel) -> float:
        dev = self.dev
        sources, targets = ([ids[n] for n in dev.own] for ids in (dev.source_ids, dev.target_ids))
        size, make = self.batch_sentences, dev.system.sources
        if dev.system.can("copy"):
            found = copied_attention(model, sources, targets, make, size)
        else:
            found = [
                h.attention for h in forced_all(ModelScorer(model), sources, targets, batch_sentences=size, make=make)
            ]
        links = [self._links(n, next(iter(own.values()))) for n, own in zip(dev.own, found, strict=True)]
        return alignment_error(dev.of_all(links), self.gold).aer

    def _links(self, pair: int, attention: NDArray[np.float32]) -> Set[Link]:
        """The links of a pair's weights [I, J] over symbols."""
        columns, rows = self.source_words[pair], self.target_words[pair]
        weights = attention_of_symbols(attention, len(rows), self.of_read_words)
        return links_of_words(weights[:, : len(columns)], columns, rows)
