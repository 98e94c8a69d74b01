"""The system of a language model, which has a target language and no source.

`folder.py` creates it by `model.kind`, for `rnnsearch lm`, rerankers, shallow fusion (`systems/ensemble.py`) and
translation models with a language model inside (`systems/warm_start.py`). Tests: tests/models/test_language_model.py,
tests/commands/test_language.py, tests/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rnnsearch.accel.registry import choose
from rnnsearch.accel.search import packed_model
from rnnsearch.accel.verification import INFERENCE, Conditions
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.context import previous_ids
from rnnsearch.data.corpus import Row
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.errors import ConfigError
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.layers import INITS, generator, initialise
from rnnsearch.objectives.contrast import CONTRASTS
from rnnsearch.objectives.likelihood import LanguageModelLikelihood
from rnnsearch.search.decode import make_sources
from rnnsearch.search.model_scorer import FastestScorer, LanguageScorer, native_dtype, torch_scorer
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import DevBatches, NllEvaluator
from rnnsearch.systems.system import Ability, Trainable
from rnnsearch.systems.translation import assign_output_classes, require_valid_cutoffs
from rnnsearch.text.alignments import Links
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.utils.distributed import Processes

NEEDS_TRANSLATION_MODEL = "needs a translation model; this is a language model (see `rnnsearch lm`)"
"""End of the reason why a language model does not have an ability."""


@dataclass(frozen=True)
class LanguageSystem(Trainable[LanguageModel]):
    """A language model, trained by maximum likelihood or a contrastive loss."""

    kind = "language-model"

    @classmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> LanguageSystem:
        options = config.model
        if not isinstance(options, LanguageModelConfig) or len(config.data.languages) != 1:
            raise ConfigError(["data.source: must not be given for a language model, which has only a target"])
        vocabulary = len(tokenizers[config.data.target])
        require_valid_cutoffs(options.output, vocabulary)
        model = LanguageModel(options, vocabulary)
        model.context_stream = next(iter(config.data.context_streams), None)
        if seed is not None:
            initialise(model, INITS[options.init.type](options.init, generator(seed)))
        precision = config.training.precision
        choose(model, conditions=INFERENCE if seed is None else Conditions.of_training(precision))
        return cls(model, config, tokenizers)

    @property
    def unsupported(self) -> Mapping[Ability, str]:
        subjects: dict[Ability, str] = {
            "translate": "translating",
            "attend": "attention",
            "read": "attention",
            "posterior": "posterior attention",
            "states": "an encoder's state",
            "spell": "spelling unknown words",
            "copy": "copying source words",
            "choose": "choosing source words",
        }
        return {ability: f"{subject} {NEEDS_TRANSLATION_MODEL}" for ability, subject in subjects.items()}

    def objective(self) -> LanguageModelLikelihood:
        contrast = None
        if self.config.objective.contrast is not None:
            contrast = CONTRASTS[self.config.objective.contrast.type](self.model.output.vocabulary)
        return LanguageModelLikelihood(self.config.training.label_smoothing, contrast)

    def assign_classes(self, train: ParallelIds) -> None:
        assign_output_classes(self.model.output, train, self.config.data.target)

    def validation(
        self,
        rows: Sequence[Row],
        gold: Sequence[Links] | None,
        device: torch.device,
        processes: Processes,
        aligner: Aligner | None = None,
    ) -> NllEvaluator[LanguageModel]:
        texts = self.with_context(self.target.segment([row.texts[0] for row in rows]), [row.document for row in rows])
        ids = [text.ids for text in texts]
        contexts = [[previous_ids(text)] * len(self.direction.sources) for text in texts]
        # Sentences of similar length are in one batch.
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        # If batches are limited by tokens, there is no number of sentences.
        batch_sentences = self.config.training.batch.sentences or 64
        starts = range(0, len(order), batch_sentences)
        batches = []
        for indices in processes.shard([order[start : start + batch_sentences] for start in starts]):
            batches.append(make_batch([(*contexts[n], ids[n]) for n in indices], indices, self.direction))
        num_tokens = sum(len(sentence) + 1 for sentence in ids)
        return NllEvaluator(
            DevBatches(LanguageModelLikelihood(), batches, len(ids), num_tokens, device, processes), {"bleu": None}
        )

    def fast_scorer(self, precision: str) -> FastestScorer:
        kind = native_dtype(self.device, precision)
        packed = None if kind is None else packed_model(self.model, kind)
        if kind is None or packed is None:
            return torch_scorer(LanguageScorer, self.model, precision)
        return FastestScorer(LanguageScorer(packed), f"native products, {kind.name.lower()}")

    def reference_scorer(self) -> Scorer:
        return LanguageScorer(self.model)

    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Return a batch of placeholders, which the model does not read; sampling tells texts apart by them."""
        return make_sources(sentences, device)

    def make_contexts(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Return a batch of the ids of previous sentences, for a model that reads them."""
        (name,) = self.direction.sources
        return make_sources(sentences, device, name=name)
