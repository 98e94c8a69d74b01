"""`MultiwayTranslator`: a loaded multi-way model before a direction is chosen.

`loading.load` returns it for a folder with several directions. It is a `Translator` so that callers need no other type:
`translate` and `translate_text` take the languages, and `select` returns the ordinary translator of a direction. All
other attributes raise ModelError with the list of directions. Tests: tests/test_multiway.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rnnsearch.data.batch import Direction
from rnnsearch.systems.system import choose_direction
from rnnsearch.translator.translator import Translator


class MultiwayTranslator(Translator):
    """The translators of several directions, which share their weights."""

    def __init__(
        self, directions: Sequence[Direction], load: Callable[[Direction], Translator], num_parameters: int
    ) -> None:
        """Create a translator whose directions are made when they are first selected.

        Args:
            directions: All directions.
            load: Returns the translator of a direction.
            num_parameters: Number of parameters of all directions together.
        """
        # Not that of the base class, all of whose attributes belong to one direction.
        self._directions = tuple(directions)
        self.load_direction = load
        """Returns a new translator of a direction."""
        self._translators: dict[Direction, Translator] = {}
        self._num_parameters = num_parameters

    def __repr__(self) -> str:
        """Return the directions and the size on one line."""
        names = ", ".join(direction.name for direction in self._directions)
        return f"<Translator {names}, {self._num_parameters / 1e6:.1f} million parameters>"

    def __getattr__(self, name: str) -> NoReturn:
        # Only called for attributes that are missing, which are those of one direction.
        if name.startswith("__"):  # protocols such as copying ask for optional attributes
            raise AttributeError(name)
        choose_direction(self._directions)
        raise AttributeError(name)

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        return tuple((*direction.sources, direction.target) for direction in self._directions)  # type: ignore[misc]

    def select(self, source: str | None = None, target: str | None = None, zero_shot: bool = False) -> Translator:
        if zero_shot and source is not None and target is not None:
            direction = Direction((source,), target)
        else:
            direction = choose_direction(self._directions, source, target)
        if direction not in self._translators:
            self._translators[direction] = self.load_direction(direction)
        return self._translators[direction]

    def prepare(self) -> None:
        """Make all directions, and everything that would be made at their first translation."""
        translators: list[Any] = [self.select(*languages) for languages in self.directions]
        for translator in translators:
            translator.prepare()
