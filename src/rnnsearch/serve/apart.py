"""Work on text from outside that may be long, apart from the event loop, which answers everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from rnnsearch.text.sentences import sentence_spans

Found = TypeVar("Found")
INLINE = 2000
"""Characters that are worked on at once: less than a millisecond's work, which costs a thread more."""


async def apart(function: Callable[..., Found], *given: Any, size: int) -> Found:
    """What a function finds in so many characters."""
    return function(*given) if size <= INLINE else await asyncio.to_thread(function, *given)


async def split(text: str, language: str) -> list[tuple[int, int]]:
    """The sentences of a text."""
    return await apart(sentence_spans, text, language, size=len(text))
