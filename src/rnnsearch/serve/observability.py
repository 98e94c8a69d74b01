"""Observability: Prometheus metrics and a JSON log on standard error.

`RequestObserver` wraps the application and counts, times and logs every request. Neither the log nor the metrics ever
contain text of users.

Names of metrics and of log fields are public (docs/serving.md).
"""

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

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_WARNINGS = 20  # records of a type ...
WARNING_SECONDS = 10.0  # ... in this time
_SECONDS_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SENTENCES_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
LOGGER_NAME = "rnnsearch.serve"


class Metrics:
    """Metrics of one application."""

    def __init__(self) -> None:
        # A separate registry, so that several applications can run in one process.
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("rnnsearch_requests", "Answered requests.", ["route", "status"], registry=registry)
        self.request_seconds = Histogram(
            "rnnsearch_request_seconds",
            "Time until the response is complete.",
            ["route"],
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.open_requests = Gauge(
            "rnnsearch_open_requests", "Requests without a complete response.", registry=registry
        )
        self.batch_sentences = Histogram(
            "rnnsearch_batch_sentences",
            "Sentences per batch.",
            ["model"],
            buckets=_SENTENCES_BUCKETS,
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "rnnsearch_batch_seconds",
            "Time of a batch in the model.",
            ["model"],
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.failed_sentences = Counter(
            "rnnsearch_failed_sentences", "Sentences that failed with an error.", ["model"], registry=registry
        )
        self.waiting_sentences = Gauge("rnnsearch_waiting_sentences", "Sentences in all queues.", registry=registry)
        self.loaded_models = Gauge("rnnsearch_loaded_models", "Models in memory.", registry=registry)

    def count_batch(self, model: str, report: BatchReport) -> None:
        """Count a finished batch of a model."""
        self.batch_sentences.labels(model).observe(report.sentences)
        self.batch_seconds.labels(model).observe(report.seconds)
        if report.failed:
            self.failed_sentences.labels(model).inc(report.failed)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request.

        Args:
            route: The pattern of the path, never text that a client can choose.
            status: The status of the response.
            seconds: The time until the response was complete.
        """
        self.requests.labels(route, str(status)).inc()
        self.request_seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class RateLimit(logging.Filter):
    """Drops warnings and errors of a type that occur often, so that no client can fill the disk with them."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, int] = {}
        self._end_time = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for the first `MAX_WARNINGS` records of a type per `WARNING_SECONDS`."""
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        if now >= self._end_time:
            self._counts.clear()
            self._end_time = now + WARNING_SECONDS
        # Of messages with values in them, the part before the first one.
        key = f"{record.name} {str(record.msg)[:40]}"
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key] <= MAX_WARNINGS


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, event, and the fields in `extra["fields"]`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        row: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        # In ASCII on one line: text in the log cannot forge further lines.
        return json.dumps(row)


def log_to_stderr(level: str) -> None:
    """Write the records of the server, and warnings of the package and of uvicorn, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimit())
    server_logger = logging.getLogger(LOGGER_NAME)
    server_logger.setLevel(level.upper())
    for name in ("rnnsearch", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        # The server itself logs what uvicorn would log below warnings.
        logger.setLevel(max(logging.WARNING, server_logger.level))


def log_event(event: str, fields: Mapping[str, object]) -> None:
    """Log an event."""
    logging.getLogger(LOGGER_NAME).info(event, extra={"fields": fields})


def log_failure(event: str, error: Exception) -> None:
    """Log an error that the owner of the server must correct, such as a damaged model."""
    logging.getLogger(LOGGER_NAME).error(event, extra={"fields": {"error": str(error)}})


def log_bug(error: Exception) -> str:
    """Log an unexpected exception with its traceback; return the message for the client."""
    logging.getLogger(LOGGER_NAME).error("internal error", exc_info=error)
    return "internal error of the server; see its log"


class RequestObserver:
    """ASGI middleware that counts, times and logs every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self.draining = False
        """True while the server stops: each connection is closed after its next response."""
        self.accepted = 0
        """Number of requests."""
        self.answered = 0
        """Number of complete responses."""
        self.disconnected = 0
        """Number of requests whose client disconnected before the response was complete."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_time = time.monotonic()
        status = 0
        has_disconnected = False
        is_complete = False
        self.accepted += 1

        async def observed_receive() -> Message:
            nonlocal has_disconnected
            message = await receive()
            has_disconnected = has_disconnected or message["type"] == "http.disconnect"
            return message

        async def observed_send(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.draining:
                    # Clients with open connections then reconnect to another server instead of sending here.
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            is_complete = is_complete or is_last

        try:
            with self._metrics.open_requests.track_inprogress():
                await self._app(scope, observed_receive, observed_send)
        finally:
            # In `finally`, so that requests are counted even if the application raises an exception.
            self.answered += is_complete
            self.disconnected += has_disconnected and not is_complete
            seconds = time.monotonic() - start_time
            # The pattern, not the path, which clients choose: every value of a label takes memory forever.
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count_request(route, status, seconds)
            milliseconds = round(1000 * seconds, 1)
            fields = {"method": scope["method"], "route": route, "status": status, "ms": milliseconds}
            log_event("request", fields)
