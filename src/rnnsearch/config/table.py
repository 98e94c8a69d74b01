"""What the tables of a run file are made of: the base of all, and kinds of values. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

MOST = 2**24
"""Of any number; two such sizes together still count bytes that a machine can tell."""
Size = Annotated[int, Field(ge=1, le=MOST)]
Few = Annotated[int, Field(ge=1, le=100)]
"""Of layers and the like: each is built."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]

LANGUAGE = r"[a-z]{2,3}([-_][A-Za-z0-9]+)*"


def _language(code: str) -> str:
    if not re.fullmatch(LANGUAGE, code):
        raise ValueError("must be a language code such as en, de or pt-BR")
    return code


Language = Annotated[str, AfterValidator(_language), Field(json_schema_extra={"pattern": LANGUAGE})]


def _languages(codes: object) -> object:
    if isinstance(codes, list):
        return [_languages(code) for code in codes]
    if not isinstance(codes, str | None):
        raise ValueError("must be a valid string")
    return codes if codes is None else _language(codes)


Languages = Annotated[
    str | list[str] | None, PlainValidator(_languages, json_schema_input_type=Language | list[Language] | None)
]
"""One language, several, or none. Told apart by hand, so that a fault bears the option's own path."""


class Table(BaseModel):
    """A table of the run file: unknown keys are refused, values are not coerced from text."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", frozen=True, strict=True)


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a table and the tables in it by their dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
