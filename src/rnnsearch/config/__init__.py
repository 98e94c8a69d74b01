"""Run files: schema, presets and loading.

All packages above read their options from here; `RunConfig` is the whole file and `load` reads one. Names of
components, and names and defaults of options, are stored in model folders and checkpoints, so never rename one or
change a default: that changes stored models (tests/old_models). Option docstrings generate docs/configuration.md
(`scripts/configuration_page.py`). No module may import torch, which import-linter checks. Tests: tests/test_config.py,
tests/models/test_model_checks.py.
"""

from rnnsearch.config.attention import AttentionConfig
from rnnsearch.config.data import CleaningConfig, DataConfig, TextConfig
from rnnsearch.config.encoders import EncoderConfig
from rnnsearch.config.model import ModelConfig, MultiwayConfig
from rnnsearch.config.objective import ObjectiveConfig, SupervisionConfig
from rnnsearch.config.options import Table, dotted
from rnnsearch.config.outputs import DropoutConfig, InitConfig
from rnnsearch.config.run_file import (
    RunConfig,
    dump,
    load,
    merge,
    override_search,
    parse,
    parse_setting,
    preset,
    preset_description,
    preset_names,
    preset_of,
    resolve,
    summary,
)
from rnnsearch.config.search import SearchConfig, SearchPrecision
from rnnsearch.config.training import BatchConfig, OptimiserConfig, ScheduleConfig, TrainingConfig

__all__ = [
    "AttentionConfig",
    "BatchConfig",
    "CleaningConfig",
    "DataConfig",
    "DropoutConfig",
    "EncoderConfig",
    "InitConfig",
    "ModelConfig",
    "MultiwayConfig",
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
    "load",
    "merge",
    "override_search",
    "parse",
    "parse_setting",
    "preset",
    "preset_description",
    "preset_names",
    "preset_of",
    "resolve",
    "summary",
]
