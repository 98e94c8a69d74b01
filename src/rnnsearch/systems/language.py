"""The system of one language model: no source, one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rnnsearch.accel.registry import choose
from rnnsearch.accel.search import packed
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.corpus import Row
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.errors import ConfigError
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.layers import INITS, generator, initialise
from rnnsearch.objectives.contrast import CONTRASTS
from rnnsearch.objectives.likelihood import NextSymbol
from rnnsearch.search.decode import make_sources
from rnnsearch.search.model_scorer import LIBRARY, Fastest, LanguageScorer, native_kind
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import HeldOut, Validation
from rnnsearch.systems.system import Ability, Trainable
from rnnsearch.systems.translation import arrange, require_fit
from rnnsearch.text.alignments import Links
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.utils.distributed import Processes

NEEDS = "needs a translation model; this is a language model (see `rnnsearch lm`)"
"""Said of all that a language model cannot do."""


@dataclass(frozen=True)
class LanguageSystem(Trainable[LanguageModel]):
    """A language model trained by maximum likelihood."""

    kind = "language-model"

    @classmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> LanguageSystem:
        options = config.model
        if not isinstance(options, LanguageModelConfig) or len(config.data.languages) != 1:
            raise ConfigError(["data.source: must not be given for a language model, which has a target alone"])
        vocabulary = len(tokenizers[config.data.target])
        require_fit(options.output, vocabulary)
        model = LanguageModel(options, vocabulary)
        if seed is not None:
            initialise(model, INITS[options.init.type](options.init, generator(seed)))
        choose(model)
        return cls(model, config, tokenizers)

    @property
    def cannot(self) -> Mapping[Ability, str]:
        what: dict[Ability, str] = {
            "translate": "translating",
            "attend": "attention",
            "read": "attention",
            "posterior": "posterior attention",
            "states": "an encoder's state",
            "spell": "spelling unknown words",
            "copy": "copying source words",
            "choose": "choosing source words",
        }
        return {ability: f"{needed} {NEEDS}" for ability, needed in what.items()}

    def objective(self) -> NextSymbol:
        told = self.config.objective.contrast
        contrast = None if told is None else CONTRASTS[told.type](self.model.output.vocabulary)
        return NextSymbol(self.config.training.label_smoothing, contrast)

    def count(self, train: ParallelIds) -> None:
        arrange(self.model.output, train, self.config.data.target)

    def validation(
        self,
        rows: Sequence[Row],
        gold: Sequence[Links] | None,
        device: torch.device,
        processes: Processes,
        aligner: Aligner | None = None,
    ) -> Validation[LanguageModel]:
        ids = self.target.ids([row.texts[0] for row in rows])
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        size = self.config.training.batch.sentences or 64
        numbers = [order[start : start + size] for start in range(0, len(order), size)]
        batches = [make_batch([(ids[n],) for n in own], own, self.direction) for own in processes.share(numbers)]
        tokens = sum(len(one) + 1 for one in ids)
        return Validation(HeldOut(NextSymbol(), batches, len(ids), tokens, device, processes), {"bleu": None})

    def fastest(self, precision: str) -> Fastest:
        kind = native_kind(self.device, precision)
        twin = None if kind is None else packed(self.model, kind)
        if kind is None or twin is None:
            return Fastest(self.plain(), LIBRARY)
        return Fastest(LanguageScorer(twin), f"native products, {kind.name.lower()}")

    def plain(self) -> Scorer:
        return LanguageScorer(self.model)

    def sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Numbers that tell texts apart, where they are sampled; the model reads none."""
        return make_sources(sentences, device)
