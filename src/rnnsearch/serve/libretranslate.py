"""LibreTranslate's API, so that its clients work unchanged. JSON, form and multipart bodies alike.

Its `q` may be a list. What we have no use for in a request is ignored, for its clients send more than they need.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile

from rnnsearch.serve.limits import ServeError, apart, work_of
from rnnsearch.serve.registry import Search
from rnnsearch.serve.schemas import FAULTS, MOST
from rnnsearch.serve.service import AUTO, Service, Use
from rnnsearch.serve.texts import TextTranslation, translate_texts
from rnnsearch.text.alignments import Link
from rnnsearch.text.documents import FORMATS
from rnnsearch.text.languages import detect as detect_language
from rnnsearch.text.languages import language_name
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.tags import INLINE, kept_ends, tags

# HTML with its text translated: what stands between sentences stays as it is, letter for letter, and the tags inside
# of sentences come to stand where word alignment says.
#
# Linear in the text, and fails on nothing: what looks like a tag but never ends is kept as it is, to the end of the text.


class Markup:
    """HTML taken apart: `texts` are what there is to translate, without their tags."""

    def __init__(self, source: str) -> None:
        self._parts: list[str | MarkedText] = []
        found = list(tags(source))
        ends, begin, kept = kept_ends(found), 0, 0
        for tag in found:
            if tag.start < kept or tag.name in INLINE:
                continue
            self._add(source[begin : tag.start])
            # Of an element whose text stays and that never ends, all stays.
            kept = tag.end if not tag.keeps else ends[tag.start].end if tag.start in ends else len(source)
            self._parts.append(source[tag.start : kept])
            begin = kept
        self._add(source[begin:])
        self._marked = [part for part in self._parts if isinstance(part, MarkedText)]
        self.texts = [part.text for part in self._marked]
        self.marked = any(part.marks for part in self._marked)
        """Whether there are tags inside of them, so that links are asked for."""

    def filled(self, translations: Sequence[tuple[str, Collection[Link]]]) -> str:
        """The document with its texts replaced, escaped anew; beside each the links between the words of both."""
        placed = iter([marked.placed(*found) for marked, found in zip(self._marked, translations, strict=True)])
        return "".join(part if isinstance(part, str) else next(placed) for part in self._parts)

    def _add(self, text: str) -> None:
        marked = MarkedText(text)
        self._parts.append(marked if marked.text.strip() else text)


router = APIRouter(tags=["LibreTranslate"])
Body = TypeVar("Body", bound=BaseModel)


class Translate(BaseModel):
    """`POST /translate`"""

    q: str | list[str] = Field(description="A text, or several.")
    source: str = Field(AUTO, description="A language code, or auto.")
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, lt=MOST)] = Field(0, description="How many besides the best.")
    api_key: str | None = None


class Detect(BaseModel):
    """`POST /detect`"""

    q: str
    api_key: str | None = None


class Suggest(BaseModel):
    """`POST /suggest`"""

    q: str
    s: str
    source: str
    target: str
    api_key: str | None = None


def _body(kind: type[BaseModel]) -> dict[str, Any]:
    """How the OpenAPI document describes a body that may be JSON or a form."""
    schema = {"schema": kind.model_json_schema()}
    return {"requestBody": {"required": True, "content": dict.fromkeys((_JSON, _FORM), schema)}}


_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"


async def read(request: Request, kind: type[Body]) -> Body:
    """A request's body as `kind`. Errors: ServeError 400; pydantic's ValidationError."""
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent_as == _FORM and (await request.body()).lstrip().startswith(b"{"):
        sent_as = _JSON  # curl -d says of it that it is a form
    if sent_as in (_FORM, "multipart/form-data"):
        form = await request.form()
        values: Any = {}
        for name in form:
            given = [value for value in form.getlist(name) if not isinstance(value, UploadFile)]
            values[name] = given[0] if len(given) == 1 else given
    else:
        try:
            values = json.loads(await request.body())
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
            raise ServeError(400, f"the body must be JSON or a form; got {error}") from None
    return kind.model_validate(values)


@router.post("/translate", openapi_extra=_body(Translate), responses=FAULTS)
async def translate(request: Request, service: Use) -> Response:
    """Translate a text, or a list of texts."""
    asked = await read(request, Translate)
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    service.check(request, texts, asked.api_key)
    about = service.find(texts, None, asked.source, asked.target)
    html = asked.format == "html"
    pages = await apart(lambda: list(map(Markup, texts)), size=work_of(texts)) if html else None
    wanted = [text for page in pages for text in page.texts] if pages is not None else texts
    search = Search(n_best=asked.alternatives + 1, aligned=any(page.marked for page in pages or ()))
    async with service.registry.lease(about) as served:
        found = await service.answer(request, translate_texts(served, wanted, search))
    return await apart(_answer, service, asked, texts, found, pages, size=work_of(texts) * (asked.alternatives + 1))


def _answer(
    service: Service, asked: Translate, texts: list[str], found: list[TextTranslation], pages: list[Markup] | None
) -> JSONResponse:
    """What is said of texts that have been translated."""
    best, *ranks = [_texts(found, pages, rank) for rank in range(asked.alternatives + 1)]
    answer: dict[str, list[Any]] = {"translatedText": best}
    if asked.source == AUTO:
        answer["detectedLanguage"] = [_languages(service, text)[0] for text in texts]
    if asked.alternatives:
        # Each once, without the best.
        answer["alternatives"] = [
            list(dict.fromkeys(rank[n] for rank in ranks if rank[n] != text)) for n, text in enumerate(best)
        ]
    single = isinstance(asked.q, str)
    return JSONResponse({name: each[0] if single else each for name, each in answer.items()})


def _texts(found: list[TextTranslation], pages: list[Markup] | None, rank: int) -> list[str]:
    """The whole translations made of each sentence's `rank`-th best."""
    if pages is None:
        return [text.text(rank) for text in found]
    texts = iter(found)
    return [page.filled([_linked(next(texts), page.marked, rank) for _ in page.texts]) for page in pages]


def _linked(text: TextTranslation, marked: bool, rank: int) -> tuple[str, list[Link]]:
    return text.text(rank), text.links(rank) if marked else []


def _languages(service: Service, text: str) -> list[dict[str, Any]]:
    """The source languages served here, the likeliest of a text first."""
    found = detect_language(text, service.sources())
    return [{"language": code, "confidence": round(100 * share, 1)} for code, share in found]


@router.post("/detect", openapi_extra=_body(Detect), responses=FAULTS)
async def detect(request: Request, service: Use) -> Response:
    """Which of the source languages served here a text is in."""
    asked = await read(request, Detect)
    service.check(request, [asked.q], asked.api_key)
    return JSONResponse(_languages(service, asked.q))


@router.get("/languages")
async def languages(service: Use) -> Response:
    """The languages served, and what each can be translated into."""
    abouts = list(service.registry.abouts.values())
    codes = dict.fromkeys([about.source for about in abouts] + [about.target for about in abouts])
    rows = []
    for code in codes:
        targets = dict.fromkeys(about.target for about in abouts if about.source == code)
        rows.append({"code": code, "name": language_name(code), "targets": list(targets)})
    return JSONResponse(rows)


@router.get("/health")
async def health() -> Response:
    """Whether the server is up."""
    return JSONResponse({"status": "ok"})


@router.post("/suggest", openapi_extra=_body(Suggest), responses=FAULTS)
async def suggest(request: Request, service: Use) -> Response:
    """A better translation, from a reader. Suggestions are taken only where the server keeps them."""
    asked = await read(request, Suggest)
    service.check(request, [asked.q, asked.s], asked.api_key)
    service.find([asked.q], None, asked.source, asked.target)
    await service.suggest(asked.model_dump(include={"q", "s", "source", "target"}))
    return JSONResponse({"success": True})


@router.get("/frontend/settings")
async def frontend(service: Use) -> Response:
    """What LibreTranslate's clients ask about the server."""
    about = service.registry.find()
    return JSONResponse(
        {
            "apiKeys": bool(service.settings.api_keys),
            "keyRequired": bool(service.settings.api_keys),
            "charLimit": service.settings.max_characters,
            "frontendTimeout": 500,
            "language": {
                "source": {"code": about.source, "name": about.source_name},
                "target": {"code": about.target, "name": about.target_name},
            },
            "filesTranslation": True,
            "supportedFilesFormat": list(FORMATS),
            "suggestions": service.settings.suggestions is not None,
        }
    )
