"""Ensembles as model folders: the folder of the first model, with those of the other models inside.

`cli/models.py` calls `write_ensemble` and `load_checkpoints` (the last checkpoints of one run as members).
`systems/pruning.py` and `translator/rerank.py` call `copy_model` to put one model folder into another. Layout: the
first model's files, and `ensemble/` with a subfolder per further model; `translator/loading.py` reads it. A new
optional file of model folders must be added to `EXTRA_FILES`. Tests: tests/test_ensemble.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rnnsearch import config as run_config
from rnnsearch.config import override_search
from rnnsearch.errors import ModelError
from rnnsearch.search.ensemble import Mean
from rnnsearch.systems.card import write_origin
from rnnsearch.systems.ensemble import EnsembleSystem, require_single_model
from rnnsearch.systems.folder import CONFIG, OLD_TOKENIZER_FILES, WEIGHTS, load_system, save_system
from rnnsearch.systems.system import System
from rnnsearch.text.tokenizer import TOKENIZERS
from rnnsearch.utils.files import atomic_folder, write_text
from rnnsearch.utils.weights import copy_weights, read_weights

MEMBERS = "ensemble"
"""Subfolder of all models except the first."""
EXTRA_FILES = {"aligner", "candidates.safetensors", "dictionary.tsv", "language-model"}
"""Optional files of a model folder that translation uses; `write_ensemble` copies those of the first model only. The
calibration is omitted, because it is valid only for the unchanged model."""


def load_checkpoints(folder: Path, count: int) -> list[System[Any]]:
    """Load the last `count` checkpoints of a run (`training.average` or `training.checkpoint_every`) as systems.

    Raises:
        ModelError: If the run has fewer checkpoints.
    """
    checkpoints = {}
    for path in [*folder.glob("checkpoints/evaluated-*.safetensors"), *folder.glob("checkpoints/update-*.safetensors")]:
        checkpoints[int(path.stem.rpartition("-")[2])] = path
    if len(checkpoints) < count:
        raise ModelError(
            f"{folder}: must have {count} checkpoints; it has {len(checkpoints)} (training.average stores those of "
            "the last evaluations)"
        )
    systems = []
    # By the number of the update: both types of checkpoints may occur in one folder.
    for update in sorted(checkpoints)[-count:]:
        system = load_system(folder)
        copy_weights(system.model, read_weights(checkpoints[update]))
        systems.append(system)
    return systems


def write_ensemble(
    output: Path, folders: Sequence[Path], systems: Sequence[System[Any]], weights: Sequence[float] | None, mean: Mean
) -> None:
    """Write a model folder for an ensemble; its config and tokenizers are those of the first model.

    Args:
        output: The folder to write; must not exist.
        folders: The model folder of each system.
        systems: The models.
        weights: The weight of each model; equal weights if None.
        mean: How distributions are combined.

    Raises:
        ModelError: If the models cannot be combined, one is an ensemble itself, or `output` exists.
    """
    if output.exists():
        raise ModelError(f"{output}: already exists; name another folder")
    all_weights = [1.0] * len(systems) if weights is None else list(weights)
    require_single_model(systems[0], 1)
    # Called for its check (ModelError), before anything is written; the result is not needed.
    EnsembleSystem.combine(systems, all_weights, mean)
    members = [f"{MEMBERS}/{number}" for number in range(2, len(systems) + 1)]
    options = {"ensemble": {"members": members, "weights": all_weights, "mean": mean}}
    with atomic_folder(output) as folder:
        for member_folder, system, subfolder in zip(folders, systems, [".", *members], strict=True):
            save_system(folder / subfolder, system)
            # The first model's folder represents the whole ensemble, so it has the origins of all models.
            write_origin(folders if subfolder == "." else [member_folder], folder / subfolder)
        config = systems[0].config
        search = override_search(config.search, options)
        write_text(folder / CONFIG, run_config.dump(config.model_copy(update={"search": search})))
        copy_files(folders[0], folder, EXTRA_FILES)


def copy_model(folder: Path, output: Path) -> None:
    """Copy the files of a model folder that are needed to use the model, and the origin of its training data."""
    output.mkdir(parents=True, exist_ok=True)
    copy_files(folder, output, {CONFIG, WEIGHTS, TOKENIZERS, *OLD_TOKENIZER_FILES, MEMBERS, *EXTRA_FILES})
    write_origin([folder], output)


def copy_files(folder: Path, output: Path, names: Collection[str]) -> None:
    """Copy the files and subfolders of a folder that have one of some names, over those that exist."""
    for path in folder.iterdir():
        if path.name not in names:
            continue
        if path.is_dir():
            shutil.copytree(path, output / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, output / path.name)
