"""`rnnsearch candidates`."""

from __future__ import annotations

from rnnsearch.cli.io import both_lines, say
from rnnsearch.cli.translate import Model, SourceFile, TargetFile


def candidates(model: Model, source: SourceFile, target: TargetFile) -> None:
    """Learn candidate lists from sentence pairs (the training data, best) and put them into a model's folder.

    `translate --candidates N`, or `candidates` in the `[search]` of its config, then uses them.
    """
    from rnnsearch.search.candidates import FILE, learn, save
    from rnnsearch.systems.folder import load_system

    system = load_system(model)
    sources, targets = both_lines(source, target)
    tables = learn(system.source.ids(sources), system.target.ids(targets), len(system.source), len(system.target))
    save(model, tables)
    known = int((tables["translations"][:, 0] >= 0).sum())
    say(f"{model / FILE}: translations of {known:,} of {len(system.source):,} source symbols")
