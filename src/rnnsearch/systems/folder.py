"""The model folder: config, weights, tokenizers. Self-contained, no pickles, each file written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.files import write_text
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.systems.build import build
from rnnsearch.systems.model_checks import check_model
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.weights import load_weights, save_weights

CONFIG, WEIGHTS, SOURCE, TARGET = "config.toml", "model.safetensors", "source.json", "target.json"


class Loaded(NamedTuple):
    """A model folder's contents."""

    model: TranslationModel
    config: RunConfig
    source: Tokenizer
    target: Tokenizer


def save_model(
    folder: Path, tensors: dict[str, Tensor], config: RunConfig, source: Tokenizer, target: Tokenizer
) -> None:
    """Write (or write over) a model folder, weights last, so that a folder with weights is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, run_config.dump(config))
    source.save(folder / SOURCE)
    target.save(folder / TARGET)
    save_weights(folder / WEIGHTS, tensors)


def require_whole(folder: Path) -> None:
    """Errors: ModelError where a folder lacks a file of a model."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such model folder")
    missing = [name for name in (CONFIG, WEIGHTS, SOURCE, TARGET) if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder}: is not a whole model folder: it lacks {', '.join(missing)}")


def load_model(folder: Path, device: torch.device | str = "cpu") -> Loaded:
    """Read a model folder, ready to translate.

    Errors: ModelError, one sentence, for a missing, incomplete, truncated or foreign folder.
    """
    require_whole(folder)
    source, target = Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET)
    try:
        config = run_config.load(folder / CONFIG)
        faults = check_model(config)
        if faults:
            raise ConfigError(faults)
        model = build(config.model, len(source), len(target), seed=None, objective=config.objective)
    except ConfigError as error:
        raise ModelError(f"{folder}: its {CONFIG} is not of this version of rnnsearch: {error.faults[0]}") from None
    load_weights(folder / WEIGHTS, model)
    return Loaded(model.to(device).eval(), config, source, target)
