"""From a config to a model: names are looked up in the classes' own tables."""

from __future__ import annotations

from rnnsearch.backend.twins import choose
from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.errors import ConfigError
from rnnsearch.models.auxiliary import Auxiliary
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.initialise import INITS, generator, initialise
from rnnsearch.models.lexical import Lexical
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel


def build(
    model: ModelConfig,
    source_vocabulary: int,
    target_vocabulary: int,
    seed: int | None,
    objective: ObjectiveConfig | None = None,
) -> TranslationModel:
    """A model, its parameters drawn from `seed` (None: left to be filled), with what the objective needs besides.

    The config must have passed `check`.
    """
    zero = model.decoder.first == "zero"
    target = Embedding(target_vocabulary, model.embedding, zero_bos=zero)
    if model.tie == "all" and source_vocabulary != target_vocabulary:
        raise ConfigError(
            [f'model.tie: "all" needs equal vocabularies; got {source_vocabulary} and {target_vocabulary} symbols']
        )
    source = target if model.tie == "all" else Embedding(source_vocabulary, model.embedding)
    encoder = ENCODERS[model.encoder.type].make(model.encoder, model.embedding, model.dropout)
    decoder = DECODERS[model.decoder.type].make(model.decoder, model, encoder)
    beside = model.embedding if model.lexical else 0
    output = Output(decoder.readout_size, target_vocabulary, None if model.tie == "none" else target, beside)
    auxiliary = None
    if objective is not None:
        annotation = model.decoder.attended_size(encoder.annotation_size)
        auxiliary = Auxiliary.make(objective, annotation, decoder.readout_size + beside, target_vocabulary)
    lexical = Lexical(model.embedding) if model.lexical else None
    built = TranslationModel(source, target, encoder, decoder, output, model.dropout, auxiliary, lexical)
    if seed is not None:
        initialise(built, INITS[model.init.type](model.init, generator(seed)))
    choose(built)
    return built
