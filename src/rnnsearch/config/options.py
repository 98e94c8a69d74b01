"""Building blocks of the run-file schema: value types, tables, and components selected by name.

Each component (a score, a cell, an optimiser, ...) is declared once, as a subclass of `Options`
that holds its name, its documentation and its options, and is registered in its `Family`. A table
of a run file selects a component with `OneOf` if the component has options, otherwise with
`NameIn`. The code that implements a component is registered in `config.registry`.

All modules of `config` that declare options use it, and `scripts/configuration_page.py` reads the docstrings of
options. Error messages start with the dotted path of an option; tests/models/test_model_checks.py and
tests/test_config.py check them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PlainValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from rnnsearch.errors import did_you_mean, must_be_one_of

ENTRY_POINTS = "rnnsearch.components"
"""Group of entry points by which installed packages offer components."""

log = logging.getLogger(__name__)

# Problems with options, each one sentence and a location.

_PYDANTIC_OPENING = re.compile(r"^(Input|String|List|Value) should")
_CUSTOM_TYPE = "rnnsearch"  # type of the errors whose message is already a whole sentence


def problem(location: tuple[int | str, ...], message: str, component: str | None = None) -> InitErrorDetails:
    """Return a problem for `ValidationError.from_exception_data`.

    Args:
        location: Location relative to a table.
        message: The whole sentence.
        component: Type and name of a component that is not available, if that is the problem.
    """
    # A command line may hold invalid UTF-8.
    context = {"message": _printable(message), "component": component and _printable(component)}
    error = PydanticCustomError(_CUSTOM_TYPE, "{message}", context)
    return InitErrorDetails(type=error, loc=location, input=None)


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def error_message(error: Any) -> str:
    """Return the message for one of `ValidationError.errors()`, without its path."""
    value = error["input"]
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == _CUSTOM_TYPE:
        return str(error["msg"])
    if error["type"] == "missing":
        return "must be given"
    if error["type"] == "literal_error":
        return must_be_one_of(re.findall("'([^']*)'", error["ctx"]["expected"]), value)
    if error["type"] == "model_type":
        message = "must be a table"
    message = _PYDANTIC_OPENING.sub("must", message)
    if isinstance(value, dict):
        return message
    return f'{message}; got "{value}"' if isinstance(value, str) else f"{message}; got {value!r}"


# Base class and value types of the tables of a run file.

MAX_INTEGER = 2**24  # the product of two such sizes is still a number of bytes that a machine can report
Size = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
SmallSize = Annotated[int, Field(ge=1, le=100)]  # layers, heads: each is a module to build
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Fraction  # earlier name, which extensions may import
NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]

LANGUAGE = r"[a-z]{2,3}([-_][A-Za-z0-9]+)*"
"""Pattern of a language code."""


def require_language(code: str) -> str:
    """Return a language code, or raise ValueError if it is none."""
    if not re.fullmatch(LANGUAGE, code):
        raise ValueError("must be a language code such as en, de or pt-BR")
    return code


Language = Annotated[str, AfterValidator(require_language), Field(json_schema_extra={"pattern": LANGUAGE})]


def _languages(codes: object) -> object:
    for code in codes if isinstance(codes, list) else [codes]:
        if not isinstance(code, str if isinstance(codes, list) else str | None):
            raise ValueError("must be a valid string")
    return codes


# One language, several, or none. Validated by hand: pydantic's union would add its branch to the path of the error. The
# field's validator checks the codes, because a source may have another name (`[data.arrays]`).
Languages = Annotated[
    str | list[str] | None, PlainValidator(_languages, json_schema_input_type=Language | list[Language] | None)
]


class Table(BaseModel):
    """A table of the run file, with strict types and no unknown keys."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", frozen=True, strict=True)


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a table and its subtables to values by dotted path."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


class Options(Table):
    """Declaration of one component: its name (the default of the field `key`) and its options.

    Class attributes annotated as `ClassVar` are traits, which `config.rules` checks combinations by.
    """

    key: ClassVar[str] = "type"
    """The option that names the component."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the component in run files."""
        return str(cls.model_fields[cls.key].default)

    @classmethod
    @cache
    def option_fields(cls) -> Mapping[str, Any]:
        """Return all fields except the one that names the component."""
        return {name: field for name, field in cls.model_fields.items() if name != cls.key}


@cache
def load_installed_components() -> None:
    """Import the modules that installed packages name as entry points, which registers their components.

    Families call this once per process, for the first name that they do not know, so that a package costs nothing
    if its components are not used. A module that cannot be imported is skipped with a warning.
    """
    from importlib.metadata import entry_points  # takes 20 ms

    for entry_point in entry_points(group=ENTRY_POINTS):
        try:
            entry_point.load()
        except Exception as error:  # the code of other packages may raise anything
            owner = entry_point.dist.name if entry_point.dist else entry_point.value
            log.warning(
                "the components %s of %s cannot be loaded: %s: %s", entry_point.name, owner, type(error).__name__, error
            )


O = TypeVar("O", bound=Options)
C = TypeVar("C", bound=type[Options])


class Family(dict[str, type[O]]):
    """The options classes of interchangeable components by name, in the order of registration.

    Run files and model folders contain the names: never rename one.
    """

    def __init__(self, name: str, key: str = "type") -> None:
        super().__init__()
        self.name = name
        self.key = key

    def __contains__(self, name: object) -> bool:
        """Return True if a component has this name, after loading those of installed packages if necessary."""
        if super().__contains__(name):
            return True
        load_installed_components()
        return super().__contains__(name)

    def register(self, cls: C) -> C:
        """Add a component; a later one replaces an earlier one of the same name.

        Use it as a decorator of the component's options class.
        """
        self[cls.name()] = cls  # type: ignore[assignment]
        return cls

    def names(self, condition: Callable[[type[O]], bool]) -> str:
        """Return the names of the components that satisfy a condition, for an error message."""
        return ", ".join(name for name, cls in self.items() if condition(cls))


@dataclass(frozen=True, eq=False)
class NameIn:
    """Annotation of an option whose value is a key of `names`."""

    names: Mapping[str, object]
    """Names that are allowed."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.validate, handler(source))

    def validate(self, name: str) -> str:
        """Return the name, or raise ValidationError if it is unknown."""
        if name not in self.names:
            component = f'{self.names.name} "{name}"' if isinstance(self.names, Family) else None
            raise_problems([problem((), must_be_one_of(self.names, name), component)])
        return name


@dataclass(frozen=True, eq=False)
class OneOf:
    """Annotation of a table that holds the options of one class of a family, selected by name."""

    family: Family[Any]
    """Family of the options classes."""
    default: str | None = None
    """The name if the table has none."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            self.validate, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def validate(self, value: Any) -> Any:
        """Return the options in a table, or raise ValidationError with every problem.

        A value that is not a mapping, such as an instance of `Options`, is returned unchanged.
        """
        if not isinstance(value, Mapping):
            return value
        family = self.family
        name = value.get(family.key, self.default)
        if not isinstance(name, str) or name not in family:
            message = "must be given" if name is None else must_be_one_of(family, name)
            component = f'{family.name} "{name}"' if isinstance(name, str) else None
            raise_problems([problem((family.key,), message, component)])
        rest = {key: item for key, item in value.items() if key != family.key}
        return parse_flat(rest, [family[name]], partial(option_names, family), f"the {name} {family.name}")[0]


@dataclass(frozen=True, eq=False)
class ByKind:
    """Annotation of a table whose class is selected by its `kind`, each with its own options and problems."""

    classes: Mapping[str, type[Table]]
    """Table class by kind."""
    default: str
    """The kind if the table has none."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            self.validate, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def validate(self, value: Any) -> Any:
        """Return the table as an instance of its class, or raise ValidationError.

        A value that is not a mapping is returned unchanged.
        """
        if not isinstance(value, Mapping):
            return value
        kind = value.get("kind", self.default)
        if not isinstance(kind, str) or kind not in self.classes:
            raise_problems([problem(("kind",), must_be_one_of(self.classes, kind))])
        return self.classes[kind].model_validate(value)


def option_names(*families: Mapping[str, type[Options]]) -> list[str]:
    """Return the names of all options of the classes of some families, without duplicates."""
    names: dict[str, None] = {}
    for family in families:
        for cls in family.values():
            names |= dict.fromkeys(cls.option_fields())
    return list(names)


def parse_flat(
    values: Mapping[str, Any],
    selected: Sequence[type[Options]],
    known_options: Callable[[], list[str]],
    description: str,
) -> list[Any]:
    """Split one flat table into the options of several classes.

    Args:
        values: The flat table; values of None count as missing.
        selected: The classes to instantiate.
        known_options: Returns the options of every class that could be selected.
        description: Names the selected classes in error messages.

    Returns:
        One instance per selected class.

    Raises:
        ValidationError: With every option that is missing, unused, unknown or invalid.
    """
    values = {key: value for key, value in values.items() if value is not None}
    fields: dict[str, Any] = {}
    for cls in selected:
        fields |= cls.option_fields()
    problems = [
        problem((key,), f"must be given for {description}")
        for key, field in fields.items()
        if field.is_required() and key not in values
    ]
    for key in values.keys() - fields.keys():
        if key in known_options():
            message = f'has no effect with {description}; remove it (or set it to "unset")'
        else:
            message = f"unknown option{did_you_mean(key, known_options())}"
        problems.append(problem((key,), message))
    instances = []
    for cls in selected:
        try:
            instances.append(cls.model_validate({key: values[key] for key in cls.option_fields() if key in values}))
        except ValidationError as error:
            invalid = [details for details in error.errors() if details["type"] != "missing"]
            problems += [problem(details["loc"], error_message(details)) for details in invalid]
    raise_problems(sorted(problems, key=lambda one: one.get("loc", ())))
    return instances


def raise_problem(option: str, message: str) -> NoReturn:
    """Raise ValidationError with the whole message for an option of a table, or for one of a subtable: `a.b`."""
    raise ValidationError.from_exception_data("options", [problem(tuple(option.split(".")), message)])


def raise_problems(problems: list[InitErrorDetails]) -> None:
    """Raise ValidationError if there are any problems."""
    if problems:
        raise ValidationError.from_exception_data("options", problems)
