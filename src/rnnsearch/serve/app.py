"""The ASGI application: routes, error responses, the translation page and the API reference.

`server.run` serves it; tests call `create_app` directly.

The page is in `page/`, whose files have the types in `PAGE_TYPES` and the headers in `PAGE_HEADERS` (a content security
policy without inline scripts). Every error is `{"error": sentence}`. Tests: tests/page.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from fastapi import APIRouter, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, StrictUndefined
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from rnnsearch import __version__
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.serve import apertium, deepl, libretranslate, opus_cat, v1
from rnnsearch.serve.admission import AdmissionControl
from rnnsearch.serve.limits import ServeError, Settings, error_response
from rnnsearch.serve.observability import METRICS_CONTENT_TYPE, Metrics, RequestObserver, log_bug
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.service import Service, UseService

PAGE_FOLDER = "page"
PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content type of the page's files by suffix."""
# The page may only load its own files and call its own server.
PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",  # blob: a heat map that is converted to PNG
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # cached but revalidated, so that a new version is shown at once
}
MAX_SHOWN_INPUT = 100  # characters of an invalid input in an error message


def create_app(models: Sequence[Path], settings: Settings | None = None) -> FastAPI:
    """Return an application that serves model folders and engine files.

    Raises:
        ModelError: One of them is not a translation model.
    """
    settings = settings or Settings()
    metrics = Metrics()
    service = Service(Registry(models, settings, metrics.count_batch), settings, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="rnnsearch",
        version=__version__,
        summary="Attention-based recurrent machine translation.",
        lifespan=lifespan,
        # FastAPI's pages load scripts from other sites; `/docs` is a page without scripts.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # `_get_document`, which does not write it again for each request
    )
    app.state.service = service
    app.state.reference = _Reference(app)
    routers = (
        v1.router,
        libretranslate.router,
        v1.files_router,
        apertium.router,
        opus_cat.router,
        deepl.router,
        page_router(),
    )
    for router in routers:
        app.include_router(router)
    app.add_api_route("/metrics", _get_metrics, include_in_schema=False)
    app.add_api_route("/docs", _get_reference, include_in_schema=False)
    app.add_api_route("/openapi.json", _get_document, include_in_schema=False)
    # All errors have the same form, so that clients need only one case.
    for error_type in (RnnsearchError, RequestValidationError, ValidationError, HTTPException, Exception):
        app.add_exception_handler(error_type, _handle_error)
    app.openapi = partial(_openapi_document, app)  # type: ignore[method-assign]
    # The middleware that is added last is the outermost.
    app.add_middleware(AdmissionControl, settings=settings)
    if settings.allowed_origins:
        # Outside of admission control, so that pages of these origins can read its errors, too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            allow_private_network=True,  # sites on the internet that may use a server on the user's machine
            expose_headers=["retry-after"],
        )
    return app


def observe(app: FastAPI) -> RequestObserver:
    """Return an application in middleware that counts and logs all of its requests."""
    return RequestObserver(app, app.state.service.metrics)


# The translation page.


def page_router() -> APIRouter:
    """Return the routes of the translation page: `/` and its files, `/static/NAME`."""
    router = APIRouter(include_in_schema=False)
    # The files are read once; names other than theirs cannot reach the file system.
    contents: dict[str, bytes] = {}
    for entry in files(__package__).joinpath(PAGE_FOLDER).iterdir():
        if PurePath(entry.name).suffix in PAGE_TYPES:
            contents[entry.name] = entry.read_bytes()
    etags = {name: f'"{sha256(content).hexdigest()[:16]}"' for name, content in contents.items()}

    def file_response(name: str, known_etag: str | None) -> Response:
        if name not in contents:
            return Response(status_code=404)
        headers = {**PAGE_HEADERS, "ETag": etags[name]}
        if known_etag == etags[name]:
            return Response(status_code=304, headers=headers)
        return Response(contents[name], media_type=PAGE_TYPES[PurePath(name).suffix], headers=headers)

    @router.get("/")
    def page(if_none_match: str | None = Header(default=None)) -> Response:
        return file_response("index.html", if_none_match)

    @router.get("/static/{name}")
    def static(name: str, if_none_match: str | None = Header(default=None)) -> Response:
        return file_response(name, if_none_match)

    return router


# The API reference and metrics.


class _Reference:
    """The API reference of an application, written once: it takes as long as a translation, and needs no API key."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    @cached_property
    def document(self) -> bytes:
        """The OpenAPI document as JSON."""
        return bytes(JSONResponse(self._app.openapi()).body)

    @cached_property
    def page(self) -> str:
        """The reference as an HTML page."""
        return reference_page(self._app.openapi())


async def _get_document(request: Request) -> Response:
    return Response(request.app.state.reference.document, media_type="application/json")


async def _get_reference(request: Request) -> Response:
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(request.app.state.reference.page, headers=headers)


async def _get_metrics(service: UseService) -> Response:
    loaded = service.registry.loaded
    service.metrics.loaded_models.set(len(loaded))
    service.metrics.waiting_sentences.set(sum(model.batcher.waiting for model in loaded))
    return Response(service.metrics.text(), headers={"content-type": METRICS_CONTENT_TYPE})


def reference_page(document: dict[str, Any]) -> str:
    """Return the API reference as one HTML page without external resources, from an OpenAPI document."""

    def expanded_json(schema: Any) -> str:
        return json.dumps(_expand_references(schema, document), indent=2, ensure_ascii=False)

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["expanded_json"] = expanded_json
    template = environment.from_string(files(__package__).joinpath("reference.html").read_text(encoding="utf-8"))
    return template.render(title=document["info"]["title"], paths=document["paths"])


def _expand_references(schema: Any, document: dict[str, Any]) -> Any:
    """Return a schema with references replaced by their targets, without titles that only repeat names."""
    if isinstance(schema, list):
        return [_expand_references(item, document) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _expand_references(document["components"]["schemas"][name], document)
    expanded = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):  # not a field of this name
            continue
        expanded[key] = _expand_references(value, document)
    return expanded


def _openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document without FastAPI's own validation errors, which no route here returns."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


# Errors.


async def _handle_error(request: Request, error: Exception) -> Response:
    """Return an exception as `{"error": sentence}`, with the fields that clients of other protocols read."""
    status, message, headers = _status(error)
    return error_response(status, message, headers, _protocol_fields(request, status, message))


def _status(error: Exception) -> tuple[int, str, Mapping[str, str] | None]:
    """Return the status, the message and the headers of the response to an exception."""
    match error:
        case ServeError():
            return error.status, str(error), _retry_after(error)
        case RnnsearchError():
            # A model that cannot do something is the server's problem, everything else the request's.
            return 503 if isinstance(error, ModelError) else 400, str(error), None
        case RequestValidationError() | ValidationError():
            return 400, validation_message(error.errors()[0]), None
        case HTTPException():
            return error.status_code, str(error.detail), error.headers
    return 500, log_bug(error), None


def _retry_after(error: ServeError) -> dict[str, str] | None:
    return None if error.retry_after is None else {"retry-after": str(error.retry_after)}


def _protocol_fields(request: Request, status: int, message: str) -> dict[str, Any]:
    """Return further fields of an error."""
    route = getattr(request.scope.get("route"), "path", "")
    if route.startswith(f"{deepl.PREFIX}/"):
        return {"message": message}
    if route == "/translate" and request.method == "GET":
        return apertium.error_fields(status, message)
    return {}


def validation_message(error: Any) -> str:
    """Return one of pydantic's validation errors as a sentence."""
    field = ".".join(str(part) for part in error["loc"] if part != "body") or "the body"
    if error["type"] == "json_invalid":
        return f"the body must be JSON; got {error['ctx']['error']}"
    if error["type"] == "extra_forbidden":
        return f"{field} is not an option of this request"
    if error["type"] == "missing":
        return f"{field} is required"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    # `repr` escapes control characters of the client's input.
    value = repr(error["input"])
    if len(value) >= MAX_SHOWN_INPUT:
        value = value[: MAX_SHOWN_INPUT - 3] + "..."
    return f"{field}: {message}; got {value}"
