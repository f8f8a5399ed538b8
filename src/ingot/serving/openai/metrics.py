"""The metrics of language models, in the server's registry."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingot.serving.openai.model import ServedLanguageModel

_FIRST_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_BETWEEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_LABELS = ["model"]


class LanguageMetrics:
    def __init__(self, registry: CollectorRegistry, models: Iterable[ServedLanguageModel]) -> None:
        def seconds(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, _LABELS, buckets=buckets, registry=registry)

        self._first = seconds("ingot_first_token_seconds", "from a request's head to its first token", _FIRST_SECONDS)
        self._inter_token_seconds = seconds(
            "ingot_between_tokens_seconds", "from a token to the next", _BETWEEN_SECONDS
        )
        self._prompt = Counter("ingot_prompt_tokens", "tokens of prompts", _LABELS, registry=registry)
        self._generated = Counter("ingot_generated_tokens", "tokens of answers", _LABELS, registry=registry)
        waiting = Gauge("ingot_waiting_sequences", "sequences in the queue", _LABELS, registry=registry)
        running = Gauge("ingot_running_sequences", "sequences that are computed", _LABELS, registry=registry)
        used = Gauge("ingot_cache_pages_used", "pages of keys and values", _LABELS, registry=registry)
        pages = Gauge("ingot_cache_pages", "pages that there are", _LABELS, registry=registry)
        for model in models:
            if not model.model.is_encoder:
                waiting.labels(model.name).set_function(lambda engine=model.engine: engine.statistics().waiting)
                running.labels(model.name).set_function(lambda engine=model.engine: engine.statistics().running)
                used.labels(model.name).set_function(lambda engine=model.engine: engine.statistics().pages_used)
                pages.labels(model.name).set(model.engine.statistics().pages)

    def count_prompt(self, model: str, tokens: int) -> None:
        self._prompt.labels(model).inc(tokens)

    def pace(self, model: str, since: float) -> Pace:
        """The pace of an answer to a request that arrived at `since`, in the time of `time.perf_counter`."""
        return Pace(
            self._first.labels(model), self._inter_token_seconds.labels(model), self._generated.labels(model), since
        )


class Pace:
    """Receives the tokens of one answer as they come."""

    def __init__(self, first: Histogram, inter_token_seconds: Histogram, generated: Counter, since: float) -> None:
        self._first, self._inter_token_seconds, self._generated, self._last = (
            first,
            inter_token_seconds,
            generated,
            since,
        )
        self._is_first = True

    def tokens(self, count: int) -> None:
        """Count new tokens, which divide the time since the last ones equally."""
        if not count:
            return
        now = time.perf_counter()
        self._generated.inc(count)
        elapsed, self._last = now - self._last, now
        if self._is_first:
            self._is_first = False
            self._first.observe(elapsed)
            return
        for _ in range(count):
            self._inter_token_seconds.observe(elapsed / count)
