"""The rows as Markdown: tables with ratios, and the targets beside what was reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.harness import Row, machine_line, section, table

REFERENCE = "fp32, without native code"
"""The title of the rows that quality is held against."""


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
    gpu: list[Row] = field(default_factory=list)

    def fastest(self, key: str, context_fed: bool = False) -> float | None:
        """The highest figure of the rivals (of those that feed the context back)."""
        return max((row[key] for _, fed, row in self.rivals if fed or not context_fed), default=None)

    def lowest(self, key: str) -> float | None:
        """The lowest figure of the rivals."""
        return min((row[key] for _, _, row in self.rivals), default=None)

    def limit_of(self, precision: str) -> float | None:
        """Target symbols a second if there were only the products."""
        figure: float | None = self.limit.get(precision, {}).get("tokens_per_second")
        return figure

    @property
    def trained_to_the_end(self) -> list[tuple[str, Row]]:
        """The rivals that are translators."""
        return [(title, row) for title, _, row in self.rivals if row["updates"] > 1000]


def ratio(figure: float | None, other: float | None) -> float | None:
    """figure / other, None where either is missing."""
    return None if figure is None or not other else figure / other


def report(found: Found) -> list[str]:
    """All of it, line by line."""
    parts: list[Callable[[Found], list[str]]] = [
        *(_head, _targets, _training, _limit, _decoding, _latency, _bleu, _start, _phases, _quality, _gpu)
    ]
    return [line for part in parts for line in part(found)]


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
    fed, any_kind = (found.fastest("train_tokens_per_second", only) for only in (True, False))
    rows = []
    for title, precision, row in found.trainings:
        speed, memory = row["tokens_per_second"], row["memory_mib"]
        share = ratio(speed, found.limit_of(precision))
        growth = " / ".join(f"{memory[after]:,.0f}" for after in sorted(memory, key=int))
        ratios = ratio(speed, fed), ratio(speed, any_kind)
        rows.append([f"rnnsearch, {title}", speed, *ratios, share, row["peak_mib"], growth])
    for title, _, row in found.rivals:
        speed = row["train_tokens_per_second"]
        rows.append([title, speed, ratio(speed, fed), ratio(speed, any_kind), None, row["train_peak_mib"], None])
    head = (
        "training | target tokens/s {:,.0f} | to the fastest context-fed rival {:.2f}x | to the fastest rival {:.2f}x"
        " | share of the limit in its precision {:.0%} | peak MiB {:,.0f} | MiB after 100 / 200 / 400 updates"
    )
    return section("Training", table(head, rows))


def _limit(found: Found) -> list[str]:
    if not found.limit:
        return []
    counts = found.limit["counts"]
    text = (
        f"The matrix products of one mean update ({counts['sentences']} sentences, {counts['source']:,} source and "
        f"{counts['target']:,} target symbols), forward and backward, on real symbols alone: "
        f"{found.limit['flops'] / 1e9:.1f} GFLOP."
    )
    parts = [(name, found.limit[name]) for name in ("fp32", "bf16") if name in found.limit]
    rows = [[n, 1000 * p["seconds"], p["flops_per_second"] / 1e9, p["tokens_per_second"]] for n, p in parts]
    head = "precision | ms {:,.1f} | GFLOP/s {:,.0f} | target tokens/s {:,.0f}"
    return section("The limit", [text, ""], table(head, rows))


def _decoding(found: Found) -> list[str]:
    best = {name: found.fastest(f"{name}_tokens_per_second") for name in ("greedy", "beam")}
    rows = []
    for title, kind, case in found.decodings:
        tokens = case["tokens_per_second"]
        share = ratio(tokens, best["greedy" if case["beam"] == 1 else "beam"])
        speeds = [tokens, case["sentences_per_second"], share, case["warm_tokens_per_second"]]
        rows.append([f"rnnsearch, {title}", kind, case["batch"], *speeds, case.get("bleu")])
    for title, _, row in found.rivals:
        for name, kind in (("greedy", "greedy"), ("beam", "beam 5")):
            tokens, sentences = (row[f"{name}_{unit}_per_second"] for unit in ("tokens", "sentences"))
            rows.append([title, kind, 64, tokens, sentences, ratio(tokens, best[name]), None, row[f"bleu_{name}"]])
    head = (
        "decoding | search | batch | tokens/s {:,.0f} | sentences/s {:,.1f} | to the fastest rival {:.2f}x"
        " | tokens/s, later passes {:,.0f} | BLEU {:.2f}"
    )
    note = "A rival that is not trained to the end writes lines of the wrong length: compare tokens/s, not sentences/s."
    return section("Decoding", [note, ""], table(head, rows)) if rows else []


def _latency(found: Found) -> list[str]:
    rows = [
        [f"rnnsearch, {title}", *(row[f"{k}_ms"] for k in ("mean", "p50", "p99"))] for title, row in found.one_by_one
    ]
    rows += [[title, row["one_by_one_ms"], None, None] for title, _, row in found.rivals]
    head = "greedy, one sentence at a time | mean ms {:,.2f} | p50 ms {:,.2f} | p99 ms {:,.2f}"
    return section("Latency", table(head, rows))


def _bleu(found: Found) -> list[str]:
    if not found.to_bleu:
        return []
    rows = [
        [f"rnnsearch, {found.to_bleu['title']}", after, seconds / 60, bleu]
        for after, seconds, bleu in found.to_bleu["history"]
    ]
    rows += [[title, r["updates"], r["train_seconds"] / 60, r["bleu_beam"]] for title, r in found.trained_to_the_end]
    head = "training | updates {:,} | minutes from the command on {:,.2f} | BLEU, beam 5 {:.2f}"
    return section(f"Time to {found.to_bleu['target']} BLEU", table(head, rows))


def _start(found: Found) -> list[str]:
    if not found.start_up:
        return []
    rows = [["rnnsearch", found.start_up["help_seconds"], found.start_up["one_sentence_seconds"]]]
    rows += [[title, None, row["one_sentence_seconds"]] for title, _, row in found.rivals]
    return section("Start-up", table("start-up | `--help`, seconds {:.2f} | one sentence, seconds {:.2f}", rows))


def _phases(found: Found) -> list[str]:
    if not found.phases:
        return []
    times: dict[str, list[str | None]] = {}
    speeds: dict[str, list[float | None]] = {}
    for name in [*dict.fromkeys(name for _, row in found.phases for name in row["milliseconds"]), "all"]:
        for _, row in found.phases:
            total = row["total_ms"]
            ms = {**row["milliseconds"], "all": total}.get(name)
            times.setdefault(name, []).append(ms and f"{ms:.1f} ({ms / total:.0%})")
            speeds.setdefault(name, []).append(ms and 1000 * row["target_tokens"] / ms)
    padding = ", ".join(f"{row['padding']:.1%} ({title})" for title, row in found.phases)
    titles = [f"{title} {{:,.0f}}" for title, _ in found.phases]
    return section(
        "Where the time goes",
        [f"Padding in the batches: {padding}.", ""],
        table(" | ".join(["ms an update", *titles]), [[name, *cells] for name, cells in times.items()]),
        table(
            " | ".join(["target tokens/s, if there were only", *titles]), [[n, *cells] for n, cells in speeds.items()]
        ),
    )


def _quality(found: Found) -> list[str]:
    training, search = found.quality.get("training", {}), found.quality.get("search", {})
    parts = []
    if training:
        plain = training.get(REFERENCE, next(iter(training.values())))["mean"]
        rows = [
            [title, ", ".join(f"{nll:.4f}" for nll in row["nll"]), row["mean"], row["mean"] / plain - 1]
            for title, row in training.items()
        ]
        title = f"dev NLL a word after {found.quality['updates']} updates"
        parts.append(table(f"{title} | by seed | mean {{:.4f}} | to {REFERENCE} {{:+.2%}}", rows))
    if search:
        exact = search.get(REFERENCE, next(iter(search.values())))
        rows = [
            [title, *(f"{bleu[kind]:.2f} ({bleu[kind] - exact[kind]:+.2f})" for kind in exact)]
            for title, bleu in search.items()
        ]
        parts.append(table(" | ".join([f"BLEU of the same weights (to {REFERENCE})", *exact]), rows))
    return section("Quality", *parts)


def _gpu(found: Found) -> list[str]:
    rows = []
    for row in found.gpu:
        speed, limit = row["tokens_per_second"], row["limit_tokens_per_second"]
        milliseconds = 1000 * row["seconds"] / row["measured_updates"]
        how = "recorded" if row["recorded"] else "kernel by kernel"
        what = [row["scale"], str(row["batch"]), row["parameters"], how, row["precision"]]
        rows.append([*what, milliseconds, speed, limit, speed / limit])
    head = (
        "size | sentences a batch | parameters {:,} | passes | precision | ms an update {:.1f} | "
        "target tokens/s {:,.0f} | limit {:,.0f} | share of it {:.0%}"
    )
    return section(f"Training RNNsearch on {found.gpu[0]['device']}", table(head, rows)) if rows else []


@dataclass(frozen=True)
class Target:
    """What is to be reached, and what was. `least`: the figure must be at least the bound, else at most."""

    what: str
    bound: float
    figure: float | None
    form: str = "{:.2f}x"
    least: bool = True

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.figure is None:
            return None
        return self.figure >= self.bound if self.least else self.figure <= self.bound

    @property
    def goal(self) -> str:
        """In words."""
        return f"at {'least' if self.least else 'most'} {self.form.format(self.bound)}"

    def row(self) -> list[str | None]:
        """As the table has it."""
        said = {None: "not measured", True: "yes", False: "no"}[self.met]
        return [self.what, self.goal, None if self.figure is None else self.form.format(self.figure), said]


@dataclass(frozen=True)
class Bounds:
    """What is to be reached on one kind of machine. Training in the best precision, to the fastest rival that feeds the
    context back and to any, and its share of the products' limit; batches of 64, greedy, with beam 5, and either over
    candidate lists or in int8; one sentence's time."""

    fed: float
    any: float
    share: float
    greedy: float
    beam: float
    apart: float
    latency: float


BOUNDS = {
    "AVX-512 of AMD": Bounds(6, 4, 0.55, 7, 7, 10, 0.08),
    "AMX": Bounds(6, 3.5, 0.35, 6, 6, 9, 0.1),
    "AVX-512": Bounds(3, 1.8, 0.55, 6, 6, 9, 0.1),
    "AVX2": Bounds(2.5, 1.7, 0.0, 4, 4, 6, 0.15),
}
"""By `harness.instructions`."""


def _either(one: Target, other: Target) -> Target:
    """The first of two of which one is enough, or the second where that alone is met."""
    if other.met and not one.met:
        return replace(other, what=f"{one.what}, {one.goal}; or {other.what}")
    return replace(one, what=f"{one.what} (or {other.goal} of its limit)")


def targets(found: Found) -> list[Target]:
    """The targets of the work on speed, on this kind of machine."""
    at_most = partial(Target, least=False)
    speed: dict[str, float] = {}
    for _, precision, row in found.trainings:
        speed[precision] = max(speed.get(precision, 0.0), row["tokens_per_second"])
    top, fp32 = max(speed.values(), default=None), speed.get("fp32")
    fed, any_kind = (found.fastest("train_tokens_per_second", only) for only in (True, False))
    share_of_fp32, share_of_bf16 = (ratio(speed.get(kind), found.limit_of(kind)) for kind in ("fp32", "bf16"))
    peak = min((row["peak_mib"] for _, _, row in found.trainings), default=None)
    latency = min((row["mean_ms"] for title, row in found.one_by_one if "int8" not in title), default=None)
    rival_bleu = min((row["train_seconds"] for _, row in found.trained_to_the_end), default=None)

    def decoded(kind: str, rival: str, apart: bool = False) -> float | None:
        """The fastest case of a kind in batches of 64, or of what stands apart, to the fastest rival."""
        cases = [
            case
            for _, name, case in found.decodings
            if case["batch"] == 64 and name.partition(", ")[0] == kind and ("," in name) == apart
        ]
        speed = max((case["tokens_per_second"] for case in cases), default=None)
        return ratio(speed, found.fastest(f"{rival}_tokens_per_second"))

    bounds = BOUNDS[found.machine["instructions"]]
    share = Target("training, bf16, share of the bf16 limit", bounds.share, share_of_bf16, "{:.0%}")
    apart = "batch 64, over candidate lists or in int8, to the fastest rival"
    return [
        Target("training, best precision, to the fastest context-fed rival", bounds.fed, ratio(top, fed)),
        Target("training, best precision, to the fastest rival", bounds.any, ratio(top, any_kind)),
        _either(
            Target("training, fp32, to the fastest context-fed rival", 1.8, ratio(fp32, fed)),
            Target("share of the fp32 limit", 0.7, share_of_fp32, "{:.0%}"),
        ),
        *([share] if share.bound else []),
        Target("greedy, batch 64, to the fastest rival", bounds.greedy, decoded("greedy", "greedy")),
        Target("beam 5, batch 64, full softmax, to the fastest rival", bounds.beam, decoded("beam 5", "beam")),
        Target(f"greedy, {apart}", bounds.apart, decoded("greedy", "greedy", apart=True)),
        Target(f"beam 5, {apart}", bounds.apart, decoded("beam 5", "beam", apart=True)),
        at_most("greedy latency to the fastest rival", bounds.latency, ratio(latency, found.lowest("one_by_one_ms"))),
        at_most("greedy latency", 6.9, latency, "{:.2f} ms"),
        at_most("peak memory in training to the leanest rival", 2 / 3, ratio(peak, found.lowest("train_peak_mib"))),
        at_most(
            "time to 35.5 BLEU, to OpenNMT-py's four epochs", 0.25, ratio(found.to_bleu.get("seconds"), rival_bleu)
        ),
        at_most("dev NLL a word after equal updates, mean of seeds, to plain fp32", 0.005, _nll_off(found), "{:.2%}"),
        at_most("BLEU of the same weights to plain fp32, each way over all symbols", 0.1, _bleu_off(found), "{:.2f}"),
        at_most("`rnnsearch --help`", 0.3, found.start_up.get("help_seconds"), "{:.2f} s"),
        at_most(
            "one sentence from a cold start, to the fastest rival",
            1.0,
            ratio(found.start_up.get("one_sentence_seconds"), found.lowest("one_sentence_seconds")),
        ),
    ]


def _nll_off(found: Found) -> float | None:
    """How much worse the worst fast way of training learns."""
    means: dict[str, float] = {title: row["mean"] for title, row in found.quality.get("training", {}).items()}
    return max(means.values()) / means[REFERENCE] - 1 if REFERENCE in means else None


def _bleu_off(found: Found) -> float | None:
    """How far the farthest way of searching is from the reference, rows that stand apart left out."""
    search: dict[str, dict[str, float]] = found.quality.get("search", {})
    if REFERENCE not in search:
        return None
    titles = {title for title, kind, _ in found.decodings if "," not in kind}
    return max(abs(search[title][kind] - bleu) for title in titles for kind, bleu in search[REFERENCE].items())


def _targets(found: Found) -> list[str]:
    return section("Targets", table("what | target | reached | met", [target.row() for target in targets(found)]))
