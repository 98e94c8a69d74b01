"""The model folder: config, weights, tokenizers. Self-contained, no pickles, each file written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.files import atomic_file, write_text
from rnnsearch.models.build import build, check
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.text.tokenizer import Tokenizer

CONFIG, WEIGHTS, SOURCE, TARGET = "config.toml", "model.safetensors", "source.json", "target.json"
FORMAT = "rnnsearch-1"


class Loaded(NamedTuple):
    """A model folder's contents."""

    model: TranslationModel
    config: RunConfig
    source: Tokenizer
    target: Tokenizer


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name; a shared one once, under its first name."""
    return dict(model.named_parameters())


def save_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Tensors by name, atomically. Errors: RnnsearchError (a full disk); the old file stays."""
    with atomic_file(path) as temporary:
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(contiguous, temporary, metadata={"format": FORMAT})
        except SafetensorError as error:  # what the library makes of a full disk
            raise OSError(str(error)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name. Errors: ModelError for a missing, truncated or foreign file."""
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            if (file.metadata() or {}).get("format") != FORMAT:
                raise ModelError(f"{path}: was not written by rnnsearch (its format is not {FORMAT})")
            return {name: file.get_tensor(name) for name in list(file.keys())}
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; a model folder must hold {WEIGHTS}") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: is truncated or damaged ({error}); copy or train the model again") from None


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill the model's parameters from a file. Errors: ModelError where names or shapes differ."""
    tensors, own = read_weights(path), weights(model)
    for name in sorted(own.keys() | tensors.keys()):
        here = tuple(own[name].shape) if name in own else "no such parameter"
        there = tuple(tensors[name].shape) if name in tensors else "no such tensor"
        if here != there:
            raise ModelError(f"{path}: does not fit the model of its config: {name} is {there}, must be {here}")
    fill(model, tensors)


def fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors of the right names and shapes into the model's parameters."""
    with torch.no_grad():
        for name, parameter in weights(model).items():
            parameter.copy_(tensors[name])


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
        faults = check(config)
        if faults:
            raise ConfigError(faults)
        model = build(config.model, len(source), len(target), seed=None, objective=config.objective)
    except ConfigError as error:
        raise ModelError(f"{folder}: its {CONFIG} is not of this version of rnnsearch: {error.faults[0]}") from None
    load_weights(folder / WEIGHTS, model)
    return Loaded(model.to(device).eval(), config, source, target)
