"""Work on text from outside that may be long, apart from the event loop, which answers everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rnnsearch.text.sentences import sentence_spans

Found = TypeVar("Found")
INLINE = 2000
"""Characters that are worked on at once: less than a millisecond's work, which costs a thread more."""
EACH = 10
"""Characters that a text counts as besides its own, for what is done once for each, however short it is."""


async def apart(function: Callable[..., Found], *given: Any, size: int) -> Found:
    """What a function finds in so many characters."""
    return function(*given) if size <= INLINE else await asyncio.to_thread(function, *given)


def work_of(texts: Sequence[str]) -> int:
    """The size of work on texts, in characters."""
    return sum(map(len, texts)) + EACH * len(texts)


async def split(texts: Sequence[str], language: str) -> list[list[tuple[int, int]]]:
    """The sentences of each text."""
    return await apart(lambda: [sentence_spans(text, language) for text in texts], size=work_of(texts))
