"""`[model.language_model]`: a language model inside a translation model. Imports no torch."""

from __future__ import annotations

from typing import Literal

from rnnsearch.config.choice import Options, by_name
from rnnsearch.config.language import LanguageModelConfig
from rnnsearch.config.table import Size
from rnnsearch.errors import ConfigError


class FusionConfig(Options):
    """`[model.language_model]`: a trained language model of the target language, which stays as it is, beside the
    decoder, and a gate that learns how much of it the readout reads. See [Language
    models](language-models.md#inside-a-translation-model)."""

    type: str
    """A fusion: see below."""
    folder: str
    """The language model's folder, relative to the run file. Only the beginning of training reads it: what it holds is
    then part of the model."""
    model: LanguageModelConfig | None = None
    """Its `[model]`, which training writes into the model folder."""

    @property
    def trained(self) -> LanguageModelConfig:
        """Its `[model]`. Errors: ConfigError where only its folder is known yet."""
        if self.model is None:
            raise ConfigError(["model.language_model.model: must be given in a model folder; got none"])
        return self.model


class DeepFusionOptions(FusionConfig):
    """One gate of the language model's state; only the readout, the output layer and the gate are trained, the rest is
    that of `training.begin_from` (Gulcehre et al. 2015)."""

    type: Literal["deep"] = "deep"


class ColdFusionOptions(FusionConfig):
    """A gate for each unit of a layer over the language model's scores; all else is trained with it, from the beginning
    (Sriram et al. 2017)."""

    type: Literal["cold"] = "cold"
    size: Size = 256
    """Units of the layer over the language model's scores."""


FUSIONS: dict[str, type[FusionConfig]] = by_name(DeepFusionOptions, ColdFusionOptions)
