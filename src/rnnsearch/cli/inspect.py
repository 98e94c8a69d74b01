"""`rnnsearch inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    model: Annotated[Path, typer.Argument(help="A model folder.", show_default=False)],
    config: Annotated[bool, typer.Option("--config", help="Print its whole resolved config, too.")] = False,
) -> None:
    """Show what is inside a model: its parts and their sizes, how it was trained, how well it does, whence it came."""
    from rich.console import Console
    from rich.table import Table

    from rnnsearch.models.checkpoint import load_model
    from rnnsearch.search.native_scorer import fastest

    loaded = load_model(model)
    out = Console(soft_wrap=False)
    out.print(str(model), markup=False, highlight=False, soft_wrap=True)
    parts = Table(box=None, pad_edge=False)
    parts.add_column("part")
    parts.add_column("shape")
    parts.add_column("parameters", justify="right")
    for name, parameter in loaded.model.named_parameters():
        parts.add_row(name, " x ".join(str(n) for n in parameter.shape), f"{parameter.numel():,}")
    parts.add_section()
    parts.add_row("all", "", f"{sum(p.numel() for p in loaded.model.parameters()):,}")
    out.print(parts)
    out.print(f"search on this machine: {fastest(loaded.model, loaded.config.search.precision).what}", highlight=False)
    card = model / "card.md"
    if card.is_file():
        out.print()
        out.print(card.read_text(encoding="utf-8"), markup=False, highlight=False, soft_wrap=True)
    if config:
        out.print((model / "config.toml").read_text(encoding="utf-8"), markup=False, highlight=False, soft_wrap=True)
