"""The dev set during training: NLL of its references, and BLEU of its greedy translations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from rnnsearch.config import BatchConfig, SearchConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.corpus import Pair
from rnnsearch.metrics.bleu_chrf_ter import corpus_bleu
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Objective
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all
from rnnsearch.search.scorer import ModelScorer
from rnnsearch.text.tokenizer import Tokenizer


class DevScore(NamedTuple):
    """nll: nats a sentence; per_word: nats a symbol (EOS counted); bleu: of greedy translations, or None."""

    nll: float
    per_word: float
    bleu: float | None


class Validation:
    """The dev set, segmented once and cut into batches of similar length."""

    def __init__(
        self,
        pairs: list[Pair],
        source: Tokenizer,
        target: Tokenizer,
        batch: BatchConfig,
        search: SearchConfig,
        device: torch.device,
    ) -> None:
        self.source_ids = source.ids([pair.source for pair in pairs])
        self.target_ids = target.ids([pair.target for pair in pairs])
        self.references = [pair.target for pair in pairs]
        self.target = target
        self.search = search
        self.device = device
        order = sorted(range(len(pairs)), key=lambda n: (len(self.target_ids[n]), len(self.source_ids[n])))
        rows = batch.sentences or 64
        self.batches = [order[begin : begin + rows] for begin in range(0, len(order), rows)]

    def score(
        self, model: TranslationModel, objective: Objective, bleu: bool, stop: Callable[[], bool]
    ) -> DevScore | None:
        """The dev scores of a model; None if `stop` asked to leave between two batches."""
        total = torch.zeros((), device=self.device)
        with torch.no_grad():
            for indices in self.batches:
                if stop():
                    return None
                batch = make_batch([(self.source_ids[n], self.target_ids[n]) for n in indices], indices)
                total += objective(model, batch.to(self.device), None).nll
        tokens = sum(len(ids) + 1 for ids in self.target_ids)
        nll = float(total)
        return DevScore(nll / len(self.references), nll / tokens, self._bleu(model) if bleu else None)

    def _bleu(self, model: TranslationModel) -> float:
        options = SearchOptions(beam=1, max_ratio=self.search.max_ratio, max_extra=self.search.max_extra)
        found = decode_all(ModelScorer(model), self.source_ids, options, self.search.batch_sentences)
        return corpus_bleu([self.target.join(best[0].ids) for best in found], self.references)
