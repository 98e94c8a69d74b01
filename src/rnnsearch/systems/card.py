"""The model card, `card.md` in a model folder: data, licences, learning statistics and scores.

It is generated from `training.json` (written by training), `scores.json` (written by
`rnnsearch evaluate`) and `origin.json` (corpora of the models that this one was made from).

`training/summary.py` writes it, and `evaluation/assess.py` adds scores. The keys of the JSON files are a format:
files of earlier versions must stay readable. Tests: tests/commands/test_evaluate.py, tests/evaluation/test_report.py,
tests/stress/folders.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnsearch.errors import ModelError
from rnnsearch.utils.files import JSON_ERRORS, read_folder_text, sha256_of, write_json, write_text
from rnnsearch.utils.tables import as_markdown

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig

TRAINING_FILE = "training.json"
"""Facts about the training run."""
SCORES_FILE = "scores.json"
"""A list with an entry per test set and search."""
ORIGIN_FILE = "origin.json"
"""Written if a model was made from trained models, started from one, or had one as its teacher."""
_CORPUS_FIELDS = ("corpus", "licence", "attribution")
_SCORE_KEYS = ("set", "text", "search")  # distinguish the scores of the same weights


def awaits_aligner(folder: Path, config: RunConfig) -> bool:
    """Return True if a model has no word aligner yet, and the prepared data of its run have the text to learn it."""
    from rnnsearch.align import aligner  # imports torch
    from rnnsearch.data.aligner_text import find_prepared

    is_trained = config.stores_aligner and (folder / TRAINING_FILE).is_file()
    return is_trained and not (folder / aligner.FOLDER).is_dir() and find_prepared(folder, config) is not None


def load_training_facts(folder: Path) -> dict[str, Any]:
    """Return the contents of `training.json`, or an empty dict for an imported or converted model.

    Raises:
        ModelError: If the file was not written by training.
    """
    return _load_json(folder / TRAINING_FILE, "a file written by training")


def load_origin(folder: Path) -> dict[str, str]:
    """Return the corpora, licences and attributions of a model and the models it was made from.

    Each value is listed once; unknown fields are omitted.

    Raises:
        ModelError: If a file was not written by rnnsearch.
    """
    training_data = load_training_facts(folder).get("data")
    return _merge_origins([training_data, _load_json(folder / ORIGIN_FILE, "a file written by rnnsearch")])


def write_origin(folders: Iterable[Path], output: Path) -> None:
    """Write the corpora, licences and attributions of the models in `folders` into the folder `output`."""
    merged = _merge_origins([load_origin(folder) for folder in folders])
    if merged:
        write_json(output / ORIGIN_FILE, merged)


def _merge_origins(sources: Iterable[Any]) -> dict[str, str]:
    tables = [table for table in sources if isinstance(table, dict)]
    merged = {}
    for field in _CORPUS_FIELDS:
        # A dict instead of a set, because the order of the models is kept.
        values = dict.fromkeys(str(table[field]) for table in tables if table.get(field))
        if values:
            merged[field] = "; ".join(values)
    return merged


def _load_json(path: Path, must_be: str) -> dict[str, Any]:
    """Return the object in a JSON file, empty if there is no file; raise ModelError for anything else."""
    try:
        # `dict` raises an error for JSON that is not an object.
        return dict(json.loads(read_folder_text(path))) if path.is_file() else {}
    except JSON_ERRORS:
        raise ModelError(f"{path}: must be {must_be}; got another file (remove it)") from None


def write_card(folder: Path) -> None:
    """Write `card.md`, unless there is no `training.json`.

    Raises:
        ModelError: If `training.json` was not written by training.
    """
    facts = load_training_facts(folder)
    digest = sha256_of(folder / "model.safetensors")
    if not facts:
        return
    try:
        text = card(facts | {"data": facts["data"] | load_origin(folder)}, digest, load_scores(folder, digest))
    except JSON_ERRORS:
        raise ModelError(
            f"{folder / TRAINING_FILE}: must be a file written by training; got another file (remove it)"
        ) from None
    write_text(folder / "card.md", text)


def add_scores(folder: Path, scores: dict[str, Any]) -> None:
    """Add scores (`Evaluation.as_dict` with `set`, `text` and `search`) to `scores.json` and the card.

    They replace earlier scores of the same text with the same search. Scores of other weights, which training has
    overwritten, are dropped.

    Raises:
        RnnsearchError: If the folder cannot be written.
    """
    digest = sha256_of(folder / "model.safetensors")
    # Scores are only valid for the weights that they were measured with.
    others = [old for old in load_scores(folder, digest) if any(old.get(key) != scores[key] for key in _SCORE_KEYS)]
    rows = [*others, {**scores, "weights": digest}]
    write_json(folder / SCORES_FILE, rows)
    write_card(folder)


def load_scores(folder: Path, digest: str | None = None) -> list[dict[str, Any]]:
    """Return the scores of a model's current weights, oldest first.

    Args:
        folder: The model folder.
        digest: SHA-256 of its weights, if known.

    Raises:
        ModelError: If `scores.json` was not written by `add_scores`.
    """
    path = folder / SCORES_FILE
    if not path.is_file():
        return []
    digest = digest or sha256_of(folder / "model.safetensors")
    try:
        rows = json.loads(read_folder_text(path))
        if isinstance(rows, dict):  # written by an early version, without the digest of the weights
            return []
        return [row for row in rows if row["weights"] == digest]
    except JSON_ERRORS:
        raise ModelError(
            f"{path}: must be a file written by `rnnsearch evaluate`; got another file (remove it)"
        ) from None


@dataclass(frozen=True)
class LearningStatistics:
    """A row of the table of learning statistics (Bahdanau et al., table 2)."""

    model: str
    """Name of the model in the table."""
    updates: int
    epochs: float
    """Number of passes over the training data."""
    hours: float
    """Training time."""
    device: str
    """Device that the model was trained on."""
    train_nll: float | None = None
    """Mean negative log-likelihood per training sentence in nats."""
    dev_nll: float | None = None
    """Mean negative log-likelihood per dev sentence in nats."""


def direction_history(history: Sequence[Mapping[str, Any]], direction: str) -> list[dict[str, Any]]:
    """Return the history of a multi-way run with the scores of one direction."""
    rows = []
    for row in history:
        scores = {key.partition(" ")[0]: value for key, value in row.items() if key.endswith(f" {direction}")}
        others = {key: value for key, value in row.items() if " " not in key}
        if "dev_nll_per_word" in scores:
            scores["dev_perplexity"] = math.exp(min(scores["dev_nll_per_word"], 100.0))  # no overflow
        rows.append({**others, **scores, "best": direction in row.get("best_directions", ())})
    return rows


def statistics_table(systems: Sequence[LearningStatistics]) -> list[list[str]]:
    """Return a header and a row per system, with the columns of the paper; updates are not divided by 10^5."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    rows = [["Model", "Updates", "Epochs", "Hours", "Device", "Train NLL", "Dev NLL"]]
    for system in systems:
        hours = f"{system.hours:.2f}" if system.hours < 10 else f"{system.hours:.0f}"
        nlls = [number(system.train_nll), number(system.dev_nll)]
        rows.append([system.model, f"{system.updates:,}", f"{system.epochs:.1f}", hours, system.device, *nlls])
    return rows


def best_evaluation(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the evaluation whose weights are stored, or an empty dict if there was none."""
    return next((row for row in reversed(facts["history"]) if row["best"]), {})


def statistics(facts: dict[str, Any], name: str) -> LearningStatistics:
    """Return the learning statistics in `training.json`; the NLLs are those of the best evaluation."""
    best = best_evaluation(facts)
    return LearningStatistics(
        model=name,
        updates=facts["updates"],
        epochs=facts["epochs"],
        hours=facts["hours"],
        device=facts["device"],
        train_nll=best.get("train_nll"),
        dev_nll=best.get("dev_nll"),
    )


def _table(rows: dict[str, str]) -> list[str]:
    return as_markdown([["", ""], *([key, value] for key, value in rows.items())], left=(0, 1)).splitlines()


def card(facts: dict[str, Any], sha256: str, scores: Sequence[dict[str, Any]] = ()) -> str:
    """Return the text of a model card.

    Args:
        facts: The contents of `training.json`, with the corpora of `load_origin`.
        sha256: SHA-256 of the weights.
        scores: The scores of these weights.
    """
    data = facts["data"]
    pair = facts["pair"]
    directions = facts.get("directions")  # of a multi-way model
    roles = ("source", "target") if len(pair) == 2 and directions is None else pair
    # Sources that are arrays have no vocabulary.
    names = [role for role, stream in zip(roles, pair, strict=True) if stream not in data.get("arrays", {})]
    sizes = ", ".join(f"{count:,} {name}" for count, name in zip(facts["vocabulary"], names, strict=True))
    languages = " → ".join(pair)
    language_row = "Pair" if len(pair) == 2 else "Language"
    if directions is not None:
        languages = ", ".join(directions)
        language_row = "Directions"
    tasks = ", ".join(f"{name} ({ratio:g})" for name, ratio in facts.get("tasks", {}).items())
    about = {
        language_row: languages,
        **({"Further tasks (ratio)": tasks} if tasks else {}),
        "Parameters": f"{facts['parameters']:,}",
        "Vocabulary": f"{sizes} tokens",
        "Weights' SHA-256": f"`{sha256}`",
        "Trained": f"{facts['date']}, torch {facts['torch']}, {facts['precision']}",
    }
    corpus = {name: str(data[key]) for name, key in _DATA_ROWS if data.get(key) not in (None, "")}
    learning = [statistics(facts, "-".join(pair) if directions is None else languages)]
    lines = [
        f"# {languages}, a {_model_type(facts.get('kind', 'translation'))}",
        "",
        *_table(about),
        "",
        "## Training data",
        "",
        *_table(corpus),
        "",
        "## Learning statistics",
        "",
        *as_markdown(statistics_table(learning)).splitlines(),
        "",
        "NLL is the mean negative log-likelihood per sentence in nats, at the evaluation with the best dev score. The",
        "train NLL is measured with dropout, over the updates since the evaluation before.",
    ]
    if scores:
        lines += ["", "## Scores"]
    for entry in scores:
        lines += ["", *_score_lines(entry)]
    return "\n".join([*lines, ""])


def _model_type(kind: str) -> str:
    names = {
        "translation": "recurrent translation model",
        "language-model": "language model",
        "multiway": "multi-way recurrent translation model",
    }
    return names.get(kind, f"{kind} model")


_DATA_ROWS = (
    ("Corpus", "corpus"),
    ("Licence", "licence"),
    ("Attribution", "attribution"),
    ("Training pairs", "pairs"),
    ("Corpus SHA-256", "sha256"),
)


def _score_lines(scores: dict[str, Any]) -> list[str]:
    lines = [f"On {scores['sentences']:,} sentences of {scores['set']}, {scores['search']}:", ""]
    rows = [[s["name"], f"{s['value']:.2f}", f"`{s['signature']}`"] for s in scores["scores"]]
    return lines + as_markdown([["score", "value", "signature"], *rows], left=(0, 2)).splitlines()
