"""The application: routes, faults as one sentence of JSON, what is counted and logged."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from rnnsearch import __version__
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.serve import file_routes, libretranslate, suggestions, v1
from rnnsearch.serve.limits import BodyLimit, ServeError, Settings, error_body
from rnnsearch.serve.logs import LOGGER, Observed
from rnnsearch.serve.metrics import CONTENT_TYPE, Metrics
from rnnsearch.serve.page import page_router
from rnnsearch.serve.reference import reference
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.service import Service


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
    app.include_router(v1.router)
    app.include_router(libretranslate.router)
    app.include_router(suggestions.router)
    app.include_router(file_routes.router)
    app.add_api_route("/metrics", _metrics, methods=["GET"], include_in_schema=False)
    app.add_api_route("/docs", _docs, methods=["GET"], include_in_schema=False)
    app.include_router(page_router())
    for kind, handler in _HANDLERS:
        app.add_exception_handler(kind, handler)
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    app.add_middleware(BodyLimit, max_body=settings.max_body)
    return app


def observed(app: FastAPI) -> Observed:
    """The application with every request counted and logged, whatever becomes of it."""
    service: Service = app.state.service
    inner: ASGIApp = app
    return Observed(inner, service.metrics)


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


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    loaded = service.registry.loaded
    service.metrics.loaded.set(len(loaded))
    service.metrics.waiting.set(sum(served.batcher.waiting for served in loaded))
    return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})


def _fault(status: int, message: str, retry_after: int | None = None) -> Response:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Response(error_body(message), status, headers, "application/json")


async def _ours(_: Request, error: Exception) -> Response:
    if isinstance(error, ServeError):
        return _fault(error.status, str(error), error.retry_after)
    return _fault(503 if isinstance(error, ModelError) else 400, str(error))


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, (RequestValidationError, ValidationError))
    return _fault(400, sentence(error.errors()[0]))


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = _fault(error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response


async def _unforeseen(_: Request, error: Exception) -> Response:
    logging.getLogger(LOGGER).error("unforeseen", exc_info=error)
    return _fault(500, "the server has met a fault of its own; its log says more")


def sentence(fault: Any) -> str:
    """A fault that pydantic found, in one sentence."""
    place = ".".join(str(part) for part in fault["loc"] if part != "body") or "the body"
    if fault["type"] == "json_invalid":
        return f"the body must be JSON; got {fault['ctx']['error']}"
    if fault["type"] == "extra_forbidden":
        return f"{place} must be left out: there is no such option"
    if fault["type"] == "missing":
        return f"{place} must be given"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return str(message)
    given = repr(fault["input"])
    return f"{place}: {message}; got {given if len(given) < 100 else given[:97] + '...'}"


_HANDLERS: tuple[tuple[Any, Any], ...] = (
    (RnnsearchError, _ours),
    (RequestValidationError, _invalid),
    (ValidationError, _invalid),
    (HTTPException, _http),
    (Exception, _unforeseen),
)
