"""`rnnsearch presets`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

_SENTENCE = re.compile(r".*?\.(?<!al\.)(?<!eq\.)(?= |$)")


def presets(
    name: Annotated[str | None, typer.Argument(help="The preset to show whole; without it, a line each.")] = None,
) -> None:
    """The ready-made settings that a run file can begin from (`preset = "small"`)."""
    import tomli_w

    from rnnsearch.config import preset, preset_about, preset_names

    if name is not None:
        whole = tomli_w.dumps(preset(name))
        typer.echo(f"{preset_about(name)}\n\n{whole}", nl=False)
        return
    width = max(map(len, preset_names()))
    for known in preset_names():
        typer.echo(f"{known:{width}}  {_SENTENCE.findall(preset_about(known))[0]}")
