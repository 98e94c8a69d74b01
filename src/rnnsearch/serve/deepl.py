"""DeepL's API (version 2), for its clients: texts, glossaries, languages and usage.

Fields may be in the query, as JSON or as a form. A field that asks for something the models cannot do is an error
(formality, styles, translation memories, documents). Hints without an effect on the layout are accepted and have none:
`context`, `model_type`, `preserve_formatting`, `split_sentences` (texts are always split into sentences),
`non_splitting_tags` and `outline_detection`. The key is that of the server, in `Authorization: DeepL-Auth-Key` or
`auth_key`. Errors have a `message` in addition to `error` (`app._protocol_fields`).

Tests: `tests/serve/test_deepl.py`, with DeepL's own client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, BeforeValidator, Field

from rnnsearch.serve.glossaries import StoredGlossary, parse_entries
from rnnsearch.serve.limits import ServeError, run_in_thread
from rnnsearch.serve.request_fields import document_body, read_fields
from rnnsearch.serve.schemas import ERROR_RESPONSES, ModelInfo
from rnnsearch.serve.service import Service, UseService
from rnnsearch.serve.translation_service import AUTO, TextResult, TranslationTask
from rnnsearch.text.languages import base_language, language_name
from rnnsearch.text.long_texts import MarkupFormat

PREFIX = "/v2"
NEUTRAL_FORMALITY = ("default", "prefer_more", "prefer_less")  # "prefer" falls back to the default
TARGET_VARIANTS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-PT", "PT-BR")}
"""Codes under which clients ask for target languages without a variant."""
UNLIMITED_CHARACTERS = 1_000_000_000_000  # the limit that DeepL reports for plans without one
UNSUPPORTED = ("glossary_ids", "style_id", "style_rule", "translation_memory_id", "custom_instructions")

router = APIRouter(prefix=PREFIX, tags=["DeepL"])


def _split_names(value: object) -> object:
    """Return names that may be a list or separated by commas."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and all(isinstance(names, str) for names in value):
        return [name.strip() for names in value for name in names.split(",") if name.strip()]
    return value


Names = Annotated[list[str], BeforeValidator(_split_names)]


class DeeplTranslateRequest(BaseModel):
    """Fields of `/v2/translate`."""

    text: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
    target_lang: str
    source_lang: str | None = None
    tag_handling: Literal["xml", "html"] | None = None
    ignore_tags: Names = Field(default_factory=list, description="Elements whose content is not translated.")
    splitting_tags: Names = Field(default_factory=list, description="Elements that separate sentences.")
    formality: str = "default"
    glossary_id: str | None = None
    show_billed_characters: bool = False
    auth_key: str | None = None


class DeeplGlossaryRequest(BaseModel):
    """Fields of `POST /v2/glossaries`."""

    name: Annotated[str, Field(min_length=1, max_length=1000)]
    source_lang: str
    target_lang: str
    entries: str
    entries_format: Literal["tsv", "csv"]


@router.post("/translate", openapi_extra=document_body(DeeplTranslateRequest), responses=ERROR_RESPONSES)
async def translate(request: Request, service: UseService) -> Response:
    """Translate texts."""
    fields = await read_fields(request, lists=("text",))
    for name in UNSUPPORTED:
        if fields.get(name):
            raise ServeError(400, f"{name} is not supported by this server")
    body = DeeplTranslateRequest.model_validate(
        {name: value for name, value in fields.items() if value not in (None, "")}
    )
    service.check_request(request, body.text, body.auth_key)
    if body.formality not in NEUTRAL_FORMALITY:
        raise ServeError(400, "formality must be default or a preference: models have no formality")
    task = TranslationTask(
        body.text,
        body.source_lang or AUTO,
        body.target_lang,
        format=_format(body),
        ignored_tags=frozenset(map(str.lower, body.ignore_tags)),
        splitting_tags=frozenset(map(str.lower, body.splitting_tags)),
        glossary=None if body.glossary_id is None else _find_glossary(request, service, body).terms,
    )
    results = await service.translate(request, task)
    translations = await service.build_response(request, lambda: _translations(results), task.size)
    return JSONResponse({"translations": translations})


def _format(body: DeeplTranslateRequest) -> MarkupFormat:
    return "text" if body.tag_handling is None else body.tag_handling


def _find_glossary(request: Request, service: Service, body: DeeplTranslateRequest) -> StoredGlossary:
    """Return the glossary of a request.

    Raises:
        ServeError: With status 404 if there is none, 400 if it is for other languages.
    """
    stored = service.glossaries.get(service.owner(request, body.auth_key), body.glossary_id or "")
    if body.source_lang is None:
        raise ServeError(400, "source_lang is required with a glossary")
    languages = base_language(body.source_lang), base_language(body.target_lang)
    if languages != (stored.source, stored.target):
        raise ServeError(400, f"the glossary is for {stored.source} to {stored.target}; got {' to '.join(languages)}")
    return stored


def _translations(results: Sequence[TextResult]) -> list[dict[str, Any]]:
    translations = []
    for result in results:
        language = result.model.source if result.detected is None else result.detected.code
        fields: dict[str, Any] = {
            "detected_source_language": base_language(language).upper(),
            "text": result.text(),
            "billed_characters": len(result.source),
        }
        if result.confidence is not None:
            fields["confidence"] = round(result.confidence, 4)
        translations.append(fields)
    return translations


@router.get("/languages", responses=ERROR_RESPONSES)
async def languages(request: Request, service: UseService, type: str = "source") -> Response:
    """List the source languages, or with `type=target` the target languages."""
    # DeepL's client sends a body with a GET request.
    fields = await read_fields(request)
    service.check_key(request)
    rows: dict[str, str] = {}
    for info in service.registry.models.values():
        if fields.get("type", type) == "target":
            for code in TARGET_VARIANTS.get(info.target.lower(), (info.target.upper(),)):
                rows[code] = language_name(code)
        else:
            rows[base_language(info.source).upper()] = language_name(base_language(info.source))
    is_target = fields.get("type", type) == "target"
    extra = {"supports_formality": False} if is_target else {}
    return JSONResponse([{"language": code, "name": name, **extra} for code, name in rows.items()])


@router.get("/usage", responses=ERROR_RESPONSES)
@router.post("/usage", responses=ERROR_RESPONSES, include_in_schema=False)
async def usage(request: Request, service: UseService) -> Response:
    """Return the number of characters that the server has translated since its start; there is no limit."""
    service.check_key(request)
    return JSONResponse({"character_count": service.num_characters, "character_limit": UNLIMITED_CHARACTERS})


# Glossaries.


@router.get("/glossary-language-pairs", responses=ERROR_RESPONSES)
async def glossary_language_pairs(request: Request, service: UseService) -> Response:
    """List the pairs of languages for which glossaries can be created."""
    service.check_key(request)
    pairs = [{"source_lang": source, "target_lang": target} for source, target in _pairs(service.registry.models)]
    return JSONResponse({"supported_languages": pairs})


def _pairs(models: dict[str, ModelInfo]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((base_language(info.source), base_language(info.target)) for info in models.values()))


@router.post(
    "/glossaries", status_code=201, openapi_extra=document_body(DeeplGlossaryRequest), responses=ERROR_RESPONSES
)
async def add_glossary(request: Request, service: UseService) -> Response:
    """Create a glossary."""
    fields = await read_fields(request)
    service.check_key(request)
    body = DeeplGlossaryRequest.model_validate(fields)
    source, target = base_language(body.source_lang), base_language(body.target_lang)
    if (source, target) not in _pairs(service.registry.models):
        raise ServeError(400, f"glossaries must be for languages served here; got {source} to {target}")
    entries = await run_in_thread(parse_entries, body.entries, body.entries_format, size=len(body.entries))
    owner = service.owner(request)
    stored = await run_in_thread(
        service.glossaries.add, owner, body.name, source, target, entries, size=len(body.entries)
    )
    return JSONResponse(_glossary_fields(stored), 201)


@router.get("/glossaries", responses=ERROR_RESPONSES)
async def glossaries(request: Request, service: UseService) -> Response:
    """List the glossaries."""
    service.check_key(request)
    return JSONResponse({"glossaries": list(map(_glossary_fields, service.glossaries.list(service.owner(request))))})


@router.get("/glossaries/{id}", responses=ERROR_RESPONSES)
async def glossary(request: Request, id: str, service: UseService) -> Response:
    """Describe a glossary."""
    service.check_key(request)
    return JSONResponse(_glossary_fields(service.glossaries.get(service.owner(request), id)))


@router.get("/glossaries/{id}/entries", response_class=PlainTextResponse, responses=ERROR_RESPONSES)
async def glossary_entries(request: Request, id: str, service: UseService) -> Response:
    """Return the entries of a glossary as TSV."""
    service.check_key(request)
    stored = service.glossaries.get(service.owner(request), id)
    return Response(stored.as_tsv().encode(errors="replace"), media_type="text/tab-separated-values; charset=utf-8")


@router.delete("/glossaries/{id}", status_code=204, responses=ERROR_RESPONSES)
async def remove_glossary(request: Request, id: str, service: UseService) -> Response:
    """Delete a glossary."""
    service.check_key(request)
    service.glossaries.remove(service.owner(request), id)
    return Response(status_code=204)


def _glossary_fields(stored: StoredGlossary) -> dict[str, Any]:
    return {
        "glossary_id": stored.id,
        "name": stored.name,
        "ready": True,
        "source_lang": stored.source,
        "target_lang": stored.target,
        "creation_time": stored.creation_time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "entry_count": len(stored.entries),
    }
