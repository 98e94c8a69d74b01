"""Option groups declared as dataclasses, and help text that is divided into panels.

A command takes a group as one parameter; `expand_groups` gives typer the single options. So a group is declared once,
shared by commands, and passed on as an object. Panels are typer's `rich_help_panel`, printed as plain sections: help
in typer's own boxes would need rich, which takes longer to import than everything else that `--help` does.

`scripts/commands_page.py` reads the panels, too. `check` of a group runs before the command. Tests:
tests/commands/test_usage.py, tests/test_docs.py.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from typer.core import TyperCommand, TyperGroup

DEFAULT_PANEL = "Options"


class OptionGroup:
    """Base class of option groups: dataclasses whose fields are `Annotated[type, typer.Option(...)]` with a default."""

    panel: ClassVar[str] = DEFAULT_PANEL

    def check(self) -> None:
        """Raise BadParameter if options are incompatible or have no effect."""

    def changed_options(self) -> list[str]:
        """Return the names of the options that do not have their default value, such as `--beam`."""
        hints = get_type_hints(type(self), include_extras=True)
        changed = []
        for field in fields(self):  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default:
                _, option = get_args(hints[field.name])
                declared = [name for name in option.param_decls or () if name.startswith("--")]
                changed.append(declared[0].partition("/")[0] if declared else f"--{field.name.replace('_', '-')}")
        return changed

    @classmethod
    def parameters(cls) -> Iterator[inspect.Parameter]:
        """Yield the options as parameters of a command, in the panel of the group."""
        hints = get_type_hints(cls, include_extras=True)
        for field in fields(cls):  # type: ignore[arg-type]
            value_type, option = get_args(hints[field.name])
            option = copy(option)
            option.rich_help_panel = option.rich_help_panel or cls.panel
            annotation = Annotated[value_type, option]  # type: ignore[valid-type]
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation
            )


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is an `OptionGroup` by the options of the group.

    The returned function builds the groups and checks them before it runs the command.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if isinstance(hints[name], type) and issubclass(hints[name], OptionGroup):
            groups[name] = hints[name]
            parameters += groups[name].parameters()
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            options = {field.name: values.pop(field.name) for field in fields(group)}  # type: ignore[arg-type]
            values[name] = group(**options)
            values[name].check()
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


class PanelCommand(TyperCommand):
    """A command whose help lists arguments, then the options of each panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class PanelGroup(TyperGroup):
    """A group of commands whose help lists the commands of each panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = _panel_of(command, default="Commands")
                panels.setdefault(panel, []).append((name, command.get_short_help_str(limit=formatter.width)))
        # All panels have the same width of the first column.
        width = max((len(name) for rows in panels.values() for name, _ in rows), default=0)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else _panel_of(parameter, default=DEFAULT_PANEL)
            # typer puts defaults that are described in words into parentheses.
            names, text = record
            text = re.sub(r"\[default: \((.*?)\)(?=[;\]])", r"[default: \1", text)
            panels.setdefault(panel, []).append((names, text))
    for panel, records in panels.items():
        with formatter.section(panel):
            formatter.write_dl(records)


def _panel_of(item: Any, default: str) -> str:
    # typer marks the absence of a panel by None or, for commands, by a DefaultPlaceholder.
    panel = getattr(item, "rich_help_panel", None)
    return panel if isinstance(panel, str) else default
