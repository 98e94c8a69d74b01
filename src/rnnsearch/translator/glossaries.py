"""Glossary files: a source term, a tab, and the forms of its target term per line.

`cli/translate_steps.py` and `cli/serve.py` read them; `text/terms.py` finds the terms in texts. Tests:
tests/test_placement.py.
"""

from __future__ import annotations

from pathlib import Path

from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.text.terms import Glossary, read_forms

MAX_ENTRIES = 100_000
"""Maximum number of entries of a glossary file."""
SHOWN_CHARACTERS = 40  # of a line in an error message


def read_glossary(path: Path) -> Glossary:
    """Read a glossary; of several entries for a source term, the first counts. Empty lines are skipped.

    Raises:
        DataError: The file cannot be read, a line is not valid, or there are too many.
    """
    entries: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        term, _, rest = line.partition("\t")
        term = term.strip()
        forms = rest.partition("\t")[0].strip()
        if not term or not forms:
            shown = line[:SHOWN_CHARACTERS]
            raise DataError(f'{path}:{number}: must be a source term, a tab and its target term; got "{shown}"')
        try:
            read_forms(term, forms)
        except RnnsearchError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        entries.setdefault(term, forms)
        if len(entries) > MAX_ENTRIES:
            raise DataError(f"{path}:{number}: a glossary must have at most {MAX_ENTRIES:,} entries; got more")
    return Glossary(entries)
