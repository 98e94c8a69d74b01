"""The report in Markdown: tables with ratios, and the targets with what was reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.harness import Row, machine_line, section, table

REFERENCE = "fp32, without native code"
"""Title of the rows that quality is compared with."""


@dataclass(frozen=True)
class Results:
    """All results of the benchmark. They are stored in JSON under the names of the fields."""

    machine: Row
    rivals: list[tuple[str, bool, Row]] = field(default_factory=list)
    """Title, whether the rival is context-fed, and its row."""
    trainings: list[tuple[str, str, Row]] = field(default_factory=list)
    """Title, precision and row."""
    limit: Row = field(default_factory=dict)
    decodings: list[tuple[str, str, Row]] = field(default_factory=list)
    """Title of the search setting, title of the search, and row."""
    one_by_one: list[tuple[str, Row]] = field(default_factory=list)
    start_up: Row = field(default_factory=dict)
    to_bleu: Row = field(default_factory=dict)
    phases: list[tuple[str, Row]] = field(default_factory=list)
    quality: Row = field(default_factory=dict)

    def fastest(self, key: str, context_fed: bool = False) -> float | None:
        """Return the highest value of the rivals, or of the context-fed ones, or None without any."""
        return max((row[key] for _, fed, row in self.rivals if fed or not context_fed), default=None)

    def lowest(self, key: str) -> float | None:
        """Return the lowest value of the rivals, or None without any."""
        return min((row[key] for _, _, row in self.rivals), default=None)

    def limit_of(self, precision: str) -> float | None:
        """Return the target tokens per second of only the matrix products, or None if it was not measured."""
        speed: float | None = self.limit.get(precision, {}).get("tokens_per_second")
        return speed

    @property
    def fully_trained(self) -> list[tuple[str, Row]]:
        """Titles and rows of the rivals that were trained to a usable quality."""
        return [(title, row) for title, _, row in self.rivals if row["updates"] > 1000]


def ratio(value: float | None, reference: float | None) -> float | None:
    """Return value / reference, or None if either is missing."""
    return None if value is None or not reference else value / reference


def report(results: Results) -> list[str]:
    """Return the lines of the report."""
    sections: list[Callable[[Results], list[str]]] = [
        *(_head, _targets, _training, _limit, _decoding, _latency, _bleu, _start, _phases, _quality)
    ]
    return [line for make_section in sections for line in make_section(results)]


def _head(results: Results) -> list[str]:
    machine = results.machine
    lines = [
        "# Speed",
        "",
        f"{machine_line(machine)} {machine.get('data', '')}",
        f"Command: `{machine.get('command', '')}`. The measurements are described in [speed.md](../speed.md).",
        "",
    ]
    foreign_cpu = machine.get("foreign_cpu", 0.0)
    if foreign_cpu > 0.05:
        lines += [f"**The machine was not idle: other processes used up to {foreign_cpu:.0%} of a core.**", ""]
    counts = [f"{title} {row['parameters']:,}" for title, _, row in results.rivals if row.get("parameters")]
    if results.trainings:
        counts.insert(0, f"rnnsearch {results.trainings[0][2]['parameters']:,}")
    return [*lines, *([f"Parameters: {'; '.join(counts)}.", ""] if counts else [])]


def _training(results: Results) -> list[str]:
    context_fed = results.fastest("train_tokens_per_second", context_fed=True)
    fastest = results.fastest("train_tokens_per_second")
    rows = []
    for title, precision, row in results.trainings:
        speed = row["tokens_per_second"]
        memory = row["memory_mib"]
        fraction = ratio(speed, results.limit_of(precision))
        growth = " / ".join(f"{memory[after]:,.0f}" for after in sorted(memory, key=int))
        ratios = ratio(speed, context_fed), ratio(speed, fastest)
        rows.append([f"rnnsearch, {title}", speed, *ratios, fraction, row["peak_mib"], growth])
    for title, _, row in results.rivals:
        speed = row["train_tokens_per_second"]
        rows.append([title, speed, ratio(speed, context_fed), ratio(speed, fastest), None, row["train_peak_mib"], None])
    head = (
        "training | target tokens/s {:,.0f} | relative to the fastest context-fed rival {:.2f}x"
        " | relative to the fastest rival {:.2f}x | fraction of the limit in its precision {:.0%}"
        " | peak MiB {:,.0f} | MiB after 100 / 200 / 400 updates"
    )
    return section("Training", table(head, rows))


def _limit(results: Results) -> list[str]:
    if not results.limit:
        return []
    counts = results.limit["counts"]
    text = (
        f"Matrix products of an average update ({counts['sentences']} sentences, {counts['source']:,} source and "
        f"{counts['target']:,} target tokens), forward and backward, without padding: "
        f"{results.limit['flops'] / 1e9:.1f} GFLOP."
    )
    rows = []
    for precision in ("fp32", "bf16"):
        if precision in results.limit:
            row = results.limit[precision]
            cells = [1000 * row["seconds"], row["flops_per_second"] / 1e9, row["tokens_per_second"]]
            rows.append([precision, *cells])
    head = "precision | ms {:,.1f} | GFLOP/s {:,.0f} | target tokens/s {:,.0f}"
    return section("The limit", [text, ""], table(head, rows))


def _decoding(results: Results) -> list[str]:
    best = {name: results.fastest(f"{name}_tokens_per_second") for name in ("greedy", "beam")}
    rows = []
    for title, search, case in results.decodings:
        tokens = case["tokens_per_second"]
        relative = ratio(tokens, best["greedy" if case["beam"] == 1 else "beam"])
        speeds = [tokens, case["sentences_per_second"], relative, case["warm_tokens_per_second"]]
        rows.append([f"rnnsearch, {title}", search, case["batch"], *speeds, case.get("bleu")])
    for title, _, row in results.rivals:
        for name, search in (("greedy", "greedy"), ("beam", "beam 5")):
            tokens = row[f"{name}_tokens_per_second"]
            sentences = row[f"{name}_sentences_per_second"]
            rows.append([title, search, 64, tokens, sentences, ratio(tokens, best[name]), None, row[f"bleu_{name}"]])
    head = (
        "decoding | search | batch | tokens/s {:,.0f} | sentences/s {:,.1f} | relative to the fastest rival {:.2f}x"
        " | tokens/s, later passes {:,.0f} | BLEU {:.2f}"
    )
    note = "Rivals that are not fully trained write sentences of the wrong length: compare tokens/s, not sentences/s."
    return section("Decoding", [note, ""], table(head, rows)) if rows else []


def _latency(results: Results) -> list[str]:
    rows = [
        [f"rnnsearch, {title}", *(row[f"{k}_ms"] for k in ("mean", "p50", "p99"))] for title, row in results.one_by_one
    ]
    rows += [[title, row["one_by_one_ms"], None, None] for title, _, row in results.rivals]
    head = "greedy, one sentence at a time | mean ms {:,.2f} | p50 ms {:,.2f} | p99 ms {:,.2f}"
    return section("Latency", table(head, rows))


def _bleu(results: Results) -> list[str]:
    if not results.to_bleu:
        return []
    rows = [
        [f"rnnsearch, {results.to_bleu['title']}", after, seconds / 60, bleu]
        for after, seconds, bleu in results.to_bleu["history"]
    ]
    rows += [[title, r["updates"], r["train_seconds"] / 60, r["bleu_beam"]] for title, r in results.fully_trained]
    head = "training | updates {:,} | minutes since the start {:,.2f} | BLEU, beam 5 {:.2f}"
    return section(f"Time to {results.to_bleu['target']} BLEU", table(head, rows))


def _start(results: Results) -> list[str]:
    if not results.start_up:
        return []
    rows = [["rnnsearch", results.start_up["help_seconds"], results.start_up["one_sentence_seconds"]]]
    rows += [[title, None, row["one_sentence_seconds"]] for title, _, row in results.rivals]
    return section("Start-up", table("start-up | `--help`, seconds {:.2f} | one sentence, seconds {:.2f}", rows))


def _phases(results: Results) -> list[str]:
    if not results.phases:
        return []
    times: dict[str, list[str | None]] = {}
    speeds: dict[str, list[float | None]] = {}
    for name in [*dict.fromkeys(name for _, row in results.phases for name in row["milliseconds"]), "all"]:
        for _, row in results.phases:
            total = row["total_ms"]
            ms = {**row["milliseconds"], "all": total}.get(name)
            times.setdefault(name, []).append(ms and f"{ms:.1f} ({ms / total:.0%})")
            speeds.setdefault(name, []).append(ms and 1000 * row["target_tokens"] / ms)
    padding = ", ".join(f"{row['padding']:.1%} ({title})" for title, row in results.phases)
    titles = [f"{title} {{:,.0f}}" for title, _ in results.phases]
    return section(
        "Where the time goes",
        [f"Padding in the batches: {padding}.", ""],
        table(" | ".join(["ms per update", *titles]), [[name, *cells] for name, cells in times.items()]),
        table(
            " | ".join(["target tokens/s of only this phase", *titles]), [[n, *cells] for n, cells in speeds.items()]
        ),
    )


def _quality(results: Results) -> list[str]:
    training = results.quality.get("training", {})
    search = results.quality.get("search", {})
    tables = []
    if training:
        reference = training.get(REFERENCE, next(iter(training.values())))["mean"]
        rows = []
        for title, row in training.items():
            by_seed = ", ".join(f"{nll:.4f}" for nll in row["nll"])
            rows.append([title, by_seed, row["mean"], row["mean"] / reference - 1])
        title = f"dev NLL per word after {results.quality['updates']} updates"
        tables.append(table(f"{title} | by seed | mean {{:.4f}} | relative to {REFERENCE} {{:+.2%}}", rows))
    if search:
        exact = search.get(REFERENCE, next(iter(search.values())))
        rows = []
        for title, bleu in search.items():
            rows.append([title, *(f"{bleu[name]:.2f} ({bleu[name] - exact[name]:+.2f})" for name in exact)])
        tables.append(table(" | ".join([f"BLEU with the same weights (difference to {REFERENCE})", *exact]), rows))
    return section("Quality", *tables)


@dataclass(frozen=True)
class Target:
    """A target and the measured value."""

    name: str
    bound: float
    value: float | None
    form: str = "{:.2f}x"
    is_minimum: bool = True
    """True if the value must be at least the bound, False if at most."""

    @property
    def met(self) -> bool | None:
        """True if the target is met, None if the value was not measured."""
        if self.value is None:
            return None
        return self.value >= self.bound if self.is_minimum else self.value <= self.bound

    @property
    def goal(self) -> str:
        """The bound as text."""
        return f"at {'least' if self.is_minimum else 'most'} {self.form.format(self.bound)}"

    def row(self) -> list[str | None]:
        """Return the cells of the table."""
        met = {None: "not measured", True: "yes", False: "no"}[self.met]
        return [self.name, self.goal, None if self.value is None else self.form.format(self.value), met]


@dataclass(frozen=True)
class Bounds:
    """Targets for one type of machine. Speeds are relative to the fastest rival."""

    context_fed: float
    """Training in the best precision, relative to the fastest context-fed rival."""
    training: float
    """Training in the best precision."""
    limit_fraction: float
    """Fraction of the matrix product limit that training in bf16 reaches."""
    greedy: float
    beam: float
    approximate: float
    """Greedy search and beam 5 with candidate lists or int8."""
    latency: float


BOUNDS = {
    "AVX-512 of AMD": Bounds(6, 4, 0.55, 7, 7, 10, 0.08),
    "AMX": Bounds(6, 3.5, 0.35, 6, 6, 9, 0.1),
    "AVX-512": Bounds(3, 1.8, 0.55, 6, 6, 9, 0.1),
    "AVX2": Bounds(2.5, 1.7, 0.0, 4, 4, 6, 0.15),
}
"""Targets by `harness.instructions`."""


def _either(one: Target, other: Target) -> Target:
    """Return the first of two alternative targets, or the second if only that one is met."""
    if other.met and not one.met:
        return replace(other, name=f"{one.name}, {one.goal}; or {other.name}")
    return replace(one, name=f"{one.name} (or {other.goal} of its limit)")


def targets(results: Results) -> list[Target]:
    """Return the targets for this type of machine."""
    at_most = partial(Target, is_minimum=False)
    speed: dict[str, float] = {}
    for _, precision, row in results.trainings:
        speed[precision] = max(speed.get(precision, 0.0), row["tokens_per_second"])
    best = max(speed.values(), default=None)
    fp32 = speed.get("fp32")
    context_fed = results.fastest("train_tokens_per_second", context_fed=True)
    fastest = results.fastest("train_tokens_per_second")
    fp32_fraction, bf16_fraction = (ratio(speed.get(name), results.limit_of(name)) for name in ("fp32", "bf16"))
    peak = min((row["peak_mib"] for _, _, row in results.trainings), default=None)
    latency = min((row["mean_ms"] for title, row in results.one_by_one if "int8" not in title), default=None)
    rival_bleu = min((row["train_seconds"] for _, row in results.fully_trained), default=None)

    def decoding(search: str, rival_search: str, approximate: bool = False) -> float | None:
        """Return the fastest speed in batches of 64, exact or approximate, relative to the fastest rival."""
        cases = [
            case
            for _, name, case in results.decodings
            if case["batch"] == 64 and name.partition(", ")[0] == search and ("," in name) == approximate
        ]
        speed = max((case["tokens_per_second"] for case in cases), default=None)
        return ratio(speed, results.fastest(f"{rival_search}_tokens_per_second"))

    bounds = BOUNDS[results.machine["instructions"]]
    fraction = Target("training, bf16, fraction of the bf16 limit", bounds.limit_fraction, bf16_fraction, "{:.0%}")
    relative = "relative to the fastest rival"
    context_fed_relative = "relative to the fastest context-fed rival"
    approximate = f"batch 64, candidate lists or int8, {relative}"
    return [
        Target(f"training, best precision, {context_fed_relative}", bounds.context_fed, ratio(best, context_fed)),
        Target(f"training, best precision, {relative}", bounds.training, ratio(best, fastest)),
        _either(
            Target(f"training, fp32, {context_fed_relative}", 1.8, ratio(fp32, context_fed)),
            Target("fraction of the fp32 limit", 0.7, fp32_fraction, "{:.0%}"),
        ),
        *([fraction] if fraction.bound else []),
        Target(f"greedy, batch 64, {relative}", bounds.greedy, decoding("greedy", "greedy")),
        Target(f"beam 5, batch 64, full softmax, {relative}", bounds.beam, decoding("beam 5", "beam")),
        Target(f"greedy, {approximate}", bounds.approximate, decoding("greedy", "greedy", approximate=True)),
        Target(f"beam 5, {approximate}", bounds.approximate, decoding("beam 5", "beam", approximate=True)),
        at_most(f"greedy latency, {relative}", bounds.latency, ratio(latency, results.lowest("one_by_one_ms"))),
        at_most("greedy latency", 6.9, latency, "{:.2f} ms"),
        at_most(
            "peak memory in training, relative to the smallest rival",
            2 / 3,
            ratio(peak, results.lowest("train_peak_mib")),
        ),
        at_most(
            "time to 35.5 BLEU, relative to four epochs of OpenNMT-py",
            0.25,
            ratio(results.to_bleu.get("seconds"), rival_bleu),
        ),
        at_most(
            f"dev NLL per word after equal updates, mean of seeds, increase over {REFERENCE}",
            0.005,
            _max_nll_loss(results),
            "{:.2%}",
        ),
        at_most(
            f"BLEU with the same weights, full softmax, difference to {REFERENCE}",
            0.1,
            _max_bleu_difference(results),
            "{:.2f}",
        ),
        at_most("`rnnsearch --help`", 0.3, results.start_up.get("help_seconds"), "{:.2f} s"),
        at_most(
            f"one sentence from a cold start, {relative}",
            1.0,
            ratio(results.start_up.get("one_sentence_seconds"), results.lowest("one_sentence_seconds")),
        ),
    ]


def _max_nll_loss(results: Results) -> float | None:
    """Return the relative increase of the dev NLL in the worst training setting."""
    means: dict[str, float] = {title: row["mean"] for title, row in results.quality.get("training", {}).items()}
    return max(means.values()) / means[REFERENCE] - 1 if REFERENCE in means else None


def _max_bleu_difference(results: Results) -> float | None:
    """Return the largest BLEU difference of an exact search setting to the reference."""
    search: dict[str, dict[str, float]] = results.quality.get("search", {})
    if REFERENCE not in search:
        return None
    titles = {title for title, name, _ in results.decodings if "," not in name}
    return max(abs(search[title][name] - bleu) for title in titles for name, bleu in search[REFERENCE].items())


def _targets(results: Results) -> list[str]:
    return section("Targets", table("measure | target | result | met", [target.row() for target in targets(results)]))
