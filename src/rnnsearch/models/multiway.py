"""Multi-way translation: an encoder per source language, a decoder per target language, and one attention for all.

`MultiwayModel` holds the modules of each language (Firat, Cho & Bengio 2016, "Multi-Way, Multilingual Neural Machine
Translation with a Shared Attention Mechanism"). `view` returns the `TranslationModel` of a direction, made of the
modules of its two languages: training, search and everything else use it like any bilingual model.

    e_ij = v_a^T tanh(W_a s^m_{i-1} + U_a h^n_j)    with v_a, W_a and U_a for all source languages n and targets m

All encoders have the same sizes, and so have all decoders, so that the paper's transformations between encoders,
attention and decoders of different sizes are not needed.

Further tasks (`data/tasks.py`) are directions, too: autoencoding of a language has its encoder and its decoder, and
language modelling only its decoder, over a memory of zeros (`TranslationModel.empty_memories`).

`systems/multiway.py` builds it. The names of parameters, such as `encoders.de...`, `decoders.en...` and `attention...`,
are a file format. Tests: tests/models/test_multiway.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Literal

from torch import nn

from rnnsearch.data.batch import Direction
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.translation_model import TranslationModel

SOURCE_MODULES = ("source_embedding", "encoder")
"""Attributes of `TranslationModel` that belong to the source language; all others belong to the target language."""

Side = Literal["source", "target"]
Modules = Mapping[str, nn.Module]
"""Modules of a language by attribute of `TranslationModel`."""


def source_modules(model: TranslationModel) -> dict[str, nn.Module]:
    """Return the modules of a bilingual model that belong to its source language."""
    return {name: module for name, module in model.named_children() if name in SOURCE_MODULES}


def target_modules(model: TranslationModel) -> dict[str, nn.Module]:
    """Return the modules of a bilingual model that belong to its target language."""
    return {name: module for name, module in model.named_children() if name not in SOURCE_MODULES}


class MultiwayModel(nn.Module):
    """The modules of all languages, and a bilingual model per direction that consists of them."""

    def __init__(
        self,
        base: TranslationModel,
        directions: Sequence[Direction],
        sources: Mapping[str, Modules],
        targets: Mapping[str, Modules],
        shared: Collection[str] = (),
        tasks: Sequence[Direction] = (),
    ) -> None:
        """Combine modules of bilingual models of the same options.

        Args:
            base: The model of one direction, which the others are made like. Its attention becomes that of all.
            directions: Directions with one source each.
            sources: Modules of each source language, from `source_modules`.
            targets: Modules of each target language, from `target_modules`.
            shared: Attributes of `TranslationModel` whose module is the same for all languages.
            tasks: Tasks of `task_ratios` that the model is trained on, too.
        """
        super().__init__()
        self.directions = tuple(directions)
        """Directions that the model translates."""
        self.tasks = tuple(tasks)
        """Autoencoding and language modelling, which are trained but not offered for translation."""
        attention = attention_of(base.decoder)
        for modules in targets.values():
            _replace_attention(modules["decoder"], attention)

        for name, modules in _by_attribute(sources).items():
            self._add_modules(name, modules, name in shared)
        # Before the decoders, because a shared parameter is stored under its first name.
        self.attention = attention
        for name, modules in _by_attribute(targets).items():
            self._add_modules(name, modules, name in shared)
        # In dictionaries, so that they are not registered twice.
        self.language_modules: dict[Side, dict[str, Modules]] = {"source": dict(sources), "target": dict(targets)}
        """Modules of each language as source and as target, from `source_modules` and `target_modules`."""
        self.shared = frozenset(shared)
        """Attributes of `TranslationModel` whose module is the same for all languages."""
        self._views: dict[Direction, TranslationModel] = {}
        for direction in (*self.directions, *self.tasks):
            self._views[direction] = self._make_view(base, direction)

    def _add_modules(self, name: str, modules: Modules, is_shared: bool) -> None:
        """Add the modules of all languages, as `encoders.de` or, if there is only one, as `encoder`."""
        if is_shared:
            self.add_module(name, next(iter(modules.values())))
        else:
            self.add_module(f"{name}s", LanguageModules(modules))

    @property
    def views(self) -> tuple[TranslationModel, ...]:
        """The bilingual models of all directions, and then those of all tasks."""
        return tuple(self._views.values())

    @property
    def source_languages(self) -> tuple[str, ...]:
        """Languages that have an encoder."""
        return tuple(self.language_modules["source"])

    @property
    def target_languages(self) -> tuple[str, ...]:
        """Languages that have a decoder."""
        return tuple(self.language_modules["target"])

    @property
    def untrained_directions(self) -> tuple[Direction, ...]:
        """Directions that the model can translate without having been trained on their pairs (zero-shot)."""
        possible = [
            Direction((source,), target) for source in self.source_languages for target in self.target_languages
        ]
        return tuple(d for d in possible if d.sources != (d.target,) and d not in self._views)

    def view(self, direction: Direction) -> TranslationModel:
        """Return the bilingual model of a direction, which shares all its modules with this model.

        The direction may be one of `tasks` or of `untrained_directions`.
        """
        if direction in self._views:
            return self._views[direction]
        return self._make_view(self._views[self.directions[0]], direction)

    def _make_view(self, base: TranslationModel, direction: Direction) -> TranslationModel:
        # Without a source, the view has the encoder of another direction, which it does not run.
        return base.with_modules(self.modules_of(direction))

    def modules_of(self, direction: Direction) -> dict[str, nn.Module]:
        """Return the modules that a batch of a direction runs, by attribute of `TranslationModel`."""
        modules: dict[str, nn.Module] = {}
        for source in direction.languages:
            modules |= self.language_modules["source"][source]
        return {**modules, **self.language_modules["target"][direction.target]}

    @property
    def shared_parameters(self) -> set[nn.Parameter]:
        """The parameters that belong to no single language."""
        modules = [module for module in self.children() if not isinstance(module, LanguageModules)]
        return {parameter for module in modules for parameter in module.parameters()}


class LanguageModules(nn.Module):
    """Modules by language.

    Not a module dictionary of PyTorch, which has methods that are called like languages (`pop` is the code of Pwapwâ).
    """

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self._modules.update(modules)


def trained_directions(model: MultiwayModel) -> list[Direction]:
    """Return the directions and tasks that have a parameter that is not frozen."""
    trained = []
    for direction in (*model.directions, *model.tasks):
        modules = model.modules_of(direction).values()
        if any(parameter.requires_grad for module in modules for parameter in module.parameters()):
            trained.append(direction)
    return trained


def count_language_parameters(model: MultiwayModel) -> dict[Side, dict[str, int]]:
    """Return the number of parameters of each language as source and as target, without shared ones."""
    shared = model.shared_parameters
    counts: dict[Side, dict[str, int]] = {"source": {}, "target": {}}
    for direction in (*model.directions, *model.tasks):
        view = model.view(direction)
        for source in direction.languages:
            counts["source"][source] = _count_parameters(source_modules(view), shared)
        counts["target"][direction.target] = _count_parameters(target_modules(view), shared)
    return counts


def _count_parameters(modules: Modules, shared: Set[nn.Parameter]) -> int:
    """Return the number of parameters of some modules without shared ones."""
    parameters = {parameter for module in modules.values() for parameter in module.parameters()}
    return sum(parameter.numel() for parameter in parameters - shared)


def _by_attribute(languages: Mapping[str, Modules]) -> dict[str, dict[str, nn.Module]]:
    """Return the modules by attribute of `TranslationModel`, and then by language."""
    names: Iterable[str] = next(iter(languages.values()))
    return {name: {language: modules[name] for language, modules in languages.items()} for name in names}


def _attention_name(decoder: nn.Module) -> str:
    """Return the name of a decoder's attention, which some decoders have in an inner module."""
    names: list[str] = [name for name, module in decoder.named_modules() if isinstance(module, Attention)]
    (name,) = names
    return name


def attention_of(decoder: Decoder) -> nn.Module:
    """Return the attention of a decoder."""
    return decoder.get_submodule(_attention_name(decoder))


def _replace_attention(decoder: nn.Module, attention: nn.Module) -> None:
    """Make a decoder use a shared attention."""
    parent, _, attribute = _attention_name(decoder).rpartition(".")
    setattr(decoder.get_submodule(parent), attribute, attention)
