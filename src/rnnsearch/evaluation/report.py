"""The report: what an evaluation and a model folder know, gathered as plain values for `evaluate.page`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError, ModelError
from rnnsearch.evaluation.assess import Assessment
from rnnsearch.evaluation.corpus_scores import Evaluation
from rnnsearch.evaluation.page import Report, choose, write_report
from rnnsearch.evaluation.projection import LEAST, Grouped, project, similar_sentences
from rnnsearch.metrics.plots.figures import write_plot
from rnnsearch.metrics.scores import CorpusScore
from rnnsearch.systems.card import SCORES, measured, origin, statistics, training_facts
from rnnsearch.systems.folder import CONFIG
from rnnsearch.translator.translation import Translation, one_line
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import require_file_place, require_folder_place, write_json, write_text

SHOWN = 40
"""Words that stand for unknown ones, at most."""


def require_places(report: Path | None, scores: Path | None) -> None:
    """Whether the report's folder and the file of scores can be written, before there is anything to write.

    Errors: ModelError where a model folder would lose what it keeps in `scores.json`; RnnsearchError for a folder in
    the place of a file, and a file in that of a folder.
    """
    if report is not None:
        require_folder_place(report)
        if (report / CONFIG).is_file():
            what = f"must not be a model folder, whose {SCORES} the report's would replace; name a folder in it"
            raise ModelError(f"{report}: {what}")
    if scores is not None:
        require_file_place(scores)
        whole = scores.resolve()
        if whole.name == SCORES and (whole.parent / CONFIG).is_file():
            what = "must not be the file in which a model folder keeps what was measured; name another"
            raise ModelError(f"{scores}: {what}")


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
    write_json(folder / SCORES, assessment.scores(set_name))
    if assessment.evaluation.lengths:
        write_plot({assessment.evaluation.name: assessment.evaluation.lengths}, folder)
    examples = choose(assessment.translations, assessment.references)
    for example in examples:
        if example.drawn:
            example.translation.plot(folder / f"attention-{example.kind}.png")
    chosen = similar_sentences(assessment.sources) if shown is None else shown
    projection = None
    if shown is not None or (len(chosen) >= LEAST and translator.system.can("states")):
        projection = project(chosen, translator.states([s.sentence for s in chosen]))
    facts = {
        **_sizes(translator.parameters, translator.languages, (len(translator.source), len(translator.target))),
        "Search": assessment.search,
    }
    report = _of_run(training_facts(model), model, translator.languages, facts, [assessment.evaluation])
    page = folder / "report.html"
    replaced = _replaced(assessment.translations)
    write_report(page, replace(report, examples=examples, replaced=replaced, projection=projection))
    return page


def write_run_report(model: Path, page: Path) -> None:
    """Write the page of a run alone: its curves, data, settings and what was measured of it; nothing is translated.

    Errors: ModelError for a folder without a run.
    """
    training = training_facts(model)
    if not training:
        raise ModelError(f"{model}: must be the folder of a run that has evaluated its dev set; got none")
    facts = _sizes(training["parameters"], training["pair"], training["vocabulary"])
    evaluations = [
        Evaluation(
            f"{row['set']}, {row['search']}", row["sentences"], tuple(CorpusScore(**one) for one in row["scores"])
        )
        for row in measured(model)
    ]
    write_report(page, _of_run(training, model, training["pair"], facts, evaluations))


def read_grouped(path: Path) -> list[Grouped]:
    """The sentences of a file, one a line, after a tab the group that gives one its colour. Empty lines are left out.

    Errors: DataError for a missing file or too few sentences.
    """
    rows = [line.partition("\t") for line in read_lines(path)]
    sentences = [Grouped(sentence.strip(), group.strip()) for sentence, _, group in rows if sentence.strip()]
    if len(sentences) < LEAST:
        raise DataError(f"{path}: must have at least {LEAST} sentences to draw; got {len(sentences)}")
    return sentences


def _replaced(translations: Sequence[Translation]) -> list[list[str]]:
    """The source words that unknown words stood for, what stands in their place, and by what."""
    counts = Counter(
        (one.source, target.text[slice(*target.offsets[one.token])], one.by)
        for target in (t.by_attention.target for t in translations)
        for one in target.replaced
        if target.offsets[one.token][0] < target.offsets[one.token][1]  # of several for one entry the first
    )
    if not counts:
        return []
    head = ["In the source", "In the translation", "By", "Times"]
    return [head, *([*found, f"{times:,}"] for found, times in counts.most_common(SHOWN))]


def _sizes(parameters: int, sides: Sequence[str], symbols: Sequence[int]) -> dict[str, str]:
    names = ("source", "target") if len(sides) == 2 else sides
    each = " and ".join(f"{count:,} {name}" for count, name in zip(symbols, names, strict=True))
    return {"Parameters": f"{parameters:,}", "Vocabulary": f"{each} symbols"}


def _of_run(
    training: dict[str, Any],
    model: Path,
    sides: Sequence[str],
    facts: dict[str, str],
    evaluations: Sequence[Evaluation],
) -> Report:
    """What the page says of a run, from its `training.json` (empty: it was not trained here); a language model has one
    side."""
    data, name = training.get("data", {}), model.resolve().name
    known = {key.capitalize(): text for key, text in origin(model).items()}
    return Report(
        title=f"{' → '.join(sides)}: {name}",
        source_language=sides[0] if len(sides) > 1 else "",
        target_language=sides[-1],
        facts={"Model": str(model), **facts, **known},
        evaluations=evaluations,
        log=training.get("history", []),
        statistics=[statistics(training, name)] if training else [],
        cleaning=_left_out(data),
        read=data.get("cleaning", {}).get("read"),
        kept=data.get("pairs"),
        config=(model / CONFIG).read_text(encoding="utf-8"),
    )


def _left_out(data: dict[str, Any]) -> dict[str, int]:
    """Why training pairs were left out, and how many for each reason."""
    counts = {reason: row["count"] for reason, row in data.get("cleaning", {}).get("rejected", {}).items()}
    if data.get("left_out_by_split"):
        counts["shares a sentence with dev or test"] = data["left_out_by_split"]
    return counts
