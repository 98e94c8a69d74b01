"""Building blocks of the run-file schema: value types, tables, and components selected by name.

A component with options of its own is a subclass of `Options`, selected by `OneOf`. A component
without options is a name in a mapping from names to descriptions, selected by `NameIn`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PlainValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from rnnsearch.errors import did_you_mean, must_be_one_of

# Problems with options, each one sentence and a location.

_PYDANTIC_OPENING = re.compile(r"^(Input|String|List|Value) should")
_CUSTOM_TYPE = "rnnsearch"  # type of the errors whose message is already a whole sentence


def problem(location: tuple[int | str, ...], message: str) -> InitErrorDetails:
    """Return a problem for `ValidationError.from_exception_data`, located relative to a table."""
    printable = message.encode("utf-8", "backslashreplace").decode()  # a command line may hold invalid UTF-8
    error = PydanticCustomError(_CUSTOM_TYPE, "{message}", {"message": printable})
    return InitErrorDetails(type=error, loc=location, input=None)


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
    return f"{_PYDANTIC_OPENING.sub('must', message)}{'' if isinstance(value, dict) else f'; got {value!r}'}"


# Base class and value types of the tables of a run file.

MAX_INTEGER = 2**24  # the product of two such sizes is still a number of bytes that a machine can report
Size = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
SmallSize = Annotated[int, Field(ge=1, le=100)]  # layers, heads: each is a module to build
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
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


# One language, several, or none. Validated by hand: pydantic's union would add its branch to the path of the error.
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
    """The options of one component, whose name is the default of the field `key`."""

    key: ClassVar[str] = "type"
    """The option that names the component."""

    @classmethod
    @cache
    def option_fields(cls) -> Mapping[str, Any]:
        """Return all fields except the one that names the component."""
        return {name: field for name, field in cls.model_fields.items() if name != cls.key}


O = TypeVar("O", bound=Options)


def by_name(*classes: type[O]) -> dict[str, type[O]]:
    """Return the options classes of a family by component name."""
    return {cls.model_fields[cls.key].default: cls for cls in classes}


@dataclass(frozen=True, eq=False)
class NameIn:
    """Annotation of an option whose value is a key of `names`."""

    names: Mapping[str, object]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.validate, handler(source))

    def validate(self, name: str) -> str:
        """Return the name, or raise ValidationError if it is unknown."""
        if name not in self.names:
            raise_problems([problem((), must_be_one_of(self.names, name))])
        return name


@dataclass(frozen=True, eq=False)
class OneOf:
    """Annotation of a table that holds the options of one class of a family, selected by name."""

    family: str
    classes: Mapping[str, type[Options]]
    default: str | None = None
    """The name if the table has none."""
    key: str = "type"

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
        name = value.get(self.key, self.default)
        if not isinstance(name, str) or name not in self.classes:
            message = "must be given" if name is None else must_be_one_of(self.classes, name)
            raise_problems([problem((self.key,), message)])
        rest = {key: item for key, item in value.items() if key != self.key}
        cls = self.classes[name]
        return parse_flat(rest, [cls], partial(option_names, self.classes), f"the {name} {self.family}")[0]


@dataclass(frozen=True, eq=False)
class ByKind:
    """Annotation of a table whose class is selected by its `kind`, each with its own options and
    problems."""

    classes: Mapping[str, type[Table]]
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


def raise_problems(problems: list[InitErrorDetails]) -> None:
    """Raise ValidationError if there are any problems."""
    if problems:
        raise ValidationError.from_exception_data("options", problems)


# Names and descriptions of the components that have no options.

CELLS = {
    "gru": "The GRU of Bahdanau et al.: 1 - z weights the old state, the reset gate is applied before U.",
    "cho-gru": "The GRU of Cho et al.: z weights the old state, the reset gate is applied before U.",
    "torch-gru": "PyTorch's GRU, fused over a whole source sentence: z weights the old state, the reset gate is "
    "applied after U.",
    "lstm": "Long short-term memory, without peepholes.",
    "tanh": "The simple recurrent cell.",
    "layer-norm-gru": "The GRU with layer normalisation of W x and U h (Ba et al. 2016).",
    "layer-norm-lstm": "The LSTM with layer normalisation of W x, U h and the memory cell (Ba et al. 2016).",
    "gate-norm-lstm": "The LSTM with layer normalisation of each gate's input (after Chen et al. 2018).",
    "rnmt-lstm": "`gate-norm-lstm` without a tanh on its output, h' = o * c' (RNMT+: Chen et al. 2018).",
    "ssru": "The simpler simple recurrent unit (Kim et al. 2019): one gate and no product with the state. For decoders "
    "of small, fast models.",
}
BRIDGES = {
    "zero": "Zeros.",
    "copy": "The encoder's last states, layer by layer; sizes and types of state must match.",
    "learned": "A tanh layer over the encoder's last states, for any sizes.",
    "learned-top": "A tanh layer over the encoder's top state for each layer of the decoder (JoeyNMT's `bridge`).",
    "rectified": "A ReLU layer over the last states of all encoder layers together, one for h and one for memory "
    "cells, for any sizes (OpenNMT-py's `bridge`).",
}
NORMALISERS = {
    "softmax": "Softmax (Bahdanau et al., eq. 6).",
    "sparsemax": "Sparsemax, the projection onto the simplex, which gives many positions a weight of 0 (Martins & "
    "Astudillo 2016). Needs `pip install entmax`.",
    "entmax15": "1.5-entmax, between softmax and sparsemax (Peters et al. 2019). Needs `pip install entmax`.",
    "hard": "Hard attention to one position: sampled from the softmax in training, the best one in search (Xu et al. "
    "2015). Needs `[objective.reinforce]`.",
    "exponential": "exp(e), not normalised; with the even score and the mixture window, the attention of Graves 2013.",
    "monotonic": "Monotonic attention, which learns where to stop and never moves back (Raffel et al. 2017): expected "
    "weights in training, one position in search.",
    "linear-chain": "Marginals of a linear chain, so that neighbouring positions are selected together (after Kim et "
    "al. 2017).",
}
ALIGNMENT_LOSSES = {
    "cross-entropy": "Cross-entropy between gold and attention weights.",
    "squared-error": "Half the squared difference of gold and attention weights.",
    "product": "Negative logarithm of the sum of gold times attention weights.",
}
LENGTH_NORMS = {
    "power": "The length.",
    "gnmt": "(5 + length) / 6 (Wu et al. 2016).",
    "power-with-bos": "The length including the BOS token (OpenNMT-py's `avg`).",
}
STOPS = {
    "bound": "Stop when `beam` hypotheses have finished, or when no unfinished one can still become better. A finished "
    "hypothesis is replaced by the next best one; one cut off at the maximum length ranks below all finished ones.",
    "top": "Stop when the best continuation of a step ends its sentence (OpenNMT-py). The slot of a finished "
    "hypothesis stays empty until the next step; one cut off at the maximum length counts as finished.",
}

Cell = Annotated[str, NameIn(CELLS)]
Bridge = Annotated[str, NameIn(BRIDGES)]
NormaliserName = Annotated[str, NameIn(NORMALISERS)]
AlignmentLoss = Annotated[str, NameIn(ALIGNMENT_LOSSES)]
LengthNorm = Annotated[str, NameIn(LENGTH_NORMS)]
Stop = Annotated[str, NameIn(STOPS)]
