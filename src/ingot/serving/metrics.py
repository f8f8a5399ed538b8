"""The metrics of a server, in Prometheus' format."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ingot.serving.repository import ServedModel
from ingot.serving.scheduler import Observe
from ingot.support.dataclass import dataclass

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_LABELS = ["model", "version"]


@dataclass
class Outcome:
    is_success: bool = False


class Metrics:
    """The counters of one server, in its own registry, which others may extend."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("ingot_requests", "requests by outcome", [*_LABELS, "outcome"], registry=registry)
        self._latency = Histogram(
            "ingot_request_seconds", "from a request's head to its answer", _LABELS, buckets=_SECONDS, registry=registry
        )
        self._calls = Histogram(
            "ingot_call_seconds", "calls of the model", _LABELS, buckets=_SECONDS, registry=registry
        )
        self._rows = Histogram("ingot_call_rows", "rows of joint calls", _LABELS, buckets=_ROWS, registry=registry)
        self._waiting = Gauge("ingot_waiting_requests", "requests in the queue", _LABELS, registry=registry)

    def observer(self, model: str, version: str) -> Observe:
        """A callback for a model's queue, which receives the rows and seconds of each call."""
        calls, rows = self._calls.labels(model, version), self._rows.labels(model, version)

        def observe(count: int, seconds: float) -> None:
            calls.observe(seconds)
            if count:
                rows.observe(count)

        return observe

    @contextmanager
    def request(self, model: str, version: str) -> Iterator[Outcome]:
        """Count a request and its time, as a failure unless the block sets `is_success`."""
        outcome, start = Outcome(), time.perf_counter()
        try:
            yield outcome
        finally:
            self._requests.labels(model, version, "success" if outcome.is_success else "failure").inc()
            self._latency.labels(model, version).observe(time.perf_counter() - start)

    def text(self, models: Iterable[ServedModel]) -> bytes:
        for model in models:
            self._waiting.labels(model.name, model.version).set(model.waiting)
        return generate_latest(self.registry)
