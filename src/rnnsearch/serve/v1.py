"""Our own API: everything that a model knows of a translation, and help for a translator at work."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from rnnsearch.confidence import warnings
from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.apart import EACH, apart, split
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.registry import NBest, Search
from rnnsearch.serve.schemas import (
    FAULTS,
    About,
    AlternativesAnswer,
    AlternativesRequest,
    Best,
    CompleteAnswer,
    CompleteRequest,
    Completion,
    ModelRow,
    ModelsAnswer,
    Sentence,
    TargetWord,
    TextAnswer,
    TranslateAnswer,
    TranslateRequest,
    Word,
)
from rnnsearch.serve.service import Service, Use
from rnnsearch.serve.suggestions import alternatives, growing
from rnnsearch.serve.texts import TextTranslation, one_sentence, require_line, translate_texts
from rnnsearch.text.glossary import Glossary
from rnnsearch.text.spans import word_spans
from rnnsearch.translation import Translation, one_line

router = APIRouter(prefix="/v1", tags=["v1"])
_NEXT = re.compile(r"\s*\S*")


@router.get("/models")
async def models(service: Use) -> ModelsAnswer:
    """The models served."""
    registry = service.registry
    loaded = {served.about.name for served in registry.loaded}
    rows = [ModelRow(**about.model_dump(), loaded=name in loaded) for name, about in registry.abouts.items()]
    return ModelsAnswer(models=rows)


@router.post("/translate", response_model=TranslateAnswer, responses=FAULTS)
async def translate(request: Request, asked: TranslateRequest, service: Use) -> Response:
    """Translate texts, with alignments and scores."""
    service.check(request, asked.texts)
    about = service.find(asked.texts, asked.model, asked.source, asked.target)

    if asked.min_confidence is not None and not about.calibrated:
        raise ServeError(400, f"min_confidence needs a calibrated model; {about.name} is not")

    def answer(found: list[TextTranslation]) -> TranslateAnswer:
        translations = [text_answer(text, asked.attention, asked.alignment) for text in found]
        return TranslateAnswer(model=about.name, source=about.source, target=about.target, translations=translations)

    async with service.registry.lease(about) as served:
        if asked.stream:
            events = _streamed(service, about, asked, answer)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        search = Search(asked.beam, asked.n_best, aligned=asked.alignment)
        glossary = await apart(Glossary, asked.glossary, size=sum(map(len, asked.glossary)))
        work = translate_texts(served, asked.texts, search, asked.prefixes, glossary=glossary)
        found = await service.answer(request, work)
    if asked.min_confidence is not None:
        found = [replace(text, least=asked.min_confidence) for text in found]
    content = await apart(lambda: answer(found).model_dump_json(), size=_size(found, asked.attention))
    return Response(content, media_type="application/json")


def _size(texts: Sequence[TextTranslation], attention: bool) -> int:
    """Characters and numbers of an answer, and as many as its texts count."""
    every = [t for text in texts for translations in text.found for t in translations]
    cells = sum(t.word_attention.size for t in every if t.word_attention is not None) if attention else 0
    return sum(len(t.source) + len(t.text) for t in every) + cells + EACH * len(texts)


async def _streamed(
    service: Service, about: About, asked: TranslateRequest, answer: Callable[[list[TextTranslation]], TranslateAnswer]
) -> AsyncIterator[bytes]:
    """Server-sent events: each sentence's greedy translation after every symbol, and then the whole answer."""
    timeout = service.settings.timeout
    text, found = asked.texts[0], list[NBest]()
    try:
        async with service.registry.lease(about) as served, asyncio.timeout(timeout):
            [spans] = await split([text], about.source)
            lengths = await served.lengths([text[start:end] for start, end in spans])
            for number, ((start, end), length) in enumerate(zip(spans, lengths, strict=True)):
                async for part in growing(served, text[start:end], length, asked.alignment):
                    if isinstance(part, str):
                        yield _event("token", {"sentence": number, "text": one_line(part)})
                    else:
                        found.append([part])
        yield _event("done", answer([TextTranslation(text, spans, found, about.target)]).model_dump())
    except TimeoutError:
        yield _event("error", {"error": f"an answer must be ready in {timeout:g} seconds; it was not"})
    except RnnsearchError as error:
        yield _event("error", {"error": str(error)})


def _event(kind: str, row: dict[str, Any]) -> bytes:
    return f"data: {json.dumps({'type': kind, **row})}\n\n".encode()


@router.post("/complete", responses=FAULTS)
async def complete(request: Request, asked: CompleteRequest, service: Use) -> CompleteAnswer:
    """Translations of a sentence that begin as given, letter for letter."""
    service.check(request, [asked.text, asked.prefix])
    about = service.find([asked.text], asked.model, asked.source, asked.target)
    require_line("prefix", asked.prefix)
    async with service.registry.lease(about) as served:
        sentence = await one_sentence(served, asked.text)
        search = Search(n_best=asked.n_best)
        [found] = await service.answer(request, served.translate([sentence], search, [asked.prefix]))
    rests = {one_line(t.text)[len(asked.prefix) :]: t.score for t in reversed(found) if not t.blocked}
    rows = [
        Completion(text=asked.prefix + rest, rest=rest, next=_NEXT.findall(rest)[0], score=score)
        for rest, score in reversed(rests.items())
    ]
    return CompleteAnswer(model=about.name, completions=rows)


@router.post("/alternatives", responses=FAULTS)
async def other_words(request: Request, asked: AlternativesRequest, service: Use) -> AlternativesAnswer:
    """Other words for a word of a translation, each with the rest of the sentence made anew."""
    service.check(request, [asked.text, asked.translation])
    about = service.find([asked.text], asked.model, asked.source, asked.target)
    require_line("translation", asked.translation)
    async with service.registry.lease(about) as served:
        sentence = await one_sentence(served, asked.text)
        await served.lengths([sentence])
        [length] = await served.lengths([asked.translation], target=True)
        work = served.aside(
            lambda model: alternatives(model, sentence, asked.translation, asked.word, asked.n_best),
            symbols=length * asked.n_best,
        )
        found = await service.answer(request, work)
    return AlternativesAnswer(model=about.name, alternatives=found)


def text_answer(found: TextTranslation, attention: bool, alignment: bool = True) -> TextAnswer:
    """A text's translation, as it is sent."""
    sentences = [
        Sentence(
            source=found.source[start:end],
            start=start,
            end=end,
            best=[_best(t, attention, alignment) for t in translations],
        )
        for (start, end), translations in zip(found.spans, found.found, strict=True)
    ]
    text, target_spans = found.joined()
    return TextAnswer(text=text, sentences=sentences, target_spans=target_spans)


def _best(t: Translation, attention: bool, alignment: bool) -> Best:
    return Best(
        text=one_line(t.text),
        source_words=[Word(**place) for place in _words(t.source)],
        words=[
            TargetWord(**place, score=round(sum(scores), 6), probability=round(p, 6), replaced=by, confidence=sure)
            for place, scores, p, by, sure in zip(
                _words(t.text),
                t.word_token_scores,
                t.word_probabilities,
                t.word_replaced,
                t.word_confidence or [None] * len(t.words),
                strict=True,
            )
        ],
        confidence=t.confidence,
        warnings=list(warnings(t)),
        attention=t.plain("word_attention")["word_attention"] if attention else None,
        alignment=list(t.alignment) if alignment else [],
        **t.plain("score", "log_prob", "finished", "tokens", "token_scores"),
    )


def _words(text: str) -> list[dict[str, Any]]:
    return [{"text": text[a:b], "start": a, "end": b} for a, b in word_spans(text)]
