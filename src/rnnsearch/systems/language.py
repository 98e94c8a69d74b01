"""The system of a language model, which has a target language and no source.

`folder.py` creates it by `model.kind`, for `rnnsearch lm`, rerankers, shallow fusion (`systems/ensemble.py`) and
translation models with a language model inside (`systems/warm_start.py`). Tests: tests/models/test_language_model.py,
tests/commands/test_language.py, tests/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from rnnsearch.accel.registry import choose
from rnnsearch.accel.search import packed_model
from rnnsearch.accel.verification import INFERENCE, Conditions
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.characters import word_characters
from rnnsearch.data.context import previous_ids
from rnnsearch.data.corpus import Row
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.errors import ConfigError
from rnnsearch.models.composition import ComposedEmbedding
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.layers import INITS, generator, initialise
from rnnsearch.objectives.contrast import CONTRASTS
from rnnsearch.objectives.likelihood import LanguageModelLikelihood
from rnnsearch.search.batching import batches_longest_first
from rnnsearch.search.decode import make_sources
from rnnsearch.search.hypothesis import SentenceError
from rnnsearch.search.model_scorer import FastestScorer, LanguageScorer, native_dtype, torch_scorer
from rnnsearch.search.results import NAN_MESSAGE
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import NllEvaluator
from rnnsearch.systems.dev_set import make_dev_batches
from rnnsearch.systems.system import Ability, Trainable
from rnnsearch.systems.translation import assign_output_classes, require_valid_cutoffs
from rnnsearch.text.alignments import Links
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.utils.distributed import Processes

NEEDS_TRANSLATION_MODEL = "needs a translation model; this is a language model (see `rnnsearch lm`)"
"""End of the reason why a language model does not have an ability."""
MAX_TOKENS = 4096
"""Tokens that are scored at once by a model that composes words; each needs the scores of the whole vocabulary."""


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
        inventory = word_characters(config, tokenizers).characters.get(config.data.target)
        model = LanguageModel(options, vocabulary, 0 if inventory is None else len(inventory))
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

    @property
    def composes_words(self) -> bool:
        """True if the model reads words by their characters (`[model.characters]`)."""
        return isinstance(self.model.embedding, ComposedEmbedding)

    @cached_property
    def search_model(self) -> LanguageModel:
        """The model for search and fusion, which know only the ids of tokens: composed vectors are in a table.

        They are computed once; the weights must not change afterwards.
        """
        if not self.composes_words:
            return self.model
        return self.model.with_table(self.spellings.characters[self.config.data.target].known)

    def token_scores(self, texts: Sequence[Segmented], batch_sentences: int) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of some texts and of their ends; reads unknown words by characters.

        Args:
            texts: Texts without previous sentences.
            batch_sentences: Maximum number of texts per batch.
        """
        scores: list[tuple[float, ...]] = [()] * len(texts)
        likelihood = LanguageModelLikelihood()
        lengths = {i: len(text.ids) + 1 for i, text in enumerate(texts)}  # with EOS
        for indices in batches_longest_first(lengths, lambda tokens: min(batch_sentences, 1 + MAX_TOKENS // tokens)):
            rows = [(texts[i].spelled_ids,) for i in indices]
            batch = make_batch(rows, indices, self.direction, self.spellings).to(self.device)
            with torch.inference_mode():
                _, nll = likelihood.token_losses(self.model, batch, None)
            for i, values in zip(indices, nll.cpu().split([lengths[i] for i in indices]), strict=True):
                if values.isnan().any():
                    raise SentenceError(i, NAN_MESSAGE, int(values.isnan().nonzero()[0, 0]) + 1)
                scores[i] = tuple((-values).tolist())
        return scores

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
        ids = [text.spelled_ids if self.composes_words else text.ids for text in texts]
        contexts = [[previous_ids(text)] * len(self.direction.sources) for text in texts]
        # Sentences of similar length are in one batch.
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        # If batches are limited by tokens, there is no number of sentences.
        batch_sentences = self.config.training.batch.sentences or 64
        streams = [(*context, target) for context, target in zip(contexts, ids, strict=True)]
        batches = make_dev_batches(
            LanguageModelLikelihood(),
            streams,
            order,
            batch_sentences,
            self.direction,
            device,
            processes,
            self.spellings,
        )
        return NllEvaluator(batches, {"bleu": None})

    def fast_scorer(self, precision: str) -> FastestScorer:
        kind = native_dtype(self.device, precision)
        packed = None if kind is None else packed_model(self.search_model, kind)
        if kind is None or packed is None:
            return torch_scorer(LanguageScorer, self.search_model, precision)
        return FastestScorer(LanguageScorer(packed), f"native products, {kind.name.lower()}")

    def reference_scorer(self) -> Scorer:
        return LanguageScorer(self.search_model)

    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Return a batch of placeholders, which the model does not read; sampling tells texts apart by them."""
        return make_sources(sentences, device)

    def make_contexts(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Return a batch of the ids of previous sentences, for a model that reads them."""
        (name,) = self.direction.sources
        return make_sources(sentences, device, name=name)
