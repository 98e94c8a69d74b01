"""Train several systems, score each on the test set, and compare them with the first one in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from common import cached, read_json, scores_with_intervals, sources_and_references, train_or_resume

from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.run_bootstrap import Runs, hierarchical_bootstrap
from rnnsearch.metrics.significance import holm_adjusted, paired_bootstrap
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

Translate = Callable[[Path, list[str]], list[str]]
"""Function that translates sentences with the model in a folder."""


def translate_with_defaults(folder: Path, sources: list[str]) -> list[str]:
    """Return the translations by a model with its default search options."""
    return [translation.text for translation in load(folder).translate(sources)]


@dataclass(frozen=True)
class System:
    """A system to train and to translate the test set with."""

    name: str
    config: RunConfig
    prepared: Prepared
    translate: Translate = translate_with_defaults
    model: str | None = None
    """Name of the system whose model is used instead of training one."""

    @property
    def folder(self) -> str:
        """Name of the model folder within the output folder."""
        return (self.model or self.name).replace(" ", "-")


@dataclass(frozen=True)
class Result:
    """Training facts and test translations of one system."""

    name: str
    parameters: int
    epochs: float
    hours: float
    device: str
    best: float
    """Epoch of the selected weights; if it is the last one, training had not converged."""
    dev_nll: float
    """Lowest dev NLL per sentence, in nats."""
    translations: tuple[str, ...]


def run_system(system: System, output: Path) -> Result:
    """Train a system, or resume its training, and translate the test set."""
    folder = output / system.folder
    train_or_resume(system.config, system.prepared, folder, system.name)
    facts = load_training_facts(folder)
    best = best_evaluation(facts)
    sources, _ = sources_and_references(system.prepared.test)
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


def comparison_rows(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """Return a header and one row per system, with the difference from the first system."""
    rows = [["System", "Parameters", "Epochs (best)", "Hours", "Dev NLL", "BLEU", "chrF", "Difference in BLEU", "p"]]
    first = results[0]
    for r in results:
        scores = paired_bootstrap(r.translations, first.translations, references, language=language)
        bleu = scores["BLEU"]
        difference = ["", ""] if r is first else [f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"]
        facts = [f"{r.parameters:,}", f"{r.epochs:.0f} ({r.best:.0f})", f"{r.hours:.2f}", f"{r.dev_nll:.1f}"]
        rows.append([r.name, *facts, *scores_with_intervals(scores), *difference])
    return rows


def compare_systems(systems: Iterable[System], output: Path, name: str) -> str:
    """Train and score each system and return the table in Markdown.

    Results of an earlier run are reused. table.md and NAME.json in `output` are rewritten after each system.
    """
    results = list[Result]()
    table = ""
    for system in systems:
        compute = partial(run_system, system, output)
        results.append(Result(**cached(output / f"{system.name}.json", lambda compute=compute: asdict(compute()))))
        _, references = sources_and_references(system.prepared.test)
        table = as_markdown(comparison_rows(results, references, system.config.data.target))
        write_text(output / "table.md", table)
        write_json(output / f"{name}.json", [asdict(r) | {"translations": len(r.translations)} for r in results])
    return table


def read_runs(folders: Iterable[Path], names: Sequence[str]) -> dict[str, Runs]:
    """Return the test translations of each system by each run, from the folders of `compare_systems`."""
    folders = list(folders)
    return {name: [read_json(folder / f"{name}.json")["translations"] for folder in folders] for name in names}


def write_runs(
    output: Path, folders: Iterable[Path], names: Sequence[str], references: Sequence[str], language: str
) -> str:
    """Write the table of `compare_runs` for the results in the folders of `compare_systems`, and return it."""
    table = as_markdown(compare_runs(read_runs(folders, names), references, language), left=(0, 1))
    write_text(output, table)
    return table


def compare_runs(systems: Mapping[str, Runs], references: Sequence[str], language: str) -> list[list[str]]:
    """Return a header and one row per system that was trained several times, with the difference from the first one.

    Intervals and p-values are those of a bootstrap over runs and sentences. p-values are corrected for the number of
    systems (`holm_adjusted`), because a reader picks the best one.
    """
    baseline = next(iter(systems.values()))
    comparisons = [hierarchical_bootstrap(runs, baseline, references, language=language) for runs in systems.values()]
    p_values = holm_adjusted([bleu.p_value for bleu, _ in comparisons[1:]])
    rows = [["System", "BLEU of each run", "BLEU", "chrF", "Difference in BLEU", "95% interval", "p (Holm)"]]
    for index, (name, (bleu, chrf)) in enumerate(zip(systems, comparisons, strict=True)):
        means = [f"{fmean(bleu.system):.1f}", f"{fmean(chrf.system):.1f}"]
        difference = ["", "", ""]
        if index > 0:
            low, high = bleu.interval
            difference = [f"{bleu.difference:+.1f}", f"{low:+.1f} to {high:+.1f}", f"{p_values[index - 1]:.3f}"]
        rows.append([name, ", ".join(f"{score:.1f}" for score in bleu.system), *means, *difference])
    return rows
