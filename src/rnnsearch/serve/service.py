"""What the routes share: the models, the limits, and how a request is worked on."""

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
from rnnsearch.serve.schemas import About
from rnnsearch.text.languages import base, detect

T = TypeVar("T")
AUTO = "auto"
GONE = 499
"""The status of a request whose sender has left: nobody reads it, but logs and metrics do."""


class Service:
    """One application's models, settings and counters."""

    def __init__(self, registry: Registry, settings: Settings, metrics: Metrics) -> None:
        self.registry = registry
        self.settings = settings
        self.metrics = metrics
        self.files = Files(registry, settings)
        self._writing = asyncio.Lock()

    async def close(self) -> None:
        """Let everything go."""
        await self.files.close()
        await self.registry.close()

    async def suggest(self, row: Mapping[str, str]) -> None:
        """Keep a reader's better translation as a line of JSON.

        Errors: ServeError 403 where the server keeps none.
        """
        path = self.settings.suggestions
        if path is None:
            raise ServeError(403, "suggestions must be switched on (--suggestions FILE); this server keeps none")
        line = json.dumps(row, ensure_ascii=False)

        def append() -> None:
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{line}\n")

        async with self._writing:
            await asyncio.to_thread(append)

    def check_key(self, request: Request, given: str | None = None) -> None:
        """Errors: ServeError 403 where a key is asked for and none of the given ones is right."""
        bearer = _bearer(request.headers.get("authorization", ""))
        keys = [
            key.encode("utf-8", "surrogatepass") for key in (given, request.headers.get("x-api-key"), bearer) if key
        ]
        # Every pair is compared, in constant time, so that the time tells nothing of the keys.
        matches = [compare_digest(key, known.encode()) for key in keys for known in self.settings.api_keys]
        if self.settings.api_keys and not keys:
            raise ServeError(403, "an API key must be given (header X-API-Key, or api_key)")
        if self.settings.api_keys and not any(matches):
            raise ServeError(403, "the API key must be one of this server's; got another")

    def check(self, request: Request, texts: list[str], api_key: str | None = None) -> None:
        """The checks that come before any work.

        Errors: ServeError, as in `check_key`; 413 for texts that are too many, or too long together.
        """
        self.check_key(request, api_key)
        count, most = sum(map(len, texts)), self.settings.max_characters
        if count > most:
            raise ServeError(413, f"the text must have at most {most:,} characters; got {count:,}")
        if len(texts) > self.settings.most_texts:
            most = self.settings.most_texts
            raise ServeError(413, f"a request must have at most {most:,} texts; got {len(texts):,}")

    async def answer(self, request: Request, work: Awaitable[T], patient: bool = False) -> T:
        """The result of `work`, given up when its sender leaves or, if nobody is `patient`, its time is over.

        Errors: ServeError 504 (or GONE); what `work` raises.
        """
        timeout = None if patient else self.settings.timeout
        task = asyncio.ensure_future(work)
        left = asyncio.ensure_future(_left(request))
        try:
            done, _ = await asyncio.wait((task, left), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if left in done:
                raise ServeError(GONE, "the sender has left")
            raise ServeError(504, f"an answer must be ready in {timeout:g} seconds; it was not")
        finally:
            task.cancel()
            left.cancel()

    def find(self, texts: list[str], model: str | None, source: str | None, target: str | None) -> About:
        """The model for these texts; `auto` is the source language that fits them best among those served.

        Errors: ServeError, as in `Registry.find`.
        """
        if source != AUTO:
            return self.registry.find(model, source, target)
        ranked = detect(" ".join(texts), self.sources(target, model))
        return self.registry.find(model, ranked[0][0] if ranked else None, target)

    def candidates(self, model: str | None, source: str | None, target: str | None) -> list[About]:
        """The models that may be the one for a file, each of another source language; more than one for `auto` alone.

        Errors: ServeError, as in `Registry.find`.
        """
        codes = self.sources(target, model) if source == AUTO else [source]
        return [self.registry.find(model, code, target) for code in codes or [None]]

    def sources(self, target: str | None = None, model: str | None = None) -> list[str]:
        """The source languages served, into `target` if given."""
        candidates = [about for about in self.registry.abouts.values() if model in (None, about.name)]
        fitting = [about.source for about in candidates if target is None or base(target) == base(about.target)]
        return list(dict.fromkeys(fitting or [about.source for about in candidates]))


async def _left(request: Request) -> None:
    """Returns when the sender of a request (whose body has been read) goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def service_of(request: Request) -> Service:
    """The service of the application that a request is for. A coroutine: plain functions are called in a thread."""
    service: Service = request.app.state.service
    return service


Use = Annotated[Service, Depends(service_of)]
"""A route's parameter that is given the service."""


def _bearer(header: str) -> str:
    """The key in an Authorization header, whose scheme may be written in any case."""
    scheme, _, key = header.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else header.strip()
