"""Systems compared with the first of them: each trained to its end, its test set scored, a row of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from common import kept, sides, trained, with_intervals

from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import best_evaluation, training_facts
from rnnsearch.text.columns import as_markdown

Translate = Callable[[Path, list[str]], list[str]]
"""What a model folder makes of sentences."""


def plainly(folder: Path, sources: list[str]) -> list[str]:
    """As the folder says."""
    return [translation.text for translation in load(folder).translate(sources)]


@dataclass(frozen=True)
class Compared:
    """A system: what is trained, where it is kept, and how it translates."""

    name: str
    config: RunConfig
    prepared: Prepared
    translate: Translate = plainly
    model: str | None = None
    """The system whose model this one uses, where it has none of its own."""

    @property
    def folder(self) -> str:
        """The model's, in the script's output."""
        return (self.model or self.name).replace(" ", "-")


@dataclass(frozen=True)
class Result:
    """What one system scores on the test set, and what that took."""

    name: str
    parameters: int
    epochs: float
    hours: float
    device: str
    best: float
    """The epoch of the weights that were kept: where it is the last one, training had not come to its end."""
    dev_nll: float
    """The lowest, in nats a sentence."""
    translations: tuple[str, ...]


def _scored(system: Compared, output: Path) -> Result:
    """Train (or go on with) one system, and translate the test set."""
    folder = output / system.folder
    trained(system.config, system.prepared, folder, system.name)
    facts = training_facts(folder)
    best = best_evaluation(facts)
    sources, _ = sides(system.prepared.test)
    return Result(
        name=system.name,
        parameters=facts["parameters"],
        epochs=facts["epochs"],
        hours=facts["hours"],
        device=facts["device"],
        best=best["epoch"],
        dev_nll=best["dev_nll"],
        translations=tuple(system.translate(folder, sources)),
    )


def _table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """One row a system, with its difference from the first."""
    rows = [["System", "Parameters", "Epochs (best)", "Hours", "Dev NLL", "BLEU", "chrF", "Difference in BLEU", "p"]]
    for r in results:
        found = paired_bootstrap(r.translations, results[0].translations, references, language=language)
        bleu = found["BLEU"]
        difference = ["", ""] if r is results[0] else [f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"]
        counts = [f"{r.parameters:,}", f"{r.epochs:.0f} ({r.best:.0f})", f"{r.hours:.2f}", f"{r.dev_nll:.1f}"]
        rows.append([r.name, *counts, *with_intervals(found), *difference])
    return rows


def compared(systems: Iterable[Compared], output: Path, name: str) -> str:
    """Train and score each system, or take what an earlier run has kept. The table, which is written anew into
    `output` after each, as the results into NAME.json."""
    results, text = list[Result](), ""
    for system in systems:
        make = partial(_scored, system, output)
        results.append(Result(**kept(output / f"{system.name}.json", lambda make=make: asdict(make()))))
        _, references = sides(system.prepared.test)
        text = as_markdown(_table(results, references, system.config.data.target))
        write_text(output / "table.md", text)
        write_json(output / f"{name}.json", [asdict(r) | {"translations": len(r.translations)} for r in results])
    return text
