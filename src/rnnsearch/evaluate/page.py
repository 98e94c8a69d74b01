"""A run on one page: a self-contained HTML report, light or dark, for desk and phone.

Every part is optional and is left out where it was not given. All text is escaped. The page loads nothing, and runs
its own script alone, whose hash its policy names; without it the page has the same facts.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Any

from rnnsearch.evaluate.corpus_scores import Evaluation, paper_table, rare_words_table
from rnnsearch.evaluate.examples import Example
from rnnsearch.evaluate.markup import heat_map, interlinear, percentages, picture, sentence, table, words
from rnnsearch.evaluate.projection import Projection
from rnnsearch.evaluate.scatter import scatter
from rnnsearch.files import write_bytes
from rnnsearch.metrics.rare_words import shown
from rnnsearch.plots import by_length, learning, rare_words
from rnnsearch.plots.figures import DARK, LIGHT
from rnnsearch.systems.card import LearningStatistics, statistics_table


@dataclass(frozen=True)
class Report:
    """What goes on the page. `evaluations` has the system itself first, then others to set beside it."""

    title: str
    source_language: str = ""
    """Language codes, so that the browser picks fitting fonts."""
    target_language: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the model is: sizes, data, licence, attribution."""
    evaluations: Sequence[Evaluation] = ()
    log: Sequence[Mapping[str, Any]] = ()
    """Rows of the training log: `update`, and any of `train_nll`, `dev_nll`, `dev_bleu`."""
    statistics: Sequence[LearningStatistics] = ()
    examples: Sequence[Example] = ()
    projection: Projection | None = None
    """Encoder states of chosen source sentences."""
    cleaning: Mapping[str, int] = field(default_factory=dict)
    """Left-out training pairs by reason."""
    read: int | None = None
    """Pairs of the corpus, before cleaning."""
    kept: int | None = None
    """Pairs that were trained on."""
    config: str = ""
    """The resolved run file."""


def write_report(path: Path, report: Report) -> None:
    """Write the page, whole or not at all. Errors: RnnsearchError where it cannot be written."""
    write_bytes(path, to_html(report).encode("utf-8", errors="replace"))


def to_html(report: Report) -> str:
    """The page as text."""
    parts = (
        ("Scores", _scores(report)),
        ("BLEU by sentence length", _lengths(report)),
        ("Rare words", _rare_words(report)),
        ("Examples", _examples(report)),
        ("Encoder states", _projection(report)),
        ("Training", _training(report)),
        ("Model", _facts(report)),
        ("Corpus cleaning", _cleaning(report)),
        ("Settings", _config(report)),
    )
    given = [(title, title.lower().replace(" ", "-"), body) for title, body in parts if body]
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for title, anchor, _ in given)
    sections = "".join(f'<section id="{anchor}"><h2>{title}</h2>{body}</section>\n' for title, anchor, body in given)
    files = resources.files("rnnsearch.evaluate")
    page = Template((files / "report.html").read_text(encoding="utf-8"))
    script = "\n" + (files / "report.js").read_text(encoding="utf-8")
    return page.substitute(
        script=script,
        script_hash=base64.b64encode(sha256(script.encode()).digest()).decode(),
        title=escape(report.title),
        style=(files / "report.css").read_text(encoding="utf-8"),
        lead=_cards(report),
        contents=f'<nav aria-label="Parts"><ul>{links}</ul></nav>' if len(given) > 1 else "",
        body=sections,
        version=escape(metadata.version("rnnsearch")),
    )


def _cards(report: Report) -> str:
    """The first system's scores, large."""
    if not report.evaluations:
        return ""
    first = report.evaluations[0]
    cards = []
    for score in first.scores:
        note = "less is better" if score.lower_is_better else f"{first.sentences:,} sentences"
        cards.append(_card(score.name, f"{score.value:.1f}", note))
    if first.no_unk_bleu is not None:
        count = f"{first.no_unk_sentences:,} sentences"
        cards.append(_card("BLEU, no UNK", f"{first.no_unk_bleu:.1f}", count))
    if first.alignment is not None:
        cards.append(_card("Alignment error", f"{first.alignment.aer:.3f}", "less is better"))
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _card(name: str, value: str, note: str) -> str:
    return f'<div class="card"><dt>{escape(name)}</dt><dd>{value}<small>{escape(note)}</small></dd></div>'


def _scores(report: Report) -> str:
    """All / no UNK, the scores with their signatures, significance, alignment."""
    if not report.evaluations:
        return ""
    parts = []
    if any(evaluation.no_unk_sentences is not None for evaluation in report.evaluations):
        parts.append(table(paper_table(report.evaluations), "BLEU"))
        parts.append(
            '<p class="note">No UNK: only the sentences without unknown words in source and reference, '
            "translated with the unknown word banned.</p>"
        )
    for evaluation in report.evaluations:
        lines = "".join(
            f"<li>{escape(score.name)} {score.value:.2f} <code>{escape(score.signature)}</code></li>"
            for score in evaluation.scores
        )
        name = f"<h3>{escape(evaluation.name)}</h3>" if len(report.evaluations) > 1 else ""
        parts.append(f'{name}<ul class="signatures">{lines}</ul>')
        if evaluation.note:
            parts.append(f'<p class="note">{escape(evaluation.note)}</p>')
        parts += [_comparison(evaluation), _alignment(evaluation)]
    return "".join(parts)


def _comparison(evaluation: Evaluation) -> str:
    comparison = evaluation.comparison
    if comparison is None:
        return ""
    rows = [["Metric", evaluation.name, evaluation.baseline or "baseline", "p", "Verdict"]]
    for d in comparison.differences:
        verdict = "significant" if d.significant else "may be chance"
        system = f"{d.system:.2f} ± {d.system_interval:.2f}"
        baseline = f"{d.baseline:.2f} ± {d.baseline_interval:.2f}"
        rows.append([d.name, system, baseline, f"{d.p_value:.4f}", verdict])
    return table(rows, f"Paired bootstrap, {comparison.samples:,} resamples, 95 % intervals")


def _alignment(evaluation: Evaluation) -> str:
    scores = evaluation.alignment
    if scores is None:
        return ""
    rows = [["AER", "Precision", "Recall", "Links"]]
    rows.append([f"{scores.aer:.3f}", f"{scores.precision:.3f}", f"{scores.recall:.3f}", f"{scores.links:,}"])
    return table(rows, "Word alignment against the gold links", numbers_from=0)


def _lengths(report: Report) -> str:
    systems = {e.name: e.lengths for e in report.evaluations if e.lengths}
    if not systems:
        return ""
    buckets = next(iter(systems.values()))
    rows = [["Source words", "Sentences", *(systems if len(systems) > 1 else ["BLEU"])]]
    for n, bucket in enumerate(buckets):
        # Other systems have the same buckets where they were given the same sources.
        scores = [f"{others[n].bleu:.1f}" if n < len(others) else "-" for others in systems.values()]
        rows.append([bucket.label, f"{bucket.sentences:,}", *scores])
    plots = [by_length.plot(systems, theme) for theme in (LIGHT, DARK)]
    alt = f"BLEU against source length, from {buckets[0].label} to {buckets[-1].label} words; table below"
    return picture(plots[0], plots[1], alt) + table(rows)


def _rare_words(report: Report) -> str:
    classes = report.evaluations[0].rare_words if report.evaluations else ()
    if not shown(classes):
        return ""
    plots = [rare_words.plot(classes, theme) for theme in (LIGHT, DARK)]
    alt = "Recall and precision of target words by how often they occur in the training text; table below"
    note = (
        '<p class="note">A word is right where the reference has it too, in any place. Recall: the share of the '
        "references' words; precision: of the translations'.</p>"
    )
    return picture(plots[0], plots[1], alt) + table(rare_words_table(classes)) + note


def _projection(report: Report) -> str:
    if report.projection is None:
        return ""
    note = (
        '<p class="note">The encoder\'s last states of these sentences, projected on the two directions in which they '
        "differ most (PCA). Distances on the plane are true to scale.</p>"
    )
    return scatter(report.projection, report.source_language) + note


def _examples(report: Report) -> str:
    return "".join(_example(report, example) for example in report.examples)


def _example(report: Report, example: Example) -> str:
    attention = example.attention if example.attention is not None and example.attention.size else None
    source, target = sentence(example.source, report.source_language), ""
    if example.hypothesis:
        target = sentence(example.hypothesis, report.target_language)
    if attention is not None:
        source = words(example.sources, "s", report.source_language)
        target = words(example.targets, "t", report.target_language)
    reference = sentence(example.reference, report.target_language) if example.reference else ""
    rows = (("Source", source), ("Translation", target), ("Reference", reference))
    lines = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows if text)
    parts = [f"<h3>{escape(example.kind.capitalize())}<small>chrF {example.chrf:.1f}</small></h3><dl>{lines}</dl>"]
    if example.links is not None:
        parts.append(f"<noscript>{interlinear(example.sources, example.targets, example.links)}</noscript>")
    if attention is None:
        return f"<article>{''.join(parts)}</article>"
    parts.append(heat_map(attention, example.sources, example.targets, example.links))
    return f'<article data-attention="{percentages(attention)}">{"".join(parts)}</article>'


def _training(report: Report) -> str:
    parts = []
    light, dark = learning.curves(report.log, LIGHT), learning.curves(report.log, DARK)
    if light is not None and dark is not None:
        parts.append(picture(light, dark, "Learning curves: NLL and dev BLEU over updates"))
    if report.statistics:
        parts.append(table(statistics_table(report.statistics)))
        parts.append(
            '<p class="note">NLL: mean negative log-likelihood of a sentence, in nats, summed over its words.</p>'
        )
    return "".join(parts)


def _facts(report: Report) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in report.facts.items()
    )
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>' if rows else ""


def _cleaning(report: Report) -> str:
    if not report.cleaning:
        return ""
    left_out = sum(report.cleaning.values())
    counts = [*report.cleaning.items(), ("left out in all", left_out)]
    if report.read is None or report.kept is None:
        return table([["Why pairs were left out", "Pairs"], *([name, f"{count:,}"] for name, count in counts)])
    held_out = report.read - left_out - report.kept
    counts += [("held out for dev and test", held_out)] if held_out > 0 else []
    counts += [("trained on", report.kept), ("read", report.read)]
    rows = [[name, f"{count:,}", f"{100 * count / max(report.read, 1):.1f} %"] for name, count in counts]
    return table([["Why pairs were left out", "Pairs", "Share"], *rows])


def _config(report: Report) -> str:
    if not report.config:
        return ""
    return f"<details><summary>The resolved run file</summary><pre>{escape(report.config)}</pre></details>"
