"""Options that choose a part by its name, and the part's own options: what may be given, and what is said if not.

A part is chosen by a name in a table: of `Options` classes where it has options (`OneOf`), of what each name means
where it has none (`NameIn`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import InitErrorDetails, core_schema

from rnnsearch.config.faults import fault, sentence
from rnnsearch.config.table import Table
from rnnsearch.errors import did_you_mean, must_be_one_of


class Options(Table):
    """The options of one part, each class another's; `type` is the part's name."""

    key: ClassVar[str] = "type"
    """The option that names the part."""

    @classmethod
    @cache
    def own(cls) -> Mapping[str, Any]:
        """The fields but that of the name."""
        return {name: field for name, field in cls.model_fields.items() if name != cls.key}


O = TypeVar("O", bound=Options)


def by_name(*kinds: type[O]) -> dict[str, type[O]]:
    """The classes of a family by name."""
    return {kind.model_fields[kind.key].default: kind for kind in kinds}


@dataclass(frozen=True, eq=False)
class NameIn:
    """An option that is a name in a table."""

    names: Mapping[str, object]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.known, handler(source))

    def known(self, name: str) -> str:
        """The name. Errors: ValidationError for one that is not in the table."""
        if name not in self.names:
            raise_faults([fault((), must_be_one_of(self.names, name))])
        return name


@dataclass(frozen=True, eq=False)
class OneOf:
    """A table of the run file that is the options of one class, told apart by their name."""

    what: str
    kinds: Mapping[str, type[Options]]
    default: str | None = None
    """The name where none is given."""
    key: str = "type"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            self.read, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def read(self, value: Any) -> Any:
        """The options of a table, which may be made already. Errors: ValidationError with every fault."""
        if not isinstance(value, Mapping):
            return value
        name = value.get(self.key, self.default)
        if not isinstance(name, str) or name not in self.kinds:
            said = "must be given" if name is None else must_be_one_of(self.kinds, name)
            raise_faults([fault((self.key,), said)])
        rest = {key: given for key, given in value.items() if key != self.key}
        return read_apart(rest, [self.kinds[name]], partial(options_of, self.kinds), f"the {name} {self.what}")[0]


@dataclass(frozen=True, eq=False)
class ByKind:
    """A table of the run file that is of one class or another, told apart by its `kind`: each class has its own options
    and faults."""

    kinds: Mapping[str, type[Table]]
    default: str
    """The kind where none is given."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            self.read, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def read(self, value: Any) -> Any:
        """The table, which may be made already. Errors: ValidationError."""
        if not isinstance(value, Mapping):
            return value
        kind = value.get("kind", self.default)
        if not isinstance(kind, str) or kind not in self.kinds:
            raise_faults([fault(("kind",), must_be_one_of(self.kinds, kind))])
        return self.kinds[kind].model_validate(value)


def options_of(*tables: Mapping[str, type[Options]]) -> list[str]:
    """Every option of the classes of some tables."""
    return list(dict.fromkeys(key for kinds in tables for kind in kinds.values() for key in kind.own()))


def read_apart(
    given: Mapping[str, Any], chosen: Sequence[type[Options]], known: Callable[[], list[str]], what: str
) -> list[Any]:
    """The options of the chosen classes (`what`), from one flat table; `known` gives those of all that could be chosen.

    Errors: ValidationError with every option that is missing, has no effect, is not there, or has no fit value.
    """
    given = {key: value for key, value in given.items() if value is not None}
    mine = {key: field for kind in chosen for key, field in kind.own().items()}
    faults = [
        fault((key,), f"must be given for {what}")
        for key, field in mine.items()
        if field.is_required() and key not in given
    ]
    for key in given.keys() - mine.keys():
        idle = f'has no effect with {what}; remove it (or say "unset")'
        faults.append(fault((key,), idle if key in known() else f"there is no such option{did_you_mean(key, known())}"))
    made = []
    for kind in chosen:
        try:
            made.append(kind.model_validate({key: given[key] for key in kind.own() if key in given}))
        except ValidationError as error:
            found = error.errors()
            faults += [fault(e["loc"], sentence(e)) for e in found if e["type"] != "missing"]
    raise_faults(sorted(faults, key=lambda one: one.get("loc", ())))
    return made


def raise_faults(faults: list[InitErrorDetails]) -> None:
    """Errors: ValidationError, where there are faults."""
    if faults:
        raise ValidationError.from_exception_data("options", faults)
