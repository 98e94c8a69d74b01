"""A run's folder: opened for a new run, or to go on with the same one; never mixed up with another."""

import json
from pathlib import Path
from typing import Any

from rnnsearch import config as run_config
from rnnsearch.config import ModelConfig, RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, TrainingError
from rnnsearch.search.candidates import FILE as LISTS
from rnnsearch.search.unknown_words import DICTIONARY, read_dictionary
from rnnsearch.systems.card import ORIGIN_FILE, TRAINING_FILE, write_origin
from rnnsearch.systems.folder import CONFIG, WEIGHTS, require_complete
from rnnsearch.systems.pruning import PRUNED_FILE
from rnnsearch.systems.warm_start import load_language_model
from rnnsearch.text.tokenizer import TOKENIZERS
from rnnsearch.training.checkpoint import read_corpus_hash
from rnnsearch.training.loop import EVALUATED_WEIGHTS_GLOB
from rnnsearch.training.progress import LOG_FILE
from rnnsearch.training.tasks import reverse_folder
from rnnsearch.utils.files import locked, recover, remove_temporaries, write_bytes, write_text

RESUMABLE_OPTIONS = {
    "max_epochs",
    "max_updates",
    "max_minutes",
    "patience",
    "threads",
    "save_minutes",
    "tensorboard",
    "all_reduce",
}
"""Options of `[training]` that a resumed run may change."""
EMBEDDED_MODEL_PATH = "model.language_model.model"
"""What training puts into its config."""
CHECKPOINTS = "checkpoints"


def open_folder(config: RunConfig, prepared: Prepared, folder: Path, resume: bool) -> None:
    """Errors: TrainingError where the folder holds another run, or this one and `resume` was not asked for."""
    last = folder / CHECKPOINTS / "last"
    recover(last)
    if config.search.candidates > 0 and not (folder / LISTS).is_file():
        what = f"must be 0 until `rnnsearch candidates` has put lists into {folder}, after training"
        raise ConfigError([f"search.candidates: {what}; got {config.search.candidates}"])
    _refuse_other_run(config, folder, last, resume)
    _refuse_other_data(prepared, folder, last)
    if config.objective.supervision is not None and prepared.train.links is None:
        raise TrainingError(f"{prepared.folder}: has no word alignments to supervise attention with; prepare it again")
    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        remove_temporaries(folder, folder / CHECKPOINTS, folder / TOKENIZERS)
        if not last.is_dir():
            for left in (folder / CHECKPOINTS).glob(EVALUATED_WEIGHTS_GLOB):  # whose mean another run would become
                left.unlink()
    except OSError as error:
        raise TrainingError(f"{folder}: must be a folder that can be written to; got: {error.strerror}") from None


def check_run_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """What `open_folder` refuses whatever the data are, for who is about to prepare them into the folder.

    Errors: TrainingError as there; RnnsearchError where another process works in the folder.
    """
    if folder.is_dir():
        last = folder / CHECKPOINTS / "last"
        with locked(folder):
            recover(last)
            _refuse_other_run(config, folder, last, resume)


def copy_sparsity_mask(config: RunConfig, folder: Path) -> None:
    """Copy which weights are to stay zero into the folder of a run that begins; one that goes on has it from then on.

    Errors: ConfigError where the model that it begins from was never pruned.
    """
    if (folder / CHECKPOINTS / "last").is_dir():
        return
    (folder / PRUNED_FILE).unlink(missing_ok=True)
    if not config.training.keep_zeros:
        return
    assert config.training.begin_from is not None
    given = config.base / config.training.begin_from
    require_complete(given)
    if not (given / PRUNED_FILE).is_file():
        what = "needs a training.begin_from that `rnnsearch prune` has made, or that was trained on from such a one"
        raise ConfigError([f"training.keep_zeros: {what}; {given} has no pruned weights"])
    write_bytes(folder / PRUNED_FILE, (given / PRUNED_FILE).read_bytes())


def record_origin(config: RunConfig, folder: Path) -> None:
    """Keep what is known of the corpora of the trained models that a run begins from or learns from, in each folder
    of
    a run that begins."""
    if (folder / CHECKPOINTS / "last").is_dir():
        return
    inside = config.model.language_model if isinstance(config.model, ModelConfig) else None
    learned_from = [one.folder for one in (config.objective.teacher, inside) if one is not None]
    folders = [config.base / one for one in (config.training.begin_from, *learned_from) if one is not None]
    for place in [folder] if config.objective.symmetry is None else [folder, reverse_folder(folder)]:
        (place / ORIGIN_FILE).unlink(missing_ok=True)
        write_origin(folders, place)


def with_dictionary(config: RunConfig, folder: Path) -> RunConfig:
    """The config with its dictionary of unknown words copied into the model folder, which holds all that it needs.

    Errors: DataError for a missing or unfit file.
    """
    if config.search.dictionary is None:
        return config
    entries = read_dictionary(config.base / config.search.dictionary)
    write_text(folder / DICTIONARY, "".join(f"{word}\t{translation}\n" for word, translation in entries.items()))
    return config.model_copy(update={"search": config.search.model_copy(update={"dictionary": DICTIONARY})})


def with_language_model(config: RunConfig, folder: Path) -> RunConfig:
    """The config with the `[model]` of the language model inside, where there is one: of the run in the folder, where
    one has begun, else of the language model's own folder.

    Errors: ModelError for a folder without a language model.
    """
    if not isinstance(config.model, ModelConfig) or config.model.language_model is None:
        return config
    if (folder / CHECKPOINTS / "last").is_dir():
        told = run_config.load(folder / CONFIG).translation.language_model
    else:
        found = load_language_model(config).config.model
        told = config.model.language_model.model_copy(update={"model": found})
    return config.model_copy(update={"model": config.model.model_copy(update={"language_model": told})})


def _refuse_other_run(config: RunConfig, folder: Path, last: Path, resume: bool) -> None:
    if not last.is_dir():
        folders = [folder] if config.objective.symmetry is None else [folder, reverse_folder(folder)]
        for place in folders:
            if (place / WEIGHTS).exists():
                raise TrainingError(f"{place}: holds a model without a checkpoint to go on from; name another folder")
            begun = (place / LOG_FILE).is_file() or (
                place / TOKENIZERS
            ).is_dir()  # and stopped before it saved anything
            if (place / CONFIG).exists() and not begun:
                what = f"its {CONFIG} belongs to no run, and this one would write over it; name another folder"
                raise TrainingError(f"{place}: {what}")
        return
    if not resume:
        raise TrainingError(f"{folder}: holds a training run already; continue with --resume, or name another folder")
    differences = config_differences(run_config.load(folder / CONFIG), config)
    if differences:
        raise TrainingError(
            f"{folder}: its run differs from this config in {', '.join(differences)}; "
            "change it back, or name another folder"
        )


def _refuse_other_data(prepared: Prepared, folder: Path, last: Path) -> None:
    """A run whose corpus was prepared anew from other text must not go on: its ids would mean other words."""
    if not last.is_dir():
        return
    before, now = read_corpus_hash(last), prepared.facts["sha256"]
    if before is None and (folder / TRAINING_FILE).is_file():  # a checkpoint of an earlier version
        before = json.loads((folder / TRAINING_FILE).read_text(encoding="utf-8"))["data"]["sha256"]
    if before is not None and before != now:
        raise TrainingError(
            f"{folder}: its run was on a corpus with SHA-256 {before[:16]}...; got one with {now[:16]}... "
            f"in {prepared.folder}; name another folder"
        )


def config_differences(before: RunConfig, now: RunConfig) -> list[str]:
    """The dotted paths in which two configs differ, but for `[search]` and what a resumed run may change."""

    def flat(config: RunConfig) -> dict[str, Any]:
        tables = config.model_dump(include={"data", "text", "model", "objective", "training"})
        tables["training"] = {k: v for k, v in tables["training"].items() if k not in RESUMABLE_OPTIONS}
        return {
            path: value for path, value in run_config.dotted(tables).items() if not path.startswith(EMBEDDED_MODEL_PATH)
        }

    old, new = flat(before), flat(now)
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
