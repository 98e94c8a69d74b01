"""`Service`: the state of one application, and the checks and waiting that all routes share.

A route gets it as the parameter `service: UseService`.

`app.create_app` creates it; the modules of routes are the callers. It runs in the event loop: anything slow belongs in
`limits.run_in_thread` or a `Batcher`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from hmac import compare_digest
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.clients import WrongKeys, client_of
from rnnsearch.serve.files import Files
from rnnsearch.serve.glossaries import Glossaries
from rnnsearch.serve.limits import CLIENT_CLOSED_REQUEST, MAX_INLINE_CHARACTERS, ServeError, Settings
from rnnsearch.serve.observability import Metrics, log_failure
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.schemas import ModelInfo
from rnnsearch.serve.translation_service import AUTO, Direction, TextResult, TranslationService, TranslationTask
from rnnsearch.utils.files import append_line
from rnnsearch.utils.origin_check import DEFAULT_PORTS, is_own_host

AUTHORIZATION_SCHEMES = ("bearer", "deepl-auth-key")

# Responses that are built at a time in threads: each takes the interpreter from the event loop, and much memory.
MAX_LARGE_RESPONSES = 1

Result = TypeVar("Result")


class Service:
    """Models, settings, file jobs and metrics of one application."""

    def __init__(self, registry: Registry, settings: Settings, metrics: Metrics) -> None:
        self.registry = registry
        self.settings = settings
        self.metrics = metrics
        self.files = Files(registry, settings)
        self.translations = TranslationService(registry)
        self.glossaries = Glossaries()
        self.wrong_keys = WrongKeys()
        self.num_characters = 0
        """Number of characters of all texts that were translated, apart from files."""
        self._suggestions_lock = asyncio.Lock()
        self._large_responses = asyncio.Semaphore(MAX_LARGE_RESPONSES)

    async def close(self) -> None:
        """Stop all file jobs and unload all models."""
        await self.files.close()
        await self.registry.close()

    def check_request(
        self, request: Request, texts: Sequence[str], api_key: str | None = None, prefixes: Sequence[str] = ()
    ) -> None:
        """Check a request before it causes any work.

        Args:
            request: The request, whose headers may contain a key.
            texts: Its texts.
            api_key: The key in the body, if there is one.
            prefixes: Prefixes of translations, whose characters count like those of the texts.

        Raises:
            ServeError: With status 413 for too many texts or characters, and as in `check_key`.
        """
        self.check_key(request, api_key)
        count = sum(map(len, texts)) + sum(map(len, prefixes))
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
        self.owner(request, api_key)

    def owner(self, request: Request, api_key: str | None = None) -> str:
        """Return the valid API key of a request, or an empty string if the server requires none.

        Args:
            request: The request, whose headers may contain a key.
            api_key: The key in the body, if there is one.

        Raises:
            ServeError: With status 403 if no key is valid, 429 after too many wrong keys.
        """
        if not self.settings.api_keys:
            return ""
        header_keys = (request.headers.get("x-api-key"), _bearer_key(request.headers.get("authorization", "")))
        # JSON may contain lone surrogates, which UTF-8 itself rejects with an exception.
        keys = [key.encode("utf-8", "surrogatepass") for key in (api_key, *header_keys) if key]
        if not keys:
            raise ServeError(403, "an API key is required (header X-API-Key, or api_key in the body)")
        client = client_address(request)
        retry_after = self.wrong_keys.retry_after(client)
        # All pairs are compared in constant time, so that response times reveal nothing about the keys.
        matches = [valid for key in keys for valid in self.settings.api_keys if compare_digest(key, valid.encode())]
        if retry_after and not any(self.wrong_keys.is_known(client, key) for key in matches):
            # The same answer to all keys, so that it reveals nothing about them either.
            raise ServeError(429, "too many wrong API keys were sent from this address; try again later", retry_after)
        if matches:
            self.wrong_keys.accept(client, matches[0])
        else:
            self.wrong_keys.count(client)
            raise ServeError(403, "the API key must be one of this server's; got another one")
        return matches[0]

    def client(self, request: Request, api_key: str | None = None) -> str:
        """Return the identity of a client: its API key or, if the server requires none, its address.

        Raises:
            ServeError: As in `owner`.
        """
        return self.owner(request, api_key) or client_address(request)

    async def run(self, request: Request, work: Awaitable[Result], patient: bool = False) -> Result:
        """Return the result of work for a request; cancel it if the client disconnects or after the timeout.

        All work of a request has one timeout together.

        Args:
            request: The request, whose body has been read.
            work: The work.
            patient: True if there is no timeout.

        Raises:
            ServeError: With status 504 after the timeout, CLIENT_CLOSED_REQUEST if the client has disconnected,
                503 if the work was cancelled.
            Exception: An exception of the work.
        """
        timeout = self.settings.timeout
        seconds_left: float = getattr(request.state, "seconds_left", timeout)
        start_time = time.monotonic()
        task = asyncio.ensure_future(work)
        disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            # `wait` does not cancel the tasks; `finally` does, so that no work goes on without a client.
            done, _ = await asyncio.wait(
                (task, disconnected),
                timeout=None if patient else max(0.0, seconds_left),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if task in done and task.cancelled():  # a file that the server does not finish, or that was removed
                raise ServeError(503, "the translation was cancelled")
            if task in done:
                return task.result()
            if disconnected in done:
                raise ServeError(CLIENT_CLOSED_REQUEST, "the client has disconnected")
            raise ServeError(504, f"the result must be ready within {timeout:g} seconds; it was not")
        finally:
            task.cancel()
            disconnected.cancel()
            request.state.seconds_left = seconds_left - (time.monotonic() - start_time)

    async def build_response(self, request: Request, build: Callable[[], Result], size: int) -> Result:
        """Return a response, built in another thread if it is large.

        Args:
            request: The request.
            build: Builds the response.
            size: The amount of work in characters.

        Raises:
            ServeError: As in `run`.
            Exception: An exception of `build`.
        """
        # A thread costs more than the work on a short response.
        if size <= MAX_INLINE_CHARACTERS:
            return build()

        async def build_in_thread() -> Result:
            async with self._large_responses:
                return await asyncio.to_thread(build)

        return await self.run(request, build_in_thread())

    async def choose_models(self, request: Request, task: TranslationTask) -> list[Direction]:
        """Return the model for each text of a request.

        Raises:
            ServeError: As in `TranslationService.choose_models` and `run`.
        """
        return await self.run(request, self.translations.choose_models(task, client_address(request)))

    async def translate(
        self, request: Request, task: TranslationTask, directions: Sequence[Direction] | None = None
    ) -> list[TextResult]:
        """Return the translation of each text of a request that has passed `check_request`.

        Args:
            request: The request, whose body has been read.
            task: The texts, and how to translate them.
            directions: The model for each text, if the caller has chosen them already.

        Raises:
            ServeError: As in `TranslationService.choose_models`, `TranslationService.translate` and `run`.
        """
        if self.translations.answers_unchanged(task):
            return self.translations.unchanged(task)
        if directions is None:
            directions = await self.choose_models(request, task)
        async with AsyncExitStack() as leases:
            models = {}
            # Loading a model is not part of the time limit.
            for info in dict.fromkeys(direction.model for direction in directions):
                models[info.name] = await leases.enter_async_context(self.registry.lease(info))
            work = self.translations.translate(task, directions, models, client_address(request))
            results = await self.run(request, work)
        self.num_characters += sum(map(len, task.texts))
        return results

    async def find_model(self, text: str, model: str | None, source: str | None, target: str | None) -> ModelInfo:
        """Return the model for a text; with source `auto`, for its language.

        Raises:
            ServeError: As in `Registry.find`.
        """
        # Plain text is not parsed, so the client has no effect.
        [direction] = await self.translations.choose_models(TranslationTask([text], source, target, model), "")
        return direction.model

    def candidate_models(self, model: str | None, source: str | None, target: str | None) -> list[ModelInfo]:
        """Return the possible models for a file, one per source language; several only with source `auto`.

        Raises:
            ServeError: As in `Registry.find`, or with status 400 if all models have several sources.
        """
        languages: list[str | None] = [source]
        if source == AUTO:
            # Without languages, `find` raises an error, because there is no such model.
            languages = [*self.translations.source_languages(target, model)] or [None]
        models = [self.registry.find(model, language, target) for language in languages]
        with_one_source = [info for info in models if not info.sources]
        if not with_one_source:
            name, sources = models[0].name, " and ".join(models[0].sources)
            raise ServeError(400, f"files need a model with one source; the model {name} has {sources}")
        return with_one_source

    async def save_suggestion(self, row: Mapping[str, str]) -> None:
        """Append a better translation from a user to the suggestions file, as one line of JSON.

        Raises:
            ServeError: With status 403 if the server has no such file, and 503 if it cannot be written.
        """
        path = self.settings.suggestions
        if path is None:
            raise ServeError(403, "this server does not accept suggestions (see --suggestions)")
        # JSON escapes line ends, so each suggestion is one line.
        line = json.dumps(row, ensure_ascii=False)
        try:
            async with self._suggestions_lock:  # so that not many threads wait for the lock of the file
                await asyncio.to_thread(append_line, path, line)
        except RnnsearchError as error:
            log_failure("a suggestion could not be saved", error)
            raise ServeError(503, "the suggestion could not be saved; try again later") from None


def client_address(request: Request) -> str:
    """Return the identity of the client of a request by its address, for limits per client."""
    return client_of(request.client.host if request.client else "")


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def public_address(request: Request, allowed_hosts: Set[str]) -> str:
    """Return scheme, host and port by which a client reaches this server, also behind a proxy on any host.

    The headers of a proxy need no trust here: a client that forges them only gets a wrong link itself.
    """
    scheme = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    if scheme not in DEFAULT_PORTS:
        scheme = request.url.scheme
    host = request.headers.get("x-forwarded-host", "").partition(",")[0].strip()
    if not host or not is_own_host(host, allowed_hosts):
        host = request.url.netloc
    return f"{scheme}://{host}"


def _bearer_key(header: str) -> str:
    """Return the key in an Authorization header, whose scheme may be in any case or absent."""
    scheme, _, key = header.strip().partition(" ")
    return key.strip() if scheme.lower() in AUTHORIZATION_SCHEMES else header.strip()


# A coroutine, because FastAPI calls ordinary functions in a thread.
async def get_service(request: Request) -> Service:
    """Return the service of the application that handles a request."""
    service: Service = request.app.state.service
    return service


UseService = Annotated[Service, Depends(get_service)]
"""Type of a route's parameter that receives the service."""
