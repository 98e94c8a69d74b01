"""What the tables of a run file are made of: the base of all, and kinds of values. Imports no torch."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]

LANGUAGE = r"[a-z]{2,3}([-_][A-Za-z0-9]+)*"


def _language(code: str) -> str:
    if not re.fullmatch(LANGUAGE, code):
        raise ValueError("must be a language code such as en, de or pt-BR")
    return code


Language = Annotated[str, AfterValidator(_language), Field(json_schema_extra={"pattern": LANGUAGE})]


class Table(BaseModel):
    """A table of the run file: unknown keys are refused, values are not coerced from text."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", frozen=True, strict=True)
