"""From a config to a model with its parameters and its twins."""

from __future__ import annotations

from rnnsearch.backend.twins import choose
from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.config.outputs import AdaptiveOptions, OutputConfig
from rnnsearch.errors import ConfigError
from rnnsearch.models.initialise import INITS, generator, initialise
from rnnsearch.models.translation_model import NO_CHARACTERS, CharacterCounts, TranslationModel


def build(
    model: ModelConfig,
    source_vocabulary: int,
    target_vocabulary: int,
    seed: int | None,
    objective: ObjectiveConfig | None = None,
    characters: CharacterCounts = NO_CHARACTERS,
) -> TranslationModel:
    """A model, its parameters drawn from `seed` (None: left to be filled), with what the objective needs besides.

    The config must have passed `check`.
    """
    if model.tie == "all" and source_vocabulary != target_vocabulary:
        raise ConfigError(
            [f'model.tie: "all" needs equal vocabularies; got {source_vocabulary} and {target_vocabulary} symbols']
        )
    require_fit(model.output, target_vocabulary)
    if model.language_model is not None:
        require_fit(model.language_model.trained.output, target_vocabulary)
    built = TranslationModel(model, source_vocabulary, target_vocabulary, objective, characters)
    if seed is not None:
        initialise(built, INITS[model.init.type](model.init, generator(seed)))
    choose(built)
    return built


def require_fit(output: OutputConfig, vocabulary: int) -> None:
    """Errors: ConfigError for an output of groups that so many symbols do not fill."""
    if isinstance(output, AdaptiveOptions) and output.cutoffs[-1] >= vocabulary:
        must = f"must be below the {vocabulary} symbols of the target"
        raise ConfigError([f"model.output.cutoffs: {must}; got {output.cutoffs[-1]}"])
