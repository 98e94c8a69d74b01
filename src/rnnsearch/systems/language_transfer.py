"""Warm starts of multi-way models, language by language, from a multi-way or a bilingual parent.

A language takes the modules of the same language of the parent or, with `training.transfer.languages`, of another one;
the rows of other tokens are assigned as in `transfer.py`. The attention, and modules that all languages share, are the
parent's in any case. `warm_start.py` calls `transfer_languages`. Tests: tests/training/test_language_transfer.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from rnnsearch.config import MultiwayConfig, RunConfig
from rnnsearch.data.tags import tag_of
from rnnsearch.errors import ConfigError
from rnnsearch.models.multiway import Modules, Side, attention_of, source_modules, target_modules
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.system import System, named_components
from rnnsearch.systems.transfer import (
    PATH,
    TokenMap,
    copy_inherited,
    map_at_random,
    map_by_token,
    require_same_options,
    token_mapping,
    transfer_options,
)
from rnnsearch.utils.weights import named_weights

TOKEN_MODULES = ("source_embedding", "target_embedding", "output")
"""Attributes of `TranslationModel` whose parameters have a row per token."""


class _LanguagePair(NamedTuple):
    """A language of the child, and the language of the parent that it starts from."""

    side: Side
    child: str
    parent: str
    modules: Modules
    """Modules of the child that start from those of the parent, by attribute."""


def transfer_languages(system: MultiwaySystem, parent: System[Any], folder: Path) -> str:
    """Copy a parent's weights into a new multi-way system.

    Args:
        system: The child, initialised.
        parent: A multi-way or a bilingual system.
        folder: The parent's folder, for messages.

    Returns:
        A sentence for the log.

    Raises:
        ConfigError: If the parent's tokens, tags, options or shapes do not fit, or it has no such language.
    """
    require_same_options("training.begin_from", system, parent, folder)
    _require_same_tags(system.config, parent, folder)
    names = {id(tensor): name for name, tensor in named_weights(system.model).items()}
    options = transfer_options(system.config)
    reinitialised = named_components(system.model, options.reinitialise, f"{PATH}.reinitialise")
    inherited: dict[str, Tensor] = {}
    maps: dict[str, TokenMap] = {}
    descriptions = []
    parent_modules = _modules_by_language(parent)
    for pair in _pairs(system, parent_modules, folder):
        token_map = _token_map(system, parent, pair, folder)
        if token_map is not None or pair.child in options.languages:
            tokens = "the same tokens" if token_map is None else token_map.description
            languages = pair.child if pair.child == pair.parent else f"{pair.parent} to {pair.child}"
            descriptions.append(f"{pair.side} ({languages}): {tokens}")
        for attribute, module in pair.modules.items():
            parent_weights = named_weights(parent_modules[pair.side][pair.parent][attribute])
            for local_name, tensor in named_weights(module).items():
                name = names[id(tensor)]
                # Modules that languages share are those of the first one.
                if name in inherited or name in reinitialised or local_name not in parent_weights:
                    continue
                inherited[name] = parent_weights[local_name]
                if token_map is not None and attribute in TOKEN_MODULES:
                    maps[name] = token_map
    for local_name, tensor in named_weights(_attention(parent)).items():
        if (name := f"attention.{local_name}") not in reinitialised:
            inherited[name] = tensor
    others = copy_inherited(system, inherited, maps, folder)
    if not descriptions:
        return f"warm start from {folder}{others}"
    return f"transfer from {folder}; {'; '.join(descriptions)}{others}"


def _modules_by_language(parent: System[Any]) -> Mapping[Side, Mapping[str, Modules]]:
    """Return the modules of each language of a multi-way or bilingual system as source and as target."""
    if isinstance(parent, MultiwaySystem):
        return parent.model.language_modules
    data = parent.config.data
    return {
        "source": {data.single_source: source_modules(parent.model)},
        "target": {data.target: target_modules(parent.model)},
    }


def _attention(parent: System[Any]) -> nn.Module:
    if isinstance(parent, MultiwaySystem):
        return parent.model.attention
    return attention_of(parent.model.decoder)


def _pairs(
    system: MultiwaySystem, parent_modules: Mapping[Side, Mapping[str, Modules]], folder: Path
) -> Iterator[_LanguagePair]:
    """Yield the modules of the child that start from the parent.

    Raises:
        ConfigError: If a language of `training.transfer.languages` does not exist, or not on the same side.
    """
    languages = transfer_options(system.config).languages
    model = system.model
    used = set[str]()
    for side, modules_of_child in model.language_modules.items():
        available = parent_modules[side]
        for language, modules in modules_of_child.items():
            parent_language = languages.get(language, language)
            if parent_language in available:
                used.add(language)
                yield _LanguagePair(side, language, parent_language, modules)
                continue
            # A new language has the modules that all languages share.
            shared = {attribute: module for attribute, module in modules.items() if attribute in model.shared}
            yield _LanguagePair(side, language, next(iter(available)), shared)
    for language, parent_language in languages.items():
        if language not in (*model.source_languages, *model.target_languages):
            must = f"must have names of languages of data.directions; got {language}"
            raise ConfigError([f"{PATH}.languages: {must}"])
        if language not in used:
            sides = [f"{', '.join(parent_modules[side])} as {side}" for side in model.language_modules]
            must = f"must be a language of {folder} ({'; '.join(sides)}) on a side that the model has for {language}"
            raise ConfigError([f'{PATH}.languages.{language}: {must}; got "{parent_language}"'])


def _token_map(system: MultiwaySystem, parent: System[Any], pair: _LanguagePair, folder: Path) -> TokenMap | None:
    """Return the token map of a language; None if no rows are assigned, or the tokens are the same."""
    config = system.config
    if not pair.modules.keys() & set(TOKEN_MODULES):
        return None
    child_tokens = system.tokenizers[pair.child]
    parent_tokens = parent.tokenizers[pair.parent]
    mapping = token_mapping(config, pair.side)
    is_random = mapping == "random" and pair.child in transfer_options(config).languages
    if child_tokens.fingerprint() == parent_tokens.fingerprint() and not is_random:
        return None
    if mapping == "same":
        must = f'must be "token" or "random", or text.tokenizers must name {folder} for {pair.child}'
        why = f"because its tokens differ from those of {pair.parent} in {folder}"
        raise ConfigError([f"{PATH}.{pair.side}: {must}, {why}"])
    if mapping == "token":
        return map_by_token(child_tokens, parent_tokens)
    return map_at_random(child_tokens, parent_tokens, config.training.seed)


def _require_same_tags(config: RunConfig, parent: System[Any], folder: Path) -> None:
    """Raise ConfigError if the tags of a multi-way model stand for other target languages than those of its parent."""
    assert isinstance(config.model, MultiwayConfig)
    if config.model.sharing.decoders != "all":
        return
    targets = config.data.written_languages
    if isinstance(parent, MultiwaySystem):
        trained_targets = parent.config.data.written_languages
        if targets[: len(trained_targets)] != trained_targets:
            must = f"must have the target languages of {folder} first, in its order ({', '.join(trained_targets)})"
            why = "because tags are numbered by them"
            raise ConfigError([f"data.directions: {must}, {why}; got {', '.join(targets)}"])
        return
    target = parent.config.data.target
    trained_tag = parent.config.data.tag
    if trained_tag is not None and target in targets and trained_tag != (tag := tag_of(target, targets)):
        must = f"must have its target languages in an order in which {target} has the tag {trained_tag} of {folder}"
        raise ConfigError([f"data.directions: {must}; got {tag}"])
