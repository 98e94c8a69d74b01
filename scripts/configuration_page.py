"""Write the tables of docs/configuration.md anew, from the classes and docstrings of `rnnsearch.config`.

    python scripts/configuration_page.py

What stands between two marks is made here; the rest of the page is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from pydantic.fields import FieldInfo

from rnnsearch import config
from rnnsearch.config import RunConfig, Table, attention, language, names
from rnnsearch.config.choice import ByKind, NameIn, OneOf, Options

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN, END = "<!-- {} below: made by scripts/configuration_page.py -->", "<!-- {} above -->"
MUST = "must be given"
FAMILIES: dict[str, Mapping[str, Any]] = {
    "annotation": config.annotations.ANNOTATIONS,
    "encoder": config.encoders.ENCODERS,
    "cell": names.CELLS,
    "composition": config.characters.SOURCE_CHARACTERS,
    "score": attention.SCORES,
    "window": attention.WINDOWS,
    "normaliser": names.NORMALISERS,
    "feature": attention.FEATURES,
    "decoder": config.decoders.DECODERS,
    "bridge": names.BRIDGES,
    "network": language.NETWORKS,
    "init": config.init.INITS,
    "output": config.outputs.OUTPUTS,
    "fusion": config.fusions.FUSIONS,
    "contrast": config.objective.CONTRASTS,
    "alignment loss": names.ALIGNMENT_LOSSES,
    "baseline": config.objective.BASELINES,
    "optimiser": config.optimisers.OPTIMISERS,
    "schedule": config.schedules.SCHEDULES,
    "length norm": names.LENGTH_NORMS,
    "stop": names.STOPS,
}
"""What a part may be called: a class of options, or in words what it is."""


@cache
def docstrings(kind: type) -> dict[str, str]:
    """What stands below each of a class's own fields."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(after.value.value))
    return found


def meaning(kinds: list[type[Table]], name: str) -> str:
    """The docstring of an option: that of the first class that has one."""
    said = (docstrings(kind)[name] for one in kinds for kind in one.__mro__[:-3] if name in docstrings(kind))
    return " ".join(next(said).split())


def one_of(field: FieldInfo) -> OneOf | None:
    """How a field's table is told apart, where it is."""
    inner = getattr(field.annotation, "__args__", ())
    marks = [*field.metadata, *(mark for one in inner for mark in getattr(one, "__metadata__", ()))]
    return next((mark for mark in marks if isinstance(mark, OneOf)), None)


def by_kind(field: FieldInfo) -> list[type[Table]]:
    """The classes of a field whose table has a kind."""
    marks = [mark for mark in field.metadata if isinstance(mark, ByKind)]
    return [kind for mark in marks for kind in mark.kinds.values()]


def inner_table(field: FieldInfo) -> type[Table] | None:
    """The class of a field that is a table itself."""
    kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
    kinds = [getattr(kind, "__origin__", kind) for kind in kinds]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Table)), None)


def sections(table: type[Table] = RunConfig, path: str = "") -> Iterator[str]:
    """The tables of a run file, the run file itself first."""
    yield section(table, [table], path)
    yield from inner_sections(table, path)


def inner_sections(table: type[Table], path: str, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """The tables in a table, without some; of one that is of several kinds what each kind has."""
    for name, field in table.model_fields.items():
        below = f"{path}.{name}".lstrip(".")
        inner, choice = inner_table(field), one_of(field)
        if name in but:
            continue
        if kinds := by_kind(field):
            first, *others = kinds
            yield from sections(first, below)
            for kind in others:
                yield section(kind, [kind], below, f' of `kind = "{kind.model_fields["kind"].default}"`')
                yield from inner_sections(kind, below, frozenset(first.model_fields))
            continue
        if choice is not None and inner is not None:
            yield section(inner, list(choice.kinds.values()), below)
        elif inner is attention.AttentionConfig:
            parts = [*attention.SCORES.values(), *attention.WINDOWS.values(), *attention.FEATURES.values()]
            yield section(inner, parts, below)
        elif inner is not None:
            yield from sections(inner, below)


def section(table: type[Table], kinds: list[type[Table]], path: str, of: str = "") -> str:
    """One table: what it is, and its options with their types and defaults, and the classes that have them."""
    fields = {name: field for kind in [table, *kinds] for name, field in kind.model_fields.items()}
    if table is attention.AttentionConfig:
        fields = attention.Pieces.model_fields | {k: v for k, v in fields.items() if k not in table.model_fields}
        fields.pop("type")
    rows = [row(table, kinds, name, field) for name, field in fields.items() if inner_table(field) is None]
    if not rows:
        return ""
    title = f"### `[{path}]`{of}" if path else "### At the top of the file"
    told = len(kinds) > 1
    head = ["option", "type", "default", "meaning", *(["for which types"] if told else [])]
    lines = [" | ".join(["", *cells[: len(head)], ""]).strip() for cells in [head, ["---"] * 5, *rows]]
    return "\n\n".join(filter(None, [title, about(table, path), "\n".join(lines)]))


def about(table: type[Table], path: str) -> str:
    """The docstring of a table, without its name."""
    text = inspect.cleandoc(table.__doc__ or "").replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n")
    said = re.sub(rf"^`\[{re.escape(path)}\]`(: )?", "", text)
    return said[:1].upper() + said[1:]


def row(table: type[Table], kinds: list[type[Table]], name: str, field: FieldInfo) -> list[str]:
    """The cells of one option."""
    pieces = [attention.Pieces] if table is attention.AttentionConfig else []
    schema = next(kind for kind in [*pieces, *kinds, table] if name in kind.model_fields).model_json_schema()
    having = [kind for kind in kinds if name in kind.model_fields]
    required = [kind for kind in having if kind.model_fields[name].is_required()]
    optional = [kind for kind in having if kind not in required]
    key = issubclass(table, Options) and name == table.key
    named = key or any(isinstance(mark, NameIn) for mark in field.metadata)
    users = users_of(required, optional) if 0 < len(having) < len(kinds) or (required and optional) else "all"
    said = meaning([*pieces, *having, table], name).replace("|", "\\|")
    given = default(optional[0].model_fields[name] if optional else field)
    if key:
        own = (choice.default for choice in choices() if choice.default and choice.kinds[choice.default] in kinds)
        given = next((f'`"{name}"`' for name in own), MUST)
    return [f"`{name}`", "name" if named else words(schema["properties"][name]), given, said, users]


def choices() -> Iterator[OneOf]:
    """Every table that is told apart by a name."""
    for table in (config.ModelConfig, language.LanguageModelConfig, config.TrainingConfig):
        yield from filter(None, (one_of(field) for field in table.model_fields.values()))


def users_of(required: list[type[Table]], optional: list[type[Table]]) -> str:
    """Which classes need an option, and which may have it."""
    need, take = (
        ", ".join(f"`{kind.model_fields[getattr(kind, 'key', 'type')].default}`" for kind in kinds)
        for kinds in (required, optional)
    )
    return "; ".join(filter(None, [need and f"needed by {need}", take and f"may be given for {take}"]))


def default(field: FieldInfo) -> str:
    """A default as it stands in a run file."""
    if field.is_required():
        return MUST
    if field.default is None:
        return "none"
    return f"`{tomli_w.dumps({'x': field.default}).removeprefix('x = ').strip()}`"


def words(schema: dict[str, Any]) -> str:
    """An option's type in words, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(words(kind) for kind in schema["anyOf"] if kind.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return " or ".join(f'`"{value}"`' for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        return f"list of {words(schema['items'])}s"
    if "pattern" in schema:
        return "language code"
    kinds = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
    limits = {"minimum": "at least", "exclusiveMinimum": "more than", "exclusiveMaximum": "less than"}
    bounds = [f"{word} {schema[key]:g}" for key, word in limits.items() if key in schema]
    return ", ".join([kinds[schema["type"]], *bounds])


def parts() -> str:
    """What every name of a part is."""
    lines = ["| table | name | what it is |", "|---|---|---|"]
    for family, kinds in FAMILIES.items():
        for name, kind in kinds.items():
            said = kind if isinstance(kind, str) else " ".join((kind.__doc__ or "").split())
            lines.append(f"| {family} | `{name}` | {said} |")
    return "\n".join(lines)


def presets() -> str:
    """What every preset is made of."""
    head = ["preset", "encoder, cell", "decoder", "attention", "text, vocabulary", "sizes", "optimiser", "length"]
    rows = [head, ["---"] * len(head), *map(preset_row, config.preset_names())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows).replace("| --- ", "|---").replace("--- |", "---|")


def preset_row(name: str) -> list[str]:
    """What the table says of one preset."""
    tables = config.preset(name)
    model, training, text = tables["model"], tables["training"], tables["text"]
    encoder, decoder, attends = (
        model.get("encoder", {}),
        model.get("decoder", model.get("network")),
        model.get("attention", {}),
    )
    kinds = dict.fromkeys([text["type"], text.get("target_type") or text["type"]])
    units = ("joint " if text.get("joint") else "") + " to ".join(kinds)
    counts = [f"{text[key]:,}" for key in ("vocabulary", "target_vocabulary") if key in text]
    layers = [
        f"{part['layers']} x {part['size']}" if "layers" in part else part["size"]
        for part in (encoder, decoder)
        if part
    ]
    sizes = [model["embedding"], *layers, *(decoder[key] for key in ("maxout", "readout") if key in decoder)]
    pieces = [attends.get("score"), attends.get("window"), *attends.get("features", [])]
    return [
        f"`{name}`",
        f"`{encoder['type']}`, `{encoder['cell']}`" if encoder else "none (a language model)",
        f"`{decoder['type']}`",
        ", ".join(f"`{piece}`" for piece in pieces if piece) or "none",
        ", ".join(filter(None, [units, " / ".join(counts)])),
        " / ".join(str(size) for size in sizes),
        training["optimiser"]["type"],
        f"{training.get('max_length', 'any')}",
    ]


def made_anew(text: str) -> str:
    """The page with its marked parts as they are to be."""
    for name, made in {
        "Options": "\n\n".join(filter(None, sections())),
        "Classes by name": parts(),
        "Presets": presets(),
    }.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(made_anew(page), encoding="utf-8")
