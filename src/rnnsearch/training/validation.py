"""The dev set during training: NLL of its references, and BLEU of its greedy translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.config import BatchConfig, SearchConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.corpus import Pair
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.metrics.bleu_chrf_ter import corpus_bleu
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all, forced_all
from rnnsearch.search.model_scorer import ModelScorer, fastest
from rnnsearch.search.scorer import SOURCE
from rnnsearch.text.alignments import Link, Links, attention_of_symbols, links_from_attention, symbols_to_words
from rnnsearch.text.spans import word_of_symbol
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.training.distributed import Processes

Found = TypeVar("Found")


class DevScore(NamedTuple):
    """nll: nats a sentence; per_word: nats a symbol (EOS counted); bleu: of greedy translations, or None;
    aer: alignment error rate of the references, from 0 to 1, or None."""

    nll: float
    per_word: float
    bleu: float | None
    aer: float | None = None

    def value(self, metric: str) -> float:
        """The score in the run's metric; the less, the better."""
        if metric == "nll":
            return self.nll
        if metric == "bleu":
            return -(self.bleu or 0.0)
        assert self.aer is not None
        return self.aer


class _Aligned(NamedTuple):
    """Gold alignments, and which word each symbol of the sentences lies in."""

    gold: Sequence[Links]
    source_words: list[list[int]]
    target_words: list[list[int]]
    read: bool
    """Whether a symbol's weights are those of the position after it."""

    @classmethod
    def of(
        cls, pairs: Sequence[Pair], source: Tokenizer, target: Tokenizer, gold: Sequence[Links], read: bool
    ) -> _Aligned:
        sides = (source.segment([p.source for p in pairs]), target.segment([p.target for p in pairs]))
        source_words, target_words = ([word_of_symbol(s.text, s.offsets) for s in side] for side in sides)
        return cls(gold, source_words, target_words, read)

    def links(self, pairs: Sequence[int], attention: Sequence[NDArray[np.float32]]) -> list[set[Link]]:
        """The links of some pairs' weights [I, J] over symbols."""
        return [
            links_from_attention(symbols_to_words(self._of_symbols(weights, rows)[:, : len(columns)], columns, rows))
            for weights, columns, rows in zip(
                attention, [self.source_words[n] for n in pairs], [self.target_words[n] for n in pairs], strict=True
            )
        ]

    def _of_symbols(self, attention: NDArray[np.float32], symbols: list[int]) -> NDArray[np.float32]:
        return attention_of_symbols(attention, len(symbols), self.read)


@runtime_checkable
class Assessor(Protocol[Model]):
    """What the loop asks for dev scores."""

    def score(self, model: Model, objective: Objective[Model], bleu: bool, stop: Callable[[], bool]) -> DevScore | None:
        """The dev scores of a model; None if `stop` asked to leave between two batches."""


class Validation:
    """The dev set, segmented once and cut into batches of similar length, which processes share out among them."""

    def __init__(
        self,
        pairs: list[Pair],
        source: Tokenizer,
        target: Tokenizer,
        batch: BatchConfig,
        search: SearchConfig,
        device: torch.device,
        gold: Sequence[Links] | None = None,
        links_of_read_words: bool = False,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes()
        self.source_ids = source.ids([pair.source for pair in pairs])
        self.target_ids = target.ids([pair.target for pair in pairs])
        self.references = [pair.target for pair in pairs]
        self.target = target
        self.search = search
        self.aligned = None if gold is None else _Aligned.of(pairs, source, target, gold, links_of_read_words)
        """What alignments are compared with, where the run asks for it."""
        self.device = device
        order = sorted(range(len(pairs)), key=lambda n: (len(self.target_ids[n]), len(self.source_ids[n])))
        rows = batch.sentences or 64
        self.batches = self.processes.share([order[begin : begin + rows] for begin in range(0, len(order), rows)])
        self.order = order
        self.own = self.processes.share(order)
        """The pairs that this process translates and aligns."""

    def score(
        self, model: TranslationModel, objective: Objective[TranslationModel], bleu: bool, stop: Callable[[], bool]
    ) -> DevScore | None:
        """The dev scores of a model; None if `stop` asked to leave between two batches, in any process."""
        total, left = torch.zeros((), device=self.device), False
        with torch.no_grad():
            for indices in self.batches:
                left = stop()
                if left:
                    break
                batch = make_batch([(self.source_ids[n], self.target_ids[n]) for n in indices], indices)
                total += objective(model, batch.to(self.device), None).nll
        tokens = sum(len(ids) + 1 for ids in self.target_ids)
        nll, leaving = self.processes.sum(float(total), float(left))
        if leaving:
            return None
        bleu_score = self._bleu(model) if bleu else None
        return DevScore(nll / len(self.references), nll / tokens, bleu_score, self._aer(model))

    def _aer(self, model: TranslationModel) -> float | None:
        if self.aligned is None:
            return None
        sources, targets = ([side[n] for n in self.own] for side in (self.source_ids, self.target_ids))
        found = forced_all(ModelScorer(model), sources, targets, batch_sentences=self.search.batch_sentences)
        links = self._all(self.aligned.links(self.own, [hypothesis.attention[SOURCE] for hypothesis in found]))
        return alignment_error(links, self.aligned.gold).aer

    def _bleu(self, model: TranslationModel) -> float:
        options = SearchOptions(beam=1, max_ratio=self.search.max_ratio, max_extra=self.search.max_extra)
        sources = [self.source_ids[n] for n in self.own]
        found = decode_all(fastest(model, "fp32").scorer, sources, options, self.search.batch_sentences)
        return corpus_bleu(self._all([self.target.join(best[0].ids) for best in found]), self.references)

    def _all(self, own: list[Found]) -> list[Found]:
        """What every process found for its own pairs, in the order of the dev set."""
        found = dict(zip(self.order, self.processes.gathered(own), strict=True))
        return [found[n] for n in range(len(found))]
