"""The application: routes, faults as one sentence of JSON, what is counted and logged."""

from __future__ import annotations

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

from rnnsearch import __version__
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.serve import file_routes, libretranslate, v1
from rnnsearch.serve.door import Door
from rnnsearch.serve.limits import ServeError, Settings, fault
from rnnsearch.serve.logs import Observed, unforeseen
from rnnsearch.serve.metrics import CONTENT_TYPE, Metrics
from rnnsearch.serve.page import page_router
from rnnsearch.serve.reference import reference
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.service import Service, Use


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
    for router in (v1.router, libretranslate.router, file_routes.router, page_router()):
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
