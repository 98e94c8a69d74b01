"""Rows of cells as plain text in aligned columns, or as Markdown."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Rows of cells as lines of aligned columns; those named in `left` to the left, the others right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def as_markdown(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table, head first, as Markdown: for model cards and committed results. Columns in `left` stand to the left."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---" if n in left else "---:" for n in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body)) + "\n"
