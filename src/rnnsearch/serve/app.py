"""The application: routes, faults as one sentence of JSON, what is counted and logged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from fastapi import APIRouter, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, StrictUndefined
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from rnnsearch import __version__
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.serve import libretranslate, v1
from rnnsearch.serve.admission import Door
from rnnsearch.serve.limits import ServeError, Settings, fault
from rnnsearch.serve.observability import CONTENT_TYPE, Metrics, Observed, unforeseen
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.service import Service, Use

# The translation page: its few static files, and the headers that keep it from asking anyone else for anything.

FOLDER = "page"
"""Where the page's files are, next to this one."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What may be served, by suffix."""

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",  # blob: a heat map on its way to a PNG
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, but asked for again: a new version shows at once
}


def page_router() -> APIRouter:
    """`/` is the page, `/static/NAME` its files, read once. Nothing outside the page's own folder can be named."""
    router = APIRouter(include_in_schema=False)
    entries = [entry for entry in files(__package__).joinpath(FOLDER).iterdir() if PurePath(entry.name).suffix in TYPES]
    bodies = {entry.name: entry.read_bytes() for entry in entries}
    tags = {name: f'"{sha256(body).hexdigest()[:16]}"' for name, body in bodies.items()}

    def answer(name: str, asked: str | None) -> Response:
        if name not in bodies:
            return Response(status_code=404)
        headers = {**HEADERS, "ETag": tags[name]}
        if asked == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(bodies[name], media_type=TYPES[PurePath(name).suffix], headers=headers)

    @router.get("/")
    def page(if_none_match: str | None = Header(default=None)) -> Response:
        return answer("index.html", if_none_match)

    @router.get("/static/{name}")
    def static(name: str, if_none_match: str | None = Header(default=None)) -> Response:
        return answer(name, if_none_match)

    return router


# `/docs`: the API's reference as one plain page, made of the OpenAPI document; it asks nobody else for anything.


def reference(document: dict[str, Any]) -> str:
    """The page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["whole"] = lambda schema: json.dumps(_whole(schema, document), indent=2, ensure_ascii=False)
    page = environment.from_string(files(__package__).joinpath("reference.html").read_text(encoding="utf-8"))
    return page.render(title=document["info"]["title"], paths=document["paths"])


def _whole(schema: Any, document: dict[str, Any]) -> Any:
    """The schema with what it refers to in its place, and without the titles that only repeat names."""
    if isinstance(schema, list):
        return [_whole(part, document) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _whole(document["components"]["schemas"][name], document)
    return {
        key: _whole(value, document) for key, value in schema.items() if not (key == "title" and isinstance(value, str))
    }


def create_app(models: Sequence[Path], settings: Settings | None = None) -> FastAPI:
    """An ASGI application that serves these model folders.

    Errors: ModelError for a folder that is no model's.
    """
    settings = settings or Settings()
    metrics = Metrics()
    service = Service(Registry(models, settings, metrics.batch), settings, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="rnnsearch",
        version=__version__,
        summary="Attention-based recurrent machine translation.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    for router in (v1.router, libretranslate.router, v1.files_router, page_router()):
        app.include_router(router)
    app.add_api_route("/metrics", _metrics, include_in_schema=False)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    for kind in (RnnsearchError, RequestValidationError, ValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    app.add_middleware(Door, settings=settings)
    return app


def observed(app: FastAPI) -> Observed:
    """The application with every request counted and logged, whatever becomes of it."""
    return Observed(app, app.state.service.metrics)


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without the library's own form of a fault, which no route here has."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


async def _docs(request: Request) -> Response:
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(reference(request.app.openapi()), headers=headers)


async def _metrics(service: Use) -> Response:
    loaded = service.registry.loaded
    service.metrics.loaded.set(len(loaded))
    service.metrics.waiting.set(sum(served.batcher.waiting for served in loaded))
    return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def _answer(_: Request, error: Exception) -> Response:
    """What went wrong, in one sentence of JSON."""
    match error:
        case ServeError():
            headers = None if error.retry_after is None else {"retry-after": str(error.retry_after)}
            return fault(error.status, str(error), headers)
        case RnnsearchError():
            return fault(503 if isinstance(error, ModelError) else 400, str(error))
        case RequestValidationError() | ValidationError():
            return fault(400, sentence(error.errors()[0]))
        case HTTPException():
            return fault(error.status_code, str(error.detail), error.headers)
    return fault(500, unforeseen(error))


def sentence(found: Any) -> str:
    """A fault that pydantic found, in one sentence."""
    place = ".".join(str(part) for part in found["loc"] if part != "body") or "the body"
    if found["type"] == "json_invalid":
        return f"the body must be JSON; got {found['ctx']['error']}"
    if found["type"] == "extra_forbidden":
        return f"{place} must be left out: there is no such option"
    if found["type"] == "missing":
        return f"{place} must be given"
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] == "value_error":
        return str(message)
    given = repr(found["input"])
    return f"{place}: {message}; got {given if len(given) < 100 else given[:97] + '...'}"
