"""The model card: what a model is, what it was trained on, how it learned, and how well it translates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnsearch.errors import ModelError
from rnnsearch.utils.files import sha256_of, write_json, write_text
from rnnsearch.utils.tables import as_markdown

TRAINING = "training.json"
SCORES = "scores.json"
"""What `rnnsearch evaluate` measured, kept beside the model: a list, one entry a test set and search."""
ORIGIN = "origin.json"
"""In the folder of a model that was made of trained ones, begins from one or learns from one: what is known of their
corpora."""
_CORPUS = ("corpus", "licence", "attribution")
_SAME = ("set", "text", "search")
"""What tells two measurements of the same weights apart."""


def training_facts(folder: Path) -> dict[str, Any]:
    """What training wrote of a run into `training.json`; empty for a model that was not trained here.

    Errors: ModelError for a file that training did not write.
    """
    return _table_in(folder / TRAINING, "what training wrote")


def origin(folder: Path) -> dict[str, str]:
    """The corpora that a model, and the ones that it was made of or learned from, learned from, their licences and
    attributions, each said once; what is not known is left out.

    Errors: ModelError for a file that neither training nor `hand_on` wrote.
    """
    own = training_facts(folder).get("data")
    return _together([own, _table_in(folder / ORIGIN, "what was known of a model's corpus")])


def hand_on(folders: Iterable[Path], made: Path) -> None:
    """Keep in the folder of a model that owes something to others what is known of their corpora."""
    if known := _together([origin(folder) for folder in folders]):
        write_json(made / ORIGIN, known)


def _together(sources: Iterable[Any]) -> dict[str, str]:
    tables = [table for table in sources if isinstance(table, dict)]
    said = {name: dict.fromkeys(str(table[name]) for table in tables if table.get(name)) for name in _CORPUS}
    return {name: "; ".join(texts) for name, texts in said.items() if texts}


def _table_in(path: Path, what: str) -> dict[str, Any]:
    """What a JSON file holds; nothing where there is none. Errors: ModelError for a foreign file."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (ValueError, TypeError, RecursionError):
        raise ModelError(f"{path}: must be {what}; got another file (remove it)") from None


def write_card(folder: Path) -> None:
    """Write `card.md` from `training.json`, the weights and what was measured of them; none without the first.

    Errors: ModelError for a file that training did not write.
    """
    facts, digest = training_facts(folder), sha256_of(folder / "model.safetensors")
    if not facts:
        return
    try:
        text = card(facts | {"data": facts["data"] | origin(folder)}, digest, measured(folder, digest))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise ModelError(f"{folder / TRAINING}: must be what training wrote; got another file (remove it)") from None
    write_text(folder / "card.md", text)


def add_scores(folder: Path, scores: dict[str, Any]) -> None:
    """Keep what was measured (`Evaluation.as_dict` with `set`, `text` and `search`) and put it on the card.

    It takes the place of an earlier measurement of the same text with the same search; measurements of other weights,
    which training has replaced, are dropped. Errors: RnnsearchError where the folder cannot be written.
    """
    digest = sha256_of(folder / "model.safetensors")
    others = [old for old in measured(folder, digest) if any(old.get(key) != scores[key] for key in _SAME)]
    rows = [*others, {**scores, "weights": digest}]
    write_json(folder / SCORES, rows)
    write_card(folder)


def measured(folder: Path, digest: str | None = None) -> list[dict[str, Any]]:
    """What was measured of a model's present weights, in the order of measuring; `digest`: their SHA-256, if known.

    Errors: ModelError for a file that `add_scores` did not write.
    """
    path = folder / SCORES
    if not path.is_file():
        return []
    digest = digest or sha256_of(folder / "model.safetensors")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(rows, dict):  # of a version that did not say of which weights
            return []
        return [row for row in rows if row["weights"] == digest]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ModelError(f"{path}: must be what `rnnsearch evaluate` wrote; got another file (remove it)") from None


@dataclass(frozen=True)
class LearningStatistics:
    """One system's row of the paper's table 2."""

    model: str
    updates: int
    epochs: float
    hours: float
    device: str
    train_nll: float | None = None
    """Mean negative log-likelihood of a training sentence (nats, summed over its words)."""
    dev_nll: float | None = None
    """The same over the dev set."""


def statistics_table(systems: Sequence[LearningStatistics]) -> list[list[str]]:
    """The paper's columns: a head, then one row a system. Updates are written out, not in 10^5."""
    rows = [["Model", "Updates", "Epochs", "Hours", "Device", "Train NLL", "Dev NLL"]]
    for s in systems:
        nll = ["-" if value is None else f"{value:.1f}" for value in (s.train_nll, s.dev_nll)]
        hours = f"{s.hours:.2f}" if s.hours < 10 else f"{s.hours:.0f}"
        rows.append([s.model, f"{s.updates:,}", f"{s.epochs:.1f}", hours, s.device, *nll])
    return rows


def best_evaluation(facts: dict[str, Any]) -> dict[str, Any]:
    """The evaluation whose weights were kept; empty where there was none."""
    return next((row for row in reversed(facts["history"]) if row["best"]), {})


def statistics(facts: dict[str, Any], name: str) -> LearningStatistics:
    """One row of the paper's learning-statistics table (Bahdanau et al., table 2), from `training.json`.

    The NLLs are those of the evaluation whose dev score was the best.
    """
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
    """The card's Markdown; `scores`: what was measured of these weights."""
    data, sides = facts["data"], facts["pair"]
    names = ("source", "target") if len(sides) == 2 else sides
    symbols = ", ".join(f"{count:,} {name}" for count, name in zip(facts["vocabulary"], names, strict=True))
    languages = " → ".join(sides)
    about = {
        "Pair" if len(sides) == 2 else "Language": languages,
        "Parameters": f"{facts['parameters']:,}",
        "Vocabulary": f"{symbols} symbols",
        "Weights' SHA-256": f"`{sha256}`",
        "Trained": f"{facts['date']}, torch {facts['torch']}, {facts['precision']}",
    }
    corpus = {name: str(data[key]) for name, key in _DATA_ROWS if data.get(key) not in (None, "")}
    lines = [f"# {languages}, a {_what(facts.get('kind', 'translation'))}", "", *_table(about)]
    lines += ["", "## Training data", "", *_table(corpus)]
    lines += ["", "## Learning statistics", ""]
    lines += as_markdown(statistics_table([statistics(facts, "-".join(sides))])).splitlines()
    lines += [
        "",
        "NLL is the mean negative log-likelihood of a sentence, in nats; train NLL under dropout, over the",
    ]
    lines += ["updates since the evaluation before; both at the evaluation whose dev score was the best."]
    if scores:
        lines += ["", "## Scores"]
    for one in scores:
        lines += ["", *_score_lines(one)]
    return "\n".join([*lines, ""])


def _what(kind: str) -> str:
    return {"translation": "recurrent translation model", "language-model": "language model"}.get(kind, f"{kind} model")


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
