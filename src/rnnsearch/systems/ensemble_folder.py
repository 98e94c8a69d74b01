"""An ensemble as a model folder: that of its first model, the others inside. A model folder inside another."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from rnnsearch import config as run_config
from rnnsearch.config import override_search
from rnnsearch.errors import ModelError
from rnnsearch.systems.card import hand_on
from rnnsearch.systems.ensemble import EnsembleSystem, require_one_model
from rnnsearch.systems.folder import CONFIG, TWO_SIDES, WEIGHTS, load_system, save_system
from rnnsearch.systems.system import System
from rnnsearch.text.tokenizer import TOKENIZERS
from rnnsearch.utils.files import atomic_folder, write_text
from rnnsearch.utils.weights import fill, read_weights

Mean = Literal["geometric", "arithmetic"]
MEMBERS = "ensemble"
"""In the folder: the models but the first."""
KEPT = {"aligner", "candidates.safetensors", "dictionary.tsv", "language-model"}
"""What else the first model's folder may have that translation needs. Its calibration is of it alone."""


def snapshots(folder: Path, count: int) -> list[System[Any]]:
    """The systems of the last `count` weights that a run has kept: of its evaluations (`training.average`) or every
    so many updates (`training.checkpoint_every`). Errors: ModelError where it has fewer."""
    kept = {}
    for path in [*folder.glob("checkpoints/evaluated-*.safetensors"), *folder.glob("checkpoints/update-*.safetensors")]:
        kept[int(path.stem.rpartition("-")[2])] = path
    if len(kept) < count:
        raise ModelError(
            f"{folder}: must have kept the weights of {count} checkpoints; it has {len(kept)} (training.average keeps "
            "those of the last evaluations)"
        )
    found = []
    for update in sorted(kept)[-count:]:
        system = load_system(folder)
        fill(system.model, read_weights(kept[update]))
        found.append(system)
    return found


def gather(
    output: Path, folders: Sequence[Path], systems: Sequence[System[Any]], weights: Sequence[float] | None, mean: Mean
) -> None:
    """Write a model folder of `systems`, each of one of the `folders`, as one; all but weights is the first folder's.

    Errors: ModelError where they do not go together, one is an ensemble itself, or something stands at `output`.
    """
    if output.exists():
        raise ModelError(f"{output}: there is something already; name another folder")
    shares = [1.0 for _ in systems] if weights is None else list(weights)
    require_one_model(systems[0], 1)
    EnsembleSystem.of(systems, shares, mean)
    members = [f"{MEMBERS}/{number}" for number in range(2, len(systems) + 1)]
    together = {"ensemble": {"members": members, "weights": shares, "mean": mean}}
    with atomic_folder(output) as folder:
        for own, system, place in zip(folders, systems, [".", *members], strict=True):
            save_system(folder / place, system)
            hand_on(folders if place == "." else [own], folder / place)
        config = systems[0].config
        search = override_search(config.search, together)
        write_text(folder / CONFIG, run_config.dump(config.model_copy(update={"search": search})))
        _copy(folders[0], folder, KEPT)


def copy_model(folder: Path, output: Path) -> None:
    """Copy of a model folder what translation, or a language model, needs: an ensemble's models, too; of how it was
    trained the corpus alone."""
    output.mkdir(parents=True, exist_ok=True)
    _copy(folder, output, {CONFIG, WEIGHTS, TOKENIZERS, *TWO_SIDES, MEMBERS, *KEPT})
    hand_on([folder], output)


def _copy(folder: Path, output: Path, names: Collection[str]) -> None:
    """Those of a folder's files and folders that have one of these names."""
    for path in folder.iterdir():
        if path.name in names:
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, output / path.name)
