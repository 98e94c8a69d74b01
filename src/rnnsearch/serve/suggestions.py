"""For a translator at work: the rest of a translation, other words for a word, and a translation as it grows."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.alternatives import alternatives
from rnnsearch.serve.registry import About, Search, Served
from rnnsearch.serve.schemas import (
    FAULTS,
    AlternativesAnswer,
    AlternativesRequest,
    CompleteAnswer,
    CompleteRequest,
    Completion,
    OtherWord,
    TranslateAnswer,
)
from rnnsearch.serve.service import Service, Use
from rnnsearch.serve.texts import TextTranslation, one_sentence, require_line
from rnnsearch.text.sentences import sentence_spans
from rnnsearch.translate import Translator
from rnnsearch.translation import Translation, one_line

router = APIRouter(prefix="/v1", tags=["v1"])
_NEXT = re.compile(r"\s*\S*")


@router.post("/complete", responses={200: {"model": CompleteAnswer}, **FAULTS})
async def complete(request: Request, asked: CompleteRequest, service: Use) -> Response:
    """Translations of a sentence that begin as given, letter for letter."""
    about = service.choose(request, [asked.text], asked.model, asked.source, asked.target, [asked.prefix])
    require_line("prefix", asked.prefix)
    search = Search(n_best=asked.n_best, prefixed=True)
    async with service.registry.lease(about) as served:
        sentence = one_sentence(served, asked.text)
        [found] = await service.answer(request, served.translate([sentence], search, [asked.prefix]))
    rests = {one_line(t.text)[len(asked.prefix) :]: t.score for t in reversed(found)}
    rows = [
        Completion(text=asked.prefix + rest, rest=rest, next=_NEXT.findall(rest)[0], score=score)
        for rest, score in reversed(rests.items())
    ]
    return CompleteAnswer(model=about.name, completions=rows).response()


@router.post("/alternatives", responses={200: {"model": AlternativesAnswer}, **FAULTS})
async def other_words(request: Request, asked: AlternativesRequest, service: Use) -> Response:
    """Other words for a word of a translation, each with the rest of the sentence made anew."""
    about = service.choose(request, [asked.text], asked.model, asked.source, asked.target, [asked.translation])
    require_line("translation", asked.translation)
    async with service.registry.lease(about) as served:
        sentence = one_sentence(served, asked.text)
        served.lengths([sentence])
        served.lengths([asked.translation], target=True)

        def work(translator: Translator) -> list[OtherWord]:
            return alternatives(translator, sentence, asked.translation, asked.word, asked.n_best)

        found = await service.answer(request, served.aside(work))
    return AlternativesAnswer(model=about.name, alternatives=found).response()


async def streamed(
    service: Service, about: About, text: str, answer: Callable[[TextTranslation], TranslateAnswer]
) -> AsyncIterator[bytes]:
    """Server-sent events: each sentence's greedy translation after every symbol, and then the whole answer."""
    spans, timeout = sentence_spans(text, about.source), service.settings.timeout
    found: list[list[Translation]] = []
    try:
        async with service.registry.lease(about) as served, asyncio.timeout(timeout):
            served.lengths([text[start:end] for start, end in spans])
            for number, (start, end) in enumerate(spans):
                async for part in _parts(served, text[start:end]):
                    if isinstance(part, str):
                        yield _event({"type": "token", "sentence": number, "text": one_line(part)})
                    else:
                        found.append([part])
        whole = answer(TextTranslation(text, spans, found, about.target))
        yield _event({"type": "done", **whole.model_dump()})
    except TimeoutError:
        yield _event({"type": "error", "error": f"an answer must be ready in {timeout:g} seconds; it was not"})
    except RnnsearchError as error:
        yield _event({"type": "error", "error": str(error)})


async def _parts(served: Served, sentence: str) -> AsyncIterator[str | Translation]:
    """The translation so far after every symbol, then the whole; made in the model's thread."""
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
                return whole
            loop.call_soon_threadsafe(parts.put_nowait, part)
        return None

    task = asyncio.ensure_future(served.aside(work))
    task.add_done_callback(lambda _: parts.put_nowait(None))
    try:
        while (part := await parts.get()) is not None:
            yield part
        if (whole := await task) is not None:
            yield whole
    finally:
        left.set()
        task.cancel()


def _event(row: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(row)}\n\n".encode()
