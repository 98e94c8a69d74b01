"""Report folders: collects what an evaluation and a model folder contain, and writes it.

`write_assessment` serves `rnnsearch evaluate --report` and the demo, `write_run_report` serves `rnnsearch report`.
Both fill a `page.Report`.

Names of the files in a report folder are documented in docs/evaluation.md. The page omits what a folder does not have,
such as scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError, ModelError
from rnnsearch.evaluation.assess import Assessment
from rnnsearch.evaluation.corpus_scores import Evaluation
from rnnsearch.evaluation.projection import MIN_SENTENCES, GroupedSentence, project, similar_sentences
from rnnsearch.metrics.plots import require_matplotlib
from rnnsearch.metrics.scores import CorpusScore
from rnnsearch.systems.card import SCORES_FILE, load_origin, load_scores, load_training_facts, statistics
from rnnsearch.systems.folder import CONFIG
from rnnsearch.translator.translation import Translation, one_line
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import require_writable_file, require_writable_folder, write_json, write_text

if TYPE_CHECKING:
    from rnnsearch.evaluation.page import Report

MAX_REPLACEMENTS = 40
"""Number of rows of the table of replaced unknown words."""


def require_writable_outputs(report: Path | None, scores: Path | None) -> None:
    """Check that the report folder and the file of scores can be written, before anything is computed.

    Raises:
        ModelError: If a model folder would lose its own `scores.json`.
        RnnsearchError: If there is a file in place of the folder, a folder in place of the file, or no matplotlib for
            the report.
    """
    if report is not None:
        require_matplotlib()
        require_writable_folder(report)
        if (report / CONFIG).is_file():
            raise ModelError(
                f"{report}: must not be a model folder, because the report would overwrite its {SCORES_FILE}; "
                "name a folder inside it"
            )
    if scores is not None:
        require_writable_file(scores)
        path = scores.resolve()
        if path.name == SCORES_FILE and (path.parent / CONFIG).is_file():
            raise ModelError(f"{scores}: must not be the {SCORES_FILE} of a model folder; name another file")


def write_assessment(
    folder: Path,
    translator: Translator,
    model: Path,
    assessment: Assessment,
    set_name: str,
    sentences: Sequence[GroupedSentence] | None = None,
) -> Path:
    """Write translations, scores, plots, heat maps and the report page, and return the page's path.

    Args:
        folder: Folder to write.
        translator: The model that was evaluated.
        model: Its folder, for facts about its training.
        assessment: The evaluation.
        set_name: Name of the test set.
        sentences: Source sentences whose encoder states are plotted (see `read_grouped_sentences`); None chooses
            similar sentences of the test set.
    """
    require_matplotlib()
    from rnnsearch.evaluation.page import choose_examples, write_report
    from rnnsearch.metrics.plots.figures import write_bleu_by_length

    write_text(folder / "translations.txt", "".join(f"{one_line(t.text)}\n" for t in assessment.translations))
    write_json(folder / SCORES_FILE, assessment.scores(set_name))
    if assessment.evaluation.lengths:
        write_bleu_by_length({assessment.evaluation.name: assessment.evaluation.lengths}, folder)
    examples = choose_examples(assessment.translations, assessment.references)
    for example in examples:
        if example.has_attention:
            example.translation.plot(folder / f"attention-{example.label}.png")
    plotted = similar_sentences(assessment.sources) if sentences is None else sentences
    projection = None
    if sentences is not None or (len(plotted) >= MIN_SENTENCES and translator.system.can("states")):
        projection = project(plotted, translator.states([s.sentence for s in plotted]))
    languages = [name for name in translator.languages if name not in translator.system.arrays]
    vocabulary_sizes = [len(translator.system.tokenizers[language]) for language in languages]
    facts = _size_facts(translator.parameters, languages, vocabulary_sizes) | {"Search": assessment.search}
    report = _run_report(load_training_facts(model), model, translator.languages, facts, [assessment.evaluation])
    page = folder / "report.html"
    replacements = _replacements_table(assessment.translations)
    write_report(page, replace(report, examples=examples, replacements=replacements, projection=projection))
    return page


def write_run_report(model: Path, page: Path) -> None:
    """Write the page of a run from its folder: learning curves, data, settings and recorded scores.

    Raises:
        ModelError: If the folder has no run with an evaluation.
    """
    require_matplotlib()
    from rnnsearch.evaluation.page import write_report

    training = load_training_facts(model)
    if not training:
        raise ModelError(f"{model}: must be the folder of a run that has evaluated its dev set; got none")
    arrays = training["data"].get("arrays", {})
    languages = [name for name in training["pair"] if name not in arrays]
    facts = _size_facts(training["parameters"], languages, training["vocabulary"])
    evaluations = []
    for row in load_scores(model):
        scores = tuple(CorpusScore(**score) for score in row["scores"])
        evaluations.append(Evaluation(f"{row['set']}, {row['search']}", row["sentences"], scores))
    write_report(page, _run_report(training, model, training["pair"], facts, evaluations))


def read_grouped_sentences(path: Path) -> list[GroupedSentence]:
    """Read sentences, one per line, each optionally followed by a tab and the name of its group; skip empty lines.

    Raises:
        DataError: If the file is missing or has too few sentences.
    """
    rows = [line.partition("\t") for line in read_lines(path)]
    sentences = [GroupedSentence(sentence.strip(), group.strip()) for sentence, _, group in rows if sentence.strip()]
    if len(sentences) < MIN_SENTENCES:
        raise DataError(f"{path}: must have at least {MIN_SENTENCES} sentences to draw; got {len(sentences)}")
    return sentences


def _replacements_table(translations: Sequence[Translation]) -> list[list[str]]:
    """Return the most frequent replacements of unknown words, with a header; empty if there are none."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for translation in translations:
        target = translation.by_attention.target
        for replaced in target.replaced:
            start, end = target.offsets[replaced.token]
            if start < end:  # if several tokens are replaced by one entry, only the first has characters
                counts[replaced.source, target.text[start:end], replaced.by] += 1
    if not counts:
        return []
    rows = [["In the source", "In the translation", "By", "Times"]]
    for replacement, times in counts.most_common(MAX_REPLACEMENTS):
        rows.append([*replacement, f"{times:,}"])
    return rows


def _size_facts(num_parameters: int, languages: Sequence[str], vocabulary_sizes: Sequence[int]) -> dict[str, str]:
    names = ("source", "target") if len(languages) == 2 else languages
    sizes = [f"{size:,} {name}" for size, name in zip(vocabulary_sizes, names, strict=True)]
    return {"Parameters": f"{num_parameters:,}", "Vocabulary": f"{' and '.join(sizes)} tokens"}


def _run_report(
    training: dict[str, Any],
    model: Path,
    languages: Sequence[str],
    facts: dict[str, str],
    evaluations: Sequence[Evaluation],
) -> Report:
    """Return the report of a model folder.

    Args:
        training: Content of its `training.json`; empty if it was not trained by rnnsearch.
        model: The folder.
        languages: Source and target languages, or the only language of a language model.
        facts: Facts about the model in addition to those of its folder.
        evaluations: Scores to show.
    """
    from rnnsearch.evaluation.page import Report

    data = training.get("data", {})
    name = model.resolve().name
    origin_facts = {key.capitalize(): text for key, text in load_origin(model).items()}
    return Report(
        title=f"{' → '.join(languages)}: {name}",
        source_language=languages[0] if len(languages) > 1 else "",
        target_language=languages[-1],
        facts={"Model": str(model), **facts, **origin_facts},
        evaluations=evaluations,
        log=training.get("history", []),
        statistics=[statistics(training, name)] if training else [],
        cleaning=_removal_counts(data),
        pairs_read=data.get("cleaning", {}).get("read"),
        pairs_kept=data.get("pairs"),
        config=(model / CONFIG).read_text(encoding="utf-8"),
    )


def _removal_counts(data: dict[str, Any]) -> dict[str, int]:
    """Return the number of removed training pairs by reason."""
    counts = {reason: row["count"] for reason, row in data.get("cleaning", {}).get("rejected", {}).items()}
    if data.get("left_out_by_split"):
        counts["shares a sentence with dev or test"] = data["left_out_by_split"]
    return counts
