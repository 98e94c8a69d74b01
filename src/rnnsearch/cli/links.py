"""Word alignments as the commands write them: a line each, and at the end a word where they mean nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rnnsearch.cli.io import say
from rnnsearch.text.spans import AlignedBy, Unit

if TYPE_CHECKING:
    from rnnsearch.text.alignments import Link
    from rnnsearch.translation import Translation


class Links:
    """Pharaoh lines of the links of translations by one model."""

    def __init__(self, out: TextIO, unit: Unit, model: Path, by: AlignedBy | None) -> None:
        self._out, self._unit, self._model = out, unit, model
        self._attended = by == "attention"
        self._information = 0.0
        self._count = 0

    def write(self, translation: Translation) -> None:
        """One line."""
        attended = self._attended or translation.aligned is None
        if self._unit == "words":
            self.write_all([translation.attended if attended else translation.alignment])
        else:
            self.write_all([translation.attended_tokens if attended else translation.token_alignment])
        told = translation.attention_information if attended else None
        if told is not None:
            self._information += told
            self._count += 1

    def write_all(self, links: Iterable[Collection[Link]]) -> None:
        """A line each."""
        from rnnsearch.text.alignments import format_pharaoh

        self._out.writelines(format_pharaoh(one) + "\n" for one in links)

    def doubt(self) -> None:
        """Say so where the attention behind all of them told target words hardly apart."""
        from rnnsearch.text.alignments import LEAST_INFORMATION

        if self._count and self._information < LEAST_INFORMATION * self._count:
            say(
                f"{self._model}: its attention is nearly the same at every word ({self._information / self._count:.0%} "
                "of what it could tell of them), so these links mean nothing; has it been trained long enough?"
            )
