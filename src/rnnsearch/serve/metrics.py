"""What a server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from rnnsearch.serve.batching import BatchReport

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
