"""`Service`: the state of one application, and the checks and waiting that all routes share.

A route gets it as the parameter `service: UseService`.

`app.create_app` creates it; `libretranslate` and `v1` are the callers. It runs in the event loop: anything slow
belongs in `limits.run_in_thread` or a `Batcher`. `_suggestions_lock` keeps the lines of the suggestions file whole.
Tests: `tests/serve/test_http.py`, `tests/serve/test_libretranslate.py`, `tests/serve/test_v1.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from hmac import compare_digest
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from rnnsearch.serve.files import Files
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.serve.observability import Metrics
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.schemas import ModelInfo
from rnnsearch.text.languages import base_language, detect

AUTO = "auto"
CLIENT_CLOSED_REQUEST = 499  # status after the client has disconnected; only the log and the metrics show it

Result = TypeVar("Result")


class Service:
    """Models, settings, file jobs and metrics of one application."""

    def __init__(self, registry: Registry, settings: Settings, metrics: Metrics) -> None:
        self.registry = registry
        self.settings = settings
        self.metrics = metrics
        self.files = Files(registry, settings)
        # Lines of several requests must not be mixed.
        self._suggestions_lock = asyncio.Lock()

    async def close(self) -> None:
        """Stop all file jobs and unload all models."""
        await self.files.close()
        await self.registry.close()

    def check_request(self, request: Request, texts: list[str], api_key: str | None = None) -> None:
        """Check a request before it causes any work.

        Raises:
            ServeError: With status 413 for too many texts or characters, and as in `check_key`.
        """
        self.check_key(request, api_key)
        count = sum(map(len, texts))
        max_characters = self.settings.max_characters
        if count > max_characters:
            raise ServeError(413, f"the text must have at most {max_characters:,} characters; got {count:,}")
        max_texts = self.settings.max_texts
        if len(texts) > max_texts:
            raise ServeError(413, f"a request must have at most {max_texts:,} texts; got {len(texts):,}")

    def check_key(self, request: Request, api_key: str | None = None) -> None:
        """Check the API key of a request, if the server requires one.

        Args:
            request: The request, whose headers may contain a key.
            api_key: The key in the body, if there is one.

        Raises:
            ServeError: With status 403 if no key is valid.
        """
        if not self.settings.api_keys:
            return
        header_keys = (request.headers.get("x-api-key"), _bearer_key(request.headers.get("authorization", "")))
        # JSON may contain lone surrogates, which UTF-8 itself rejects with an exception.
        keys = [key.encode("utf-8", "surrogatepass") for key in (api_key, *header_keys) if key]
        if not keys:
            raise ServeError(403, "an API key is required (header X-API-Key, or api_key in the body)")
        # All pairs are compared in constant time, so that response times reveal nothing about the keys.
        matches = [compare_digest(key, valid.encode()) for key in keys for valid in self.settings.api_keys]
        if not any(matches):
            raise ServeError(403, "the API key must be one of this server's; got another one")

    async def run(self, request: Request, work: Awaitable[Result], patient: bool = False) -> Result:
        """Return the result of work for a request; cancel it if the client disconnects or after the timeout.

        Args:
            request: The request, whose body has been read.
            work: The work.
            patient: True if there is no timeout.

        Raises:
            ServeError: With status 504 after the timeout, CLIENT_CLOSED_REQUEST if the client has disconnected.
            Exception: An exception of the work.
        """
        timeout = None if patient else self.settings.timeout
        task = asyncio.ensure_future(work)
        disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            # `wait` does not cancel the tasks; `finally` does, so that no work goes on without a client.
            done, _ = await asyncio.wait((task, disconnected), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if disconnected in done:
                raise ServeError(CLIENT_CLOSED_REQUEST, "the client has disconnected")
            raise ServeError(504, f"the result must be ready within {timeout:g} seconds; it was not")
        finally:
            task.cancel()
            disconnected.cancel()

    def find_model(self, texts: list[str], model: str | None, source: str | None, target: str | None) -> ModelInfo:
        """Return the model for texts; with source `auto`, the served source language that fits them best.

        Raises:
            ServeError: As in `Registry.find`.
        """
        if source != AUTO:
            return self.registry.find(model, source, target)
        ranked = detect(" ".join(texts), self.source_languages(target, model))
        return self.registry.find(model, ranked[0][0] if ranked else None, target)

    def candidate_models(self, model: str | None, source: str | None, target: str | None) -> list[ModelInfo]:
        """Return the possible models for a file, one per source language; several only with source `auto`.

        Raises:
            ServeError: As in `Registry.find`.
        """
        if source != AUTO:
            return [self.registry.find(model, source, target)]
        languages = self.source_languages(target, model)
        if not languages:
            return [self.registry.find(model, None, target)]  # raises an error, because there is no such model
        return [self.registry.find(model, language, target) for language in languages]

    def source_languages(self, target: str | None = None, model: str | None = None) -> list[str]:
        """Return the served source languages.

        Args:
            target: Restrict them to those of models into this language, if there are any.
            model: Restrict them to that of this model.
        """
        models = [info for info in self.registry.models.values() if model in (None, info.name)]
        if target is not None:
            models = [info for info in models if base_language(target) == base_language(info.target)] or models
        return list(dict.fromkeys(info.source for info in models))

    async def save_suggestion(self, row: Mapping[str, str]) -> None:
        """Append a better translation from a user to the suggestions file, as one line of JSON.

        Raises:
            ServeError: With status 403 if the server has no such file.
        """
        path = self.settings.suggestions
        if path is None:
            raise ServeError(403, "this server does not accept suggestions (see --suggestions)")
        # JSON escapes line ends, so each suggestion is one line.
        line = json.dumps(row, ensure_ascii=False)

        def append() -> None:
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{line}\n")

        async with self._suggestions_lock:
            await asyncio.to_thread(append)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _bearer_key(header: str) -> str:
    """Return the key in an Authorization header, whose scheme may be in any case or absent."""
    scheme, _, key = header.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else header.strip()


# A coroutine, because FastAPI calls ordinary functions in a thread.
async def get_service(request: Request) -> Service:
    """Return the service of the application that handles a request."""
    service: Service = request.app.state.service
    return service


UseService = Annotated[Service, Depends(get_service)]
"""Type of a route's parameter that receives the service."""
