"""Apertium APy's API, for OmegaT, Weblate and other clients of Apertium: translation and the list of language pairs.

`GET` and `POST /translate` with `langpair=en|de` and `q`; `libretranslate.translate` passes on POST requests that have
a `langpair`, because LibreTranslate's API has the same path. Codes of languages may have two or three letters. Unknown
words have no marks, so `markUnknown` has no effect; `prefs` has none, either.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from itertools import product
from typing import Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.request_fields import to_model
from rnnsearch.serve.schemas import ERROR_RESPONSES
from rnnsearch.serve.service import Service, UseService
from rnnsearch.serve.translation_service import TextResult, TranslationTask
from rnnsearch.text.languages import three_letter_code, two_letter_code
from rnnsearch.text.long_texts import MarkupFormat

LANGPAIR = "langpair"

router = APIRouter(tags=["Apertium APy"])


class ApertiumRequest(BaseModel):
    """Fields of `/translate`."""

    langpair: str = Field(description="Codes of the source and the target language, separated by a bar: en|de.")
    q: str = Field(description="The text.")
    format: Literal["txt", "html"] | None = Field(
        None, description="txt for text without markup; by default, tags in it are preserved."
    )
    key: str | None = Field(None, description="API key.")


@router.get("/translate", responses=ERROR_RESPONSES)
async def translate_get(
    request: Request,
    service: UseService,
    langpair: str = Query(description="Codes of the source and the target language, separated by a bar: en|de."),
    q: str = Query(description="The text."),
    format: str = Query("", description="txt for text without markup; by default, tags in it are preserved."),
    key: str = Query("", description="API key."),
) -> Response:
    """Translate a text."""
    return await translate(request, service, {LANGPAIR: langpair, "q": q, "format": format, "key": key})


async def translate(request: Request, service: Service, fields: Mapping[str, Any]) -> Response:
    """Return the response to a translation request.

    Args:
        request: The request.
        service: The service.
        fields: Fields of an `ApertiumRequest`.
    """
    given = {name: value for name, value in fields.items() if name == "q" or value != ""}
    body = to_model(given, ApertiumRequest)
    service.check_request(request, [body.q], body.key)
    source, separator, target = body.langpair.partition("|")
    if not (source and separator and target):
        raise ServeError(400, f'langpair must be two languages, like en|de; got "{body.langpair}"')
    formats: dict[str | None, MarkupFormat] = {None: "codes", "txt": "text", "html": "html"}
    task = TranslationTask([body.q], two_letter_code(source), two_letter_code(target), format=formats[body.format])
    [result] = await service.translate(request, task)
    return await service.build_response(request, lambda: _translate_response(result), task.size)


def _translate_response(result: TextResult) -> Response:
    data: dict[str, Any] = {"translatedText": result.text()}
    if result.confidence is not None:
        data["confidence"] = round(result.confidence, 4)
    return _response(data)


@router.get("/listPairs")
async def list_pairs(service: UseService) -> Response:
    """List the pairs of languages."""
    pairs: dict[tuple[str, str], None] = {}
    for info in service.registry.models.values():
        pairs |= dict.fromkeys(product(_codes(info.source), _codes(info.target)))
    return _response([{"sourceLanguage": source, "targetLanguage": target} for source, target in pairs])


def _codes(code: str) -> list[str]:
    """Return the codes of a language; clients choose some languages by their codes of three letters."""
    three_letters = three_letter_code(code)
    return [code] if three_letters is None else [code, three_letters]


def _response(data: object) -> Response:
    return JSONResponse({"responseData": data, "responseDetails": None, "responseStatus": 200})


def error_fields(status: int, message: str) -> dict[str, Any]:
    """Return the fields that Apertium's clients read from an error."""
    return {
        "status": "error",
        "code": status,
        "message": HTTPStatus(status).phrase,
        "explanation": message,
        "responseData": None,
        "responseDetails": message,
        "responseStatus": status,
    }
