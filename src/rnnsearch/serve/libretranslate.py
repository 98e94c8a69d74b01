"""LibreTranslate's API, for its existing clients. Fields may be in the query or in a JSON, form or multipart body.

Unknown fields are ignored, because clients send more than is needed.

`app` includes the router. Fields, status codes and messages follow LibreTranslate's, for its clients;
`runtime/serve.py` has the same routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field, model_validator

from rnnsearch.serve import apertium
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.request_fields import document_body, read_body, read_fields, to_model
from rnnsearch.serve.schemas import ERROR_RESPONSES, MAX_BEAM
from rnnsearch.serve.service import UseService
from rnnsearch.serve.translation_service import (
    AUTO,
    DetectedLanguage,
    TextResult,
    TranslationTask,
    default_language,
)
from rnnsearch.text.documents import FORMATS
from rnnsearch.text.languages import detect as detect_language
from rnnsearch.text.languages import language_name

router = APIRouter(tags=["LibreTranslate"])


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

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, fields: Any) -> Any:
        """Return the fields without optional ones that a client sends without a value."""
        optional = ("source", "format", "alternatives", "api_key")
        return {name: value for name, value in fields.items() if not (value == "" and name in optional)}


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


@router.post("/translate", openapi_extra=document_body(TranslateBody), responses=ERROR_RESPONSES)
async def translate(request: Request, service: UseService) -> Response:
    """Translate a text, or a list of texts."""
    fields = await read_fields(request)
    if apertium.LANGPAIR in fields:
        return await apertium.translate(request, service, fields)
    body = to_model(fields, TranslateBody)
    texts = [body.q] if isinstance(body.q, str) else body.q
    service.check_request(request, texts, body.api_key)
    n_best = body.alternatives + 1
    task = TranslationTask(texts, body.source, body.target, format=body.format, n_best=n_best)
    results = await service.translate(request, task)
    return await service.build_response(request, lambda: _translate_response(body, results), task.size)


def _translate_response(body: TranslateBody, results: Sequence[TextResult]) -> JSONResponse:
    """Return the response to `POST /translate`."""
    best = [result.text() for result in results]
    columns: dict[str, list[Any]] = {"translatedText": best}
    if body.source == AUTO:
        columns["detectedLanguage"] = [_detected_language(result.detected) for result in results if result.detected]
    if body.alternatives:
        columns["alternatives"] = []
        for result, text in zip(results, best, strict=True):
            others = [result.text(rank) for rank in range(1, body.alternatives + 1)]
            # Sentences with fewer translations repeat their last one, so equal texts are dropped.
            columns["alternatives"].append([other for other in dict.fromkeys(others) if other != text])
    # A single text gets single values, as LibreTranslate's clients expect.
    if isinstance(body.q, str):
        return JSONResponse({name: values[0] for name, values in columns.items()})
    return JSONResponse(columns)


def _detected_language(language: DetectedLanguage) -> dict[str, Any]:
    return {"language": language.code, "confidence": round(100 * language.confidence, 1)}


@router.post("/detect", openapi_extra=document_body(DetectBody), responses=ERROR_RESPONSES)
async def detect(request: Request, service: UseService) -> Response:
    """Detect the language of a text, among the source languages served here."""
    body = await read_body(request, DetectBody)
    service.check_request(request, [body.q], body.api_key)
    if not body.q:
        raise ServeError(400, "q is required")
    candidates = service.translations.source_languages()
    # A thread even for short texts, because the first call loads a file.
    ranked = await asyncio.to_thread(detect_language, body.q, candidates)
    languages = [DetectedLanguage(*pair) for pair in ranked] or [DetectedLanguage(default_language(candidates), 0.0)]
    return JSONResponse(list(map(_detected_language, languages)))


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


@router.post("/suggest", openapi_extra=document_body(SuggestBody), responses=ERROR_RESPONSES)
async def suggest(request: Request, service: UseService) -> Response:
    """Save a better translation from a user, if the server accepts suggestions."""
    body = await read_body(request, SuggestBody)
    service.check_request(request, [body.q, body.s], body.api_key)
    # Called for its check; the model is not needed.
    await service.find_model(body.q, None, body.source, body.target)
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
