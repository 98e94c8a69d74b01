"""Modules import each other without cycles."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]


def test_imports_have_no_cycles():
    """Imports inside functions and for type checkers count."""
    graph = grimp.build_graph("rnnsearch", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # Remove modules without remaining imports until only cycles and the modules that import them are left.
    while free := {module for module, others in imported.items() if not others & imported.keys()}:
        imported = {module: others for module, others in imported.items() if module not in free}
    in_rings = {module for module in imported if any(module in others for others in imported.values())}
    assert not in_rings


def test_architecture_page_names_the_checked_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    contract, models = (c for c in contracts if c["type"] == "layers")
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.sub(r"\(.*?\)", "", page.partition("## Layers")[2].split("```")[1].removeprefix("text"))
    assert [layer.split() for layer in drawn.split(">")] == [layer.split() for layer in contract["layers"]]
    inside = page.partition("Inside `models`")[2].split("```")[1].removeprefix("text")
    assert [layer.split() for layer in inside.split(">")] == [layer.split() for layer in models["layers"]]
    assert contract["exhaustive"] and models["exhaustive"]
