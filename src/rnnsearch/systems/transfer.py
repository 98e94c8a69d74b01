"""Transfer learning: the weights of a parent model for a child with other tokens (`[training.transfer]`).

`transfer_weights` copies the parameters of `training.begin_from` by name, and the rows of embeddings and output layers
by token (Zoph et al. 2016, "Transfer Learning for Low-Resource Neural Machine Translation"). Parameters that belong to
tokens in other ways (composed embeddings, classes of tokens, spellings) need the parent's tokens. Frozen parameters are
those of `Trainable.frozen_parameters`. Tests: tests/training/test_transfer.py.

Axes: V tokens of the child, E width of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rnnsearch.config import RunConfig, dotted
from rnnsearch.config.training import TransferConfig
from rnnsearch.errors import ConfigError
from rnnsearch.models.copying import CopyOutput, PointerOutput
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.layers import Embedding
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.unknown_words import read_dictionary
from rnnsearch.systems.system import System, is_in_components, named_components
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import SPECIALS, UNK
from rnnsearch.utils.weights import copy_weights, named_weights

CHANGEABLE_OPTIONS = ("kind", "dropout.", "init.", "language_model.")
"""Options of `[model]` that may differ from those of the model in `training.begin_from`; its kind is checked first."""
LANGUAGE_MODEL_PREFIX = "language_model.model."
"""Prefix of the parameter names of a language model inside a translation model."""
PATH = "training.transfer"

Side = Literal["source", "target"]


@dataclass(frozen=True)
class TokenMap:
    """The parent's rows of a child's tokens."""

    rows: Sequence[Sequence[int]]
    """[V], the parent's ids of each token, whose rows are averaged; empty for a new token."""
    description: str
    """The numbers of tokens by origin, for the log."""

    @property
    def num_new(self) -> int:
        """The number of tokens without a row of the parent."""
        return sum(not ids for ids in self.rows)

    def apply(self, parent: Tensor, child: Tensor) -> Tensor:
        """Return the rows of the parent's table in the child's order; new tokens have those of the child's table."""
        # On the CPU, as in the parent's folder.
        table = child.detach().cpu().clone()
        parent = parent.detach().cpu().to(table.dtype)
        single = [(id, ids[0]) for id, ids in enumerate(self.rows) if len(ids) == 1]
        if single:
            child_ids, parent_ids = torch.tensor(single).unbind(1)
            table[child_ids] = parent[parent_ids]
        for id, ids in enumerate(self.rows):
            if len(ids) > 1:
                table[id] = parent[torch.tensor(ids)].mean(0)
        return table


def transfer_weights(system: System[Any], parent: System[Any], folder: Path) -> str:
    """Copy a parent's weights into a new system, as `[training.transfer]` of its run file says.

    Args:
        system: The child, initialised.
        parent: A system of the same kind.
        folder: The parent's folder, for messages.

    Returns:
        A sentence for the log.

    Raises:
        ConfigError: If the parent's tokens, options or shapes do not fit, or the model has no such component.
    """
    options = transfer_options(system.config)
    components = options.reinitialise
    # Shared parameters have several names.
    reinitialised = named_components(system.model, components, f"{PATH}.reinitialise")
    require_same_options("training.begin_from", system, parent, folder, components)
    inherited = {
        name: tensor
        for name, tensor in named_weights(parent.model).items()
        if name not in reinitialised
        and not is_in_components(name, components)
        and not name.startswith(LANGUAGE_MODEL_PREFIX)
    }
    maps, message = _token_maps(system, parent, inherited, folder)
    return f"transfer from {folder}; {message}{copy_inherited(system, inherited, maps, folder)}"


def copy_inherited(
    system: System[Any], inherited: Mapping[str, Tensor], maps: Mapping[str, TokenMap], folder: Path
) -> str:
    """Copy a parent's parameters into a new system; the others keep their random values.

    Args:
        system: The child, initialised.
        inherited: The parent's parameters, by the child's names.
        maps: Token maps of those that have a row per token.
        folder: The parent's folder, for messages.

    Returns:
        The end of the message: the parameters that are not the parent's.

    Raises:
        ConfigError: If a parameter has another shape.
    """
    current = named_weights(system.model)
    weights = {}
    for name, tensor in inherited.items():
        _require_shape(name, tensor, current, has_token_rows=name in maps, folder=folder)
        weights[name] = maps[name].apply(tensor, current[name]) if name in maps else tensor
    # `copy_weights` needs all names.
    copy_weights(system.model, {**current, **weights})
    return _other_parameters(system, current, inherited, maps)


def require_same_options(
    path: str, system: System[Any], trained: System[Any], folder: Path, components: Sequence[str] = ()
) -> None:
    """Raise ConfigError if a trained model has another `[model]`, except for CHANGEABLE_OPTIONS.

    Args:
        path: Path of the option that names the folder.
        system: The new system.
        trained: The trained system.
        folder: Its folder.
        components: Components that are not taken from it, so that their options may differ.
    """
    changeable = [*CHANGEABLE_OPTIONS, *(f"{component}." for component in components)]
    if "decoder.attention" in components or "decoder" in components:
        changeable.append("attention.")
    options = dotted(system.config.model.model_dump(mode="json", exclude_none=True))
    trained_options = dotted(trained.config.model.model_dump(mode="json", exclude_none=True))
    different = sorted(
        option
        for option, value in trained_options.items()
        if not option.startswith(tuple(changeable)) and options.get(option) != value
    )
    if different:
        got = ", ".join(f"model.{option}" for option in different)
        raise ConfigError([f"{path}: needs the [model] of {folder}; got another {got}"])


def require_same_tokens(path: str, system: System[Any], other: System[Any], languages: Sequence[str]) -> None:
    """Raise ConfigError if another model has other tokens in some language."""
    for language in languages:
        tokenizer = other.tokenizers.get(language)
        if tokenizer is None or tokenizer.fingerprint() != system.tokenizers[language].fingerprint():
            how = "train one model with the tokenizers of the other (text.tokenizers)"
            raise ConfigError([f"{path}: must have the same tokens in {language}; it has others: {how}"])


def require_same_arrays(path: str, system: System[Any], other: System[Any]) -> None:
    """Raise ConfigError if another model reads other arrays."""
    if system.config.data.arrays != other.config.data.arrays:
        raise ConfigError([f"{path}: must have the same data.arrays; it has others"])


def transfer_options(config: RunConfig) -> TransferConfig:
    """Return `[training.transfer]`, or its defaults if there is no such table."""
    return config.training.transfer or TransferConfig()


def _require_shape(
    name: str, tensor: Tensor, current: Mapping[str, Tensor], has_token_rows: bool, folder: Path
) -> None:
    """Raise ConfigError if a child's parameter has another shape, except for the number of rows of a mapped table."""
    if name not in current:
        raise ConfigError([f"training.begin_from: {folder} has {name}, which this model does not have"])
    expected = tuple(current[name].shape)
    actual = tuple(tensor.shape)
    if has_token_rows and expected[1:] == actual[1:]:
        return
    if expected != actual:
        raise ConfigError([f"training.begin_from: {name} must be {expected}; got {actual} in {folder}"])


def _other_parameters(
    system: System[Any], current: Mapping[str, Tensor], inherited: Mapping[str, Tensor], maps: Mapping[str, TokenMap]
) -> str:
    """Return the end of the message: the parameters that are not the parent's."""
    options = transfer_options(system.config)
    phrases = []
    if options.reinitialise:
        phrases.append(f"reinitialised: {', '.join(options.reinitialise)}")
    # The language model inside is loaded separately and is not new.
    new = [name for name in current if name not in inherited and not name.startswith(LANGUAGE_MODEL_PREFIX)]
    if new:
        num_new = sum(current[name].numel() for name in new)
        phrases.append(f"{num_new:,} new parameters are initialised as usual")
    frozen = named_components(system.model, options.freeze, f"{PATH}.freeze")
    for name in sorted(maps.keys() & frozen.keys()):
        if maps[name].num_new:
            phrases.append(f"{maps[name].num_new:,} new tokens keep their random rows, because {name} is frozen")
    return "".join(f"; {phrase}" for phrase in phrases)


# Tables with a row for each token.


def _token_maps(
    system: System[Any], parent: System[Any], inherited: Mapping[str, Tensor], folder: Path
) -> tuple[dict[str, TokenMap], str]:
    """Return the token map of each inherited table with rows to assign, by parameter, and a description."""
    maps: dict[str, TokenMap] = {}
    descriptions = []
    modules_by_side = _token_modules(system)
    if "source" not in modules_by_side and not isinstance(system.model, LanguageModel):
        _require_same_sources(system, parent)
        descriptions.append("the same sources")
    for side, modules in modules_by_side.items():
        names = [name for module, part in modules.items() for name in _names(module, part) if name in inherited]
        if not names:
            continue
        token_map, how = _map_side(system, parent, side, folder)
        languages = " to ".join(dict.fromkeys((_language(parent, side), _language(system, side))))
        descriptions.append(f"{side} ({languages}): {how}")
        if token_map is None:
            continue
        for module, part in modules.items():
            if row_names(module, part) is None and any(name in inherited for name in _names(module, part)):
                must = f'must be "same" (or reinitialise = ["{module}"]), because {module} is not a table of tokens'
                raise ConfigError([f'{PATH}.{side}: {must}; got "{token_mapping(system.config, side)}"'])
            maps |= dict.fromkeys(set(row_names(module, part) or ()) & inherited.keys(), token_map)
    return maps, "; ".join(descriptions)


def _token_modules(system: System[Any]) -> dict[Side, dict[str, nn.Module]]:
    """Return the modules of each side whose parameters belong to tokens, by name.

    The source is included if it is one text.
    """
    model = system.model
    if isinstance(model, LanguageModel):
        return {"target": {"embedding": model.embedding, "output": model.output}}
    if not isinstance(model, TranslationModel):
        raise ConfigError([f"{PATH}: needs a translation model or a language model; got a {system.kind} model"])
    target: dict[str, nn.Module] = {"target_embedding": model.target_embedding, "output": model.output}
    if model.speller is not None:
        target["speller"] = model.speller
    if not isinstance(model.source_embedding, Embedding):
        return {"target": target}
    return {"source": {"source_embedding": model.source_embedding}, "target": target}


def _require_same_sources(system: System[Any], parent: System[Any]) -> None:
    """Raise ConfigError if tokens of a model with several sources, or with arrays, are to be mapped."""
    data = system.config.data
    must = 'must be "same" for a model with several sources'
    if (mapping := token_mapping(system.config, "source")) != "same":
        raise ConfigError([f'{PATH}.source: {must}, or with arrays; got "{mapping}"'])
    if data.context_streams and (mapping := token_mapping(system.config, "target")) != "same":
        raise ConfigError([f'{PATH}.target: {must} in the target language; got "{mapping}"'])
    languages = [language for language in data.text_languages if language != data.target]
    require_same_tokens("training.begin_from", system, parent, languages)


def _names(path: str, module: nn.Module) -> Iterator[str]:
    """Yield the names of a module's parameters and buffers within the model."""
    for name in named_weights(module):
        yield f"{path}.{name}"


def row_names(path: str, module: nn.Module) -> list[str] | None:
    """Return the names of the parameters with one row per token, or None if a module has another layout."""
    if type(module) is Embedding or type(module) is Output:
        return list(_names(path, module))
    if isinstance(module, CopyOutput | PointerOutput):
        return list(_names(f"{path}.words", module.words))
    return None


def _tokenizer(system: System[Any], side: Side) -> Tokenizer:
    return system.source if side == "source" else system.target


def _language(system: System[Any], side: Side) -> str:
    data = system.config.data
    return data.single_source if side == "source" else data.target


def token_mapping(config: RunConfig, side: Side) -> str:
    """Return how the rows of a side are assigned; raise ConfigError if a shared table has two ways."""
    options = transfer_options(config)
    if side == "source" or isinstance(config.model, LanguageModel):
        return options.source or "same"
    shared = getattr(config.model, "tie", None) == "all" and bool(config.data.sources)
    if not shared:
        return options.target or "same"
    source = options.source or "same"
    if options.target not in (None, source):
        must = f'must be "{source}", like {PATH}.source, because both sides share one table (model.tie = "all")'
        raise ConfigError([f'{PATH}.target: {must}; got "{options.target}"'])
    return source


def _map_side(system: System[Any], parent: System[Any], side: Side, folder: Path) -> tuple[TokenMap | None, str]:
    """Return the token map of a side and its description; None if the tokens are the same."""
    child_tokens = _tokenizer(system, side)
    parent_tokens = _tokenizer(parent, side)
    config = system.config
    mapping = token_mapping(config, side)
    if mapping == "same":
        if child_tokens.fingerprint() != parent_tokens.fingerprint():
            language = _language(system, side)
            must = 'must be "token", "dictionary" or "random", or text.tokenizers must name the parent for'
            raise ConfigError([f"{PATH}.{side}: {must} {language}, because its tokens differ from those in {folder}"])
        return None, f"the same {len(child_tokens):,} tokens"
    if mapping == "token":
        token_map = map_by_token(child_tokens, parent_tokens)
    elif mapping == "random":
        token_map = map_at_random(child_tokens, parent_tokens, config.training.seed)
    else:
        options = transfer_options(config)
        path = options.source_dictionary if side == "source" else options.target_dictionary
        # A table of both sides has the dictionary of the source.
        path = path or options.source_dictionary
        assert path is not None, "`TransferConfig` requires it"
        token_map = map_by_dictionary(child_tokens, parent_tokens, read_dictionary(config.base / path))
    return token_map, token_map.description


# Assignments of a parent's tokens to a child's.


def map_by_token(child: Tokenizer, parent: Tokenizer) -> TokenMap:
    """Return the parent's token with the same characters for each token."""
    ids = {name: id for id, name in enumerate(parent.names())}
    rows = [(ids[name],) if name in ids else () for name in child.names()]
    return TokenMap(rows, _description(rows, spelling=sum(map(bool, rows))))


def map_by_dictionary(child: Tokenizer, parent: Tokenizer, dictionary: Mapping[str, str]) -> TokenMap:
    """Return the parent's tokens of each token's translation, or the token with the same characters.

    Args:
        child: The child's tokens.
        parent: The parent's tokens.
        dictionary: Translations of words into the parent's language. Words that are not one token of the child are
            ignored; so are translations that the parent's tokens do not cover.
    """
    words = list(dictionary)
    translated: dict[int, list[int]] = {}
    for word_ids, ids in zip(child.ids(words), parent.ids([dictionary[word] for word in words]), strict=True):
        if len(word_ids) == 1 and word_ids[0] != UNK and ids and UNK not in ids:
            translated.setdefault(word_ids[0], ids)
    by_token = map_by_token(child, parent)
    rows = [translated.get(id, ids) for id, ids in enumerate(by_token.rows)]
    spelling = sum(bool(ids) and id not in translated for id, ids in enumerate(rows))
    return TokenMap(rows, _description(rows, dictionary=len(translated), spelling=spelling))


def map_at_random(child: Tokenizer, parent: Tokenizer, seed: int) -> TokenMap:
    """Return random tokens of the parent; special tokens keep their rows.

    No token of the parent is assigned again before all others have been.
    """
    names = child.names()
    parent_names = parent.names()
    special_ids = {name: id for id, name in enumerate(parent_names) if _is_special(parent, id)}
    ordinary = np.array([id for id in range(len(parent_names)) if not _is_special(parent, id)])
    rng = np.random.default_rng(seed)
    order: list[int] = []
    while len(ordinary) and len(order) < len(names):
        order += rng.permutation(ordinary).tolist()
    rows: list[tuple[int, ...]] = []
    assigned = iter(order)
    for id, name in enumerate(names):
        if _is_special(child, id):
            rows.append((special_ids[name],) if name in special_ids else ())
        else:
            rows.append(tuple(n for n in [next(assigned, None)] if n is not None))
    return TokenMap(rows, _description(rows, random=sum(map(bool, rows))))


def _is_special(tokenizer: Tokenizer, id: int) -> bool:
    return id < len(SPECIALS) or id in tokenizer.annotation_ids.values()


def _description(rows: Sequence[Sequence[int]], dictionary: int = 0, spelling: int = 0, random: int = 0) -> str:
    """Return the numbers of tokens by the origin of their rows."""
    counts = {"by dictionary": dictionary, "by their characters": spelling, "at random": random}
    origins = [f"{count:,} {origin}" for origin, count in counts.items() if count]
    origins.append(f"{len(rows) - dictionary - spelling - random:,} new")
    return f"{len(rows):,} tokens, {', '.join(origins)}"
