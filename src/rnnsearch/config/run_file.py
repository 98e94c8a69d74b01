"""A run file read: presets, overrides, and every fault at once. Imports no torch.

A run file is TOML. It may name a preset, whose tables it overrides key by key; where an override changes a table's
`type`, the preset's other keys of that table are dropped, for they belong to the other type. Combinations of parts are
checked by `systems.checks`.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from rnnsearch.config.faults import sentence
from rnnsearch.config.run import RunConfig
from rnnsearch.config.search import SearchConfig
from rnnsearch.errors import ConfigError, did_you_mean, must_be_one_of


def preset_names() -> list[str]:
    """The presets' names, sorted."""
    files = resources.files("rnnsearch") / "presets"
    return sorted(f.name.removesuffix(".toml") for f in files.iterdir() if f.name.endswith(".toml"))


def preset(name: str) -> dict[str, Any]:
    """A preset's tables. Errors: ConfigError for an unknown name."""
    return _with_preset(tomllib.loads(_preset_text(name)))


def preset_about(name: str) -> str:
    """What a preset says of itself before its tables. Errors: ConfigError for an unknown name."""
    lines = _preset_text(name).splitlines()
    return " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))


def _preset_text(name: str) -> str:
    known = preset_names()
    if name not in known:
        raise ConfigError([f"preset {must_be_one_of(known, name)}"])
    return (resources.files("rnnsearch") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


UNSET = "unset"
"""The value that takes an option of the preset away, for TOML has no null."""
ALTERNATIVES = ({"tokens", "sentences"}, {"corpus", "train"})
"""Options of which a table has one: giving it anew drops the others of the base."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, table by table; a table whose `type` changes replaces the base's whole table."""
    dropped = {key for group in ALTERNATIVES if group & over.keys() for key in group - over.keys()}
    merged = {key: value for key, value in base.items() if key not in dropped}
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            changed = "type" in value and "type" in old and value["type"] != old["type"]
            merged[key] = dict(value) if changed else merge(old, value)
        else:
            merged[key] = value
    return merged


def _with_preset(tables: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in tables.items() if k != "preset"}
    return merge(preset(str(tables["preset"])), rest) if "preset" in tables else rest


def parse_setting(setting: str) -> dict[str, Any]:
    """`training.batch.tokens=4096` as nested tables. The value is TOML; bare words are text.

    Errors: ConfigError where there is no `=` or the key is empty.
    """
    key, equals, text = setting.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError([f'--set must be key=value, such as training.seed=2; got "{setting}"'])
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError):
        raise ConfigError([f"--set {key}: must be a value that TOML can hold; got one too large"]) from None
    for part in reversed(key.split(".")):
        value = {part.strip(): value}
    return dict(value)


def resolve(tables: Mapping[str, Any], settings: Iterable[str] = (), base: Path = Path()) -> RunConfig:
    """The resolved config of a run file's tables and `--set` overrides.

    Errors: ConfigError with every fault, each with its dotted path.
    """
    given: dict[str, Any] = {}
    for setting in settings:
        given = merge(given, parse_setting(setting))
    whole = _without_unset(_with_preset(merge(tables, given)))
    try:
        config = RunConfig.model_validate(whole)
    except ValidationError as error:
        raise ConfigError(_faults(error), _without_faults(whole, error)) from None
    config._base = base
    return config


def laid_on(search: SearchConfig, given: Mapping[str, Any]) -> SearchConfig:
    """`[search]` with other values of some options. Errors: ConfigError with every fault."""
    try:
        return SearchConfig.model_validate({**search.model_dump(), **given})
    except ValidationError as error:
        raise ConfigError(_faults(error)) from None


def _without_unset(tables: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in tables.items() if value != UNSET}
    return {key: _without_unset(value) if isinstance(value, Mapping) else value for key, value in kept.items()}


def _without_faults(tables: dict[str, Any], error: ValidationError) -> RunConfig | None:
    """The config without the options that a validation found faulty; None where that is no config either."""
    rest = copy.deepcopy(tables)
    for fault in error.errors():
        table: Any = rest
        for part in fault["loc"][:-1]:
            table = table.get(part, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict) and fault["loc"]:
            table.pop(str(fault["loc"][-1]), None)
    try:
        return RunConfig.model_validate(rest)
    except ValidationError:
        return None


_LONG_KEY = re.compile(r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
"""Names with dots between: the library takes time and memory by the square of their number, and ours are a few."""
_TOO_DEEP = "its tables must be nested less deeply"


def load(path: Path, settings: Iterable[str] = ()) -> RunConfig:
    """Read and resolve a run file. Errors: ConfigError naming the file, the line or the dotted paths."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such run file"]) from None
    except (OSError, ValueError) as error:  # other bytes than UTF-8, NUL in the path
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    return parse(text, path, settings)


def parse(text: str, path: Path, settings: Iterable[str] = ()) -> RunConfig:
    """Resolve the text of a run file that stands in `path`. Errors: ConfigError, as in `load`."""
    try:
        if _LONG_KEY.search(text):
            raise RecursionError
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: is not TOML: {error}"]) from None
    except RecursionError:
        raise ConfigError([f"{path}: {_TOO_DEEP}"]) from None
    except ValueError as error:  # a number of too many digits
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    try:
        return resolve(tables, settings, path.parent)
    except ConfigError as error:
        raise ConfigError([f"{path}: {fault}" for fault in error.faults], error.rest) from None
    except RecursionError:
        raise ConfigError([f"{path}: {_TOO_DEEP}"]) from None


def dump(config: BaseModel) -> str:
    """A config as TOML that `resolve` reads back to the same config; options not given are left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _faults(errors: ValidationError) -> list[str]:
    faults = []
    for error in errors.errors():
        said = sentence(error)
        if error["type"] == "extra_forbidden":
            said = f"there is no such option{did_you_mean(str(error['loc'][-1]), _keys_at(error['loc'][:-1]))}"
        faults.append(f"{'.'.join(str(part) for part in error['loc']) or 'run file'}: {said}")
    return faults


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """The options of the table at a dotted path; of every class that it may be of."""
    tables: list[type[BaseModel]] = [RunConfig]
    for part in location:
        kinds = [table.model_fields[part].annotation for table in tables if part in table.model_fields]
        each = [one for kind in kinds for one in getattr(kind, "__args__", (kind,))]
        tables = [kind for kind in each if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return [key for table in tables for key in table.model_fields]
