"""What a run trains: one translation model, or both directions together; where each goes and how it is scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor

from rnnsearch.config import RunConfig
from rnnsearch.data.corpus import Row
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import TrainingError
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.models.translation_pair import TranslationPair, direction
from rnnsearch.objectives.build import penalties
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.objectives.loss import Model
from rnnsearch.objectives.symmetry import Symmetric
from rnnsearch.processes import Processes
from rnnsearch.systems.build import build
from rnnsearch.systems.dev_set import DevSet, validation
from rnnsearch.systems.folder import save_model
from rnnsearch.systems.parameters import ParameterGroup
from rnnsearch.systems.validation import Assessor, DevScore, Validation
from rnnsearch.text.alignments import Links
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.training.loop import Task

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Direction:
    """One model folder: what it is of, and which of the run's tensors are its own."""

    folder: Path
    config: RunConfig
    source: Tokenizer
    target: Tokenizer
    own: Callable[[Tensors], Tensors]

    def save(self, tensors: Tensors) -> None:
        """Write the model folder from the run's tensors."""
        save_model(self.folder, self.own(tensors), self.config, self.source, self.target)


@dataclass(frozen=True)
class System(Generic[Model]):
    """What a run trains, and the model folders that it becomes."""

    task: Task[Model]
    directions: tuple[Direction, ...]


def make_system(
    config: RunConfig, prepared: Prepared, folder: Path, device: torch.device, processes: Processes
) -> System[Any]:
    """The system of a config whose model folder is `folder` (and `reverse_folder`, of two directions)."""
    made = one_direction if config.objective.symmetry is None else two_directions
    return made(config, prepared, folder, device, processes)


def one_direction(
    config: RunConfig, prepared: Prepared, folder: Path, device: torch.device, processes: Processes
) -> System[TranslationModel]:
    """A translation model by maximum likelihood, with the config's penalties."""
    there = Direction(folder, config, prepared.source, prepared.target, lambda tensors: tensors)
    objective = likelihood(config.training.label_smoothing, penalties(config.objective))
    model = _model(there, config.training.seed).to(device)
    validation = _validation(there, prepared.dev, _gold(config, prepared), device, processes)
    return System(Task(model, [ParameterGroup(list(model.parameters()))], objective, validation), (there,))


def two_directions(
    config: RunConfig, prepared: Prepared, folder: Path, device: torch.device, processes: Processes
) -> System[TranslationPair]:
    """Both directions, rewarded where their attention agrees (Cohn et al. 2016)."""
    weight, smoothing = config.objective.symmetry, config.training.label_smoothing
    assert weight is not None
    source, target = prepared.source, prepared.target
    there = Direction(folder, config, source, target, lambda tensors: direction(tensors, "onward"))
    back = Direction(
        reverse_folder(folder), reverse_config(config), target, source, lambda tensors: direction(tensors, "back")
    )
    pair = TranslationPair(_model(there, config.training.seed), _model(back, config.training.seed + 1)).to(device)
    turned = [row._replace(texts=row.texts[::-1]) for row in prepared.dev]
    gold = _gold(config, prepared)
    back_gold = None if gold is None else [links.turned() for links in gold]
    onward = _validation(there, prepared.dev, gold, device, processes)
    backward = _validation(back, turned, back_gold, device, processes)
    validation = None if onward is None or backward is None else PairValidation(onward, backward)
    objective = Symmetric(weight, likelihood(smoothing, penalties(config.objective)))
    return System(Task(pair, [ParameterGroup(list(pair.parameters()))], objective, validation), (there, back))


def _model(of: Direction, seed: int) -> TranslationModel:
    return build(of.config.model, len(of.source), len(of.target), seed, of.config.objective)


def _gold(config: RunConfig, prepared: Prepared) -> list[Links] | None:
    """The dev set's alignments, where the run's metric needs them."""
    if config.training.metric != "aer":
        return None
    gold = prepared.links("dev")
    if gold is None:
        raise TrainingError(f"{prepared.folder}: has no word alignments of the dev set for training.metric = aer")
    return gold


def _validation(
    of: Direction, pairs: list[Row], gold: list[Links] | None, device: torch.device, processes: Processes
) -> Validation[TranslationModel] | None:
    if not pairs:
        return None
    return validation(DevSet(pairs, of.source, of.target, processes), of.config, likelihood(), gold, device)


def reverse_folder(folder: Path) -> Path:
    """Where the other direction's model goes."""
    return folder.with_name(f"{folder.name}-reverse")


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


class PairValidation(Assessor[TranslationPair]):
    """The dev set in both directions: each score is the mean of the two, of the likelihood alone."""

    def __init__(self, onward: Validation[TranslationModel], back: Validation[TranslationModel]) -> None:
        self.onward = onward
        self.back = back

    def score(self, model: TranslationPair, stop: Callable[[], bool]) -> DevScore | None:
        there = self.onward.score(model.onward, stop)
        again = None if there is None else self.back.score(model.back, stop)
        if there is None or again is None:
            return None
        others = {name: _mean(value, again.others[name]) for name, value in there.others.items()}
        return DevScore((there.nll + again.nll) / 2, (there.per_word + again.per_word) / 2, others)


def _mean(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else (a + b) / 2
