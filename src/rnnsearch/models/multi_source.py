"""`MultiSourceModel`: a translation model with several sources, whose contexts and last states are combined.

`systems/translation.py` builds it for a `[model]` with `[model.sources]`. Parameters of sources are named by their
position in `data.source`. Tests: tests/models/test_sources.py, tests/training/test_several_sources.py.

Axes: those of `translation_model.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.config.data import ArrayConfig
from rnnsearch.data.batch import Stream
from rnnsearch.models.batch_rng import BatchRng, dropout
from rnnsearch.models.encoders import Hierarchical
from rnnsearch.models.layers import ArrayProjection, Embedding
from rnnsearch.models.memory import Encoded, Memory, SourceMemories
from rnnsearch.models.sources import CombinedAttention, CombinedEncoder, presence, split_attention
from rnnsearch.models.translation_model import CharacterCounts, Memories, SourceSize, TranslationModel
from rnnsearch.text.vocabulary import CONTEXT_END, PAD


class MultiSourceModel(TranslationModel):
    """p(y_i | y_1..y_{i-1}, x^1, ..., x^S), from the sources that a sentence has.

    Each source has its own embedding, encoder and attention (Zoph & Knight 2016; Firat et al. 2016).
    """

    source_embedding: Any
    """A list of the sources' embeddings."""
    encoder: Any
    """A `CombinedEncoder`."""

    def __init__(
        self,
        config: ModelConfig,
        source_sizes: Mapping[str, SourceSize],
        target_vocabulary: int,
        objective: ObjectiveConfig | None = None,
    ) -> None:
        """Create the model.

        Args:
            config: A `[model]` with `[model.sources]`.
            source_sizes: Number of tokens, or options of the arrays, by source; its order is that of the parameters.
            target_vocabulary: Number of target tokens.
            objective: Adds the parameters that the training objective needs.
        """
        super().__init__(config, source_sizes, target_vocabulary, objective)
        self.source_names = tuple(source_sizes)
        """Names of the sources, in the order of their parameters."""

    def make_source_embedding(
        self, source: SourceSize | Mapping[str, SourceSize], characters: CharacterCounts, target: Embedding
    ) -> Any:
        assert isinstance(source, Mapping)
        embeddings: list[nn.Module] = []
        for size in source.values():
            if isinstance(size, ArrayConfig):
                embeddings.append(ArrayProjection(size, self.config.embedding))
            else:
                embeddings.append(Embedding(size, self.config.embedding))
        return nn.ModuleList(embeddings)

    def make_encoder(self, source: SourceSize | Mapping[str, SourceSize]) -> Any:
        assert isinstance(source, Mapping)
        return CombinedEncoder(self.config, tuple(source))

    @property
    def attention(self) -> CombinedAttention | None:
        """The attention of the decoder, which holds it under different names; None without attention."""
        return next((part for part in self.decoder.modules() if isinstance(part, CombinedAttention)), None)

    def encode(self, sources: Mapping[str, Stream], rng: BatchRng | None = None) -> dict[str, Memory]:
        """Return the memories of B sentences by the name of their source stream.

        Rows that consist of padding do not have the source, and neither do all sentences if its stream is missing.
        """
        B = len(next(iter(sources.values())).ids)
        memories = []
        for index, name in enumerate(self.source_names):
            source = sources.get(name)
            if source is None or source.ids.shape[1] == 0:
                source = Stream.from_ids(torch.full((B, 1), PAD, device=self.device))
            memories.append(self._remember_source(index, source, rng))
        return dict(zip(self.source_names, self.encoder.combine(memories), strict=True))

    def _remember_source(self, index: int, source: Stream, rng: BatchRng | None) -> Memory:
        present = source.present
        # A missing source is read as one position, so that nothing is undefined; its values have the weight 0.
        is_first = torch.arange(source.mask.shape[1], device=source.mask.device) == 0
        mask = source.mask | (is_first & ~present[:, None])
        x = self._embed(self.source_embedding[index], source.embedding_input, rng)  # [B, J, E]
        encoder = self.encoder.sources[index]
        encoded: Encoded
        if isinstance(encoder, Hierarchical):
            encoded = encoder.encode_sentences(x, mask, source.ids == CONTEXT_END, rng)
        else:
            encoded = encoder(x, mask, rng)
        annotations = dropout(encoded.annotations, self.dropout.annotations, rng)
        words = x if self.reads_source_words else None
        encoded = encoded._replace(annotations=annotations, words=words)
        attention = self.attention
        memory = Memory(*encoded) if attention is None else attention.attentions[index].on(encoded)
        return memory._replace(present=present)

    def combined(self, memories: Memories) -> Memory:
        in_order = tuple(memories[name] for name in self.source_names)
        sources = SourceMemories(in_order, presence(in_order), self.encoder.averages_contexts)
        return in_order[0]._replace(sources=sources)

    def attention_by_source(self, alpha: Float[Tensor, "*rows J_all"], memories: Memories) -> dict[str, Tensor]:
        in_order = [memories[name] for name in self.source_names]
        return dict(zip(self.source_names, split_attention(alpha, in_order), strict=True))
