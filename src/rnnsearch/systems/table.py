"""The systems by kind."""

from __future__ import annotations

from typing import Any

from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.system import Trainable
from rnnsearch.systems.translation import TranslationSystem

SYSTEMS: dict[str, type[Trainable[Any]]] = {s.kind: s for s in (TranslationSystem, LanguageSystem)}
