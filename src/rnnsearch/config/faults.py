"""What is wrong with an option, in one sentence each, with the dotted path kept apart."""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError

from rnnsearch.errors import must_be_one_of

_SHOULD = re.compile(r"^(Input|String|List|Value) should")
"""How the checker's own messages begin."""
_OURS = "rnnsearch"
"""The type of an error whose message is a whole sentence of our own."""


def fault(location: tuple[int | str, ...], said: str) -> InitErrorDetails:
    """A fault of the option at a location below a table, for `ValidationError.from_exception_data`."""
    whole = said.encode("utf-8", "backslashreplace").decode()  # a command line's bytes may be no text
    error = PydanticCustomError(_OURS, "{said}", {"said": whole})
    return InitErrorDetails(type=error, loc=location, input=None)


def sentence(error: Any) -> str:
    """What the checker found, in our words: one of `ValidationError.errors()`, without its path."""
    given, message = error["input"], error["msg"].removeprefix("Value error, ")
    if error["type"] == _OURS:
        return str(error["msg"])
    if error["type"] == "missing":
        return "must be given"
    if error["type"] == "literal_error":
        return must_be_one_of(re.findall("'([^']*)'", error["ctx"]["expected"]), given)
    if error["type"] == "model_type":
        message = "must be a table"
    return f"{_SHOULD.sub('must', message)}{'' if isinstance(given, dict) else f'; got {given!r}'}"
