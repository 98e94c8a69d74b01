"""A whole run file: the tables that it is made of. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import PrivateAttr

from rnnsearch.config.data import DataConfig, TextConfig
from rnnsearch.config.model import ModelConfig
from rnnsearch.config.objective import ObjectiveConfig
from rnnsearch.config.search import SearchConfig
from rnnsearch.config.table import Table
from rnnsearch.config.training import TrainingConfig


class RunConfig(Table):
    """A whole run file, resolved."""

    name: str | None = None
    folder: str | None = None
    """The run's folder; without it, `runs/<name>` or, without a name, `runs/<run file's stem>`."""
    data: DataConfig
    text: TextConfig = TextConfig()
    model: ModelConfig
    objective: ObjectiveConfig = ObjectiveConfig()
    training: TrainingConfig
    search: SearchConfig = SearchConfig()
    _base: Path = PrivateAttr(default=Path())

    @property
    def base(self) -> Path:
        """The folder that relative paths are relative to: the run file's."""
        return self._base
