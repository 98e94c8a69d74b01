"""Tables as plain text in aligned columns, or as Markdown.

Tests: tests/evaluation/test_corpus_scores.py.
"""

from collections.abc import Sequence


def align_columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Return rows of cells as lines with aligned columns; the columns in `left` are left-aligned, others right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for n, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.ljust(width) if n in left else cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def as_markdown(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Return a table as Markdown, its header first; the columns in `left` are left-aligned.

    Used for model cards and stored results.
    """
    header, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    separator = ["---" if n in left else "---:" for n in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, separator, *body)) + "\n"
