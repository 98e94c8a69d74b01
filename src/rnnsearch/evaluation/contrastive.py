"""Contrastive evaluation: does a model give the correct translation a higher probability than wrong ones?

Examples are sentences with their previous sentences, the correct translation and translations with one error, such as a
wrong pronoun (Bawden et al. 2018; ContraPro, Müller et al. 2018). `rnnsearch contrast` reads and scores them.

The keys of JSON lines and `as_dict` are documented in docs/context.md. Tests: tests/evaluation/test_contrastive.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rnnsearch.config.data import MAX_CONTEXT_SENTENCES
from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError
from rnnsearch.metrics.significance import wilson_interval
from rnnsearch.text.several_sources import SourceText
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.tables import align_columns

CONTEXT_SEPARATOR = "|||"
"""Separator of the previous sentences in the first column of TSV files."""
MAX_TOKENS = 2000
"""Maximum number of tokens of a sentence."""
CHUNK_EXAMPLES = 256
"""Examples that are scored together."""
MAX_GROUPS = 1000
JSON_KEYS = {"context", "target_context", "source", "correct", "incorrect", "group"}


class ContrastiveExample(NamedTuple):
    """A sentence in its context, with its correct translation and wrong ones."""

    context: tuple[str, ...]
    """Previous source sentences, the last one directly before the source."""
    source: str
    """Source sentence."""
    correct: str
    """Correct translation."""
    incorrect: tuple[str, ...]
    """Wrong translations; at least one."""
    target_context: tuple[str, ...] = ()
    """Translations of the context, for models that read them; empty if they are not known."""
    group: str | None = None
    """Group whose accuracy is reported separately, such as a pronoun or the distance of its antecedent."""


@dataclass(frozen=True)
class Accuracy:
    """Number of examples whose correct translation is the most probable one."""

    correct: int
    examples: int

    @property
    def fraction(self) -> float:
        """Fraction of correct decisions."""
        return self.correct / self.examples

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the fraction (Wilson)."""
        return wilson_interval(self.correct, self.examples)

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return {
            "accuracy": self.fraction,
            "interval": list(self.interval),
            "correct": self.correct,
            "examples": self.examples,
        }


@dataclass(frozen=True)
class ContrastiveResult:
    """Margins of all examples: log p(correct) - log p(most probable wrong translation)."""

    margins: tuple[float, ...]
    """Margin of each example, in nats."""
    groups: tuple[str | None, ...]
    """Group of each example."""

    @property
    def total(self) -> Accuracy:
        """Accuracy over all examples."""
        return _accuracy(self.margins)

    @property
    def by_group(self) -> dict[str, Accuracy]:
        """Accuracy of each group, in the order of their first examples."""
        margins: dict[str, list[float]] = {}
        for margin, group in zip(self.margins, self.groups, strict=True):
            if group is not None:
                margins.setdefault(group, []).append(margin)
        return {group: _accuracy(values) for group, values in margins.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        groups = {group: accuracy.as_dict() for group, accuracy in self.by_group.items()}
        return {**self.total.as_dict(), "groups": groups, "margins": list(self.margins)}

    def to_text(self) -> str:
        """Return the accuracies as an aligned table."""
        rows = [["", "examples", "accuracy", "95% interval"]]
        for name, accuracy in {"all": self.total, **self.by_group}.items():
            low, high = accuracy.interval
            rows.append([name, f"{accuracy.examples:,}", f"{accuracy.fraction:.1%}", f"{low:.1%} to {high:.1%}"])
        return "\n".join(align_columns(rows))


def _accuracy(margins: Sequence[float]) -> Accuracy:
    return Accuracy(sum(margin > 0 for margin in margins), len(margins))


def contrast(translator: Translator, path: Path, reads_context: bool = True) -> ContrastiveResult:
    """Return a model's decisions between the correct and the wrong translations of a file's examples.

    Args:
        translator: The model.
        path: File of examples (see `read_examples`).
        reads_context: False to score all sentences without their contexts.

    Raises:
        DataError: The file has no examples, or one is invalid or too long.
        ModelError: The model has several sources.
    """
    translator.require_one_source("contrastive evaluation")
    margins: list[float] = []
    groups: list[str | None] = []
    distinct_groups: set[str | None] = set()
    examples = read_examples(path, translator, reads_context and translator.system.reads_translations)
    while chunk := list(islice(examples, CHUNK_EXAMPLES)):
        margins += _margins(translator, chunk, reads_context)
        groups += [example.group for example in chunk]
        distinct_groups.update(example.group for example in chunk)
        if len(distinct_groups - {None}) > MAX_GROUPS:
            raise DataError(f"{path}: must have at most {MAX_GROUPS:,} groups; it has more")
    if not margins:
        raise DataError(f"{path}: must have at least one example; got none")
    return ContrastiveResult(tuple(margins), tuple(groups))


def _margins(translator: Translator, examples: Sequence[ContrastiveExample], reads_context: bool) -> list[float]:
    sources: list[SourceText | Segmented] = [example.source for example in examples]
    if reads_context:
        sources = []
        for example in examples:
            sentences = [*example.context, example.source]
            # The last sentence is no context.
            context_targets = [*example.target_context, ""] if example.target_context else None
            sources.append(translator.with_context(sentences, [0] * len(sentences), context_targets)[-1])
    rows: list[SourceText | Segmented] = []
    targets: list[str] = []
    for source, example in zip(sources, examples, strict=True):
        candidates = [example.correct, *example.incorrect]
        rows += [source] * len(candidates)
        targets += candidates
    log_probs = iter(translator.log_probs(rows, targets))
    margins = []
    for example in examples:
        correct = next(log_probs)
        margins.append(correct - max(islice(log_probs, len(example.incorrect))))
    return margins


# Files.


def read_examples(path: Path, translator: Translator, reads_translations: bool = False) -> Iterator[ContrastiveExample]:
    """Yield the examples of a file of JSON lines (`.jsonl`, `.json`) or TSV.

    Args:
        path: The file.
        translator: Segments the texts.
        reads_translations: True if examples with a context must have its translation.

    Raises:
        DataError: A line is invalid, or a sentence has more than `MAX_TOKENS` tokens.
    """
    parse = _parse_json if path.suffix.lower() in (".jsonl", ".json") else _parse_tsv
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        location = f"{path}:{number}"
        example = parse(line, location)
        for tokenizer, texts in (
            (translator.source, (*example.context, example.source)),
            (translator.target, (*example.target_context, example.correct, *example.incorrect)),
        ):
            if not all(tokenizer.fits(text, MAX_TOKENS) for text in texts):
                raise DataError(f"{location}: a sentence must have at most {MAX_TOKENS:,} tokens; one has more")
        if example.correct in example.incorrect:
            raise DataError(
                f'{location}: the correct translation must not be a wrong one, too; got "{example.correct}"'
            )
        if reads_translations and example.context and not example.target_context:
            needs = "because the model reads the translations of previous sentences (use JSON lines)"
            raise DataError(f"{location}: must have target_context, {needs}")
        if example.target_context and len(example.target_context) != len(example.context):
            raise DataError(
                f"{location}: target_context must have one text per sentence of context ({len(example.context)}); got "
                f"{len(example.target_context)}"
            )
        yield example._replace(
            context=example.context[-MAX_CONTEXT_SENTENCES:],
            target_context=example.target_context[-MAX_CONTEXT_SENTENCES:],
        )


def _parse_tsv(line: str, location: str) -> ContrastiveExample:
    """Parse the columns context, source, correct translation and wrong translations."""
    context, *texts = line.split("\t")
    if len(texts) < 3 or not all(map(str.strip, texts)):
        raise DataError(
            f"{location}: must have the columns context, source, correct and incorrect translation; only the context "
            f"may be empty; got {len(texts) + 1} columns"
        )
    source, correct, *incorrect = texts
    sentences = [sentence.strip() for sentence in context.split(CONTEXT_SEPARATOR)]
    return ContrastiveExample(tuple(filter(None, sentences)), source, correct, tuple(incorrect))


def _parse_json(line: str, location: str) -> ContrastiveExample:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{location}: must be a JSON object; got another line") from None
    if not isinstance(values, dict) or values.keys() - JSON_KEYS:
        raise DataError(f"{location}: must be a JSON object with the keys {', '.join(sorted(JSON_KEYS))}")
    source = _texts(values, "source", location)
    correct = _texts(values, "correct", location)
    incorrect = _texts(values, "incorrect", location)
    group = _texts(values, "group", location)
    for key, texts, is_list in (("source", source, False), ("correct", correct, False), ("incorrect", incorrect, True)):
        if not texts or (len(texts) > 1 and not is_list):
            raise DataError(f"{location}: {key} must be {'at least ' if is_list else ''}one text; got {len(texts)}")
    context = _texts(values, "context", location)
    target_context = _texts(values, "target_context", location)
    return ContrastiveExample(context, source[0], correct[0], incorrect, target_context, " ".join(group) or None)


def _texts(values: dict[str, Any], key: str, location: str) -> tuple[str, ...]:
    """Return the texts of a key, a text or a list of texts, without empty ones."""
    value = values.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{location}: {key} must be a text or a list of texts; got another value")
    return tuple(text for text in texts if text.strip())
