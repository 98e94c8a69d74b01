"""Pieces of HTML for the report: tables, plots, heat maps, sentence pairs. Every text given is escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rnnsearch.plots.figures import render
from rnnsearch.text.alignments import Link

_SCROLL = '<div class="scroll" tabindex="0">'
"""Around what may be wider than a phone; the keyboard can reach and scroll it."""


def table(rows: Sequence[Sequence[str]], caption: str = "", numbers_from: int = 1) -> str:
    """Rows of text, the first of them the head. Columns from number `numbers_from` on are numbers."""
    head, *body = rows
    parts = [f"{_SCROLL}<table>"]
    if caption:
        parts.append(f"<caption>{escape(caption)}</caption>")
    parts.append(f"<thead>{_row(head, numbers_from, 'col')}</thead><tbody>")
    parts += [_row(row, numbers_from) for row in body]
    return "".join([*parts, "</tbody></table></div>"])


def _row(cells: Sequence[str], numbers_from: int, scope: str = "") -> str:
    parts = []
    for n, cell in enumerate(cells):
        style = ' class="number"' if n >= numbers_from else ""
        if scope:
            parts.append(f'<th scope="{scope}"{style}>{escape(cell)}</th>')
        elif n == 0:
            parts.append(f'<th scope="row"{style}>{escape(cell)}</th>')
        else:
            parts.append(f"<td{style}>{escape(cell)}</td>")
    return f"<tr>{''.join(parts)}</tr>"


def picture(light: Figure, dark: Figure, description: str) -> str:
    """A plot in two themes, of which the browser shows the one that suits."""
    width, height = (round(float(side) * 100) for side in light.get_size_inches())
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{_data_uri(dark)}">'
        f'<img class="plot" src="{_data_uri(light)}" width="{width}" height="{height}" '
        f'alt="{escape(description)}"></picture>'
    )


def _data_uri(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(render(figure, "svg")).decode("ascii")


def sentence(text: str, language: str) -> str:
    """A sentence in its own language and direction."""
    lang = f' lang="{escape(language)}"' if language else ""
    return f'<span dir="auto"{lang}>{escape(text)}</span>'


def words(each: Sequence[str], side: str, language: str) -> str:
    """A sentence, every word of which the page's script can light; `side`: `s` (source) or `t` (target)."""
    lang = f' lang="{escape(language)}"' if language else ""
    spans = " ".join(f'<span class="word {side}">{escape(word)}</span>' for word in each)
    return f'<span dir="auto"{lang}>{spans}</span>'


def percentages(attention: NDArray[np.floating[Any]]) -> str:
    """Attention [I, J] for the page's script: whole percents, rows parted by `;`."""
    whole = np.rint(100 * np.clip(attention, 0.0, 1.0)).astype(int)
    return ";".join(" ".join(map(str, row)) for row in whole.tolist())


def heat_map(
    attention: NDArray[np.floating[Any]],
    source_words: Sequence[str],
    target_words: Sequence[str],
    links: AbstractSet[Link] | None,
) -> str:
    """Attention [I, J] as a table of grey cells, 0 black and 1 white; linked cells are framed.

    The browser draws the words, so every script that the reader's machine can show is shown. A cell's
    tooltip gives its words and weight.
    """
    corner = "<td></td>"
    head = "".join(f'<th scope="col"><span dir="auto">{escape(word)}</span></th>' for word in source_words)
    rows = []
    for i, target in enumerate(target_words):
        cells = []
        for j, source in enumerate(source_words):
            weight = float(attention[i, j])
            framed = ' class="link"' if links and (j, i) in links else ""
            tip = f' title="{escape(target)} ← {escape(source)} {weight:.2f}"' if weight >= 0.01 else ""
            cells.append(f"<td{framed}{_shade(weight)}{tip}></td>")
        name = f'<th scope="row"><span dir="auto">{escape(target)}</span></th>'
        rows.append(f"<tr>{name}{''.join(cells)}</tr>")
    longest = max(len(source_words), len(target_words))
    size = " tiny" if longest > 50 else " dense" if longest > 30 else ""
    return (
        f'{_SCROLL}<table class="heat{size}"><thead><tr>{corner}{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _shade(weight: float) -> str:
    """A cell's grey; near-black ones, most of a long sentence's, are left to the style sheet's black."""
    level = round(255 * min(max(weight, 0.0), 1.0))
    return f' style="background:#{level:02x}{level:02x}{level:02x}"' if level > 2 else ""


def interlinear(source_words: Sequence[str], target_words: Sequence[str], links: AbstractSet[Link]) -> str:
    """Each target word over the source words that it is linked to."""
    pairs = []
    for number, target in enumerate(target_words):
        linked = [source_words[i] for i, j in sorted(links) if j == number and i < len(source_words)]
        below = f'<span class="from" dir="auto">{escape(" ".join(linked)) or "–"}</span>'
        pairs.append(f'<span class="pair"><span dir="auto">{escape(target)}</span>{below}</span>')
    return f'<p class="pairs" dir="auto">{" ".join(pairs)}</p>'
