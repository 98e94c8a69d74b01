"""A whole run file: the tables that it is made of. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import PrivateAttr, model_validator

from rnnsearch.config.choice import ByKind, raise_faults
from rnnsearch.config.data import DataConfig, TextConfig
from rnnsearch.config.faults import fault
from rnnsearch.config.language import LanguageModelConfig
from rnnsearch.config.model import ModelConfig
from rnnsearch.config.objective import ObjectiveConfig
from rnnsearch.config.search import SearchConfig
from rnnsearch.config.table import Table
from rnnsearch.config.training import TrainingConfig
from rnnsearch.errors import ConfigError

MODELS: dict[str, type[Table]] = {"translation": ModelConfig, "language-model": LanguageModelConfig}
"""`[model]` by kind."""


class RunConfig(Table):
    """Outside all tables. `preset` stands here too: the name of a preset below."""

    name: str | None = None
    """The run's name. The model goes to `runs/<name>` in the current folder."""
    folder: str | None = None
    """The run's folder instead, relative to the run file. Without `name` and `folder` it is `runs/<run file's name
    without .toml>` in the current folder."""
    data: DataConfig
    text: TextConfig = TextConfig()
    model: Annotated[ModelConfig | LanguageModelConfig, ByKind(MODELS, "translation")]
    objective: ObjectiveConfig = ObjectiveConfig()
    training: TrainingConfig
    search: SearchConfig = SearchConfig()
    _base: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _annotates(self) -> RunConfig:
        if self.text.annotation is not None and not (self.data.aligner and len(self.data.sides) == 2):
            needs = "needs the aligner of one source and one target (data.aligner = true)"
            raise_faults([fault(("text", "annotation"), needs)])
        return self

    @property
    def translation(self) -> ModelConfig:
        """`[model]` of a translation model. Errors: ConfigError for another kind."""
        if not isinstance(self.model, ModelConfig):
            raise ConfigError([f'model.kind: must be "translation" for this; got "{self.model.kind}"'])
        return self.model

    @property
    def copies_words(self) -> bool:
        """Whether its models copy words that no vocabulary has from the source."""
        return isinstance(self.model, ModelConfig) and self.model.copies and set(self.text.types) == {"words"}

    @property
    def aligns_read_words(self) -> bool:
        """Whether the alignment of a target symbol is in the weights of the position after it."""
        told = self.search.attended_word
        return self.objective.aligns_read_words if told is None else told == "read"

    @property
    def base(self) -> Path:
        """The folder that relative paths are relative to: the run file's."""
        return self._base
