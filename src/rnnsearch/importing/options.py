"""Options of another toolkit, whatever its files say of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rnnsearch.config.table import MOST
from rnnsearch.errors import ModelError


def no_counterpart(where: str, name: str, value: Any, known: Iterable[Any]) -> ModelError:
    """The refusal of an option's value, which may be any of the known ones."""
    fits = ", ".join(shown(one) for one in known if one is not None)
    return ModelError(f"{where}: {name} = {shown(value)} has no counterpart here; it may be {fits}")


def shown(value: Any) -> str:
    """A value in few characters, whatever it is: of lists that hold one another, their text has no end."""
    if isinstance(value, str):
        return f'"{value:.50}"'
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list) and len(value) < 5 and not any(isinstance(one, list | dict) for one in value):
        return f"[{', '.join(map(shown, value))}]"
    return str(value) if isinstance(value, int | float) and abs(value) < MOST else f"a {type(value).__name__}"


def optimiser(name: Any, rate: Any) -> dict[str, Any]:
    """`[training.optimiser]`: theirs, where it is one of ours in the same words."""
    if name in ("adam", "sgd") and isinstance(rate, float) and 0 < rate < 1e6:
        return {"type": name, "learning_rate": rate}
    return {"type": "adam", "learning_rate": 0.001}
