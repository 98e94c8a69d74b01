"""One JSON object a line on standard error: what happened, when, how long it took. Never the texts."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rnnsearch.serve.metrics import Metrics

LOGGER = "rnnsearch.serve"


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, event and the fields given in `extra["fields"]`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        row: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row)


def to_stderr(level: str) -> None:
    """Send the server's records, and uvicorn's own, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in (LOGGER, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # What uvicorn tells besides warnings we tell ourselves.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger(LOGGER).level))


def log(event: str, fields: Mapping[str, object]) -> None:
    """One record."""
    logging.getLogger(LOGGER).info(event, extra={"fields": fields})


def failed(event: str, error: Exception) -> None:
    """One record of what went wrong with what this server was given by its owner."""
    logging.getLogger(LOGGER).error(event, extra={"fields": {"error": str(error)}})


def unforeseen(error: Exception) -> str:
    """Log a fault of our own; returns what is said of it to who asked."""
    logging.getLogger(LOGGER).error("unforeseen", exc_info=error)
    return "the server has met a fault of its own; its log says more"


class Observed:
    """ASGI middleware: every request counted, timed and logged; while `draining` connections are not kept."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self.draining = False
        self.accepted = 0
        self.answered = 0
        self.left = 0
        """Requests whose sender went away before the whole answer was made."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status, gone, whole = time.monotonic(), 0, False, False
        self.accepted += 1

        async def received() -> Message:
            nonlocal gone
            message = await receive()
            gone = gone or message["type"] == "http.disconnect"
            return message

        async def noted(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.draining:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)
            whole = whole or (message["type"] == "http.response.body" and not message.get("more_body"))

        try:
            with self._metrics.open.track_inprogress():
                await self._app(scope, received, noted)
        finally:
            self.answered += whole
            self.left += gone and not whole
            seconds = time.monotonic() - begin
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.request(route, status, seconds)
            fields = {"method": scope["method"], "route": route, "status": status, "ms": round(1000 * seconds, 1)}
            log("request", fields)
