"""The report: what an evaluation and a model folder know, gathered as plain values for `evaluate.page`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError, ModelError
from rnnsearch.evaluate.assess import Assessment
from rnnsearch.evaluate.corpus_scores import Evaluation
from rnnsearch.evaluate.examples import Example, choose
from rnnsearch.evaluate.page import Report, write_report
from rnnsearch.evaluate.projection import LEAST, Grouped, Projection, project, similar_sentences
from rnnsearch.files import write_text
from rnnsearch.metrics.bleu_chrf_ter import Score
from rnnsearch.plots.by_length import write_plot
from rnnsearch.systems.card import SCORES, measured, statistics
from rnnsearch.translate import Translator
from rnnsearch.translation import Translation, one_line


def write_assessment(
    folder: Path,
    translator: Translator,
    model: Path,
    assessment: Assessment,
    set_name: str,
    shown: Sequence[Grouped] | None = None,
) -> Path:
    """Write translations, scores, plots, heat maps and the report page into `folder`; returns the page's path.

    `shown`: source sentences whose encoder states are drawn (`read_grouped`); without them, similar ones of the set.
    """
    write_text(folder / "translations.txt", "".join(f"{one_line(t.text)}\n" for t in assessment.translations))
    scores = json.dumps(assessment.scores(set_name), indent=1, ensure_ascii=False)
    write_text(folder / SCORES, f"{scores}\n")
    if assessment.evaluation.lengths:
        write_plot({assessment.evaluation.name: assessment.evaluation.lengths}, folder)
    examples = _examples(assessment)
    for example, translation in examples:
        if translation.word_attention is not None and translation.words and translation.source_words:
            translation.plot(folder / f"attention-{example.kind}.png")
    page = folder / "report.html"
    chosen = similar_sentences(assessment.sources) if shown is None else shown
    projection = None
    if shown is not None or len(chosen) >= LEAST:
        projection = project(chosen, translator.states([s.sentence for s in chosen]))
    write_report(page, _report(translator, model, assessment, [example for example, _ in examples], projection))
    return page


def write_run_report(model: Path, page: Path) -> None:
    """Write the page of a run alone: its curves, data, settings and what was measured of it; nothing is translated.

    Errors: ModelError for a folder without a run.
    """
    if not (model / "training.json").is_file():
        raise ModelError(f"{model}: must be the folder of a run that has evaluated its dev set; got none")
    training = json.loads((model / "training.json").read_text(encoding="utf-8"))
    source, target = training["pair"]
    sizes = "{:,} source and {:,} target symbols".format(*training["vocabulary"])
    facts = {"Parameters": f"{training['parameters']:,}", "Vocabulary": sizes}
    evaluations = [
        Evaluation(f"{row['set']}, {row['search']}", row["sentences"], tuple(Score(**score) for score in row["scores"]))
        for row in measured(model)
    ]
    write_report(page, _of_run(training, model, source, target, facts, evaluations))


def read_grouped(path: Path) -> list[Grouped]:
    """The sentences of a file, one a line, after a tab the group that gives one its colour. Empty lines are left out.

    Errors: DataError for a missing file or too few sentences.
    """
    rows = [line.partition("\t") for line in read_lines(path)]
    sentences = [Grouped(sentence.strip(), group.strip()) for sentence, _, group in rows if sentence.strip()]
    if len(sentences) < LEAST:
        raise DataError(f"{path}: must have at least {LEAST} sentences to draw; got {len(sentences)}")
    return sentences


def _examples(assessment: Assessment) -> list[tuple[Example, Translation]]:
    hypotheses = [t.text for t in assessment.translations]
    shown = []
    for chosen in choose(assessment.sources, hypotheses, assessment.references):
        t = assessment.translations[chosen.index]
        example = Example(
            kind=chosen.kind,
            chrf=chosen.chrf,
            source=t.source,
            hypothesis=t.text,
            reference=assessment.references[chosen.index],
            source_words=t.source_words,
            target_words=t.words,
            attention=t.word_attention,
            links=set(t.alignment) if t.word_attention is not None else None,
        )
        shown.append((example, t))
    return shown


def _report(
    translator: Translator,
    model: Path,
    assessment: Assessment,
    examples: list[Example],
    projection: Projection | None,
) -> Report:
    data = translator.config.data
    training: dict[str, Any] = {}
    if (model / "training.json").is_file():
        training = json.loads((model / "training.json").read_text(encoding="utf-8"))
    facts = {
        "Parameters": f"{sum(p.numel() for p in translator.model.parameters()):,}",
        "Vocabulary": f"{len(translator.source):,} source and {len(translator.target):,} target symbols",
        "Search": assessment.search,
    }
    page = _of_run(training, model, data.source, data.target, facts, [assessment.evaluation])
    return replace(page, examples=examples, projection=projection)


def _of_run(
    training: dict[str, Any],
    model: Path,
    source: str,
    target: str,
    facts: dict[str, str],
    evaluations: Sequence[Evaluation],
) -> Report:
    """What the page says of a run, from its `training.json` (empty: it was not trained here)."""
    data, name = training.get("data", {}), model.resolve().name
    origin = {key.capitalize(): str(data[key]) for key in ("corpus", "licence", "attribution") if data.get(key)}
    return Report(
        title=f"{source} → {target}: {name}",
        source_language=source,
        target_language=target,
        facts={"Model": str(model), **facts, **origin},
        evaluations=evaluations,
        log=training.get("history", []),
        statistics=[statistics(training, name)] if training else [],
        cleaning=_left_out(data),
        read=data.get("cleaning", {}).get("read"),
        kept=data.get("pairs"),
        config=(model / "config.toml").read_text(encoding="utf-8"),
    )


def _left_out(data: dict[str, Any]) -> dict[str, int]:
    """Why training pairs were left out, and how many for each reason."""
    counts = {reason: row["count"] for reason, row in data.get("cleaning", {}).get("rejected", {}).items()}
    if data.get("left_out_by_split"):
        counts["shares a sentence with dev or test"] = data["left_out_by_split"]
    return counts
