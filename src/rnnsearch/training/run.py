"""A whole training run: from a config and prepared data to a model folder."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rnnsearch import config as run_config
from rnnsearch.accel.cuda_graphs import WIDTH_MULTIPLE
from rnnsearch.config import RunConfig
from rnnsearch.data.batch import Proposal
from rnnsearch.data.batches import Batches, Segments
from rnnsearch.data.characters import Spellings, spellings
from rnnsearch.data.epochs import Mixture
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, DataError, TrainingError
from rnnsearch.ops.device import choose_device
from rnnsearch.search.unknown_words import read_entries
from rnnsearch.systems.folder import CONFIG
from rnnsearch.systems.validation import check
from rnnsearch.systems.warm_start import load_initial_weights
from rnnsearch.text.resegmentation import MergeDropout, UnigramSampling
from rnnsearch.text.terms import InlineTerms
from rnnsearch.training.loop import Trainer
from rnnsearch.training.malloc import retained_heap
from rnnsearch.training.progress import LOG_FILE, Reporter, ReporterGroup, RunLog, TensorBoard
from rnnsearch.training.run_folder import (
    CHECKPOINTS,
    copy_sparsity_mask,
    open_folder,
    record_origin,
    with_dictionary,
    with_language_model,
)
from rnnsearch.training.summary import describe_devices, describe_run, estimate, finish, verdicts
from rnnsearch.training.tasks import make_task
from rnnsearch.utils.distributed import Processes, was_restarted
from rnnsearch.utils.files import locked, write_text
from rnnsearch.utils.weights import weights

__all__ = ["check", "describe_run", "train"]


def train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    reporter: Reporter,
    resume: bool = False,
    processes: Processes | None = None,
) -> str:
    """Train `config` on prepared data into the model folder `folder`; returns why training ended.

    With `resume`, or in processes that `torchrun` started anew, it goes on from the folder's last checkpoint, if
    there is one. All `processes` call this together; the first alone writes and reports. Errors: TrainingError where
    the folder holds a run and `resume` was not asked for, or the run is another; Interrupted after saving.
    """
    processes = processes or Processes()
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    device = _device(config, processes)
    resume = resume or processes.any(was_restarted())
    given = config
    with ExitStack() as stack:
        processes.run_on_first(lambda: stack.enter_context(locked(folder)))
        stack.enter_context(retained_heap())
        processes.run_on_first(lambda: open_folder(given, prepared, folder, resume))
        processes.run_on_first(lambda: copy_sparsity_mask(given, folder))
        processes.run_on_first(lambda: record_origin(given, folder))
        config = processes.run_on_first(lambda: with_language_model(with_dictionary(given, folder), folder))
        reporters: list[Reporter] = []
        if processes.is_first:
            reporters = [reporter, stack.enter_context(closing(RunLog(folder / LOG_FILE)))]
            if config.training.tensorboard:
                reporters.append(stack.enter_context(closing(TensorBoard(folder / "tensorboard"))))
        return _train(config, prepared, folder, device, ReporterGroup(*reporters), processes)


def _device(config: RunConfig, processes: Processes) -> torch.device:
    """Errors: ConfigError for a device that is not there, and for an option of several processes where there is
    one.
    """
    many = processes.world_size > 1
    if config.training.all_reduce is not None and not many:
        what = "one process, which has nothing to send"
        raise ConfigError([f"training.all_reduce: has no effect with {what}; remove it, or start several by torchrun"])
    device = choose_device(config.training.device, local_rank=processes.local_rank if many else None)
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def _train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    device: torch.device,
    everyone: Reporter,
    processes: Processes,
) -> str:
    task, folders = make_task(config, prepared, folder, device, processes)
    outputs = folders if processes.is_first else ()  # which the first alone writes
    spelled = _spellings(config, prepared)
    batches = _batches(config, prepared, spelled, device, processes)

    def new_best() -> None:
        for output in outputs:
            output.save(weights(trainer.model))
            describe_run(trainer, output, prepared)

    trainer = Trainer(config.training, task, batches, device, folder / CHECKPOINTS, everyone, new_best, processes)
    size = sum(p.numel() for p in trainer.model.parameters())
    everyone.message(
        f"{size:,} parameters; {len(prepared.train):,} training pairs"
        + (f", {batches.left_out:,} left out as longer than training.max_length" if batches.left_out else "")
        + f"; {config.training.precision} on {describe_devices(device, processes)}"
    )
    if config.data.aligner and len(config.data.languages) == 2 and prepared.aligner is None:
        everyone.message(f"{prepared.folder}: has no aligner: alignments will come from attention (prepare it again)")
    if processes.broadcast(trainer.last_checkpoint.is_dir()):
        trainer.resume()
        everyone.message(f"going on from update {trainer.state.update} ({trainer.last_checkpoint})")
    else:
        for line in [line for output in folders for line in load_initial_weights(output.system)]:
            everyone.message(line)
        task.sparsity.apply()
    trainer.state.corpus = prepared.facts["sha256"]
    _agree(trainer, prepared, processes)
    if trainer.state.update == 0:
        if said := estimate(trainer):
            everyone.message(said)
        for output in outputs:
            output.remove_aligner()
    if processes.is_first:
        write_text(folder / CONFIG, run_config.dump(config))
    reason = trainer.run()
    finish(trainer, outputs, prepared)
    everyone.message(f"training ended: {reason}")
    unread = {side: share for side, share in prepared.unknown.items() if side not in spelled.characters}
    text, early = "dev set" if prepared.dev else "training text", trainer.schedule.awaits_decay
    for verdict in verdicts(trainer.state.history, unread, text, early):
        everyone.message(verdict)
    return reason


def _batches(
    config: RunConfig, prepared: Prepared, spelled: Spellings, device: torch.device, processes: Processes
) -> Batches:
    """This process's share of the training rows, in batches."""
    training = config.training
    return Batches(
        prepared.train,
        training.batch,
        training.max_length,
        training.seed,
        rank=processes.rank,
        world=processes.world_size,
        multiple=WIDTH_MULTIPLE if device.type == "cuda" else 1,
        segments=_segments(config, prepared),
        inlines=_inlines(config, prepared),
        spellings=spelled,
        partition=config.objective.partition,
        proposal=_proposal(config, prepared),
        mixture=_mixture(config, prepared),
    )


def _spellings(config: RunConfig, prepared: Prepared) -> Spellings:
    """What batches hold of unknown words. Errors: DataError where the data do not hold these."""
    found = spellings(config, prepared.tokenizers)
    for side in found.needed(prepared.direction) - set(prepared.facts["spelled"]):
        raise DataError(f"{prepared.folder}: holds no unknown words of {side} (prepare the corpus again)")
    return found


def _proposal(config: RunConfig, prepared: Prepared) -> Proposal | None:
    """Where noise words are drawn from, by an objective that has some."""
    told = config.objective.contrast
    if told is None:
        return None
    counts = prepared.train.counts(config.data.target, len(prepared.target))
    return Proposal(counts, told.power, told.samples)


def _mixture(config: RunConfig, prepared: Prepared) -> Mixture | None:
    """How often the pairs of each file are taken, where that is said. Errors: DataError where the prepared data do
    not
    know the files."""
    weights, pairs = config.data.weights, prepared.facts["pairs_of_files"]
    if weights is None:
        return None
    if len(pairs) != len(weights):
        raise DataError(f"{prepared.folder}: was prepared without data.weights in mind; prepare the corpus again")
    return Mixture(np.cumsum(pairs), np.array(weights))


def _segments(config: RunConfig, prepared: Prepared) -> dict[str, Segments]:
    """How sides are segmented anew in each epoch, where they are."""
    text, (of_sources, of_target) = config.text, config.text.types
    kinds = dict.fromkeys(config.data.sources, of_sources) | {config.data.target: of_target}
    found: dict[str, Segments] = {}
    for name, kind in kinds.items():
        if kind == "bpe" and text.bpe_dropout:
            found[name] = MergeDropout(prepared.tokenizers[name], text.bpe_dropout)
        elif kind == "unigram" and text.unigram_sampling is not None:
            found[name] = UnigramSampling(prepared.tokenizers[name], text.unigram_sampling)
    return found


def _inlines(config: RunConfig, prepared: Prepared) -> InlineTerms | None:
    """What puts terms into source sentences, where that is asked for."""
    told, tokenizers = config.text.inline_terms, prepared.tokenizers
    if told is None:
        return None
    entries = read_entries(config.base / told.dictionary)
    return InlineTerms(entries, tokenizers[config.data.single_source], tokenizers[config.data.target], told.share)


def _agree(trainer: Trainer[Any], prepared: Prepared, processes: Processes) -> None:
    """All processes begin from the same data, checkpoint and weights.

    Errors: TrainingError in those that see others, as machines do that have no file system in common.
    """
    mine = (prepared.facts["sha256"], trainer.state.update)
    others = processes.broadcast(mine)
    if processes.any(mine != others):
        raise TrainingError(
            f"{trainer.folder.parent}: all processes must see the same prepared data and checkpoint; got different "
            "ones (put the run's folder on a file system that all machines share)"
        )
    processes.broadcast_weights(list(weights(trainer.model).values()))
