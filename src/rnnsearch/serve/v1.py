"""Our own API: everything that a model knows of a translation, and help for a translator at work."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import Response, StreamingResponse

from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.files import FileJob
from rnnsearch.serve.limits import EACH, ServeError, apart, split
from rnnsearch.serve.registry import NBest, Search, Served
from rnnsearch.serve.schemas import (
    FAULTS,
    About,
    AlternativesAnswer,
    AlternativesRequest,
    Best,
    CompleteAnswer,
    CompleteRequest,
    Completion,
    Fault,
    FileReport,
    ModelRow,
    ModelsAnswer,
    OtherWord,
    Sentence,
    TargetWord,
    TextAnswer,
    TranslateAnswer,
    TranslateRequest,
    Word,
)
from rnnsearch.serve.service import AUTO, Service, Use
from rnnsearch.serve.texts import TextTranslation, one_sentence, require_line, translate_texts
from rnnsearch.text.alignments import word_spans
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.confidence import warnings
from rnnsearch.translator.translation import Translation, one_line
from rnnsearch.translator.translator import Translator

# The routes of file translation: ours and LibreTranslate's.

files_router = APIRouter()
_RESULT: dict[int | str, dict[str, object]] = {200: {"content": {"application/octet-stream": {}}}}
_UNKNOWN: dict[int | str, dict[str, object]] = {404: {"model": Fault, "description": "There is no such file."}}
Optional = Annotated[str | None, Form()]


@files_router.post("/v1/files", status_code=202, response_model=FileReport, responses=FAULTS, tags=["v1"])
async def send(
    request: Request, service: Use, file: UploadFile, source: Optional = None, target: Optional = None,
    model: Optional = None,
) -> FileJob:  # fmt: skip
    """Translate a file (.txt, .tsv, .tmx, .po) in the background."""
    service.check_key(request)
    return await _add(service, file, service.candidates(model, source, target))


@files_router.get("/v1/files/{id}", response_model=FileReport, responses=_UNKNOWN, tags=["v1"])
async def report(id: str, service: Use) -> FileJob:
    """How far a file is."""
    return service.files.get(id)


@files_router.get("/v1/files/{id}/result", responses={**_RESULT, **_UNKNOWN}, tags=["v1"])
async def result(id: str, service: Use) -> Response:
    """The translated file."""
    job = service.files.get(id)
    if job.result is None:
        raise ServeError(404, f"the file must be done to be fetched; it is {job.state}")
    job.fetched = True
    named = f"attachment; filename*=UTF-8''{quote(job.result_name, safe='', errors='replace')}"
    headers = {"content-disposition": named, "x-content-type-options": "nosniff"}
    return Response(job.result, headers=headers, media_type="application/octet-stream")


@files_router.delete("/v1/files/{id}", status_code=204, responses=_UNKNOWN, tags=["v1"])
async def remove(id: str, service: Use) -> Response:
    """Stop the translation of a file, and forget it."""
    service.files.remove(id)
    return Response(status_code=204)


@files_router.post("/translate_file", responses=FAULTS, tags=["LibreTranslate"])
async def translate_file(
    request: Request, service: Use, file: UploadFile, target: Annotated[str, Form()],
    source: Annotated[str, Form()] = AUTO, api_key: Optional = None,
) -> dict[str, str]:  # fmt: skip
    """Translate a file and say where the translation is; the answer comes when it is done."""
    service.check_key(request, api_key)
    job = await _add(service, file, service.candidates(None, source, target))
    await service.answer(request, job.task, patient=True)
    if job.error is not None:
        raise ServeError(400, job.error)
    return {"translatedFileUrl": str(request.url_for("result", id=job.id))}


async def _add(service: Service, file: UploadFile, abouts: Sequence[About]) -> FileJob:
    return await service.files.add(file.filename or "", await file.read(), abouts)


# For a translator at work: other words in a word's place, and a translation as it grows.

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
