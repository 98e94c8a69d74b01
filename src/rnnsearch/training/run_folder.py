"""The folder of a run: opened for a new run or to resume, never for another run's files.

`cli/train.py` calls `check_run_folder` before it prepares the corpus. `training.run.train` calls `open_folder` first,
then the functions that copy into a new run's folder all that its model needs later.

A new option that may change when a run is resumed must be in `RESUMABLE_OPTIONS`. Tests: tests/commands/test_train.py.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rnnsearch import config as run_config
from rnnsearch.align import aligner
from rnnsearch.config import ModelConfig, MultiwayConfig, RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, TrainingError
from rnnsearch.search.candidates import CANDIDATES_FILE
from rnnsearch.search.unknown_words import DICTIONARY_FILE, read_dictionary
from rnnsearch.systems.card import ORIGIN_FILE, TRAINING_FILE, load_training_facts, write_origin
from rnnsearch.systems.folder import CONFIG, WEIGHTS, require_complete
from rnnsearch.systems.pruning import PRUNED_FILE
from rnnsearch.systems.warm_start import load_language_model
from rnnsearch.text.tokenizer import TOKENIZERS
from rnnsearch.training.checkpoint import read_corpus_hash
from rnnsearch.training.loop import EVALUATED_WEIGHTS_GLOB
from rnnsearch.training.progress import LOG_FILE
from rnnsearch.training.tasks import reverse_folder
from rnnsearch.utils.files import locked, recover_folder, remove_temporaries, write_bytes, write_text

RESUMABLE_OPTIONS = {
    "max_epochs",
    "max_updates",
    "max_minutes",
    "patience",
    "direction_patience",
    "threads",
    "save_minutes",
    "tensorboard",
    "all_reduce",
}
"""Options of `[training]` that a resumed run may change."""
EMBEDDED_MODEL_PATH = "model.language_model.model"
"""Config path that `resolve_language_model` adds to a run's config."""
CHECKPOINTS = "checkpoints"
"""Subfolder of the checkpoints in a run's folder."""


def open_folder(config: RunConfig, prepared: Prepared, folder: Path, resume: bool) -> None:
    """Create a run's folder, or check that the run in it may be resumed.

    Args:
        config: Run file.
        prepared: The corpus.
        folder: Folder of the run, locked by the caller.
        resume: True if a run in the folder is continued.

    Raises:
        TrainingError: If the folder has another run, or this run and `resume` is False; or cannot be written.
        ConfigError: If `search.candidates` needs lists that the folder does not have.
    """
    last = _last_checkpoint(folder)
    recover_folder(last)
    for output in _output_folders(config, folder):
        recover_folder(output / aligner.FOLDER)
    if config.search.candidates > 0 and not (folder / CANDIDATES_FILE).is_file():
        requirement = f"must be 0 until `rnnsearch candidates` has added lists to {folder}, after training"
        raise ConfigError([f"search.candidates: {requirement}; got {config.search.candidates}"])
    _require_same_run(config, folder, resume)
    _require_same_corpus(prepared, folder)
    if config.objective.supervision is not None and prepared.train.links is None:
        raise TrainingError(f"{prepared.folder}: has no word alignments to supervise attention with; prepare it again")
    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        remove_temporaries(*_output_folders(config, folder), folder / CHECKPOINTS, folder / TOKENIZERS)
        if not last.is_dir():
            # Otherwise the weights of an earlier run would be averaged with those of this one.
            for path in (folder / CHECKPOINTS).glob(EVALUATED_WEIGHTS_GLOB):
                path.unlink()
    except OSError as error:
        raise TrainingError(f"{folder}: must be a folder that can be written to; got: {error.strerror}") from None


def check_run_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """Raise the errors of `open_folder` that do not depend on the data, before the corpus is prepared in the folder.

    Raises:
        TrainingError: See `open_folder`.
        RnnsearchError: If another process uses the folder.
    """
    if folder.is_dir():
        with locked(folder):
            recover_folder(_last_checkpoint(folder))
            _require_same_run(config, folder, resume)


def copy_sparsity_mask(config: RunConfig, folder: Path) -> None:
    """Copy the list of pruned weights into the folder of a new run with `training.keep_zeros`.

    Raises:
        ConfigError: If the model in `training.begin_from` was not pruned.
    """
    if _has_checkpoint(folder):
        return
    (folder / PRUNED_FILE).unlink(missing_ok=True)
    if not config.training.keep_zeros:
        return
    assert config.training.begin_from is not None
    pruned_model = config.base / config.training.begin_from
    require_complete(pruned_model)
    if not (pruned_model / PRUNED_FILE).is_file():
        requirement = "needs a training.begin_from that was written by `rnnsearch prune`, or trained with keep_zeros"
        raise ConfigError([f"training.keep_zeros: {requirement}; {pruned_model} has no pruned weights"])
    write_bytes(folder / PRUNED_FILE, (pruned_model / PRUNED_FILE).read_bytes())


def record_origin(config: RunConfig, folder: Path) -> None:
    """Record, in the folders of a new run, the corpora of all trained models that it starts or learns from."""
    if _has_checkpoint(folder):
        return
    models = [config.training.begin_from]
    if config.objective.teacher is not None:
        models.append(config.objective.teacher.folder)
    if isinstance(config.model, ModelConfig) and config.model.language_model is not None:
        models.append(config.model.language_model.folder)
    model_folders = [config.base / model for model in models if model is not None]
    for output in _output_folders(config, folder):
        (output / ORIGIN_FILE).unlink(missing_ok=True)
        write_origin(model_folders, output)


def copy_dictionary(config: RunConfig, folder: Path) -> RunConfig:
    """Copy the dictionary of unknown words into the model folder and return the config that names the copy.

    Raises:
        DataError: If the file is missing or malformed.
    """
    if config.search.dictionary is None:
        return config
    entries = read_dictionary(config.base / config.search.dictionary)
    write_text(folder / DICTIONARY_FILE, "".join(f"{word}\t{translation}\n" for word, translation in entries.items()))
    return config.model_copy(update={"search": config.search.model_copy(update={"dictionary": DICTIONARY_FILE})})


def resolve_language_model(config: RunConfig, folder: Path) -> RunConfig:
    """Return the config with the `[model]` table of its language model inside.

    A new run takes the table from the language model's folder; a resumed run has it in its own config.

    Raises:
        ModelError: If the folder has no language model.
    """
    if not isinstance(config.model, ModelConfig) or config.model.language_model is None:
        return config
    if _has_checkpoint(folder):
        options = run_config.load(folder / CONFIG).translation.language_model
    else:
        language_model = load_language_model(config)
        # `load_initial_weights` stores the composed vectors of words in a table.
        model = language_model.config.model.model_copy(update={"characters": None})
        options = config.model.language_model.model_copy(update={"model": model})
    return config.model_copy(update={"model": config.model.model_copy(update={"language_model": options})})


def resolve_directions(config: RunConfig, prepared: Prepared) -> RunConfig:
    """Return the config of a multi-way model with the names of its directions, if they are "all".

    Raises:
        ConfigError: If a direction has no training text and nothing is frozen, or if no direction has the language of a
            task.
    """
    if not isinstance(config.model, MultiwayConfig):
        return config
    if config.data.directions != "all":
        # Directions whose modules are all frozen need no text; they are known when there is a model.
        if config.training.transfer is None or not config.training.transfer.freeze:
            require_training_text(config.data.pairs, prepared)
        return config
    names = [f"{source}-{target}" for source, target in config.data.pairs if prepared.train.has_rows((source, target))]
    data = config.data.model_copy(update={"directions": names})
    if (reason := data.task_problem) is not None:
        option, message = reason
        raise ConfigError([f"data.{option}: {message}"])
    return config.model_copy(update={"data": data})


def require_training_text(pairs: Iterable[Sequence[str]], prepared: Prepared) -> None:
    """Raise ConfigError if no row of the training text has both languages of a direction, given source and target."""
    missing = ["-".join(pair) for pair in pairs if not prepared.train.has_rows(pair)]
    if missing:
        must = "must have training text with both languages of each direction, except for frozen ones"
        raise ConfigError([f"data.directions: {must}; got none for {', '.join(missing)}"])


def _last_checkpoint(folder: Path) -> Path:
    return folder / CHECKPOINTS / "last"


def _has_checkpoint(folder: Path) -> bool:
    return _last_checkpoint(folder).is_dir()


def _output_folders(config: RunConfig, folder: Path) -> list[Path]:
    """Return the model folders that a run writes: two if it trains both directions."""
    return [folder] if config.objective.symmetry is None else [folder, reverse_folder(folder)]


def _require_same_run(config: RunConfig, folder: Path, resume: bool) -> None:
    """Raise TrainingError if the folder has other files than those of this run."""
    if not _has_checkpoint(folder):
        for output in _output_folders(config, folder):
            _require_no_model(output)
        return
    if not resume:
        raise TrainingError(f"{folder}: holds a training run already; continue with --resume, or name another folder")
    differences = config_differences(run_config.load(folder / CONFIG), config)
    if config.data.directions == "all":
        # The folder has their names, which the corpus determines (see `resolve_directions`).
        differences = [path for path in differences if path != "data.directions"]
    if differences:
        raise TrainingError(
            f"{folder}: its run differs from this config in {', '.join(differences)}; "
            "change it back, or name another folder"
        )


def _require_no_model(folder: Path) -> None:
    """Raise TrainingError if a folder without a checkpoint has a model or a config of something else."""
    if (folder / WEIGHTS).exists():
        raise TrainingError(f"{folder}: holds a model without a checkpoint to resume from; name another folder")
    # A run that stopped before its first checkpoint has left a log or tokenizers.
    has_started_run = (folder / LOG_FILE).is_file() or (folder / TOKENIZERS).is_dir()
    if (folder / CONFIG).exists() and not has_started_run:
        raise TrainingError(
            f"{folder}: its {CONFIG} does not belong to a run, and this run would overwrite it; name another folder"
        )


def _require_same_corpus(prepared: Prepared, folder: Path) -> None:
    """Raise TrainingError if the run in the folder used another corpus, in which ids mean other tokens."""
    if not _has_checkpoint(folder):
        return
    new_hash = prepared.facts["sha256"]
    old_hash = read_corpus_hash(_last_checkpoint(folder))
    if old_hash is None and (folder / TRAINING_FILE).is_file():  # a checkpoint of an earlier version
        data = load_training_facts(folder).get("data")
        old_hash = str(data["sha256"]) if isinstance(data, dict) and "sha256" in data else None
    if old_hash is not None and old_hash != new_hash:
        raise TrainingError(
            f"{folder}: its run used a corpus with SHA-256 {old_hash[:16]}...; got one with {new_hash[:16]}... "
            f"in {prepared.folder}; name another folder"
        )


def config_differences(before: RunConfig, now: RunConfig) -> list[str]:
    """Return the dotted paths in which two configs differ, except `[search]` and options that may be changed."""
    old = _fixed_options(before)
    new = _fixed_options(now)
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def _fixed_options(config: RunConfig) -> dict[str, Any]:
    """Return the options that a resumed run must not change, by dotted path."""
    tables = config.model_dump(include={"data", "text", "model", "objective", "training"})
    for name in RESUMABLE_OPTIONS:
        del tables["training"][name]
    options = run_config.dotted(tables)
    return {path: value for path, value in options.items() if not path.startswith(EMBEDDED_MODEL_PATH)}
