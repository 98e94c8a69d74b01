"""One JSON object a line on standard error: what happened, when, how long it took. Never the texts."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rnnsearch.serve.batching import BatchReport

# What a server counts, for Prometheus.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one application (an own registry, so that several can live in one process)."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("rnnsearch_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "rnnsearch_request_seconds", "Time to the whole answer.", ["route"], buckets=_SECONDS, registry=registry
        )
        self.open = Gauge("rnnsearch_open_requests", "Requests being answered.", registry=registry)
        self.batch_sentences = Histogram(
            "rnnsearch_batch_sentences", "Sentences of a batch.", ["model"], buckets=_SENTENCES, registry=registry
        )
        self.batch_seconds = Histogram(
            "rnnsearch_batch_seconds", "Time of a batch in the model.", ["model"], buckets=_SECONDS, registry=registry
        )
        self.failed = Counter("rnnsearch_failed_sentences", "Sentences with an error.", ["model"], registry=registry)
        self.waiting = Gauge("rnnsearch_waiting_sentences", "Sentences in the queues.", registry=registry)
        self.loaded = Gauge("rnnsearch_loaded_models", "Models in memory.", registry=registry)

    def batch(self, model: str, report: BatchReport) -> None:
        """A batch was worked on."""
        self.batch_sentences.labels(model).observe(report.sentences)
        self.batch_seconds.labels(model).observe(report.seconds)
        if report.failed:
            self.failed.labels(model).inc(report.failed)

    def request(self, route: str, status: int, seconds: float) -> None:
        """A request was answered. `route`: a path's pattern, never what a user can make up."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self.registry)


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
