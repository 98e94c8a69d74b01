"""The detailed API: translations with scores and alignments, help for translators at work, and file translation.

`app` includes `router` and `files_router`. Requests and responses are declared in `schemas`; docstrings of routes are
their descriptions in the OpenAPI document. The translation page (`page/`) and docs/serving.md use these routes. Large
responses are built in a thread (`limits.run_in_thread`).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel
from pydantic_core import to_json

from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.files import FileJob
from rnnsearch.serve.limits import ServeError, run_in_thread
from rnnsearch.serve.output_size import OutputFields, check_output, check_response
from rnnsearch.serve.pivot import require_no_glossary
from rnnsearch.serve.schemas import (
    ERROR_RESPONSES,
    AlternativesRequest,
    AlternativesResponse,
    CompleteRequest,
    CompleteResponse,
    Completion,
    ErrorResponse,
    FileStatus,
    ModelInfo,
    ModelsResponse,
    ModelStatus,
    Sentence,
    SentenceTranslation,
    SimultaneousRequest,
    SimultaneousResponse,
    SourceSide,
    TargetWord,
    TranslatedText,
    TranslateRequest,
    TranslateResponse,
    Word,
    WordAlternative,
)
from rnnsearch.serve.served_model import BatchOptions, RequestOptions, ServedModel, Translations
from rnnsearch.serve.service import Service, UseService, client_address, public_address
from rnnsearch.serve.simultaneous import check_text, translate_arriving
from rnnsearch.serve.texts import require_line, require_one_sentence
from rnnsearch.serve.translation_service import AUTO, Direction, TextResult, TranslationTask
from rnnsearch.text.alignments import word_spans
from rnnsearch.text.several_sources import shown_text
from rnnsearch.text.terms import Forms, Glossary, TermMatch
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.confidence import unknown_rate, warnings
from rnnsearch.translator.texts import TextTranslation
from rnnsearch.translator.translation import Translation, one_line
from rnnsearch.translator.translator import Translator

# Some alternatives lead to the current word, or to the same word, so a few more are searched for.
EXTRA_ALTERNATIVES = 3

router = APIRouter(prefix="/v1", tags=["v1"])
files_router = APIRouter()  # file translation, of this API and of LibreTranslate's

_FIRST_WORD = re.compile(r"\s*\S*")
_PUNCTUATION_AT_ENDS = re.compile(r"^\W+|\W+$")


@router.get("/models")
async def models(service: UseService) -> ModelsResponse:
    """List the models."""
    registry = service.registry
    rows = []
    for name, info in registry.models.items():
        rows.append(ModelStatus(**info.model_dump(), loaded=registry.is_loaded(name)))
    return ModelsResponse(models=rows)


# Translation.


@router.post("/translate", response_model=TranslateResponse, responses=ERROR_RESPONSES)
async def translate(request: Request, body: TranslateRequest, service: UseService) -> Response:
    """Translate texts, with alignments and scores."""
    service.check_request(request, body.texts, prefixes=body.prefixes or ())
    if body.has_several_sources:
        return await _translate_several(request, body, service)
    glossary = await run_in_thread(Glossary, body.glossary, size=sum(map(len, body.glossary)))
    task = TranslationTask(
        body.texts,
        body.source,
        body.target,
        body.model,
        beam=body.beam,
        n_best=body.n_best,
        align=body.alignment,
        prefixes=body.prefixes,
        glossary=glossary,
        protect=body.protected_types,
        fields=_output_fields(body),
    )
    directions = await service.choose_models(request, task)
    for info in dict.fromkeys(direction.model for direction in directions):
        _require_calibrated(body, info)
        require_no_glossary(info, glossary)
    if body.stream:
        # The lease is taken before streaming starts, so that a model that cannot be loaded is an ordinary error.
        async with service.registry.lease(directions[0].model):
            events = _stream_events(service, directions[0], body, glossary, client_address(request))
            return StreamingResponse(events, 200, {"cache-control": "no-store"}, "text/event-stream")
    results = await service.translate(request, task, directions)
    # A request without texts gets an answer, too.
    info = directions[0].model if directions else await service.find_model("", body.model, body.source, body.target)
    return await _response(request, body, service, info, results)


def _require_calibrated(body: TranslateRequest, info: ModelInfo) -> None:
    """Raise ServeError with status 400 if a request needs confidences and the model is not calibrated."""
    if body.min_confidence is not None and not info.calibrated:
        raise ServeError(400, f"min_confidence needs a calibrated model; {info.name} is not calibrated")


async def _response(
    request: Request, body: TranslateRequest, service: Service, info: ModelInfo, results: Sequence[TextResult]
) -> Response:
    """Return the response of `POST /v1/translate`; `info` is the model of the first text."""
    size = check_response(_all_translations(results), _output_fields(body))
    content = await service.build_response(
        request, lambda: b"".join(json_parts(_translate_response(info, body, results))), size
    )
    return Response(content, media_type="application/json")


async def _translate_several(request: Request, body: TranslateRequest, service: Service) -> Response:
    """Return the response to a request whose texts are sentences in several languages."""
    info = service.registry.find(body.model, None if body.source == AUTO else body.source, body.target)
    if not info.sources:
        raise ServeError(400, f"each text must be a string, because the model {info.name} has one source; got several")
    _require_calibrated(body, info)
    options = BatchOptions(body.beam, body.n_best, body.alignment)
    async with service.registry.lease(info) as model:
        assert isinstance(model, ServedModel)  # a direction through a third language has one source
        work = model.translate_several(body.source_texts, options, _output_fields(body), client_address(request))
        n_best_lists = await service.run(request, work)
    service.num_characters += sum(map(len, body.texts))
    results = []
    for sentence, n_best in zip(body.source_texts, n_best_lists, strict=True):
        text = shown_text(sentence)
        results.append(TextResult(text, info, None, [TextTranslation(text, [(0, len(text))], [n_best], info.target)]))
    return await _response(request, body, service, info, results)


async def _stream_events(
    service: Service, direction: Direction, body: TranslateRequest, glossary: Glossary, client: str
) -> AsyncIterator[bytes]:
    """Yield server-sent events: each sentence's greedy translation after every token, then the whole response.

    Only the response contains the terms of the glossary, if the model does not read them.
    """
    timeout = service.settings.timeout
    text = body.texts[0]
    info = direction.model
    n_best: list[Translations] = []
    try:
        async with service.registry.lease(info) as model, asyncio.timeout(timeout):
            [spans] = await model.split([text], client)
            sentences = [text[start:end] for start, end in spans]
            step = await model.last_step(sentences, body.protected_types, body.alignment)
            writer = step.model
            model_texts, terms = await writer.find_terms(step.sentences, glossary)
            sources = await writer.segment(model_texts, body.protected_types)
            lengths = [len(source.ids) for source in sources]
            check_output(lengths, [0] * len(lengths), writer.translator.options(beam=1), _output_fields(body))
            order = writer.translator.document_order()
            for index, source in enumerate(sources):
                # The second model of a pivot reads no previous sentences.
                waves = order.waves([source], [0 if step.intermediates is None else index])
                _, [in_context] = next(waves)
                async for part in stream_sentence(writer, in_context, body.alignment, terms[index], client):
                    if isinstance(part, str):
                        yield _event("token", {"sentence": index, "text": one_line(part)})
                    else:
                        n_best.append([step.translation(index, part)])
                        with suppress(StopIteration):
                            waves.send([part.text])
            parts = [TextTranslation(text, spans, n_best, info.target)]
            result = TextResult(text, info, direction.detected, parts)
            size = check_response(_all_translations([result]), _output_fields(body))
            done = await run_in_thread(
                lambda: _event("done", _translate_response(info, body, [result]).model_dump()), size=size
            )
        yield done
    except TimeoutError:
        yield _event("error", {"error": f"the result must be ready within {timeout:g} seconds; it was not"})
    except RnnsearchError as error:
        yield _event("error", {"error": str(error)})


def _event(type: str, fields: dict[str, Any]) -> bytes:
    return f"data: {json.dumps({'type': type, **fields})}\n\n".encode()


async def stream_sentence(
    model: ServedModel, source: Segmented, align: bool, terms: Sequence[TermMatch[Forms]] = (), client: str = ""
) -> AsyncIterator[str | Translation]:
    """Yield the greedy translation of a sentence so far after every token, then the whole translation.

    Args:
        model: The model, in one of whose threads the translation is made.
        source: The sentence.
        align: True if alignments will be needed.
        terms: Terms to be placed in the translation.
        client: Identity of the client.
    """
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[str | None] = asyncio.Queue()
    is_cancelled = threading.Event()

    def translate(translator: Translator) -> Translation | None:
        steps = translator.stream(source)
        while not is_cancelled.is_set():
            try:
                part = next(steps)
            except StopIteration as end:
                translation: Translation = end.value
                if terms:
                    [[translation]] = translator.place_terms([source], [terms], [[translation]], translator.options(1))
                if align:
                    # Computed in this thread; the event loop then reads the cached links.
                    _ = translation.alignment
                return translation
            # Queues of asyncio are not thread-safe.
            loop.call_soon_threadsafe(parts.put_nowait, part)
        return None

    task = asyncio.ensure_future(model.call(translate, len(source.spelled_ids), client))
    # None ends the loop below, also if the task has failed.
    task.add_done_callback(lambda _: parts.put_nowait(None))
    try:
        while (part := await parts.get()) is not None:
            yield part
        if (translation := await task) is not None:
            yield translation
    finally:
        # Cancelling the task does not stop its thread, which checks this flag before every token.
        is_cancelled.set()
        task.cancel()


def _output_fields(body: TranslateRequest) -> OutputFields:
    return OutputFields(words=True, attention=body.attention)


def _all_translations(results: Sequence[TextResult]) -> Iterator[Translation]:
    for part in chain.from_iterable(result.parts for result in results):
        yield from chain.from_iterable(part.n_best)


def _translate_response(info: ModelInfo, body: TranslateRequest, results: Sequence[TextResult]) -> TranslateResponse:
    translations = []
    for result in results:
        [part] = result.parts
        if body.min_confidence is not None:
            part = replace(part, min_confidence=body.min_confidence)
        text = translated_text(part, body.attention, body.alignment)
        text.model = result.model.name
        text.language = result.model.source
        text.language_confidence = None if result.detected is None else round(result.detected.confidence, 4)
        translations.append(text)
    return TranslateResponse(model=info.name, source=info.source, target=info.target, translations=translations)


def json_parts(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a response in parts: while one is written, no other thread can run."""
    if isinstance(value, TranslateResponse | TranslatedText | Sentence):
        for position, name in enumerate(type(value).model_fields):
            yield b'%s"%s":' % (b"," if position else b"{", name.encode())
            yield from json_parts(getattr(value, name))
        yield b"}"
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for position, item in enumerate(value):
            yield b"," if position else b"["
            yield from json_parts(item)
        yield b"]"
    else:
        yield to_json(value)


def translated_text(result: TextTranslation, attention: bool, alignment: bool = True) -> TranslatedText:
    """Return the translation of a text as sent to clients.

    Args:
        result: The translation.
        attention: True if the attention weights are sent.
        alignment: True if the word alignments are sent.
    """
    sentences = []
    for (start, end), translations in zip(result.spans, result.n_best, strict=True):
        # The words of the source are the same for all, except after substitution of protected text.
        source_words = {text: _words(text) for text in {translation.source for translation in translations}}
        best = []
        for translation in translations:
            words = source_words[translation.source]
            best.append(_sentence_translation(translation, words, attention, alignment))
        sentences.append(Sentence(source=result.source[start:end], start=start, end=end, best=best))
    text, target_spans = result.joined()
    return TranslatedText(text=text, sentences=sentences, target_spans=target_spans)


def _sentence_translation(
    translation: Translation, source_words: list[Word], attention: bool, alignment: bool
) -> SentenceTranslation:
    return SentenceTranslation(
        text=one_line(translation.text),
        source_words=source_words,
        words=_target_words(translation),
        confidence=translation.confidence,
        warnings=list(warnings(translation)),
        missing_terms=list(translation.missing_terms),
        unknown=round(unknown_rate(translation), 4),
        attention=translation.json_values("word_attention")["word_attention"] if attention else None,
        alignment=list(translation.alignment) if alignment else [],
        pivot=translation.pivot,
        sources=_source_sides(translation, alignment) if translation.sources else None,
        **translation.json_values("score", "log_prob", "finished", "tokens", "token_scores"),
    )


def _source_sides(translation: Translation, alignment: bool) -> dict[str, SourceSide]:
    """Return the sources of a translation by a model with several."""
    sides = {}
    for name, attention in translation.sources.items():
        text = attention.source.text
        sides[name] = SourceSide(
            text=text, words=_words(text), alignment=list(attention.word_links) if alignment else []
        )
    return sides


def _target_words(translation: Translation) -> list[TargetWord]:
    words = []
    columns = zip(
        _word_positions(translation.text),
        translation.word_token_scores,
        translation.word_probabilities,
        translation.word_replaced,
        translation.word_confidence or [None] * len(translation.words),
        strict=True,
    )
    for position, token_scores, probability, replaced, confidence in columns:
        score = round(sum(token_scores), 6)
        words.append(
            TargetWord(
                **position,
                score=score,
                probability=round(probability, 6),
                replaced=replaced,
                confidence=confidence,
            )
        )
    return words


def _words(text: str) -> list[Word]:
    return [Word(**position) for position in _word_positions(text)]


def _word_positions(text: str) -> list[dict[str, Any]]:
    return [{"text": text[start:end], "start": start, "end": end} for start, end in word_spans(text)]


# Simultaneous translation.


@router.post("/simultaneous", responses=ERROR_RESPONSES)
async def simultaneous(request: Request, body: SimultaneousRequest, service: UseService) -> SimultaneousResponse:
    """Translate a text that is still being written, as far as later words cannot change the translation.

    Search is greedy. Only models of which `/v1/models` says `simultaneous` can do this.
    """
    service.check_request(request, [body.text])
    info = service.registry.find(body.model, body.source, body.target)
    check_text(info, body.text)
    async with service.registry.lease(info) as model:
        assert isinstance(model, ServedModel), "`check_text` rejects pivots"
        work = translate_arriving(model, body.text, body.complete, client_address(request))
        arriving = await service.run(request, work)
    return SimultaneousResponse(
        model=info.name,
        source=info.source,
        target=info.target,
        text=arriving.translation,
        sentences=arriving.sentences,
    )


# Help for translators at work.


@router.post("/complete", responses=ERROR_RESPONSES)
async def complete(request: Request, body: CompleteRequest, service: UseService) -> CompleteResponse:
    """Continue a translation exactly from its prefix."""
    service.check_request(request, [body.text, body.prefix])
    info = await service.find_model(body.text, body.model, body.source, body.target)
    require_line("prefix", body.prefix)
    async with service.registry.lease(info) as model:
        client = client_address(request)
        sentence = await require_one_sentence(model, body.text, client)
        options = RequestOptions(BatchOptions(n_best=body.n_best), client=client)
        [translations] = await service.run(request, model.translate([sentence], options, [body.prefix]))
    completions: dict[str, Completion] = {}
    for translation in translations:
        rest = one_line(translation.text)[len(body.prefix) :]
        if translation.blocked or rest in completions:  # of equal texts, the best comes first
            continue
        next_word = _FIRST_WORD.findall(rest)[0]
        completions[rest] = Completion(text=body.prefix + rest, rest=rest, next=next_word, score=translation.score)
    return CompleteResponse(model=info.name, completions=list(completions.values()))


@router.post("/alternatives", responses=ERROR_RESPONSES)
async def word_alternatives(request: Request, body: AlternativesRequest, service: UseService) -> AlternativesResponse:
    """List other choices for a word of a translation, each with a new translation of what follows it."""
    service.check_request(request, [body.text, body.translation])
    info = await service.find_model(body.text, body.model, body.source, body.target)
    require_line("translation", body.translation)
    async with service.registry.lease(info) as model:
        client = client_address(request)
        sentence = await require_one_sentence(model, body.text, client)
        step = await service.run(request, model.last_step([sentence]))
        writer = step.model
        [source] = await writer.segment(step.sentences)
        [num_target_tokens] = await writer.count_target_tokens([body.translation])
        work = writer.call(
            lambda translator: find_alternatives(translator, source, body.translation, body.word, body.n_best),
            num_tokens=num_target_tokens * body.n_best,
            client=client,
        )
        alternatives = await service.run(request, work)
    return AlternativesResponse(model=info.name, alternatives=alternatives)


def find_alternatives(
    translator: Translator, source: Segmented, target: str, word: int, n_best: int
) -> list[WordAlternative]:
    """Return other choices for a word of a translation, the likeliest first, each with a different core.

    The words before it are kept; what follows is translated again.

    Args:
        translator: The model.
        source: The source sentence.
        target: Its translation.
        word: Index of the word, from 0.
        n_best: Maximum number of alternatives.

    Raises:
        RnnsearchError: The translation has no such word, or the source is empty.
    """
    spans = word_spans(target)
    if not 0 <= word < len(spans):
        raise RnnsearchError(f"word must be one of the translation's {len(spans)} (from 0); got {word}")
    if not source.text.strip():
        raise RnnsearchError("the text must not be empty")
    start, end = spans[word]
    text_before = target[:start]
    text_by_token = _word_starting_tokens(translator)
    first_tokens = translator.likeliest_tokens(source, text_before, list(text_by_token), n_best + EXTRA_ALTERNATIVES)
    first_words = [text_by_token[token] for token in first_tokens]
    if source.case == "upper":
        first_words = [first_word.upper() for first_word in first_words]
    prefixes = [text_before + first_word for first_word in first_words]
    n_best_lists = translator.n_best(
        [source] * len(prefixes), translator.options(), batch_sentences=len(prefixes), prefixes=prefixes
    )
    translations = [translations[0] for translations in n_best_lists]
    return _distinct_alternatives(translations, word, current_word=target[start:end])[:n_best]


def _word_starting_tokens(translator: Translator) -> dict[int, str]:
    """Return the tokens that can start a word, with their characters without the space."""
    text_by_token = {}
    for token, spelling in enumerate(translator.target.token_bytes()):
        # Tokens of incomplete characters cannot start a prefix.
        text = spelling.decode(errors="ignore")
        if text.startswith(" ") and text != " " and token not in translator.target.unknown_ids:
            text_by_token[token] = text[1:]
    return text_by_token


def _distinct_alternatives(translations: Sequence[Translation], word: int, current_word: str) -> list[WordAlternative]:
    """Return the likeliest translation with each word in a position, except the current word, likeliest first."""
    best_by_core: dict[str, WordAlternative] = {}
    current_core = _core(current_word)
    for translation in translations:
        if word >= len(translation.words):
            continue
        other_word = translation.words[word]
        core = _core(other_word)
        probability = math.exp(sum(translation.word_token_scores[word]))
        is_better = core not in best_by_core or best_by_core[core].probability < probability
        if core != current_core and is_better:
            text = one_line(translation.text)
            best_by_core[core] = WordAlternative(word=other_word, probability=probability, text=text)
    return sorted(best_by_core.values(), key=lambda alternative: -alternative.probability)


def _core(word: str) -> str:
    """Return a word without the punctuation at its ends."""
    return _PUNCTUATION_AT_ENDS.sub("", word)


# File translation.

_RESULT_RESPONSE: dict[int | str, dict[str, object]] = {200: {"content": {"application/octet-stream": {}}}}
_UNKNOWN_FILE: dict[int | str, dict[str, object]] = {
    404: {"model": ErrorResponse, "description": "There is no such file."}
}
OptionalField = Annotated[str | None, Form()]


@files_router.post("/v1/files", status_code=202, responses=ERROR_RESPONSES, tags=["v1"])
async def add_file(
    request: Request,
    service: UseService,
    file: UploadFile,
    source: OptionalField = None,
    target: OptionalField = None,
    model: OptionalField = None,
) -> FileStatus:
    """Translate a file (.txt, .tsv, .tmx, .po, .xliff, .html, .srt, .vtt) in the background."""
    client = service.client(request)
    job = await _add_file(request, service, client, file, service.candidate_models(model, source, target))
    return job.status()


@files_router.get("/v1/files/{id}", responses=_UNKNOWN_FILE, tags=["v1"])
async def file_status(id: str, service: UseService) -> FileStatus:
    """Return the progress of a file."""
    return service.files.get(id).status()


@files_router.get("/v1/files/{id}/result", responses={**_RESULT_RESPONSE, **_UNKNOWN_FILE}, tags=["v1"])
async def file_result(id: str, service: UseService) -> Response:
    """Return the translated file."""
    job = service.files.get(id)
    if job.result is None:
        raise ServeError(404, f"the file must be done before it can be fetched; it is {job.state}")
    job.is_fetched = True
    # RFC 5987 encoding: file names of clients may contain quotes, line ends or any script.
    disposition = f"attachment; filename*=UTF-8''{quote(job.result_name, safe='', errors='replace')}"
    # Always a download: a browser must not show a user's file as a page of this server.
    headers = {"content-disposition": disposition, "x-content-type-options": "nosniff"}
    return Response(job.result, headers=headers, media_type="application/octet-stream")


@files_router.delete("/v1/files/{id}", status_code=204, responses=_UNKNOWN_FILE, tags=["v1"])
async def remove_file(id: str, service: UseService) -> Response:
    """Cancel the translation of a file, and forget it."""
    service.files.remove(id)
    return Response(status_code=204)


@files_router.post("/translate_file", responses=ERROR_RESPONSES, tags=["LibreTranslate"])
async def translate_file(
    request: Request,
    service: UseService,
    file: UploadFile,
    target: Annotated[str, Form()],
    source: Annotated[str, Form()] = AUTO,
    api_key: OptionalField = None,
) -> dict[str, str]:
    """Translate a file, and return the address of the result when it is done."""
    client = service.client(request, api_key)
    job = await _add_file(request, service, client, file, service.candidate_models(None, source, target))
    await service.run(request, job.task, patient=True)
    if job.error is not None:
        raise ServeError(400, job.error)
    path = request.url_for("file_result", id=job.id).path
    return {"translatedFileUrl": f"{public_address(request, service.settings.allowed_hosts)}{path}"}


async def _add_file(
    request: Request, service: Service, client: str, file: UploadFile, candidate_models: Sequence[ModelInfo]
) -> FileJob:
    content = await file.read()
    job = service.files.add(file.filename or "", content, candidate_models, client)
    # A large file may have to wait for its turn to be read; that ends when its client disconnects.
    return await service.run(request, job, patient=True)
