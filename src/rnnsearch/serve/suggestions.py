"""For a translator at work: other words in a word's place, and a translation as it grows."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import AsyncIterator

from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.registry import Served
from rnnsearch.serve.schemas import OtherWord
from rnnsearch.text.spans import word_spans
from rnnsearch.translate import Translator
from rnnsearch.translation import Translation, one_line

_EDGES = re.compile(r"^\W+|\W+$")


def alternatives(translator: Translator, source: str, target: str, word: int, n_best: int) -> list[OtherWord]:
    """Up to `n_best` other words in the place of word `word` (from 0) of a translation, the likeliest first.

    The words before it stay; what follows is translated anew. The words begin differently.
    Errors: RnnsearchError for a word that the translation has not, or an empty source.
    """
    spans = word_spans(target)
    if not 0 <= word < len(spans):
        raise RnnsearchError(f"word must be one of the translation's {len(spans)} (from 0); got {word}")
    if not source.strip():
        raise RnnsearchError("the text must not be empty")
    start, end = spans[word]
    before = target[:start]
    begins = _word_begins(translator)
    # Some of them lead to the present word, or to the same one.
    firsts = translator.likeliest(source, before, list(begins), n_best + 3)
    prefixes = [before + begins[first] for first in firsts]
    begun = translator.n_best([source] * len(firsts), translator.options(), len(firsts), prefixes=prefixes)
    return _different([best[0] for best in begun], target[start:end], word)[:n_best]


def _word_begins(translator: Translator) -> dict[int, str]:
    """What each symbol that can begin a word begins it with."""
    texts = (spelling.decode(errors="ignore") for spelling in translator.target.spellings())
    begins = {id: text[1:] for id, text in enumerate(texts) if text.startswith(" ")}
    return {id: text for id, text in begins.items() if text and id not in translator.target.unknown}


def _different(translations: list[Translation], present: str, word: int) -> list[OtherWord]:
    """The likeliest translation with each word in that place but the present one."""
    found: dict[str, OtherWord] = {}
    for translation in translations:
        if word < len(translation.words):
            other = translation.words[word]
            probability = math.exp(sum(translation.word_token_scores[word]))
            core = _EDGES.sub("", other)
            if core != _EDGES.sub("", present) and (core not in found or found[core].probability < probability):
                found[core] = OtherWord(word=other, probability=probability, text=one_line(translation.text))
    return sorted(found.values(), key=lambda alternative: -alternative.probability)


async def growing(
    served: Served, sentence: str, symbols: int, aligned: bool = True
) -> AsyncIterator[str | Translation]:
    """The translation of a sentence of so many symbols so far after every symbol, then the whole; made in the model's
    thread, its alignment too if that will be asked for."""
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[str | None] = asyncio.Queue()
    left = threading.Event()

    def work(translator: Translator) -> Translation | None:
        steps = translator.stream(sentence)
        while not left.is_set():
            try:
                part = next(steps)
            except StopIteration as end:
                whole: Translation = end.value
                if aligned:
                    _ = whole.alignment
                return whole
            loop.call_soon_threadsafe(parts.put_nowait, part)
        return None

    task = asyncio.ensure_future(served.aside(work, symbols))
    task.add_done_callback(lambda _: parts.put_nowait(None))
    try:
        while (part := await parts.get()) is not None:
            yield part
        if (whole := await task) is not None:
            yield whole
    finally:
        left.set()
        task.cancel()
