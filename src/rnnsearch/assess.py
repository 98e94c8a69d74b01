"""A model on a test set: translations, scores, plots and one report page. What `evaluate` and the demo run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnsearch.evaluate.by_length import write_plot
from rnnsearch.evaluate.corpus_scores import Evaluation, NoUnknown, evaluate
from rnnsearch.evaluate.examples import Example, choose
from rnnsearch.evaluate.learning import LearningStatistics
from rnnsearch.evaluate.report import Report, write_report
from rnnsearch.files import write_text
from rnnsearch.metrics.alignment_error import AlignmentScores, alignment_error, check_range
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.text.alignments import Links
from rnnsearch.training.card import SCORES, statistics, write_card
from rnnsearch.translate import Translation, Translator, one_line


@dataclass(frozen=True)
class Assessment:
    """A system's translations of a test set and what they score."""

    sources: Sequence[str]
    references: Sequence[str]
    translations: Sequence[Translation]
    evaluation: Evaluation
    options: SearchOptions
    """How the translations were searched for."""


def assess(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    name: str = "this system",
    options: SearchOptions | None = None,
    baseline: tuple[str, Sequence[str]] | None = None,
    gold: tuple[str, Sequence[Links]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Assessment:
    """Translate a test set and score it.

    `baseline`: another system's name and translations, for the paired bootstrap. `gold`: the name and links of
    a word alignment of the test set; the references are then aligned (forced) for AER.
    The "No UNK" column of the papers is there where the vocabulary leaves some word unknown.
    Errors: DataError for different numbers of lines; RnnsearchError for gold links of a model without attention.
    """
    if gold:
        translator.require_attention()
    options = options or translator.options()
    translations = [best[0] for best in translator.n_best(sources, options, progress=progress)]
    evaluation = evaluate(
        [t.text for t in translations],
        references,
        name=name,
        language=translator.config.data.target,
        sources=sources,
        no_unk=_no_unknown(translator, sources, references, options),
        baseline=baseline,
        alignment=_aligned(translator, sources, references, *gold) if gold else None,
    )
    return Assessment(sources, references, translations, evaluation, options)


def _no_unknown(
    translator: Translator, sources: Sequence[str], references: Sequence[str], options: SearchOptions
) -> NoUnknown | None:
    unknown = translator.has_unknown(sources, references)
    if not any(unknown):
        return None
    known = [source for source, without in zip(sources, unknown, strict=True) if not without]
    banning = translator.options(options.beam, 1, options.length_penalty, ban_unknown=True)
    return NoUnknown([not u for u in unknown], [t.text for t in translator.translate(known, banning)])


def _aligned(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    name: str,
    gold: Sequence[Links],
) -> AlignmentScores:
    pairs = translator.score(sources, references)
    for number, (links, pair) in enumerate(zip(gold, pairs, strict=False), 1):
        check_range(links.possible, len(pair.source_words), len(pair.words), f"{name}:{number}")
    return alignment_error([set(pair.alignment) for pair in pairs], gold)


def write_assessment(folder: Path, translator: Translator, model: Path, assessment: Assessment, set_name: str) -> Path:
    """Write translations, scores, plots, heat maps and the report page into `folder`; returns the page's path.

    The scores also go into the model folder and onto its card.
    """
    write_text(folder / "translations.txt", "".join(f"{one_line(t.text)}\n" for t in assessment.translations))
    scores = {**assessment.evaluation.as_dict(), "set": set_name, "search": _search(assessment.options)}
    text = json.dumps(scores, indent=1, ensure_ascii=False) + "\n"
    write_text(folder / SCORES, text)
    if (model / "training.json").is_file():
        write_text(model / SCORES, text)
        write_card(model)
    if assessment.evaluation.lengths:
        write_plot({assessment.evaluation.name: assessment.evaluation.lengths}, folder)
    examples = _examples(assessment)
    for example, translation in examples:
        if translation.word_attention is not None and translation.words and translation.source_words:
            translation.plot(folder / f"attention-{example.kind}.png")
    page = folder / "report.html"
    write_report(page, _report(translator, model, assessment, [example for example, _ in examples]))
    return page


def _search(options: SearchOptions) -> str:
    return f"beam {options.beam}, length penalty {options.length_penalty:g}"


def _examples(assessment: Assessment) -> list[tuple[Example, Translation]]:
    hypotheses = [t.text for t in assessment.translations]
    shown = []
    for chosen in choose(assessment.sources, hypotheses, assessment.references):
        t = assessment.translations[chosen.index]
        reference = assessment.references[chosen.index]
        example = Example(
            kind=chosen.kind,
            chrf=chosen.chrf,
            source=t.source,
            hypothesis=t.text,
            reference=reference,
            source_words=t.source_words,
            target_words=t.words,
            attention=t.word_attention,
            links=set(t.alignment) if t.word_attention is not None else None,
        )
        shown.append((example, t))
    return shown


def _report(translator: Translator, model: Path, assessment: Assessment, examples: list[Example]) -> Report:
    source, target = translator.config.data.source, translator.config.data.target
    training: dict[str, Any] = {}
    if (model / "training.json").is_file():
        training = json.loads((model / "training.json").read_text(encoding="utf-8"))
    data = training.get("data", {})
    facts = {
        "Model": str(model),
        "Parameters": f"{sum(p.numel() for p in translator.model.parameters()):,}",
        "Vocabulary": f"{len(translator.source):,} source and {len(translator.target):,} target symbols",
        **{key.capitalize(): str(data[key]) for key in ("corpus", "licence", "attribution") if data.get(key)},
        "Search": _search(assessment.options),
    }
    rejected = data.get("cleaning", {}).get("rejected", {})
    learned: list[LearningStatistics] = [statistics(training, assessment.evaluation.name)] if training else []
    return Report(
        title=f"{source} → {target}: {model.name}",
        source_language=source,
        target_language=target,
        facts=facts,
        evaluations=[assessment.evaluation],
        log=training.get("history", []),
        statistics=learned,
        examples=examples,
        cleaning={reason: row["count"] for reason, row in rejected.items()},
        config=(model / "config.toml").read_text(encoding="utf-8"),
    )
