"""The rows as Markdown: tables with ratios, and the targets beside what was reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.harness import Row, machine_line, number, table
from benchmarks.speed.quality import REFERENCE


@dataclass(frozen=True)
class Found:
    """All that was measured. `rivals`: title, whether it is context-fed, row. `trainings`: title, precision, row.
    `decodings`: title and the cases of one model under one way of searching."""

    machine: Row
    rivals: list[tuple[str, bool, Row]] = field(default_factory=list)
    trainings: list[tuple[str, str, Row]] = field(default_factory=list)
    limit: Row = field(default_factory=dict)
    decodings: list[tuple[str, str, Row]] = field(default_factory=list)
    one_by_one: list[tuple[str, Row]] = field(default_factory=list)
    start_up: Row = field(default_factory=dict)
    to_bleu: Row = field(default_factory=dict)
    phases: list[tuple[str, Row]] = field(default_factory=list)
    quality: Row = field(default_factory=dict)
    full_size: list[Row] = field(default_factory=list)


def fastest(rivals: Iterable[tuple[str, bool, Row]], key: str, context_fed: bool = False) -> float | None:
    """The highest figure of the rivals (of those that feed the context back)."""
    figures = [row[key] for _, fed, row in rivals if fed or not context_fed]
    return max(figures, default=None)


def lowest(rivals: Iterable[tuple[str, bool, Row]], key: str) -> float | None:
    """The lowest figure of the rivals."""
    return min((row[key] for _, _, row in rivals), default=None)


def ratio(figure: float | None, other: float | None) -> float | None:
    """figure / other, None where either is missing."""
    return None if figure is None or not other else figure / other


def times(value: float | None) -> str:
    """`5.2x`."""
    return "" if value is None else f"{value:.2f}x"


def markdown(found: Found) -> str:
    """The whole report."""
    parts: list[Callable[[Found], list[str]]] = [
        *(_head, _targets, _training, _limit, _decoding, _latency, _bleu, _start, _phases, _quality, _full_size)
    ]
    return "\n".join(line for part in parts for line in part(found)).rstrip() + "\n"


def _head(found: Found) -> list[str]:
    machine = found.machine
    lines = [
        "# Speed",
        "",
        f"{machine_line(machine)} {machine.get('data', '')}",
        f"Command: `{machine.get('command', '')}`. What is measured and how: [speed.md](../speed.md).",
        "",
    ]
    disturbed = machine.get("foreign_cpu", 0.0)
    if disturbed > 0.05:
        lines += [f"**The machine was not quiet: others took up to {disturbed:.0%} of a core during a row.**", ""]
    counts = [f"{title} {row['parameters']:,}" for title, _, row in found.rivals if row.get("parameters")]
    if found.trainings:
        counts.insert(0, f"rnnsearch {found.trainings[0][2]['parameters']:,}")
    return [*lines, *([f"Parameters: {'; '.join(counts)}.", ""] if counts else [])]


def _training(found: Found) -> list[str]:
    if not (found.trainings or found.rivals):
        return []
    fed, any_kind = (fastest(found.rivals, "train_tokens_per_second", only) for only in (True, False))
    rows = []
    for title, precision, row in found.trainings:
        speed, memory = row["tokens_per_second"], row["memory_mib"]
        limit = found.limit.get(precision, {}).get("tokens_per_second")
        share = ratio(speed, limit)
        rows.append(
            [
                f"rnnsearch, {title}",
                number(speed),
                times(ratio(speed, fed)),
                times(ratio(speed, any_kind)),
                "" if share is None else f"{share:.0%}",
                number(row["peak_mib"]),
                " / ".join(number(memory[after]) for after in sorted(memory, key=int)),
            ]
        )
    for title, _, row in found.rivals:
        speed = row["train_tokens_per_second"]
        ratios = [times(ratio(speed, fed)), times(ratio(speed, any_kind))]
        rows.append([title, number(speed), *ratios, "", number(row["train_peak_mib"]), ""])
    head = [
        "training",
        "target tokens/s",
        "to the fastest context-fed rival",
        "to the fastest rival",
        "share of the limit in its precision",
        "peak MiB",
        "MiB after 100 / 200 / 400 updates",
    ]
    return ["## Training", "", *table(head, rows)]


def _limit(found: Found) -> list[str]:
    if not found.limit:
        return []
    flops = found.limit["flops"]
    rows = [
        [
            name,
            number(1000 * part["seconds"], 1),
            number(part["flops_per_second"] / 1e9),
            number(part["tokens_per_second"]),
        ]
        for name, part in found.limit.items()
        if name in ("fp32", "bf16")
    ]
    counts = found.limit["counts"]
    text = (
        f"The matrix products of one mean update ({counts['sentences']} sentences, {counts['source']:,} source and "
        f"{counts['target']:,} target symbols), forward and backward, on real symbols alone: {flops / 1e9:.1f} GFLOP."
    )
    return ["## The limit", "", text, "", *table(["precision", "ms", "GFLOP/s", "target tokens/s"], rows)]


def _decoding(found: Found) -> list[str]:
    if not (found.decodings or found.rivals):
        return []
    best = {beam: fastest(found.rivals, f"{name}_tokens_per_second") for beam, name in ((1, "greedy"), (5, "beam"))}
    rows = []
    for title, kind, case in found.decodings:
        tokens = case["tokens_per_second"]
        rows.append(
            [
                f"rnnsearch, {title}",
                kind,
                str(case["batch"]),
                number(tokens),
                number(case["sentences_per_second"], 1),
                times(ratio(tokens, best[1 if case["beam"] == 1 else 5])),
                number(case["warm_tokens_per_second"]),
                number(case.get("bleu"), 2),
            ]
        )
    for title, _, row in found.rivals:
        for beam, name in ((1, "greedy"), (5, "beam")):
            speeds = [row[f"{name}_tokens_per_second"], row[f"{name}_sentences_per_second"]]
            kind = "greedy" if beam == 1 else "beam 5"
            share = times(ratio(speeds[0], best[beam]))
            rows.append(
                [title, kind, "64", number(speeds[0]), number(speeds[1], 1), share, "", number(row[f"bleu_{name}"], 2)]
            )
    head = [
        "decoding",
        "search",
        "batch",
        "tokens/s",
        "sentences/s",
        "to the fastest rival",
        "tokens/s, later passes",
        "BLEU",
    ]
    note = "A rival that is not trained to the end writes lines of the wrong length: compare tokens/s, not sentences/s."
    return ["## Decoding", "", note, "", *table(head, rows)]


def _latency(found: Found) -> list[str]:
    rows = [
        [f"rnnsearch, {title}", number(row["mean_ms"], 2), number(row["p50_ms"], 2), number(row["p99_ms"], 2)]
        for title, row in found.one_by_one
    ]
    rows += [[title, number(row["one_by_one_ms"], 2), "", ""] for title, _, row in found.rivals]
    head = ["greedy, one sentence at a time", "mean ms", "p50 ms", "p99 ms"]
    return ["## Latency", "", *table(head, rows)] if rows else []


def _bleu(found: Found) -> list[str]:
    if not found.to_bleu:
        return []
    mine = found.to_bleu
    rows = [
        [f"rnnsearch, {mine['title']}", f"{after:,}", number(seconds / 60, 2), number(bleu, 2)]
        for after, seconds, bleu in mine["history"]
    ]
    rows += [
        [title, f"{row['updates']:,}", number(row["train_seconds"] / 60, 2), number(row["bleu_beam"], 2)]
        for title, _, row in found.rivals
        if row["updates"] > 1000
    ]
    head = ["training", "updates", "minutes from the command on", "BLEU, beam 5"]
    return [f"## Time to {mine['target']} BLEU", "", *table(head, rows)]


def _start(found: Found) -> list[str]:
    if not found.start_up:
        return []
    mine = found.start_up
    rows = [["rnnsearch", number(mine["help_seconds"], 2), number(mine["one_sentence_seconds"], 2)]]
    rows += [[title, "", number(row["one_sentence_seconds"], 2)] for title, _, row in found.rivals]
    head = ["start-up", "`--help`, seconds", "one sentence, seconds"]
    return ["## Start-up", "", *table(head, rows)]


def _phases(found: Found) -> list[str]:
    if not found.phases:
        return []
    names = list(dict.fromkeys(name for _, row in found.phases for name in row["milliseconds"]))
    times, speeds = [], []
    for name in [*names, "all"]:
        spent = [row["total_ms"] if name == "all" else row["milliseconds"].get(name) for _, row in found.phases]
        times.append([name, *(_phase(ms, row["total_ms"]) for ms, (_, row) in zip(spent, found.phases, strict=True))])
        tokens = [row["target_tokens"] for _, row in found.phases]
        speeds.append([name, *(number(ms and 1000 * n / ms) for ms, n in zip(spent, tokens, strict=True))])
    padding = ", ".join(f"{row['padding']:.1%} ({title})" for title, row in found.phases)
    titles = [title for title, _ in found.phases]
    return [
        "## Where the time goes",
        "",
        f"Padding in the batches: {padding}.",
        "",
        *table(["ms an update", *titles], times),
        *table(["target tokens/s, if there were only", *titles], speeds),
    ]


def _phase(milliseconds: float | None, total: float) -> str:
    return "" if milliseconds is None else f"{milliseconds:.1f} ({milliseconds / total:.0%})"


def _quality(found: Found) -> list[str]:
    lines = ["## Quality", ""] if found.quality else []
    training, search = found.quality.get("training", {}), found.quality.get("search", {})
    if training:
        plain = training.get(REFERENCE, next(iter(training.values())))["mean"]
        rows = [
            [
                title,
                ", ".join(f"{nll:.4f}" for nll in row["nll"]),
                f"{row['mean']:.4f}",
                f"{row['mean'] / plain - 1:+.2%}",
            ]
            for title, row in training.items()
        ]
        head = [f"dev NLL a word after {found.quality['updates']} updates", "by seed", "mean", f"to {REFERENCE}"]
        lines += table(head, rows)
    if search:
        exact = search.get(REFERENCE, next(iter(search.values())))
        rows = [
            [title, *(f"{bleu[kind]:.2f} ({bleu[kind] - exact[kind]:+.2f})" for kind in exact)]
            for title, bleu in search.items()
        ]
        lines += table([f"BLEU of the same weights (to {REFERENCE})", *exact], rows)
    return lines


def _full_size(found: Found) -> list[str]:
    rows = [
        [
            str(row["batch"]),
            f"{row['parameters']:,}",
            number(row["tokens_per_second"]),
            number(row["limit_tokens_per_second"]),
            f"{row['tokens_per_second'] / row['limit_tokens_per_second']:.0%}",
        ]
        for row in found.full_size
    ]
    head = ["sentences a batch", "parameters", "target tokens/s", "limit", "share of it"]
    title = f"## RNNsearch-50, bf16, on {found.full_size[0]['device']}" if rows else ""
    return [title, "", *table(head, rows)] if rows else []


@dataclass(frozen=True)
class Target:
    """What is to be reached, and what was. `least`: the figure must be at least the bound, else at most."""

    what: str
    bound: float
    figure: float | None
    unit: str = "x"
    least: bool = True

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.figure is None:
            return None
        return self.figure >= self.bound if self.least else self.figure <= self.bound

    def row(self) -> list[str]:
        """As the table has it."""
        said = {None: "not measured", True: "yes", False: "no"}[self.met]
        word = "at least" if self.least else "at most"
        figure = "" if self.figure is None else self._form(self.figure)
        return [self.what, f"{word} {self._form(self.bound)}", figure, said]

    def _form(self, value: float) -> str:
        if self.unit != "%":
            return f"{value:.2f}{self.unit}"
        return f"{value:.0%}" if self.bound > 0.02 else f"{value:.2%}"


def _either(one: Target, other: Target) -> Target:
    """The first of two of which one is enough, or the second where that alone is met."""
    told = [each.row()[1] for each in (one, other)]
    if other.met and not one.met:
        return replace(other, what=f"{one.what}, {told[0]}; or {other.what}")
    return replace(one, what=f"{one.what} (or {told[1]} of its limit)")


def targets(found: Found) -> list[Target]:
    """The targets of the work on speed."""
    rivals = found.rivals
    speed: dict[str, float] = {}
    for _, precision, row in found.trainings:
        speed[precision] = max(speed.get(precision, 0.0), row["tokens_per_second"])
    top = max(speed.values(), default=None)
    fed, any_kind = (fastest(rivals, "train_tokens_per_second", only) for only in (True, False))
    limits = {p: found.limit.get(p, {}).get("tokens_per_second") for p in ("fp32", "bf16")}
    peak = min((row["peak_mib"] for _, _, row in found.trainings), default=None)
    decoded = {(kind, case["batch"] == 64): 0.0 for _, kind, case in found.decodings}
    for _, kind, case in found.decodings:
        for at_64 in {False, case["batch"] == 64}:
            decoded[kind, at_64] = max(decoded.get((kind, at_64), 0.0), case["tokens_per_second"])
    greedy, beam = (fastest(rivals, f"{name}_tokens_per_second") for name in ("greedy", "beam"))
    latency = min((row["mean_ms"] for title, row in found.one_by_one if "int8" not in title), default=None)
    rival_bleu = min((row["train_seconds"] for _, _, row in rivals if row["updates"] > 1000), default=None)
    reached, help_seconds = found.to_bleu.get("seconds"), found.start_up.get("help_seconds")
    return [
        Target("training, best precision, to the fastest context-fed rival", 5, ratio(top, fed)),
        Target("training, best precision, to the fastest rival", 3, ratio(top, any_kind)),
        _either(
            Target("training, fp32, to the fastest context-fed rival", 1.8, ratio(speed.get("fp32"), fed)),
            Target("share of the fp32 limit", 0.7, ratio(speed.get("fp32"), limits["fp32"]), "%"),
        ),
        Target("training, bf16, share of the bf16 limit", 0.45, ratio(speed.get("bf16"), limits["bf16"]), "%"),
        Target("greedy, batch 64, to the fastest rival", 3, ratio(decoded.get(("greedy", True)), greedy)),
        Target("greedy, best batch, to the fastest rival", 5, ratio(decoded.get(("greedy", False)), greedy)),
        Target("beam 5, batch 64, full softmax, to the fastest rival", 5, ratio(decoded.get(("beam 5", True)), beam)),
        Target(
            "beam 5, batch 64, candidate list, to the fastest rival",
            8,
            ratio(decoded.get(("beam 5, candidate list", True)), beam),
        ),
        Target(
            "greedy latency to the fastest rival", 0.2, ratio(latency, lowest(rivals, "one_by_one_ms")), least=False
        ),
        Target("greedy latency", 6.9, latency, " ms", least=False),
        Target(
            "peak memory in training to the leanest rival",
            2 / 3,
            ratio(peak, lowest(rivals, "train_peak_mib")),
            "x",
            False,
        ),
        Target("time to 35.5 BLEU, to OpenNMT-py's four epochs", 0.25, ratio(reached, rival_bleu), least=False),
        Target("dev NLL a word after equal updates, mean of seeds, to plain fp32", 0.005, _nll_off(found), "%", False),
        Target("BLEU of the same weights to plain fp32, each way over all symbols", 0.1, _bleu_off(found), "", False),
        Target("`rnnsearch --help`", 0.3, help_seconds, " s", least=False),
        Target(
            "one sentence from a cold start, to the fastest rival",
            1.0,
            ratio(found.start_up.get("one_sentence_seconds"), lowest(rivals, "one_sentence_seconds")),
            least=False,
        ),
    ]


def _nll_off(found: Found) -> float | None:
    """How much worse the worst fast way of training learns."""
    training = found.quality.get("training", {})
    if REFERENCE not in training:
        return None
    return max(row["mean"] for row in training.values()) / float(training[REFERENCE]["mean"]) - 1


def _bleu_off(found: Found) -> float | None:
    """How far the farthest way of searching is from the reference, rows that stand apart left out."""
    search = found.quality.get("search", {})
    titles = {title for title, kind, _ in found.decodings if "," not in kind}
    if REFERENCE not in search:
        return None
    exact = search[REFERENCE]
    return max(abs(search[title][kind] - exact[kind]) for title in titles for kind in exact)


def _targets(found: Found) -> list[str]:
    rows: list[Any] = [target.row() for target in targets(found)]
    return ["## Targets", "", *table(["what", "target", "reached", "met"], rows)]
