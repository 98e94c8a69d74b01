"""Registry of the code that implements the components of run files.

`config` declares a component as an options class (see `config.options.Family`); the packages that
compute something register the class or function behind it:

    @implements(AdditiveOptions)
    class Additive(Score): ...

    SCORES: Implementations[type[Score]] = Implementations(attention.SCORES)

    SCORES["additive"]  # Additive

`models`, `objectives` (`attention_penalties.py`, `contrast.py`), `text/annotation.py` and `training`
(`optimisers.py`, `schedules.py`) have such a view for each family.

tests/models/test_model_checks.py and tests/test_docs.py iterate over all families. This module must not import an
implementation: `config` does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from rnnsearch.config.options import Family, Options

T = TypeVar("T")

_IMPLEMENTATIONS: dict[type[Options], Any] = {}
"""Class or function of each options class, of all families."""


def implements(options: type[Options]) -> Callable[[T], T]:
    """Register the decorated class or function as the implementation of a component.

    A class gets the options class as its attribute `component`, from which it reads the
    component's traits: class variables of the options class, such as `predicts_class`.
    """

    def register(implementation: T) -> T:
        _IMPLEMENTATIONS[options] = implementation
        if isinstance(implementation, type):
            implementation.component = options  # type: ignore[attr-defined]
        return implementation

    return register


class Implementations(Mapping[str, T]):
    """Read-only view of the implementations of a family by component name."""

    def __init__(self, family: Family[Any]) -> None:
        self._family = family

    def __getitem__(self, name: str) -> T:
        options = self._family[name]
        if options not in _IMPLEMENTATIONS:
            raise NotImplementedError(
                f"the {self._family.name} {name} has no implementation: use @implements({options.__name__})"
            )
        implementation: T = _IMPLEMENTATIONS[options]
        return implementation

    def __iter__(self) -> Iterator[str]:
        return iter(self._family)

    def __len__(self) -> int:
        return len(self._family)
