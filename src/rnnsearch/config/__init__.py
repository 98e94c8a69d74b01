"""The run file: what a run is made of, checked for types and ranges. Imports no torch."""

from rnnsearch.config.attention import AttentionConfig
from rnnsearch.config.data import CleaningConfig, DataConfig, TextConfig
from rnnsearch.config.encoders import EncoderConfig
from rnnsearch.config.init import DropoutConfig, InitConfig
from rnnsearch.config.model import ModelConfig
from rnnsearch.config.objective import ObjectiveConfig, SupervisionConfig
from rnnsearch.config.optimisers import OptimiserConfig
from rnnsearch.config.run import RunConfig
from rnnsearch.config.run_file import (
    dump,
    laid_on,
    load,
    merge,
    parse,
    parse_setting,
    preset,
    preset_about,
    preset_names,
    resolve,
)
from rnnsearch.config.schedules import ScheduleConfig
from rnnsearch.config.search import SearchConfig, SearchPrecision
from rnnsearch.config.table import Table, dotted
from rnnsearch.config.training import BatchConfig, TrainingConfig

__all__ = [
    "AttentionConfig",
    "BatchConfig",
    "CleaningConfig",
    "DataConfig",
    "DropoutConfig",
    "EncoderConfig",
    "InitConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimiserConfig",
    "RunConfig",
    "ScheduleConfig",
    "SearchConfig",
    "SearchPrecision",
    "SupervisionConfig",
    "Table",
    "TextConfig",
    "TrainingConfig",
    "dotted",
    "dump",
    "laid_on",
    "load",
    "merge",
    "parse",
    "parse_setting",
    "preset",
    "preset_about",
    "preset_names",
    "resolve",
]
