"""Training tasks: one system, or both directions together, with its optimiser, objective, dev set and model folders.

The training loop (`training/loop.py`, `training/gradients.py`) calls the methods of `Task`. `make_task` is called once
per run, by `training/run.py`.

The second folder of a symmetric run is `<folder>-reverse` (`reverse_folder`). Tests: tests/properties/test_systems.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rnnsearch.accel.cuda_graphs import forget
from rnnsearch.align import aligner
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig
from rnnsearch.data.batches import Batch
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, TrainingError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.multiway import MultiwayModel
from rnnsearch.models.translation_model import TranslationModel, TranslationPair, direction_tensors
from rnnsearch.objectives.likelihood import Likelihood, Teacher
from rnnsearch.objectives.loss import Loss, Model, Objective
from rnnsearch.objectives.sequence.objective import SequenceObjective
from rnnsearch.objectives.symmetry import SymmetricLikelihood
from rnnsearch.ops.device import total_memory
from rnnsearch.search import recorded
from rnnsearch.systems.dev_scores import DevEvaluator, DevScore, NllEvaluator
from rnnsearch.systems.folder import SYSTEMS, save_system
from rnnsearch.systems.pruning import read_pruned
from rnnsearch.systems.system import ParameterGroup, Trainable
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.systems.warm_start import load_teacher
from rnnsearch.text.alignments import Links
from rnnsearch.training.optimisers import make_optimiser, step_if
from rnnsearch.training.sparse_tables import SparseTables, count_mappable
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.files import recover_folder
from rnnsearch.utils.weights import named_weights

Tensors = dict[str, Tensor]

DIRECTIONS_FOLDER = "directions"
"""Subfolder of the bilingual models of a multi-way run (`training.save_directions`)."""
ADAM_BYTES = 16
"""Bytes per parameter of training with Adam: fp32 weights, gradients and two moments."""
MAPPED_TABLE_SAVING_BYTES = 12
"""Bytes of a memory-mapped table that need no memory: its gradient is sparse, and its moments are on disk."""


class SparsityMask:
    """Pruned weights, kept at zero while the other weights are trained (See et al. 2016, retraining).

    Their gradients are zeroed as soon as a backward pass has computed them, so that neither the norm nor the
    optimiser's moments include them, and `apply` resets the weights after an update. Without masks nothing happens.
    """

    def __init__(self, model: nn.Module | None = None, masks: Mapping[str, Tensor] | None = None) -> None:
        parameters = {} if model is None else dict(model.named_parameters())
        self._pruned: list[tuple[nn.Parameter, Tensor]] = []
        for name, cpu_mask in (masks or {}).items():
            parameter = parameters[name]
            mask = cpu_mask.to(parameter.device)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(_mask_gradient, mask=mask))
            self._pruned.append((parameter, mask))

    @torch.no_grad()
    def apply(self) -> None:
        """Set the pruned weights to zero."""
        for parameter, mask in self._pruned:
            parameter.masked_fill_(mask, 0.0)


def _mask_gradient(parameter: Tensor, mask: Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.masked_fill_(mask, 0.0)


@dataclass(frozen=True)
class Task(Generic[Model]):
    """A model with everything it is trained by; the training loop only calls these methods."""

    model: Model
    optimiser: Optimizer
    """Optimiser of the parameters that are trained."""
    objective: Objective[Model]
    """Loss of a batch."""
    validation: DevEvaluator[Model] | None
    """Scores on the dev set; None without a dev set."""
    sparsity: SparsityMask = field(default_factory=SparsityMask)
    """Pruned weights, which stay zero."""
    tables: SparseTables = field(default_factory=SparseTables)
    """Tables of which an update changes some rows only."""

    def loss(self, batch: Batch, rng: BatchRng) -> Loss:
        """Return the loss of a batch."""
        return self.objective(self.model, batch, rng)

    def update(self, statistics: Mapping[str, Tensor], accepted: Tensor | None = None) -> None:
        """Update the model by the gradients and by the summed statistics of the loss.

        Args:
            statistics: Sums over all batches of the update.
            accepted: A scalar on the device that is False if the update must be skipped; None for True.
        """
        # Only the optimiser can skip an update without the host.
        if accepted is not None and statistics:
            if not accepted:
                return
            accepted = None
        step_if(self.optimiser, accepted, lambda: self.tables.step(self.optimiser))
        with torch.no_grad():
            self.objective.after_update(self.model, statistics)
        # After `after_update`, so that nothing can change pruned weights before the next pass.
        self.sparsity.apply()

    def dev_score(self, stop: Callable[[], bool]) -> DevScore | None:
        """Return the scores on the dev set, or None if `stop` returned True."""
        assert self.validation is not None
        return self.validation.score(self.model, stop)

    def release_memory(self) -> None:
        """Free GPU memory that recorded passes and searches hold."""
        models = self.model.views if isinstance(self.model, MultiwayModel) else (self.model,)
        for model in models:
            forget(model)
            recorded.forget(model)
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class OutputFolder:
    """A model folder that a run writes."""

    folder: Path
    system: Trainable[Any]
    """System that is stored."""
    select_weights: Callable[[Tensors], Tensors]
    """Returns the weights of this folder's model from those of the run."""
    find_aligner: Callable[[], Aligner | None]
    """Returns the word aligner that is stored in the folder, or None without one, or before it is learned."""
    reverses_aligner: bool = False
    """True if the model translates in the opposite direction of the run."""

    def remove_aligner(self) -> None:
        """Remove the aligner of an earlier run in the folder."""
        recover_folder(self.folder / aligner.FOLDER)  # an old version would be found, too
        shutil.rmtree(self.folder / aligner.FOLDER, ignore_errors=True)

    def save(self, tensors: Tensors) -> None:
        """Write the model folder from the run's weights."""
        if not (self.folder / aligner.FOLDER).is_dir() and (found := self.find_aligner()) is not None:
            self.save_aligner(found)
        save_system(self.folder, self.system, self.select_weights(tensors))

    def save_aligner(self, learned: Aligner) -> None:
        """Write the aligner of the run's direction to the folder."""
        (learned.reversed() if self.reverses_aligner else learned).save(self.folder / aligner.FOLDER)


def direction_outputs(folder: Path, system: Trainable[Any]) -> dict[str, OutputFolder]:
    """Return the bilingual model folder of each direction of a multi-way system by the direction's name."""
    outputs = {}
    for direction in system.directions:
        selected = system.select(direction)
        assert isinstance(selected, TranslationSystem)
        # The weights of the run are those of the views.
        weights = partial(_weights_of, selected.model)
        output = OutputFolder(folder / DIRECTIONS_FOLDER / direction.name, selected, weights, lambda: None)
        outputs[direction.name] = output
    return outputs


def _weights_of(model: nn.Module, _: Tensors) -> Tensors:
    return named_weights(model)


TaskWithOutputs = tuple[Task[Model], tuple[OutputFolder, ...]]
"""A task and the model folders that it writes."""


def make_task(
    config: RunConfig, prepared: Prepared, folder: Path, device: torch.device, processes: Processes
) -> TaskWithOutputs[Any]:
    """Return the task of a run and its outputs: `folder`, and `reverse_folder` if both directions are trained.

    Raises:
        ConfigError: If the weights do not fit into memory.
    """
    _require_memory(config, prepared, tables_on_disk=_updates_rows_only(config, device, processes))
    if config.objective.symmetry is not None:
        return _make_symmetric_task(config, prepared, folder, device, processes)
    system = SYSTEMS[config.model.kind].make(config, prepared.tokenizers, config.training.seed)
    system.assign_classes(prepared.train)
    model = system.model.to(device)
    gold = _gold_links(config, prepared)
    validation = None
    if prepared.dev:
        annotator = None if config.text.annotation is None else prepared.aligner
        validation = system.validation(prepared.dev, gold, device, processes, annotator)
    objective = system.objective()
    if config.objective.teacher is not None:
        objective = _with_teacher(objective, Teacher(load_teacher(system).to(device), config.objective.teacher.weight))
    sparsity = SparsityMask(model, read_pruned(folder, model)) if config.training.keep_zeros else SparsityMask()
    tables = _sparse_tables(config, model, folder, device, processes)
    optimiser = make_optimiser(system.parameter_groups(), config.training.optimiser)
    task = Task(model, optimiser, objective, validation, sparsity, tables)
    return task, (OutputFolder(folder, system, lambda tensors: tensors, _aligner_finder(config, prepared)),)


def _with_teacher(objective: Objective[Any], teacher: Teacher) -> Objective[Any]:
    """Return the objective with a teacher for the likelihood of the references."""
    if isinstance(objective, SequenceObjective):
        objective.likelihood = replace(objective.likelihood, teacher=teacher)
        return objective
    assert isinstance(objective, Likelihood), "a language model has no teacher"
    return replace(objective, teacher=teacher)


def _sparse_tables(
    config: RunConfig, model: nn.Module, folder: Path, device: torch.device, processes: Processes
) -> SparseTables:
    """Return the tables that are updated by rows, if the loss samples its targets."""
    if _updates_rows_only(config, device, processes):
        return SparseTables(model, sparse=True, folder=folder)
    return SparseTables(model) if config.objective.samples_vocabulary else SparseTables()


def _updates_rows_only(config: RunConfig, device: torch.device, processes: Processes) -> bool:
    """Return True if gradients have only the rows that an update reads, and large tables can be memory-mapped.

    This excludes options that read all rows, several processes, and GPUs, on which passes are recorded as CUDA graphs.
    """
    needs_all_rows = config.training.l2 or config.training.keep_zeros or processes.world_size > 1
    return config.objective.samples_vocabulary and not needs_all_rows and device.type == "cpu"


def _require_memory(config: RunConfig, prepared: Prepared, tables_on_disk: bool) -> None:
    """Raise ConfigError if weights, gradients and Adam's moments exceed this machine's memory."""
    # Tensors on the meta device have shapes but no memory.
    with torch.device("meta"):
        model = SYSTEMS[config.model.kind].make(config, prepared.tokenizers, seed=None).model
    needed = ADAM_BYTES * sum(p.numel() for p in model.parameters())
    if tables_on_disk:
        needed -= MAPPED_TABLE_SAVING_BYTES * count_mappable(model)
    available = total_memory()
    if available is not None and needed > available:
        raise ConfigError(
            [
                "model: must have sizes that fit into memory; training needs "
                f"{needed / 2**30:,.1f} GiB for its weights, this machine has {available / 2**30:,.1f}"
            ]
        )


def _make_symmetric_task(
    config: RunConfig, prepared: Prepared, folder: Path, device: torch.device, processes: Processes
) -> TaskWithOutputs[TranslationPair]:
    """Return the task that trains both directions and rewards agreement of their attention (Cohn et al. 2016)."""
    weight = config.objective.symmetry
    assert weight is not None
    seed = config.training.seed
    onward = TranslationSystem.make(config, prepared.tokenizers, seed)
    # Another seed: equal initial weights would make the directions similar.
    back = TranslationSystem.make(reverse_config(config), prepared.tokenizers, seed + 1)
    pair = TranslationPair(onward.model, back.model).to(device)
    objective = SymmetricLikelihood(weight, onward.likelihood())
    find_aligner = _aligner_finder(config, prepared)
    outputs = (
        OutputFolder(folder, onward, lambda tensors: direction_tensors(tensors, "onward"), find_aligner),
        OutputFolder(
            reverse_folder(folder),
            back,
            lambda tensors: direction_tensors(tensors, "back"),
            find_aligner,
            reverses_aligner=True,
        ),
    )
    validation = None
    if prepared.dev:
        gold = _gold_links(config, prepared)
        reverse_gold = None if gold is None else [links.reversed() for links in gold]
        reverse_rows = [row._replace(texts=row.texts[::-1]) for row in prepared.dev]
        validation = PairEvaluator(
            onward.validation(prepared.dev, gold, device, processes),
            back.validation(reverse_rows, reverse_gold, device, processes),
        )
    optimiser = make_optimiser([ParameterGroup(list(pair.parameters()))], config.training.optimiser)
    return Task(pair, optimiser, objective, validation), outputs


def _aligner_finder(config: RunConfig, prepared: Prepared) -> Callable[[], Aligner | None]:
    """Return a function that returns the aligner to store in the model folder, if it is already there."""
    return lambda: prepared.aligner if config.stores_aligner else None


def _gold_links(config: RunConfig, prepared: Prepared) -> list[Links] | None:
    """Return the gold alignments of the dev set if the run's metric needs them, or raise TrainingError."""
    if config.training.metric != "aer":
        return None
    gold = prepared.links("dev")
    if gold is None:
        raise TrainingError(f"{prepared.folder}: has no word alignments of the dev set for training.metric = aer")
    return gold


def reverse_folder(folder: Path) -> Path:
    """Return the folder of the other direction's model."""
    # `.` and `..` are no names that a suffix can be added to.
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.parent / f"{named.name}-reverse"


def reverse_config(config: RunConfig) -> RunConfig:
    """Return the config of the other direction's model folder: languages, files and vocabulary sizes are exchanged.

    The names of a catalogued corpus and of TSV files stay; their first column is then the target.
    """
    data = config.data
    reversed_data: dict[str, Any] = {"source": data.target, "target": data.source}
    if data.train is not None:
        reversed_data["train"] = [_reverse_file_pair(files) for files in data.train]
    if data.dev is not None:
        reversed_data["dev"] = _reverse_file_pair(data.dev)
    if data.test is not None:
        reversed_data["test"] = _reverse_file_pair(data.test)
    text = config.text
    if text.target_vocabulary is not None:
        sizes = {"vocabulary": text.target_vocabulary, "target_vocabulary": text.vocabulary}
        text = text.model_copy(update=sizes)
    search = config.search
    if search.dictionary is not None:  # it is for the other direction
        search = search.model_copy(update={"replace_unknown": "copy", "dictionary": None})
    data = data.model_copy(update=reversed_data)
    reverse = config.model_copy(update={"data": data, "text": text, "search": search})
    reverse._base = config.base
    return reverse


def _reverse_file_pair(files: str) -> str:
    """Return `target|source` for `source|target`."""
    source, separator, target = files.partition("|")
    return f"{target}{separator}{source}" if separator else files


class PairEvaluator(DevEvaluator[TranslationPair]):
    """Evaluates both directions of a pair; each score is the mean of the two."""

    def __init__(self, onward: NllEvaluator[TranslationModel], back: NllEvaluator[TranslationModel]) -> None:
        self.onward = onward
        self.back = back

    def score(self, model: TranslationPair, stop: Callable[[], bool]) -> DevScore | None:
        onward = self.onward.score(model.onward, stop)
        if onward is None:
            return None
        back = self.back.score(model.back, stop)
        if back is None:
            return None
        metrics = {name: _mean(value, back.metrics[name]) for name, value in onward.metrics.items()}
        return DevScore((onward.nll + back.nll) / 2, (onward.nll_per_token + back.nll_per_token) / 2, metrics)


def _mean(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else (a + b) / 2
