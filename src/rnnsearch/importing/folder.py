"""What was found in another toolkit's checkpoint as a model folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rnnsearch.config import resolve
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.files import atomic_folder, sha256_of, write_text
from rnnsearch.importing.renaming import Taken
from rnnsearch.systems.checks import check_model
from rnnsearch.systems.folder import WEIGHTS, save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.columns import as_markdown
from rnnsearch.text.words import given_words
from rnnsearch.weights import fill
from rnnsearch.weights import weights as parameters


class Found(NamedTuple):
    """toolkit: its name; weights: by our names; symbols: of both sides, without the special ones; model, training,
    search: these tables; train: files, as in `[data]`; updates: of training, None where it is not said."""

    toolkit: str
    weights: dict[str, Tensor]
    symbols: tuple[list[str], list[str]]
    model: dict[str, Any]
    training: dict[str, Any]
    search: dict[str, Any]
    train: list[str]
    updates: int | None


class Imported(NamedTuple):
    """What was made of a checkpoint. parameters: its numbers; vocabularies: source and target symbols."""

    parameters: int
    vocabularies: tuple[int, int]
    encoder: str
    decoder: str


def import_from(read: Callable[[Path], Found], checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write what `read` finds in a checkpoint as a model folder. source, target: the languages' codes.

    Errors: ModelError, as `read`'s, and where something stands at `output`; ConfigError for codes that are none.
    """
    if output.exists():
        raise ModelError(f"{output}: there is something already; name another folder")
    found = read(checkpoint)
    system = _system(str(checkpoint), found, source, target)
    with atomic_folder(output) as folder:
        save_system(folder, system)
        write_text(folder / "card.md", _card(checkpoint, found, system, sha256_of(folder / WEIGHTS)))
    model = system.config.translation
    sizes = len(system.source), len(system.target)
    return Imported(system.parameters, sizes, f"{model.encoder.type} {model.encoder.cell}", model.decoder.type)


def all_of(taken: Taken, renamed: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """All weights by our names. Errors: ModelError where one is missing, of other sizes than the rest, or left over."""
    try:
        found = dict(renamed)
    except RuntimeError as error:  # of two sizes that PyTorch was to add or join
        raise ModelError(f"{taken.where}: its weights do not fit together: {str(error).splitlines()[0]}") from None
    taken.require_empty()
    return found


def _system(where: str, found: Found, source: str, target: str) -> TranslationSystem:
    """The system that a checkpoint holds."""
    tables = {
        "data": {"source": source, "target": target, "train": found.train, "aligner": False},
        "text": {"type": "words"},
        "model": found.model,
        "training": found.training,
        "search": found.search,
    }
    config = resolve(tables)
    if faults := check_model(config):
        raise ConfigError(faults)
    tokenizers = {side: given_words(own) for side, own in zip((source, target), found.symbols, strict=True)}
    weights = {name: weight for name, weight in found.weights.items() if name != "output.weight" or not _tied(found)}
    with torch.device("meta"):  # without memory: a few numbers may say that there are many
        _require_shapes(where, TranslationSystem.make(config, tokenizers, seed=None).model, weights)
    system = TranslationSystem.make(config, tokenizers, seed=None)
    fill(system.model, weights)
    system.model.eval()
    return system


def _tied(found: Found) -> bool:
    """Whether the output layer's rows are the target's embeddings."""
    return found.model.get("tie") == "target"


def _require_shapes(where: str, model: nn.Module, found: Mapping[str, Tensor]) -> None:
    """Errors: ModelError where a weight has another shape than those beside it."""
    own = parameters(model)
    for name in sorted(own.keys() | found.keys()):
        shapes = [tuple(each[name].shape) if name in each else None for each in (own, found)]
        if shapes[0] != shapes[1]:
            raise ModelError(f"{where}: its weights do not fit together: {name} would be {shapes[1]}, not {shapes[0]}")


def _card(checkpoint: Path, found: Found, system: TranslationSystem, sha256: str) -> str:
    """The card: what it is, and where it is from."""
    sides, data = system.config.data.sides, system.config.data.train or []
    rows: Sequence[tuple[str, str]] = (
        ("Pair", " → ".join(sides)),
        ("Parameters", f"{system.parameters:,}"),
        ("Vocabulary", f"{len(system.source):,} source, {len(system.target):,} target symbols"),
        ("Weights' SHA-256", f"`{sha256}`"),
        ("Imported from", f"{found.toolkit}, {checkpoint.name}"),
        ("Its SHA-256", f"`{sha256_of(checkpoint)}`"),
        ("Updates", "not said" if found.updates is None else f"{found.updates:,}"),
        ("Trained on", ", ".join(data) or "not said"),
    )
    table = as_markdown([["", ""], *(list(row) for row in rows)], left=(0, 1))
    return f"# {' → '.join(sides)}, a recurrent translation model\n\n{table}"
