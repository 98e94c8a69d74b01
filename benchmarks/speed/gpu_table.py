"""The report of the measurements on a GPU in Markdown, and its rows as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Row, machine_line, section, table
from benchmarks.speed.table import Target, ratio

PASSES = {"recorded": "recorded", "kernels": "kernel by kernel"}
TRAINING_TARGETS = (("rivals", 64, 175_000.0), ("rivals", 512, 600_000.0), ("paper", 80, 150_000.0))
"""Scale, batch and target tokens per second."""
LIMIT_TARGET = 0.4
"""Fraction of the matrix product limit at the largest batch of the first scale."""
QUALITY_TARGET = 0.005
"""Relative difference of the dev NLLs after equal updates."""


@dataclass(frozen=True)
class GpuResults:
    """All rows. They are stored in JSON under the names of the fields."""

    machine: Row = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Names of the rows that were not measured, because of the time limit or an interruption."""
    failed: list[Row] = field(default_factory=list)

    def find(self, kind: str, row: Row, **others: str) -> Row | None:
        """Return the row of another kind with the scale, batch, precision and mode of a row, or with other values."""
        wanted = {name: row[name] for name in ("scale", "batch", "precision", "mode")} | {"kind": kind} | others
        for other in self.rows:
            if all(other[name] == value for name, value in wanted.items()):
                return other
        return None

    def of(self, kind: str) -> list[Row]:
        """Return the rows of a kind."""
        return [row for row in self.rows if row["kind"] == kind]

    def fraction(self, row: Row) -> float | None:
        """Return the fraction of the matrix product limit that a row of training reaches."""
        limit = self.find("limit", row, mode="recorded")
        return None if limit is None else ratio(row["tokens_per_second"], limit["tokens_per_second"])

    def report(self) -> list[str]:
        """Return the lines of the report."""
        parts = (self._head, self._targets, self._training, self._search, self._quality, self._rest)
        return [line for part in parts for line in part()]

    def _head(self) -> list[str]:
        facts = self.machine
        lines = ["# Speed on a GPU", ""]
        if "device" in facts:
            cuda = f" (CUDA {facts['cuda']})" if facts.get("cuda") else ""
            lines += [f"One {facts['device']}{cuda}; {machine_line(facts)}"]
        return [*lines, f"Command: `{facts.get('command', '')}`.", ""]

    def targets(self) -> list[Target]:
        """Return the targets with the measured values."""
        targets = []
        for scale, batch, bound in TRAINING_TARGETS:
            speeds = [row["tokens_per_second"] for row in self._trainings(scale, batch)]
            name = f"training, {scale}, {batch} sentences, target tokens/s"
            targets.append(Target(name, bound, max(speeds, default=None), "{:,.0f}"))
        fractions = [self.fraction(row) for row in self._trainings("rivals", 512)]
        known = [fraction for fraction in fractions if fraction is not None]
        name = "training, rivals, 512 sentences, fraction of the limit in its precision"
        targets.append(Target(name, LIMIT_TARGET, max(known, default=None), "{:.0%}"))
        differences = [abs(difference) for _, _, difference in self._differences()]
        name = "dev NLL after equal updates, difference of recorded passes"
        targets.append(Target(name, QUALITY_TARGET, max(differences, default=None), "{:.2%}", is_minimum=False))
        return targets

    def _trainings(self, scale: str, batch: int) -> list[Row]:
        return [row for row in self.of("train") if (row["scale"], row["batch"]) == (scale, batch)]

    def _targets(self) -> list[str]:
        return section("Targets", table("measure | target | result | met", [t.row() for t in self.targets()]))

    def _training(self) -> list[str]:
        rows: list[Sequence[object]] = []
        for row in self.of("train"):
            limit = self.find("limit", row, mode="recorded")
            profile = self.find("profile", row)
            setting = [row["scale"], str(row["batch"]), row["parameters"], PASSES[row["mode"]], row["precision"]]
            rows.append(
                [
                    *setting,
                    row["update_ms"],
                    None if profile is None else profile["kernel_ms"],
                    None if profile is None else profile["kernels"],
                    row["tokens_per_second"],
                    None if limit is None else limit["tokens_per_second"],
                    self.fraction(row),
                    row.get("device_mib"),
                    row["measured_updates"],
                ]
            )
        head = (
            "size | sentences per batch | parameters {:,} | passes | precision | ms per update {:.1f}"
            " | of which kernels, ms {:.1f} | kernels per update {:,.0f} | target tokens/s {:,.0f} | limit {:,.0f}"
            " | fraction of the limit {:.0%} | peak MiB of the GPU {:,.0f} | measured updates {:,}"
        )
        return section("Training RNNsearch", table(head, rows))

    def _search(self) -> list[str]:
        rows: list[Sequence[object]] = []
        for row in self.of("search"):
            other = self.find("search", row, mode="kernels", search=row["search"])
            relative = None if other is None else ratio(row["tokens_per_second"], other["tokens_per_second"])
            speeds = [row["tokens_per_second"], relative, row["sentences_per_second"], row["first_tokens_per_second"]]
            rows.append([row["search"], str(row["batch"]), PASSES[row["mode"]], *speeds, row["bleu"]])
        head = (
            "search | sentences per batch | passes | tokens/s {:,.0f} | relative to kernel by kernel {:.2f}x"
            " | sentences/s {:,.0f} | tokens/s, first pass {:,.0f} | BLEU {:.2f}"
        )
        return section("Search, size of the toolkit comparison", table(head, rows))

    def _differences(self) -> list[tuple[Row, Row, float]]:
        """Return the rows with dev NLLs of recorded passes and kernel by kernel, and the relative differences."""
        pairs = []
        for row in self.of("quality"):
            other = self.find("train", row, mode="kernels")
            if other is not None and other.get("dev_update") == row.get("dev_update"):
                pairs.append((row, other, row["dev_nll"] / other["dev_nll"] - 1))
        return pairs

    def _quality(self) -> list[str]:
        rows = [
            [row["scale"], str(row["batch"]), row["precision"], row["dev_update"], row["dev_nll"], other["dev_nll"], d]
            for row, other, d in self._differences()
        ]
        head = (
            "size | sentences per batch | precision | updates {:,} | dev NLL per word, recorded {:.4f}"
            " | kernel by kernel {:.4f} | difference {:+.2%}"
        )
        return section("Quality", table(head, rows))

    def _rest(self) -> list[str]:
        lines = [f"- {row['name']}: failed: {row['error']}" for row in self.failed]
        lines += [f"- {name}: not measured" for name in self.skipped]
        return section("Missing rows", [*lines, ""] if lines else [])


def describe(row: Row) -> str:
    """Return a row as a line of text."""
    values = {
        "tokens_per_second": "{:,.0f} tokens/s",
        "update_ms": "{:.1f} ms per update",
        "kernel_ms": "{:.1f} ms of kernels per update",
        "dev_nll": "dev NLL {:.4f}",
        "bleu": "BLEU {:.2f}",
        "device_mib": "{:,.0f} MiB",
        "row_seconds": "{:.0f} s",
    }
    return f"{row['name']}: " + ", ".join(form.format(row[name]) for name, form in values.items() if name in row)
