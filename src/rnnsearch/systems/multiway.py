"""The system of a multi-way model: several directions with one encoder and decoder per language.

A `MultiwaySystem` is trained as a whole. `select` returns one of its directions as an ordinary `TranslationSystem`,
which shares the weights: translation, evaluation and export work with that.

`systems/folder.py` creates it by `model.kind`. Tests: tests/test_multiway.py, tests/training/test_multiway.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NoReturn

import torch
from torch import nn

from rnnsearch.accel.registry import choose
from rnnsearch.accel.verification import INFERENCE, Conditions
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import MultiwayConfig, RunConfig
from rnnsearch.data.batch import Direction
from rnnsearch.data.corpus import Row
from rnnsearch.data.tags import tag_of, tagged
from rnnsearch.data.tasks import task_ratios
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.models.layers import INITS, generator, initialise
from rnnsearch.models.multiway import Modules, MultiwayModel, source_modules, target_modules
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.multiway import MultiwayLikelihood
from rnnsearch.search.model_scorer import FastestScorer
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import DevBatches, DevEvaluator, DevScore, NllEvaluator
from rnnsearch.systems.dev_set import make_dev_batches
from rnnsearch.systems.system import Ability, Trainable, choose_direction
from rnnsearch.systems.translation import TranslationSystem, require_valid_cutoffs
from rnnsearch.text.alignments import Links
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.utils.distributed import Processes


@dataclass(frozen=True)
class MultiwaySystem(Trainable[MultiwayModel]):
    """A multi-way model, trained by maximum likelihood on the pairs of all its directions."""

    kind = "multiway"

    @classmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> MultiwaySystem:
        if not isinstance(config.model, MultiwayConfig) or not config.data.pairs:
            raise ConfigError(["data.source: must be at least one language for a multi-way model; got none"])
        directions = [Direction((source,), target) for source, target in config.data.pairs]
        model = _build(config, config.model, directions, list(task_ratios(config.data.tasks)), tokenizers, seed)
        conditions = INFERENCE if seed is None else Conditions.of_training(config.training.precision)
        for view in model.views:
            choose(view, conditions=conditions)
        return cls(model, config, tokenizers)

    @property
    def directions(self) -> tuple[Direction, ...]:
        return self.model.directions

    @property
    def direction(self) -> Direction:
        """Return the only direction, or raise ModelError if there are several."""
        return choose_direction(self.directions)

    @property
    def source(self) -> Tokenizer:
        return self._only.source

    @property
    def target(self) -> Tokenizer:
        return self._only.target

    def select(self, direction: Direction) -> TranslationSystem:
        """Return the system of one of the directions, or of an untrained one (see `MultiwayModel`).

        Raises:
            ModelError: If the model does not read the source language, or does not write the target language.
        """
        if direction in self._systems:
            return self._systems[direction]
        if problem := self._zero_shot_problem(direction):
            raise ModelError(problem)
        return self._make_system(direction)

    def _zero_shot_problem(self, direction: Direction) -> str | None:
        """Return why the model cannot translate an untrained direction, or None."""
        (source,) = direction.sources
        if source not in self.model.source_languages:
            return f"no encoder for {source}: the model reads {_enumeration(self.model.source_languages)}"
        if direction.target not in self.model.target_languages:
            return f"no decoder for {direction.target}: the model writes {_enumeration(self.model.target_languages)}"
        if source == direction.target:
            return f"source and target language must be different; got {source} for both"
        return None

    @cached_property
    def _systems(self) -> dict[Direction, TranslationSystem]:
        """The system of each direction."""
        return {direction: self._make_system(direction) for direction in self.directions}

    def _make_system(self, direction: Direction) -> TranslationSystem:
        config = direction_config(self.config, direction)
        tokenizers = {language: self.tokenizers[language] for language in config.data.languages}
        return TranslationSystem(self.model.view(direction), config, tokenizers)

    @property
    def _only(self) -> TranslationSystem:
        """The system of the only direction; raises ModelError if there are several."""
        return self.select(self.direction)

    @property
    def unsupported(self) -> Mapping[Ability, str]:
        # All directions have the same components.
        return self._systems[self.directions[0]].unsupported

    def ordered_parameters(self) -> list[nn.Parameter]:
        # In the order of bilingual models, so that one direction is trained like one: norms are sums in this order.
        parameters: dict[nn.Parameter, None] = {}
        for view in self.model.views:
            parameters |= dict.fromkeys(view.parameters())
        return list(parameters)

    def objective(self) -> MultiwayLikelihood:
        return MultiwayLikelihood(self._systems[self.directions[0]].likelihood())

    def validation(
        self,
        rows: Sequence[Row],
        gold: Sequence[Links] | None,
        device: torch.device,
        processes: Processes,
        aligner: Aligner | None = None,
    ) -> MultiwayEvaluator:
        languages = self.config.data.languages
        evaluators = {}
        for direction, system in self._systems.items():
            columns = [languages.index(language) for language in (*direction.sources, direction.target)]
            pairs = [row._replace(texts=tuple(row.texts[column] for column in columns)) for row in rows]
            pairs = [pair for pair in pairs if all(map(str.strip, pair.texts))]
            if pairs:
                evaluators[direction] = system.validation(pairs, None, device, processes)
        if not evaluators:
            names = ", ".join(direction.name for direction in self.directions)
            raise ConfigError([f"data.dev: must have pairs of some direction ({names}); got none"])
        task_evaluators = {}
        for task in self.model.tasks:
            column = languages.index(task.target)
            texts = [row.texts[column] for row in rows if row.texts[column].strip()]
            if texts:
                task_evaluators[task] = self._task_validation(task, texts, device, processes)
        return MultiwayEvaluator(evaluators, task_evaluators)

    def _task_validation(
        self, task: Direction, texts: Sequence[str], device: torch.device, processes: Processes
    ) -> DevBatches[TranslationModel]:
        """Return the dev batches of a task over some sentences of its language."""
        segmented = self.tokenizers[task.target].segment(texts)
        columns = [[sentence.spelled_ids for sentence in segmented]]
        if task.sources:
            sources = segmented
            if (tag := language_tag(self.config, task)) is not None:
                sources = tagged(segmented, tag, self.tokenizers[task.target])
            columns.insert(0, [sentence.spelled_ids for sentence in sources])
        rows = list(zip(*columns, strict=True))
        # Sentences of similar length are in one batch.
        order = sorted(range(len(rows)), key=lambda n: len(rows[n][-1]))
        batch_sentences = self.config.training.batch.sentences or 64
        return make_dev_batches(Likelihood(), rows, order, batch_sentences, task, device, processes)

    def fast_scorer(self, precision: str) -> FastestScorer:
        return self._only.fast_scorer(precision)

    def reference_scorer(self) -> Scorer:
        return self._only.reference_scorer()

    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        return self._only.make_sources(sentences, device)


def require_one_direction(folder: object) -> NoReturn:
    """Raise ModelError for a use of a multi-way model folder that needs a bilingual one."""
    how = "rnnsearch extract MODEL --from SOURCE --to TARGET -o FOLDER writes that of one direction"
    raise ModelError(f"{folder}: this needs a bilingual model; got a multi-way model ({how})")


class MultiwayEvaluator(DevEvaluator[MultiwayModel]):
    """Evaluates all directions; each score is the mean over the directions that the dev set has pairs of.

    The scores of a direction are further metrics, such as "bleu de-en", and so are those of a task, "task_nll en-en".
    """

    def __init__(
        self,
        evaluators: Mapping[Direction, NllEvaluator[TranslationModel]],
        tasks: Mapping[Direction, DevBatches[TranslationModel]] | None = None,
    ) -> None:
        self.evaluators = dict(evaluators)
        self.tasks = dict(tasks or {})

    def score(self, model: MultiwayModel, stop: Callable[[], bool]) -> DevScore | None:
        scores: dict[Direction, DevScore] = {}
        for direction, evaluator in self.evaluators.items():
            score = evaluator.score(model.view(direction), stop)
            if score is None:
                return None
            scores[direction] = score
        task_metrics: dict[str, float | None] = {}
        for task, held_out in self.tasks.items():
            nll = held_out.nll(model.view(task), stop)
            if nll is None:
                return None
            task_metrics[f"task_nll {task.name}"] = nll / held_out.sentences
            task_metrics[f"task_nll_per_word {task.name}"] = nll / held_out.tokens
        mean = mean_score(scores)
        return mean._replace(metrics={**mean.metrics, **task_metrics})


def mean_score(scores: Mapping[Direction, DevScore]) -> DevScore:
    """Return the mean scores of several directions, with those of each direction as further metrics."""
    first = next(iter(scores.values()))
    metrics: dict[str, float | None] = {}
    for name in first.metrics:
        values = [score.metrics[name] for score in scores.values()]
        measured = [value for value in values if value is not None]
        metrics[name] = sum(measured) / len(measured) if measured else None
    for direction, score in scores.items():
        metrics[f"nll {direction.name}"] = score.nll
        metrics[f"nll_per_word {direction.name}"] = score.nll_per_token
        metrics |= {f"{name} {direction.name}": value for name, value in score.metrics.items()}
    nll = sum(score.nll for score in scores.values()) / len(scores)
    nll_per_token = sum(score.nll_per_token for score in scores.values()) / len(scores)
    return DevScore(nll, nll_per_token, metrics)


def _build(
    config: RunConfig,
    options: MultiwayConfig,
    directions: Sequence[Direction],
    tasks: Sequence[Direction],
    tokenizers: Mapping[str, Tokenizer],
    seed: int | None,
) -> MultiwayModel:
    """Return a multi-way model, initialised if there is a seed.

    The first direction is initialised like a bilingual model, and every other language by separate random numbers,
    so that a further language does not change the others.
    """
    bilingual = options.bilingual()
    sizes = {language: len(tokenizer) for language, tokenizer in tokenizers.items()}
    trained = [*directions, *tasks]
    for direction in trained:
        require_valid_cutoffs(bilingual.output, sizes[direction.target])

    def make(source: str, target: str) -> TranslationModel:
        return TranslationModel(bilingual, sizes[source], sizes[target], config.objective)

    def fill(modules: nn.Module, seed: int) -> None:
        initialise(modules, INITS[bilingual.init.type](bilingual.init, generator(seed)))

    (first_source,) = directions[0].sources
    first_target = directions[0].target
    base = make(first_source, first_target)
    if seed is not None:
        fill(base, seed)
    sources = {first_source: source_modules(base)}
    targets = {first_target: target_modules(base)}
    shared = _shared_attributes(options, trained, tokenizers, targets[first_target])
    for direction in trained:
        target = direction.target
        for source in direction.languages:
            if source in sources:
                continue
            common = {name: module for name, module in sources[first_source].items() if name in shared}
            separate = {}
            if len(common) < len(sources[first_source]):
                modules = source_modules(make(source, first_target))
                separate = {name: module for name, module in modules.items() if name not in shared}
            sources[source] = {**separate, **common}
            if seed is not None:
                fill(nn.ModuleList(separate.values()), _language_seed(seed, "source", source))
        if target not in targets and options.sharing.decoders == "all":
            targets[target] = targets[first_target]
        elif target not in targets:
            targets[target] = target_modules(make(first_source, target))
            if seed is not None:
                fill(nn.ModuleList(targets[target].values()), _language_seed(seed, "target", target))
    return MultiwayModel(base, directions, sources, targets, shared, tasks)


def _shared_attributes(
    options: MultiwayConfig, directions: Sequence[Direction], tokenizers: Mapping[str, Tokenizer], target: Modules
) -> set[str]:
    """Return the attributes of a bilingual model whose module all languages share.

    Args:
        options: `[model]`.
        directions: Directions and tasks of the model.
        tokenizers: Tokenizers by language.
        target: Modules of a target language.

    Raises:
        ConfigError: If languages with the same decoder have different tokens.
    """
    shared = set[str]()
    if options.sharing.encoders == "all":
        shared.add("encoder")
        if _have_same_tokens([tokenizers[source] for direction in directions for source in direction.languages]):
            shared.add("source_embedding")
    if options.sharing.decoders == "all":
        shared |= set(target)
        if not _have_same_tokens([tokenizers[direction.target] for direction in directions]):
            raise ConfigError(['model.sharing.decoders: "all" needs target languages with the same vocabulary'])
    return shared


def _have_same_tokens(tokenizers: Sequence[Tokenizer]) -> bool:
    names = tokenizers[0].names()
    return all(tokenizer.names() == names for tokenizer in tokenizers[1:])


def _enumeration(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _language_seed(seed: int, role: str, language: str) -> int:
    """Return the seed of a language's modules."""
    digest = sha256(f"{seed} {role} {language}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # below 2^63


def language_tag(config: RunConfig, direction: Direction) -> str | None:
    """Return the tag before source sentences of a direction or of autoencoding, or None if decoders are not shared."""
    assert isinstance(config.model, MultiwayConfig)
    if config.model.sharing.decoders != "all":
        return None
    return tag_of(direction.target, config.data.written_languages)


def direction_config(config: RunConfig, direction: Direction) -> RunConfig:
    """Return the config of a direction's bilingual model: its languages, their files and types of text.

    Files that have all languages, such as TSV files, are left out: the bilingual model would read other columns. So are
    options that only the multi-way run has.
    """
    assert isinstance(config.model, MultiwayConfig)
    data = config.data
    text = config.text
    (source,) = direction.sources
    pair = (source, direction.target)
    columns = [data.languages.index(language) for language in pair]

    def pair_of_files(files: str) -> str | None:
        names = files.split("|")
        if len(names) != len(data.languages):
            return None
        source_name, target_name = (names[column].strip() for column in columns)
        return f"{source_name}|{target_name}" if source_name and target_name else None

    # A multi-way model has no word aligner.
    data_options: dict[str, object] = {
        "source": source,
        "target": direction.target,
        "directions": None,
        "tasks": None,
        "aligner": False,
        "tag": language_tag(config, direction),
    }
    for part in ("dev", "test"):
        files = getattr(data, part)
        data_options[part] = None if files is None else pair_of_files(files)
    if data.train is not None:
        pairs = list(map(pair_of_files, data.train))
        data_options["train"] = [files for files in pairs if files is not None]
        if data.weights is not None:
            weights = zip(data.weights, pairs, strict=True)
            data_options["weights"] = [weight for weight, files in weights if files is not None]
    types = [text.types[language == data.target] for language in pair]
    sizes = [text.vocabulary, text.vocabulary]
    if text.target_vocabulary is not None:
        sizes = [text.target_vocabulary if language == data.target else text.vocabulary for language in pair]
    text_options: dict[str, object] = {
        "type": types[0],
        "target_type": types[1] if types[1] != types[0] else None,
        "vocabulary": sizes[0],
        "target_vocabulary": sizes[1] if sizes[1] != sizes[0] else None,
    }
    if isinstance(text.tokenizers, dict):
        text_options["tokenizers"] = {name: path for name, path in text.tokenizers.items() if name in pair} or None
    training_options = {
        "begin_from": None,
        "transfer": None,
        "direction_patience": None,
        "save_directions": False,
        "batch": config.training.batch.model_copy(update={"temperature": 1.0}),
    }
    selected = config.model_copy(
        update={
            "data": data.model_copy(update=data_options),
            "text": text.model_copy(update=text_options),
            "model": config.model.bilingual(),
            "training": config.training.model_copy(update=training_options),
            "name": None,
            "folder": None,
        }
    )
    selected._base = config.base
    return selected
