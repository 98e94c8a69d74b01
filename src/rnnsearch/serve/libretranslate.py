"""LibreTranslate's API, for its existing clients. Bodies may be JSON, forms or multipart.

Unlike LibreTranslate's, `q` may be a list. Unknown fields are ignored, because clients send more than is needed. With
`format=html`, `HtmlDocument` separates the text to translate from tags.

`app` includes the router. Fields, status codes and messages follow LibreTranslate's, for its clients;
`runtime/serve.py` has the same routes. Tests: `tests/serve/test_libretranslate.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile

from rnnsearch.serve.limits import ServeError, run_in_thread, text_size
from rnnsearch.serve.registry import BatchOptions
from rnnsearch.serve.schemas import ERROR_RESPONSES, MAX_BEAM
from rnnsearch.serve.service import AUTO, Service, UseService
from rnnsearch.serve.texts import translate_texts
from rnnsearch.text.alignments import Link
from rnnsearch.text.documents import FORMATS
from rnnsearch.text.languages import detect as detect_language
from rnnsearch.text.languages import language_name
from rnnsearch.text.markup.html_document import HtmlDocument
from rnnsearch.translator.texts import TextTranslation

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

router = APIRouter(tags=["LibreTranslate"])
Body = TypeVar("Body", bound=BaseModel)


class TranslateBody(BaseModel):
    """`POST /translate`"""

    q: str | list[str] = Field(description="A text, or a list of texts.")
    source: str = Field(AUTO, description="Language code of the source, or auto.")
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, lt=MAX_BEAM)] = Field(
        0, description="Number of translations in addition to the best one."
    )
    api_key: str | None = None


class DetectBody(BaseModel):
    """`POST /detect`"""

    q: str
    api_key: str | None = None


class SuggestBody(BaseModel):
    """`POST /suggest`"""

    q: str
    s: str
    source: str
    target: str
    api_key: str | None = None


def _document_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the entry in the OpenAPI document for a body that may be JSON or a form."""
    schema = {"schema": model.model_json_schema()}
    return {"requestBody": {"required": True, "content": dict.fromkeys((JSON, FORM), schema)}}


async def read_body(request: Request, model: type[Body]) -> Body:
    """Return the body of a request.

    Raises:
        ServeError: With status 400 if the body is neither JSON nor a form.
        ValidationError: It has other fields than the model.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == FORM and (await request.body()).lstrip().startswith(b"{"):
        content_type = JSON  # `curl -d` declares JSON as a form
    if content_type in (FORM, MULTIPART):
        return model.model_validate(await _read_form(request))
    try:
        fields = json.loads(await request.body())
    except (ValueError, RecursionError) as error:  # among them UnicodeDecodeError
        raise ServeError(400, f"the body must be JSON or a form; got {error}") from None
    return model.model_validate(fields)


async def _read_form(request: Request) -> dict[str, Any]:
    """Return the fields of a form; a field that occurs several times is a list."""
    form = await request.form()
    fields: dict[str, Any] = {}
    for name in form:
        values = [value for value in form.getlist(name) if not isinstance(value, UploadFile)]
        fields[name] = values[0] if len(values) == 1 else values
    return fields


@router.post("/translate", openapi_extra=_document_body(TranslateBody), responses=ERROR_RESPONSES)
async def translate(request: Request, service: UseService) -> Response:
    """Translate a text, or a list of texts."""
    body = await read_body(request, TranslateBody)
    texts = [body.q] if isinstance(body.q, str) else body.q
    service.check_request(request, texts, body.api_key)
    info = service.find_model(texts, None, body.source, body.target)
    documents: list[HtmlDocument] | None = None
    plain_texts = texts
    if body.format == "html":
        documents = await run_in_thread(_parse_html, texts, size=text_size(texts))
        plain_texts = list(chain.from_iterable(document.texts for document in documents))
    needs_links = any(document.has_inline_tags for document in documents or ())
    options = BatchOptions(n_best=body.alternatives + 1, align=needs_links)
    async with service.registry.lease(info) as model:
        results = await service.run(request, translate_texts(model, plain_texts, options))
    size = text_size(texts) * (body.alternatives + 1)
    return await run_in_thread(_translate_response, service, body, texts, results, documents, size=size)


def _parse_html(texts: Sequence[str]) -> list[HtmlDocument]:
    return [HtmlDocument(text) for text in texts]


def _translate_response(
    service: Service,
    body: TranslateBody,
    texts: list[str],
    results: list[TextTranslation],
    documents: list[HtmlDocument] | None,
) -> JSONResponse:
    """Return the response to `POST /translate`."""
    best, *alternatives_by_rank = [_texts_at_rank(results, documents, rank) for rank in range(body.alternatives + 1)]
    columns: dict[str, list[Any]] = {"translatedText": best}
    if body.source == AUTO:
        columns["detectedLanguage"] = [_rank_languages(service, text)[0] for text in texts]
    if body.alternatives:
        columns["alternatives"] = []
        for index, text in enumerate(best):
            others = [translations[index] for translations in alternatives_by_rank]
            # Sentences with fewer translations repeat their last one, so equal texts are dropped.
            columns["alternatives"].append([other for other in dict.fromkeys(others) if other != text])
    # A single text gets single values, as LibreTranslate's clients expect.
    if isinstance(body.q, str):
        return JSONResponse({name: values[0] for name, values in columns.items()})
    return JSONResponse(columns)


def _texts_at_rank(results: list[TextTranslation], documents: list[HtmlDocument] | None, rank: int) -> list[str]:
    """Return the texts or HTML documents that consist of the translations at a rank (see `TextTranslation.joined`)."""
    if documents is None:
        return [result.text(rank) for result in results]
    remaining = iter(results)
    translated = []
    for document in documents:
        translations: list[tuple[str, list[Link]]] = []
        for _ in document.texts:
            result = next(remaining)
            links = result.links(rank) if document.has_inline_tags else []
            translations.append((result.text(rank), links))
        translated.append(document.filled(translations))
    return translated


def _rank_languages(service: Service, text: str) -> list[dict[str, Any]]:
    """Return the served source languages, the likeliest one of a text first."""
    ranked = detect_language(text, service.source_languages())
    return [{"language": code, "confidence": round(100 * probability, 1)} for code, probability in ranked]


@router.post("/detect", openapi_extra=_document_body(DetectBody), responses=ERROR_RESPONSES)
async def detect(request: Request, service: UseService) -> Response:
    """Detect the language of a text, among the source languages served here."""
    body = await read_body(request, DetectBody)
    service.check_request(request, [body.q], body.api_key)
    return JSONResponse(_rank_languages(service, body.q))


@router.get("/languages")
async def languages(service: UseService) -> Response:
    """List the languages, and the target languages of each."""
    models = list(service.registry.models.values())
    codes = dict.fromkeys([info.source for info in models] + [info.target for info in models])
    rows = []
    for code in codes:
        targets = dict.fromkeys(info.target for info in models if info.source == code)
        rows.append({"code": code, "name": language_name(code), "targets": list(targets)})
    return JSONResponse(rows)


@router.get("/health")
async def health() -> Response:
    """Report that the server is running."""
    return JSONResponse({"status": "ok"})


@router.post("/suggest", openapi_extra=_document_body(SuggestBody), responses=ERROR_RESPONSES)
async def suggest(request: Request, service: UseService) -> Response:
    """Save a better translation from a user, if the server accepts suggestions."""
    body = await read_body(request, SuggestBody)
    service.check_request(request, [body.q, body.s], body.api_key)
    # Called for its check; the model is not needed.
    service.find_model([body.q], None, body.source, body.target)
    await service.save_suggestion(body.model_dump(include={"q", "s", "source", "target"}))
    return JSONResponse({"success": True})


@router.get("/frontend/settings")
async def frontend_settings(service: UseService) -> Response:
    """Return the settings that LibreTranslate's clients ask for."""
    info = service.registry.find()
    return JSONResponse(
        {
            "apiKeys": bool(service.settings.api_keys),
            "keyRequired": bool(service.settings.api_keys),
            "charLimit": service.settings.max_characters,
            "frontendTimeout": 500,
            "language": {
                "source": {"code": info.source, "name": info.source_name},
                "target": {"code": info.target, "name": info.target_name},
            },
            "filesTranslation": True,
            "supportedFilesFormat": list(FORMATS),
            "suggestions": service.settings.suggestions is not None,
        }
    )
