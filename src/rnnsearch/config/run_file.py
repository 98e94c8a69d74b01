"""Schema and loading of run files: presets, overrides, and error messages for every problem at once.

A run file is TOML. It may name a preset, whose tables it overrides key by key. If an override
changes the `type` of a table, the preset's other keys of that table are dropped, because they
belong to the other type. Combinations of options are checked in `config/rules.py`.

`dump` writes config.toml of a model folder, so `load` must read what earlier versions wrote (tests/old_models). Presets
are the files in `presets/`. Tests: tests/test_config.py, tests/test_presets.py.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, PrivateAttr, ValidationError, model_validator

from rnnsearch.config.data import DataConfig, TextConfig
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.config.model import ModelConfig, MultiwayConfig
from rnnsearch.config.objective import ObjectiveConfig
from rnnsearch.config.options import ByKind, Table, dotted, error_message, problem, raise_problems
from rnnsearch.config.search import SearchConfig
from rnnsearch.config.training import TrainingConfig
from rnnsearch.errors import ConfigError, did_you_mean, must_be_one_of
from rnnsearch.utils.files import read_text

# The schema of a whole run file.

MODELS: dict[str, type[Table]] = {
    "translation": ModelConfig,
    "language-model": LanguageModelConfig,
    "multiway": MultiwayConfig,
}
"""Class of `[model]` by `kind`; kinds are stored in model folders."""


class RunConfig(Table):
    """Options outside of all tables. `preset`, the name of a preset below, is also given here."""

    name: str | None = None
    """Name of the run; its folder is `runs/<name>` in the current folder."""
    folder: str | None = None
    """Folder of the run, relative to the run file, instead of `runs/<name>`. Without `name` and
    `folder` it is `runs/<name of the run file without .toml>` in the current folder."""
    data: DataConfig
    text: TextConfig = TextConfig()
    model: Annotated[ModelConfig | MultiwayConfig | LanguageModelConfig, ByKind(MODELS, "translation")]
    objective: ObjectiveConfig = ObjectiveConfig()
    training: TrainingConfig
    search: SearchConfig = SearchConfig()
    _base: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _validate_annotation(self) -> RunConfig:
        # Here and not in `rules.py`, so that `data.prepare` may rely on it without a check of the model.
        if self.text.annotation is not None and not (self.data.aligner and self.data.is_bilingual):
            needs = "needs the aligner of one source and one target (data.aligner = true)"
            raise_problems([problem(("text", "annotation"), needs)])
        return self

    @property
    def translation(self) -> ModelConfig:
        """`[model]` of a translation model.

        Raises:
            ConfigError: If the model is of another kind.
        """
        if not isinstance(self.model, ModelConfig):
            raise ConfigError([f'model.kind: must be "translation" for this; got "{self.model.kind}"'])
        return self.model

    @property
    def has_several_texts(self) -> bool:
        """True if the source sentences of a translation model are given in several languages."""
        is_multi_source = isinstance(self.model, ModelConfig) and self.model.sources is not None
        # Streams of previous sentences are sources that callers do not give.
        return is_multi_source and not self.data.context_streams

    @property
    def copies_words(self) -> bool:
        """True if the model copies out-of-vocabulary words from the source."""
        return isinstance(self.model, ModelConfig) and self.model.copies and set(self.text.types) == {"words"}

    @property
    def aligns_previous_word(self) -> bool:
        """True if the alignment of a target token is in the attention weights of the next step."""
        if self.search.attended_word is None:
            return self.objective.aligns_previous_word
        return self.search.attended_word == "read"

    @property
    def stores_aligner(self) -> bool:
        """True if the model folder contains a word aligner: not if attention is supervised and gives the alignments."""
        is_bilingual = self.data.is_bilingual and not isinstance(self.model, MultiwayConfig)
        return self.data.aligner and is_bilingual and self.objective.supervision is None

    @property
    def base(self) -> Path:
        """The folder of the run file, which relative paths refer to."""
        return self._base


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    files = resources.files("rnnsearch") / "presets"
    return sorted(f.name.removesuffix(".toml") for f in files.iterdir() if f.name.endswith(".toml"))


def preset(name: str) -> dict[str, Any]:
    """Return the tables of a preset, or raise ConfigError if the name is unknown."""
    return _with_preset(tomllib.loads(_preset_text(name)))


def preset_description(name: str) -> str:
    """Return the comment at the top of a preset, or raise ConfigError if the name is unknown."""
    lines = _preset_text(name).splitlines()
    return " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))


def _preset_text(name: str) -> str:
    known = preset_names()
    if name not in known:
        raise ConfigError([f"preset {must_be_one_of(known, name)}"])
    return (resources.files("rnnsearch") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


UNSET = "unset"
"""Value that removes an option of the preset, because TOML has no null."""
EXCLUSIVE_OPTIONS = ({"tokens", "sentences"}, {"corpus", "train"})
"""Options of which a table has exactly one; an override of one drops the others of its group, in every table."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` overridden by `over`, table by table; a table whose `type` changes is replaced as a whole."""
    dropped: set[str] = set()
    for group in EXCLUSIVE_OPTIONS:
        if group & over.keys():
            dropped |= group - over.keys()
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
    """Parse a setting such as `training.batch.tokens=4096` into nested tables.

    The value is TOML, or text if it is not valid TOML.

    Raises:
        ConfigError: If there is no `=`, or a part of the key is empty.
    """
    key, equals, text = setting.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError([f'--set must be key=value, such as training.seed=2; got "{setting}"'])
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError):
        raise ConfigError([f"--set {key}: must be a valid TOML value; got one that is too large"]) from None
    for part in reversed(key.split(".")):
        value = {part.strip(): value}
    return dict(value)


def resolve(tables: Mapping[str, Any], settings: Iterable[str] = (), base: Path = Path()) -> RunConfig:
    """Return the config for the tables of a run file and `--set` overrides.

    Raises:
        ConfigError: With every problem, each with its dotted path.
    """
    overrides: dict[str, Any] = {}
    for setting in settings:
        overrides = merge(overrides, parse_setting(setting))
    whole = _without_unset(_with_preset(merge(tables, overrides)))
    if problems := [f"{path}: must not contain NUL" for path, value in dotted(whole).items() if _has_nul(value)]:
        raise ConfigError(problems)
    try:
        config = RunConfig.model_validate(whole)
    except ValidationError as error:
        raise ConfigError(
            _messages(error), _without_invalid_options(whole, error), _missing_components(error)
        ) from None
    config._base = base
    return config


def override_search(search: SearchConfig, overrides: Mapping[str, Any]) -> SearchConfig:
    """Return `[search]` with some options replaced, or raise ConfigError with every problem."""
    try:
        return SearchConfig.model_validate({**search.model_dump(), **overrides})
    except ValidationError as error:
        raise ConfigError(_messages(error)) from None


def _has_nul(value: Any) -> bool:
    """Return True if a string in a value contains NUL, which no path may contain."""
    if isinstance(value, list):
        return any(map(_has_nul, value))
    if isinstance(value, Mapping):
        return any(map(_has_nul, value.values()))
    return isinstance(value, str) and "\0" in value


def _without_unset(tables: Mapping[str, Any]) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    for key, value in tables.items():
        if value != UNSET:
            rest[key] = _without_unset(value) if isinstance(value, Mapping) else value
    return rest


def _without_invalid_options(tables: dict[str, Any], error: ValidationError) -> RunConfig | None:
    """Return the config without the options that failed validation, or None if the rest is invalid, too."""
    rest = copy.deepcopy(tables)
    for details in error.errors():
        table: Any = rest
        for part in details["loc"][:-1]:
            table = table.get(part, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict) and details["loc"]:
            table.pop(str(details["loc"][-1]), None)
    try:
        return RunConfig.model_validate(rest)
    except ValidationError:
        return None


# Dotted keys of more than 32 parts, for which tomllib needs quadratic time and memory; valid keys have only a few.
_LONG_KEY = re.compile(r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
_TOO_DEEP = "its tables must be nested less deeply"


def load(path: Path, settings: Iterable[str] = ()) -> RunConfig:
    """Load and resolve a run file.

    Raises:
        ConfigError: With the file, and the line or the dotted path of every problem.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such run file"]) from None
    except (OSError, ValueError) as error:  # ValueError: invalid UTF-8, or NUL in the path
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    return parse(text, path, settings)


def parse(text: str, path: Path, settings: Iterable[str] = ()) -> RunConfig:
    """Resolve the text of the run file at `path`, or raise ConfigError like `load`."""
    try:
        if _LONG_KEY.search(text):
            raise RecursionError
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: is not TOML: {error}"]) from None
    except RecursionError:
        raise ConfigError([f"{path}: {_TOO_DEEP}"]) from None
    except ValueError as error:  # an integer with too many digits
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    try:
        return resolve(tables, settings, path.parent)
    except ConfigError as error:
        messages = [f"{path}: {message}" for message in error.problems]
        raise ConfigError(messages, error.valid_part, error.missing) from None
    except RecursionError:
        raise ConfigError([f"{path}: {_TOO_DEEP}"]) from None


def dump(config: BaseModel) -> str:
    """Return a config as TOML that `resolve` reads back as the same config; options without a value are omitted."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def preset_of(path: Path, settings: Iterable[str] = ()) -> str | None:
    """Return the name of the preset of a valid run file, or None."""
    tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    for setting in settings:
        tables = merge(tables, parse_setting(setting))
    return tables.get("preset")


def summary(config: RunConfig, preset_name: str | None) -> str:
    """Return the options that differ from a preset, as lines of a run file; without a preset, all options."""
    if preset_name is None:
        return dump(config).rstrip()
    # "any": a placeholder; data.corpus is required, and its default is removed below like those of the languages.
    required = {"source": config.data.source, "target": config.data.target, "corpus": "any"}
    base = resolve({"preset": preset_name, "data": required})
    defaults = dotted(base.model_dump(mode="json", exclude_none=True))
    for name in required:
        defaults.pop(f"data.{name}", None)
    options = dotted(config.model_dump(mode="json", exclude_none=True))
    lines = [f'preset = "{preset_name}"']
    for path, value in options.items():
        if defaults.get(path) != value:
            lines.append(f"{path} = {tomli_w.dumps({'value': value}).removeprefix('value = ').rstrip()}")
    for path in defaults.keys() - options.keys():
        table = path.rpartition(".")[0]
        # The other options of a table belong to its type, and are dropped with it.
        if options.get(f"{table}.type") == defaults.get(f"{table}.type"):
            lines.append(f'{path} = "{UNSET}"')
    return "\n".join(lines)


def _messages(errors: ValidationError) -> list[str]:
    messages = []
    for error in errors.errors():
        message = error_message(error)
        if error["type"] == "extra_forbidden":
            message = f"unknown option{did_you_mean(str(error['loc'][-1]), _options_at(error['loc'][:-1]))}"
        messages.append(f"{'.'.join(str(part) for part in error['loc']) or 'run file'}: {message}")
    return messages


def _missing_components(errors: ValidationError) -> list[str]:
    """Return the type and name of each component that is not available."""
    components = [error.get("ctx", {}).get("component") for error in errors.errors()]
    return [component for component in components if component is not None]


def _options_at(location: tuple[Any, ...]) -> list[str]:
    """Return the options of the table at a location, of all classes that the table may have."""
    tables: list[type[BaseModel]] = [RunConfig]
    for part in location:
        types = [table.model_fields[part].annotation for table in tables if part in table.model_fields]
        members = [member for type_ in types for member in getattr(type_, "__args__", (type_,))]
        tables = [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]
    return [key for table in tables for key in table.model_fields]
