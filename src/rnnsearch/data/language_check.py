"""Warnings about corpora whose columns are swapped or in another language, by language identification of a sample.

`prepare.prepare` adds them to the warnings of a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rnnsearch.config import DataConfig
from rnnsearch.data.corpus import Row, read_rows
from rnnsearch.errors import ConfigError
from rnnsearch.text.languages import is_other_language, language_name, require_identifiable

MAX_FILES = 20
MAX_ROWS = 200
"""Rows of a file that are looked at."""
MIN_ROWS = 20
"""Fewest rows for a warning."""
MIN_WORDS = 4
"""Words of the sentences that are looked at: the language of shorter ones is uncertain."""


def language_warnings(data: DataConfig, base: Path) -> list[str]:
    """Return a warning for each of the first files whose texts seem to be swapped or in another language.

    Languages that cannot be identified are not checked.
    """
    if not data.is_bilingual:
        return []
    try:
        require_identifiable(data.languages)
    except ConfigError:
        return []
    warnings = []
    monolingual = data.monolingual_files
    specs = [spec for index, spec in enumerate(data.train or []) if index not in monolingual]
    for spec in specs[:MAX_FILES]:
        rows = read_rows([spec], base, 2, documents=data.documents, languages=data.languages)
        sample = list(islice(filter(_is_long, islice(rows, 10 * MAX_ROWS)), MAX_ROWS))
        if len(sample) >= MIN_ROWS:
            warnings += _warnings(spec, sample, *data.languages)
    return warnings


def _is_long(row: Row) -> bool:
    return row.problem is None and min(len(text.split()) for text in row.texts) >= MIN_WORDS


def _warnings(spec: str, sample: Sequence[Row], source: str, target: str) -> list[str]:
    """Return the warnings about a file, of which some rows are given."""
    wrong_source = _is_mostly_other([row.source for row in sample], source)
    wrong_target = _is_mostly_other([row.target for row in sample], target)
    if wrong_source and wrong_target:
        is_swapped = not _is_mostly_other([row.source for row in sample], target)
        is_swapped &= not _is_mostly_other([row.target for row in sample], source)
        if is_swapped:
            return [f"{spec}: source and target look swapped: most source sentences are {language_name(target)}"]
    texts = {"source": (wrong_source, source), "target": (wrong_target, target)}
    return [
        f"{spec}: most {role} sentences do not look {language_name(language)}"
        for role, (is_wrong, language) in texts.items()
        if is_wrong
    ]


def _is_mostly_other(texts: Sequence[str], language: str) -> bool:
    """Return True if more than half of the texts are clearly in another language."""
    return sum(is_other_language(text, language) for text in texts) > len(texts) / 2
