"""What a run trains: one system, or two directions together; which model folders it becomes and how it is scored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rnnsearch.align import aligner
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, TrainingError
from rnnsearch.models.translation_model import TranslationModel, TranslationPair, direction_tensors
from rnnsearch.objectives.likelihood import Likelihood, Teacher
from rnnsearch.objectives.loss import Model
from rnnsearch.objectives.symmetry import Symmetric
from rnnsearch.ops.device import machine_memory
from rnnsearch.systems.dev_scores import DevEvaluator, DevScore, NllEvaluator
from rnnsearch.systems.folder import SYSTEMS, save_system
from rnnsearch.systems.pruning import read_pruned
from rnnsearch.systems.system import ParameterGroup, Trainable
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.systems.warm_start import load_teacher
from rnnsearch.text.alignments import Links
from rnnsearch.training.gradients import SparsityMask, Task
from rnnsearch.training.sparse_tables import SparseTables, count_mappable
from rnnsearch.utils.distributed import Processes

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class OutputFolder:
    """A model folder that a run becomes: what it holds, and which of the run's tensors are its own."""

    folder: Path
    system: Trainable[Any]
    select_weights: Callable[[Tensors], Tensors]
    aligner: Aligner | None

    def remove_aligner(self) -> None:
        """Take away what an earlier run in the folder has learned of alignments."""
        shutil.rmtree(self.folder / aligner.FOLDER, ignore_errors=True)

    def save(self, tensors: Tensors) -> None:
        """Write the model folder from the run's tensors."""
        if self.aligner is not None and not (self.folder / aligner.FOLDER).is_dir():
            self.aligner.save(self.folder / aligner.FOLDER)
        save_system(self.folder, self.system, self.select_weights(tensors))


TaskWithOutputs = tuple[Task[Model], tuple[OutputFolder, ...]]
"""What a run trains, and the model folders that it becomes."""


def make_task(
    config: RunConfig, prepared: Prepared, folder: Path, device: torch.device, processes: Processes
) -> TaskWithOutputs[Any]:
    """What a config's run trains, whose model folder is `folder` (and `reverse_folder`, of two directions)."""
    _require_memory(config, prepared, in_files=_by_rows(config, device, processes))
    if config.objective.symmetry is not None:
        return _two_directions(config, prepared, folder, device, processes)
    system = SYSTEMS[config.model.kind].make(config, prepared.tokenizers, config.training.seed)
    system.assign_classes(prepared.train)
    model = system.model.to(device)
    dev, gold = prepared.dev, _gold(config, prepared)
    validation = system.validation(dev, gold, device, processes, prepared.aligner) if dev else None
    objective = system.objective()
    if config.objective.teacher is not None:
        assert isinstance(objective, Likelihood), "a language model has no teacher"
        objective = replace(
            objective, teacher=Teacher(load_teacher(system).to(device), config.objective.teacher.weight)
        )
    zeros = SparsityMask(model, read_pruned(folder, model)) if config.training.keep_zeros else SparsityMask()
    task = Task(
        model,
        system.parameter_groups(),
        objective,
        validation,
        zeros,
        _tables(config, model, folder, device, processes),
    )
    return task, (OutputFolder(folder, system, lambda tensors: tensors, _aligner(config, prepared)),)


def _tables(
    config: RunConfig, model: nn.Module, folder: Path, device: torch.device, processes: Processes
) -> SparseTables:
    """Of a model whose loss is over some words in an update."""
    if _by_rows(config, device, processes):
        return SparseTables(model, sparse=True, folder=folder)
    return SparseTables(model) if config.objective.samples_vocabulary else SparseTables()


def _by_rows(config: RunConfig, device: torch.device, processes: Processes) -> bool:
    """Whether gradients are of the rows alone that an update reads, and large tables in files: nothing must see all
    rows, and no passes are recorded."""
    whole = config.training.l2 or config.training.keep_zeros or processes.world_size > 1 or device.type != "cpu"
    return config.objective.samples_vocabulary and not whole


def _require_memory(config: RunConfig, prepared: Prepared, in_files: bool) -> None:
    """Errors: ConfigError where weights, gradients and Adam's two moments alone would not fit this machine's
    memory.
    """
    with torch.device("meta"):
        model = SYSTEMS[config.model.kind].make(config, prepared.tokenizers, seed=None).model
    needed, there = 16 * sum(p.numel() for p in model.parameters()), machine_memory()
    if in_files:  # tables are made in memory
        needed -= 12 * count_mappable(model)
    if there is not None and needed > there:
        what = f"must have sizes that fit the memory; training needs {needed / 2**30:,.1f} GiB for its weights"
        raise ConfigError([f"model: {what}, this machine has {there / 2**30:,.1f}"])


def _two_directions(
    config: RunConfig, prepared: Prepared, folder: Path, device: torch.device, processes: Processes
) -> TaskWithOutputs[TranslationPair]:
    """Both directions, rewarded where their attention agrees (Cohn et al. 2016)."""
    weight = config.objective.symmetry
    assert weight is not None
    seed, both = config.training.seed, prepared.tokenizers
    there = TranslationSystem.make(config, both, seed)
    back = TranslationSystem.make(reverse_config(config), both, seed + 1)
    pair = TranslationPair(there.model, back.model).to(device)
    objective = Symmetric(weight, there.objective())
    learned = _aligner(config, prepared)
    turned_aligner = None if learned is None else learned.turned()
    outputs = (
        OutputFolder(folder, there, lambda tensors: direction_tensors(tensors, "onward"), learned),
        OutputFolder(reverse_folder(folder), back, lambda tensors: direction_tensors(tensors, "back"), turned_aligner),
    )
    groups, validation = [ParameterGroup(list(pair.parameters()))], None
    if prepared.dev:
        gold = _gold(config, prepared)
        turned = [row._replace(texts=row.texts[::-1]) for row in prepared.dev]
        turned_gold = None if gold is None else [links.turned() for links in gold]
        onward = there.validation(prepared.dev, gold, device, processes)
        validation = PairValidation(onward, back.validation(turned, turned_gold, device, processes))
    return Task(pair, groups, objective, validation), outputs


def _aligner(config: RunConfig, prepared: Prepared) -> Aligner | None:
    """What the model folder aligns by; not where attention is taught links, which then come from it."""
    return prepared.aligner if config.data.aligner and config.objective.supervision is None else None


def _gold(config: RunConfig, prepared: Prepared) -> list[Links] | None:
    """The dev set's alignments, where the run's metric needs them."""
    if config.training.metric != "aer":
        return None
    gold = prepared.links("dev")
    if gold is None:
        raise TrainingError(f"{prepared.folder}: has no word alignments of the dev set for training.metric = aer")
    return gold


def reverse_folder(folder: Path) -> Path:
    """Where the other direction's model goes."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.parent / f"{named.name}-reverse"


def reverse_config(config: RunConfig) -> RunConfig:
    """The config that the other direction's model folder keeps: languages, text files and vocabularies exchanged.

    A listed corpus and TSV files stay as they are named: their first column is then the target.
    """
    data = config.data
    turned: dict[str, Any] = {"source": data.target, "target": data.source}
    if data.train is not None:
        turned["train"] = [_turned(spec) for spec in data.train]
    turned |= {part: _turned(spec) for part, spec in (("dev", data.dev), ("test", data.test)) if spec is not None}
    text = config.text
    if text.target_vocabulary is not None:
        sizes = {"vocabulary": text.target_vocabulary, "target_vocabulary": text.vocabulary}
        text = text.model_copy(update=sizes)
    search = config.search
    if search.dictionary is not None:  # of the other direction
        search = search.model_copy(update={"replace_unknown": "copy", "dictionary": None})
    copy = config.model_copy(update={"data": data.model_copy(update=turned), "text": text, "search": search})
    copy._base = config.base
    return copy


def _turned(spec: str) -> str:
    source, bar, target = spec.partition("|")
    return f"{target}{bar}{source}" if bar else spec


class PairValidation(DevEvaluator[TranslationPair]):
    """The dev set in both directions: each score is the mean of the two, of the likelihood alone."""

    def __init__(self, onward: NllEvaluator[TranslationModel], back: NllEvaluator[TranslationModel]) -> None:
        self.onward = onward
        self.back = back

    def score(self, model: TranslationPair, stop: Callable[[], bool]) -> DevScore | None:
        there = self.onward.score(model.onward, stop)
        again = None if there is None else self.back.score(model.back, stop)
        if there is None or again is None:
            return None
        others = {name: _mean(value, again.metrics[name]) for name, value in there.metrics.items()}
        return DevScore((there.nll + again.nll) / 2, (there.nll_per_token + again.nll_per_token) / 2, others)


def _mean(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else (a + b) / 2
