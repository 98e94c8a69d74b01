"""Extraction of one direction of a multi-way model, as an ordinary bilingual model folder.

Everything that works on bilingual folders (export, calibration, candidate lists, pruning, fine-tuning) then works on
that direction. `rnnsearch extract` calls it. Tests: tests/test_multiway.py.
"""

from __future__ import annotations

from pathlib import Path

from rnnsearch.data.batch import Direction
from rnnsearch.errors import ModelError
from rnnsearch.systems.card import TRAINING_FILE, direction_history, load_training_facts, write_card, write_origin
from rnnsearch.systems.folder import load_system, save_system
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.system import choose_direction
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.utils.files import atomic_folder, write_json


def extract(
    folder: Path, output: Path, source: str | None = None, target: str | None = None, zero_shot: bool = False
) -> Direction:
    """Write the bilingual model of one direction of a multi-way model, and return the direction.

    Args:
        folder: Folder of a multi-way model.
        output: The folder to write; must not exist.
        source: Source language; None for any.
        target: Target language; None for any.
        zero_shot: True if the direction of the two languages may be one that the model was not trained on.

    Raises:
        ModelError: If the model is not a multi-way model, if it does not have the direction, or if `output` exists.
    """
    if output.exists():
        raise ModelError(f"{output}: already exists; name another folder")
    system = load_system(folder, multiway=True)
    if not isinstance(system, MultiwaySystem):
        raise ModelError(f"{folder}: must be a multi-way model; got a {system.kind} model")
    if zero_shot and source is not None and target is not None:
        direction = Direction((source,), target)
    else:
        direction = choose_direction(system.directions, source, target)
    selected = system.select(direction)
    with atomic_folder(output) as temporary:
        save_system(temporary, selected)
        write_origin([folder], temporary)
        if direction in system.directions and (folder / TRAINING_FILE).is_file():
            _write_training_facts(folder, temporary, selected, direction)
    return direction


def _write_training_facts(folder: Path, output: Path, system: TranslationSystem, direction: Direction) -> None:
    """Write what a run has recorded about one of its directions, and the model card."""
    facts = load_training_facts(folder)
    facts.pop("directions", None)
    facts.pop("tasks", None)
    languages = system.config.data.languages
    history = direction_history(facts["history"], direction.name)
    # The weights are those of the best mean over all directions.
    best = [row["best"] for row in facts["history"]]
    facts |= {
        "kind": system.kind,
        "pair": list(languages),
        "parameters": system.num_parameters,
        "vocabulary": [len(system.tokenizers[language]) for language in languages],
        "history": [{**row, "best": is_best} for row, is_best in zip(history, best, strict=True)],
    }
    write_json(output / TRAINING_FILE, facts)
    write_card(output)
