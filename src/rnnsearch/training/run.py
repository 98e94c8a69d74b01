"""A training run: from a config and prepared data to a model folder.

`train` opens the folder, builds the task, the batches and a `Trainer` (`training/loop.py`), runs it and writes the
summary. The command line (`cli/train.py`) and scripts call `check`, which returns the problems of a config, and then
`train`.

The names in `__all__` are the public Python API of training. With several processes, each runs `train`, and only the
first one writes. Tests: tests/old_models/test_old_models.py, tests/stress/kills.py.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rnnsearch import config as run_config
from rnnsearch.accel.cuda_graphs import WIDTH_MULTIPLE
from rnnsearch.align import aligner
from rnnsearch.config import RunConfig
from rnnsearch.config.data import CONTEXT_SUFFIX
from rnnsearch.config.objective import ContrastConfig, ShortlistConfig
from rnnsearch.data import aligner_text
from rnnsearch.data.batch import Direction, NoiseDistribution
from rnnsearch.data.batches import Batches, Resegment
from rnnsearch.data.characters import WordCharacters, word_characters
from rnnsearch.data.context import rows_with_context
from rnnsearch.data.epochs import CorpusMixture
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.mixed_batches import MixedBatches, TaskBatches, TrainingBatches
from rnnsearch.data.prepared import Prepared
from rnnsearch.data.tags import AfterTag, tagged_rows
from rnnsearch.data.tasks import task_path, task_ratios, task_rows
from rnnsearch.errors import ConfigError, DataError, Interrupted, TrainingError
from rnnsearch.models.multiway import MultiwayModel, trained_directions
from rnnsearch.ops.device import choose_device
from rnnsearch.ops.malloc import retain_freed_memory
from rnnsearch.search.unknown_words import read_entries
from rnnsearch.systems.card import write_origin
from rnnsearch.systems.folder import CONFIG, WEIGHTS
from rnnsearch.systems.multiway import direction_config, language_tag
from rnnsearch.systems.validation import check
from rnnsearch.systems.warm_start import load_initial_weights
from rnnsearch.text.resegmentation import MergeDropout, SentenceBySentence, UnigramSampling
from rnnsearch.text.terms import InlineTerms
from rnnsearch.training.loop import Trainer
from rnnsearch.training.progress import LOG_FILE, Reporter, ReporterGroup, RunLog, TensorBoard
from rnnsearch.training.run_folder import (
    CHECKPOINTS,
    copy_dictionary,
    copy_sparsity_mask,
    open_folder,
    record_origin,
    require_training_text,
    resolve_directions,
    resolve_language_model,
)
from rnnsearch.training.summary import describe_devices, describe_run, estimate, finish, verdicts
from rnnsearch.training.tasks import OutputFolder, direction_outputs, make_task
from rnnsearch.utils.distributed import Processes, was_restarted
from rnnsearch.utils.files import locked, write_text
from rnnsearch.utils.weights import named_weights

__all__ = ["check", "describe_run", "train"]


def train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    reporter: Reporter,
    resume: bool = False,
    processes: Processes | None = None,
) -> str:
    """Train on prepared data and return why training ended.

    Args:
        config: Config of the run, without problems (see `check`).
        prepared: The prepared corpus.
        folder: Model folder to write.
        reporter: Receiver of the progress; used by the first process only.
        resume: Continue from the last checkpoint in the folder, if there is one, like processes that `torchrun` has
            restarted.
        processes: All processes of the run, each of which calls this function; only the first writes files.

    Raises:
        TrainingError: If the folder has a run and `resume` is False, or another run; or if the loss is not finite.
        Interrupted: After a signal; the state is saved.
    """
    processes = processes or Processes()
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    device = _choose_device(config, processes)
    # All processes decide alike, even if only some of them were restarted.
    resume = resume or processes.any(was_restarted())
    with ExitStack() as stack:

        def prepare_folder() -> RunConfig:
            stack.enter_context(locked(folder))
            open_folder(config, prepared, folder, resume)
            copy_sparsity_mask(config, folder)
            record_origin(config, folder)
            resolved = resolve_language_model(copy_dictionary(config, folder), folder)
            return resolve_directions(resolved, prepared)

        # Only the first process writes to the folder; the others receive the config.
        stored_config = processes.run_on_first(prepare_folder)
        stack.enter_context(retain_freed_memory())
        reporters: list[Reporter] = []
        if processes.is_first:
            reporters = [reporter, RunLog(folder / LOG_FILE)]
            if config.training.tensorboard:
                reporters.append(stack.enter_context(closing(TensorBoard(folder / "tensorboard"))))
        return _train(stored_config, prepared, folder, device, ReporterGroup(*reporters), processes)


def _choose_device(config: RunConfig, processes: Processes) -> torch.device:
    """Return the device of this process; raise ConfigError if there is none or an option needs several processes."""
    is_distributed = processes.world_size > 1
    if config.training.all_reduce is not None and not is_distributed:
        raise ConfigError(
            ["training.all_reduce: has no effect with one process; remove it, or start several processes with torchrun"]
        )
    device = choose_device(config.training.device, local_rank=processes.local_rank if is_distributed else None)
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def _train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    device: torch.device,
    reporter: Reporter,
    processes: Processes,
) -> str:
    """Train in an open folder and return why training ended."""
    task, all_outputs = make_task(config, prepared, folder, device, processes)
    # Only the first process writes model folders.
    outputs = all_outputs if processes.is_first else ()
    unknown_words = _word_characters(config, prepared)
    batches = _make_batches(config, prepared, task.model, unknown_words, device, processes)

    # Bound late: `trainer` is created below, with this function.
    def save_best() -> None:
        for output in outputs:
            output.save(named_weights(trainer.model))
            describe_run(trainer, output, prepared)

    directions = {}
    if config.training.save_directions and processes.is_first:
        directions = direction_outputs(folder, all_outputs[0].system)

    def save_direction(name: str) -> None:
        if name in directions:
            directions[name].save(named_weights(trainer.model))
            write_origin([folder], directions[name].folder)
            describe_run(trainer, directions[name], prepared, direction=name)

    trainer = Trainer(
        config.training, task, batches, device, folder / CHECKPOINTS, reporter, save_best, processes, save_direction
    )
    _report_start(trainer, config, prepared)
    if processes.broadcast(trainer.last_checkpoint.is_dir()):
        trainer.resume()
        reporter.message(f"resuming from update {trainer.state.update} ({trainer.last_checkpoint})")
    else:
        for output in all_outputs:
            for message in load_initial_weights(output.system):
                reporter.message(message)
        task.sparsity.apply()
    trainer.state.corpus = prepared.facts["sha256"]
    _require_same_start(trainer, prepared)
    if trainer.state.update == 0:
        if estimated := estimate(trainer):
            reporter.message(estimated)
        for output in outputs:
            output.remove_aligner()
    if processes.is_first:
        write_text(folder / CONFIG, run_config.dump(config))

    end_reason = trainer.run()

    finish(trainer, outputs, prepared)
    reporter.message(f"training ended: {end_reason}")
    _report_verdicts(trainer, prepared, unknown_words)
    if config.stores_aligner:
        processes.run_on_first(partial(_complete_aligners, outputs, prepared, reporter))
    return end_reason


def _complete_aligners(outputs: Sequence[OutputFolder], prepared: Prepared, reporter: Reporter) -> None:
    """Learn the word aligner if `prepare` has left it for later, and store it in the model folders without one.

    Raises:
        Interrupted: After Ctrl-C; a resumed run learns it.
    """
    incomplete = [o for o in outputs if (o.folder / WEIGHTS).is_file() and not (o.folder / aligner.FOLDER).is_dir()]
    # A process that was killed after learning may have left the pairs, which are removed then.
    if not incomplete and not aligner_text.has_learned_pairs(prepared):
        return
    if aligner_text.is_pending(prepared):
        reporter.message("learning the word aligner")
    try:
        learned = aligner_text.learn_pending(prepared)
    except KeyboardInterrupt:
        folder = incomplete[0].folder
        raise Interrupted(f"{folder}: the model is complete, but has no word aligner; continue with --resume") from None
    for output in incomplete:
        if learned is not None:
            output.save_aligner(learned)


def _report_start(trainer: Trainer[Any], config: RunConfig, prepared: Prepared) -> None:
    """Report the size of the model and the data, and a missing aligner."""
    num_parameters = sum(p.numel() for p in trainer.model.parameters())
    frozen = ""
    if config.training.transfer is not None and config.training.transfer.freeze:
        num_frozen = sum(p.numel() for p in trainer.model.parameters() if not p.requires_grad)
        frozen = f" ({num_parameters - num_frozen:,} trained, {num_frozen:,} frozen)"
    left_out = ""
    if trainer.batches.left_out:
        left_out = f", {trainer.batches.left_out:,} left out as longer than training.max_length"
    trainer.reporter.message(
        f"{num_parameters:,} parameters{frozen}; {len(prepared.train):,} training {prepared.unit}{left_out}; "
        f"{config.training.precision} on {describe_devices(trainer.device, trainer.processes)}"
    )
    needs_aligner = config.data.aligner and config.data.is_bilingual
    if needs_aligner and not prepared.has_aligner and not aligner_text.is_pending(prepared):
        trainer.reporter.message(
            f"{prepared.folder}: has no aligner; alignments will come from attention (prepare the corpus again)"
        )


def _report_verdicts(trainer: Trainer[Any], prepared: Prepared, unknown_words: WordCharacters) -> None:
    """Report how the run went: whether it converged or overfitted, and whether many words are unknown."""
    # Unknown words of streams with characters are not lost: the model reads or writes them.
    unknown = {
        language: fraction
        for language, fraction in prepared.unknown.items()
        if language not in unknown_words.characters
    }
    text = "dev set" if prepared.dev else "training text"
    for verdict in verdicts(trainer.state.history, unknown, text, early=trainer.schedule.awaits_decay):
        trainer.reporter.message(verdict)


def _require_same_start(trainer: Trainer[Any], prepared: Prepared) -> None:
    """Give all processes the first one's weights.

    Raises:
        TrainingError: If the processes have different data or checkpoints, as on machines without a shared file
            system.
    """
    start = (prepared.facts["sha256"], trainer.state.update)
    first_start = trainer.processes.broadcast(start)
    if trainer.processes.any(start != first_start):
        raise TrainingError(
            f"{trainer.folder.parent}: all processes must see the same prepared data and checkpoint; got different "
            "ones (put the run's folder on a file system that all machines share)"
        )
    # Processes initialise or load weights independently; from here on they are equal.
    trainer.processes.broadcast_weights(list(named_weights(trainer.model).values()))


def _make_batches(
    config: RunConfig,
    prepared: Prepared,
    model: nn.Module,
    unknown_words: WordCharacters,
    device: torch.device,
    processes: Processes,
) -> TrainingBatches:
    """Return this process's part of the training data, in batches.

    Directions and tasks of a multi-way model whose modules are all frozen have none, because nothing is to be learned
    from them.

    Raises:
        ConfigError: If there is no text to train a direction or task on.
    """
    training = config.training
    make = partial(
        Batches,
        batch=training.batch,
        max_length=training.max_length,
        seed=training.seed,
        rank=processes.rank,
        world=processes.world_size,
        multiple=WIDTH_MULTIPLE if device.type == "cuda" else 1,
        any_source=len(config.data.source_streams) > 1,
        inlines=_inline_terms(config, prepared),
        spellings=unknown_words,
        partition=config.objective.partition,
        shortlist=_noise_distribution(config.objective.shortlist, config, prepared),
        proposal=_noise_distribution(config.objective.contrast, config, prepared),
        mixture=_mixture(config, prepared),
    )
    if not isinstance(model, MultiwayModel):
        ids, segments = _training_rows(config, prepared)
        return make(ids, segments=segments)
    trained = trained_directions(model)
    trained_pairs = [direction for direction in model.directions if direction in trained]
    require_training_text([(*direction.sources, direction.target) for direction in trained_pairs], prepared)
    if not trained_pairs:
        must = "must leave some module of a direction to train; it freezes those of all directions"
        raise ConfigError([f"training.transfer.freeze: {must}"])
    directions = {}
    for direction in trained_pairs:
        ids, segments = _training_rows(direction_config(config, direction), prepared)
        directions[direction] = make(ids, segments=segments, direction=direction)
    tasks = {}
    # A task is a small part of an epoch, which must not be the same sentences each time.
    make = partial(make, batch=training.batch.model_copy(update={"shuffle": "epoch"}))
    for task, ratio in task_ratios(config.data.tasks).items():
        if task in trained:
            ids, segments = _task_rows(config, task, prepared)
            tasks[task] = TaskBatches(make(ids, segments=segments, direction=task), ratio)
    return MixedBatches(directions, training.seed, training.batch.temperature, tasks)


def _task_rows(config: RunConfig, task: Direction, prepared: Prepared) -> tuple[ParallelIds, dict[str, Resegment]]:
    """Return the rows of a task, with tags if the model reads any, and how to segment them again."""
    assert config.data.tasks is not None
    language = task.target
    monolingual = config.data.tasks.text == "monolingual"
    ids = task_rows(prepared.train, task, monolingual)
    if not ids.has_rows([language]):
        text = "text without a translation" if monolingual else "training text"
        raise ConfigError([f"{task_path(task)}: must have {text} in {language}; got none"])
    segments = _resegmentation(config, prepared)
    tag = language_tag(config, task)
    for source in task.sources:
        if language in segments:
            segments[source] = segments[language] if tag is None else AfterTag(segments[language])
        if tag is not None:
            ids = tagged_rows(ids, source, tag, prepared.tokenizers[language])
    return ids, segments


def _training_rows(config: RunConfig, prepared: Prepared) -> tuple[ParallelIds, dict[str, Resegment]]:
    """Return the rows that a model reads, with contexts or tags if it reads any, and how to segment them again."""
    ids = rows_with_context(prepared.train, config)
    segments = _resegmentation(config, prepared)
    tag = config.data.tag
    if tag is None:
        return ids, segments
    source = config.data.single_source
    if source in segments:
        segments[source] = AfterTag(segments[source])
    return tagged_rows(ids, source, tag, prepared.tokenizers[source]), segments


def _word_characters(config: RunConfig, prepared: Prepared) -> WordCharacters:
    """Return what batches contain of unknown words; raise DataError if the prepared data do not contain the words."""
    unknown_words = word_characters(config, prepared.tokenizers)
    for language in unknown_words.needed(prepared.direction) - set(prepared.facts["spelled"]):
        raise DataError(f"{prepared.folder}: holds no unknown words of {language} (prepare the corpus again)")
    return unknown_words


def _noise_distribution(
    options: ShortlistConfig | ContrastConfig | None, config: RunConfig, prepared: Prepared
) -> NoiseDistribution | None:
    """Return the distribution that a loss samples target tokens from, or None without such a loss."""
    if options is None:
        return None
    counts = prepared.train.counts(config.data.target, len(prepared.target))
    return NoiseDistribution(counts, options.power, options.samples)


def _mixture(config: RunConfig, prepared: Prepared) -> CorpusMixture | None:
    """Return the sampling weights of the training files (`data.weights`), if configured.

    Raises:
        DataError: If the prepared data do not record which pairs are from which file.
    """
    file_weights = config.data.weights
    if file_weights is None:
        return None
    num_pairs = prepared.facts["pairs_of_files"]
    if len(num_pairs) != len(file_weights):
        raise DataError(f"{prepared.folder}: was prepared without data.weights; prepare the corpus again")
    return CorpusMixture(np.cumsum(num_pairs), np.array(file_weights))


def _resegmentation(config: RunConfig, prepared: Prepared) -> dict[str, Resegment]:
    """Return, by language, the functions that segment words again at random in each epoch."""
    text = config.text
    source_type, target_type = text.types
    types = dict.fromkeys(config.data.sources, source_type) | {config.data.target: target_type}
    resegmentation: dict[str, Resegment] = {}
    for language in config.data.text_languages:
        text_type = types[language]
        if text_type == "bpe" and text.bpe_dropout:
            resegmentation[language] = MergeDropout(prepared.tokenizers[language], text.bpe_dropout)
        elif text_type == "unigram" and text.unigram_sampling is not None:
            resegmentation[language] = UnigramSampling(prepared.tokenizers[language], text.unigram_sampling)
    if config.data.context is None:
        return resegmentation
    by_sentence: dict[str, Resegment] = {}
    for name in (*config.data.source_streams, config.data.target):
        if function := resegmentation.get(name.removesuffix(CONTEXT_SUFFIX)):
            by_sentence[name] = SentenceBySentence(function)
    return by_sentence


def _inline_terms(config: RunConfig, prepared: Prepared) -> InlineTerms | None:
    """Return the function that inserts target terms into source sentences, if configured."""
    options = config.text.inline_terms
    if options is None:
        return None
    entries = read_entries(config.base / options.dictionary)
    source = prepared.tokenizers[config.data.single_source]
    return InlineTerms(entries, source, prepared.tokenizers[config.data.target], options.share)
