"""Which sides a translation goes from and to. Imports no torch, as preparing a corpus does not."""

from typing import NamedTuple


class Direction(NamedTuple):
    """The sides that a translation goes from, and the one it goes to."""

    sources: tuple[str, ...]
    target: str

    def turned(self) -> "Direction":
        """The other way round, of a direction with one source."""
        (source,) = self.sources
        return Direction((self.target,), source)


PAIR = Direction(("source",), "target")
"""Of sentence pairs whose languages do not matter."""
