"""Many texts in one block of bytes, which is copied, sent and freed at once, whatever the number of texts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

_ERRORS = "surrogatepass"  # lone surrogates are not UTF-8, but a text can contain them


class PackedTexts:
    """A sequence of texts that can only grow."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._data = bytearray()
        self._ends = array("Q")
        self.extend(texts)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def num_bytes(self) -> int:
        """Size of the texts in bytes."""
        return len(self._data)

    def extend(self, texts: Iterable[str]) -> None:
        """Append texts."""
        for text in texts:
            self._data += text.encode("utf-8", _ERRORS)
            self._ends.append(len(self._data))

    def unpack(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the texts [start, stop)."""
        texts = []
        position = self._ends[start - 1] if start else 0
        for end in self._ends[start:stop]:
            texts.append(self._data[position:end].decode("utf-8", _ERRORS))
            position = end
        return texts

    def to_blocks(self) -> tuple[bytes, bytearray]:
        """Return the arguments of `from_blocks`."""
        return self._ends.tobytes(), self._data

    @staticmethod
    def from_blocks(ends: bytes, data: bytes | bytearray) -> PackedTexts:
        """Return texts from the result of `to_blocks`, in a process on the same machine."""
        packed = PackedTexts()
        packed._ends.frombytes(ends)
        packed._data += data
        return packed
