"""`rnnsearch inspect`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from rnnsearch.config import ModelConfig, RunConfig
    from rnnsearch.systems.system import System


def inspect(
    model: Annotated[Path, typer.Argument(help="A model folder.", show_default=False)],
    config: Annotated[bool, typer.Option("--config", help="Print its whole resolved config, too.")] = False,
) -> None:
    """Show what is inside a model: its parts and their sizes, how it was trained, how well it does, whence it came."""
    from rich.console import Console
    from rich.text import Text

    from rnnsearch.systems.card import measured, training_facts
    from rnnsearch.systems.folder import load_system

    system = load_system(model)
    out = Console()
    if not out.is_terminal:
        out = Console(width=200)  # no line of a file or a pipe is broken
    out.print(Text(str(model), "bold"), soft_wrap=True)
    out.print(_facts("Model", _model(system, model)))
    if trained := training_facts(model):
        out.print(_facts("Training", _training(trained)))
    if scores := measured(model):
        out.print(_scores(scores))
    out.print(_parts(system))
    if config:
        out.print(Text((model / "config.toml").read_text(encoding="utf-8")), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.show_header = any(columns)
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", header_style="dim")
    return table


def _add(table: Table, cells: Iterable[str]) -> None:
    """A row of plain text: brackets are no markup."""
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells))


def _facts(title: str, rows: dict[str, str]) -> Table:
    table = _table(f"\n{title}", "", "")
    for name, value in rows.items():
        if value:
            _add(table, (name, value))
    return table


def _model(system: System[Any], folder: Path) -> dict[str, str]:
    from rnnsearch.systems.card import sha256_of
    from rnnsearch.systems.folder import WEIGHTS

    config, model = system.config, system.config.model
    units = "words" if config.text.type == "words" else "subwords (BPE), " + ("joint" if config.text.joint else "apart")
    megabytes = (folder / WEIGHTS).stat().st_size / 1e6
    return {
        "Languages": f"{config.data.source} → {config.data.target}",
        "Parameters": f"{system.parameters:,} ({megabytes:.1f} MB)",
        "Vocabulary": f"{len(system.source):,} source and {len(system.target):,} target symbols: {units}",
        **_layers(model),
        "Search": _search(config),
        "On this machine": system.fastest(config.search.precision).what,
        "Weights' SHA-256": sha256_of(folder / WEIGHTS),
    }


def _layers(model: ModelConfig) -> dict[str, str]:
    """Encoder, attention and decoder in the run file's words."""
    attention = model.attention
    return {
        "Encoder": _part(model.encoder.type, model.encoder.model_dump(exclude={"type"}, exclude_none=True)),
        "Attention": "none"
        if attention is None
        else _part(attention.score.type, {k: v for k, v in attention.flat().items() if k != "score"}),
        "Decoder": _part(model.decoder.type, model.decoder.model_dump(exclude={"type"}, exclude_none=True)),
    }


def _part(name: str, options: dict[str, Any]) -> str:
    given = [key for key in sorted(options, key=lambda key: (key != "cell", key == "first")) if options[key]]
    shown = (f"{key} {', '.join(options[key]) if isinstance(options[key], list) else options[key]}" for key in given)
    return f"{name} ({', '.join(shown)})"


def _search(config: RunConfig) -> str:
    search = config.search
    more = f", unknown words: {search.replace_unknown}" if search.replace_unknown != "none" else ""
    return f"beam {search.beam}, length penalty {search.length_penalty:g}{more}"


def _training(facts: dict[str, Any]) -> dict[str, str]:
    from rnnsearch.systems.card import statistics

    data, learned = facts["data"], statistics(facts, "")
    nll = [
        f"{name} {value:.2f}"
        for name, value in (("train", learned.train_nll), ("dev", learned.dev_nll))
        if value is not None
    ]
    return {
        "Corpus": str(data.get("corpus", "")),
        "Licence": str(data.get("licence", "")),
        "Attribution": str(data.get("attribution", "")),
        "Training pairs": f"{data['pairs']:,}" if "pairs" in data else "",
        "Corpus' SHA-256": str(data.get("sha256", "")),
        "Updates": f"{facts['updates']:,} ({facts['epochs']:.1f} epochs, {facts['hours']:.2f} hours)",
        "On": f"{facts['device']}, {facts['precision']}, torch {facts['torch']}, {facts['date']}",
        "NLL a sentence": ", ".join(nll),
    }


def _scores(scores: list[dict[str, Any]]) -> Table:
    table = _table("\nScores", "test set", ">sentences", "search", "score", ">value", "signature")
    for measured in scores:
        for n, score in enumerate(measured["scores"]):
            about = (measured["set"], f"{measured['sentences']:,}", measured["search"]) if n == 0 else ("", "", "")
            _add(table, (*about, score["name"], f"{score['value']:.2f}", score["signature"]))
    return table


def _parts(system: System[Any]) -> Table:
    """Every parameter under the part of the model that it belongs to, with the parts' sums."""
    table = _table("\nParts", "part", "shape", ">parameters", ">share")
    parameters = dict(system.model.named_parameters())
    total = sum(p.numel() for p in parameters.values())
    for part in dict.fromkeys(name.partition(".")[0] for name in parameters):
        inside = {name: p for name, p in parameters.items() if name.partition(".")[0] == part}
        count = sum(p.numel() for p in inside.values())
        _add(table, (part, "", f"{count:,}", f"{count / total:.1%}"))
        for name, p in inside.items():
            _add(table, (f"  {name}", " x ".join(str(n) for n in p.shape), f"{p.numel():,}", ""))
    _add(table, ("all", "", f"{total:,}", "100.0%"))
    return table
