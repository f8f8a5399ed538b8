"""The routes: /health, and under /v1 models, completions, chats and embeddings."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from ingot.language.engine import BusyError
from ingot.serving.application import RequestLimits, answer, body_of
from ingot.serving.metrics import Metrics, Outcome
from ingot.serving.openai.answers import Choice, Delta, Form, deltas
from ingot.serving.openai.errors import HANDLERS, OpenAIError, error_response
from ingot.serving.openai.events import EventStream
from ingot.serving.openai.metrics import LanguageMetrics
from ingot.serving.openai.model import LanguageModels, Prompt, ServedLanguageModel, max_answer_tokens
from ingot.serving.openai.protocol import (
    MAX_CHOICES,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    parse,
)
from ingot.support.errors import IngotError

_VERSION = "1"  # of each language model, in metrics
_EMBEDDINGS_WAITING = 64


def routes(models: LanguageModels, limits: RequestLimits, metrics: Metrics) -> list[BaseRoute]:
    """The routes for `application`. Errors under /v1 have OpenAI's format."""
    endpoints = _Endpoints(models, limits, metrics)
    get, post = ["GET"], ["POST"]
    inner = Starlette(
        routes=[
            Route("/models", endpoints.models, methods=get),
            Route("/models/{name:path}", endpoints.model, methods=get),
            Route("/completions", endpoints.completions, methods=post),
            Route("/chat/completions", endpoints.chat, methods=post),
            Route("/embeddings", endpoints.embeddings, methods=post),
        ],
        exception_handlers=HANDLERS,
    )
    inner.state.held_bytes = 0
    return [Route("/health", endpoints.health, methods=get), Mount("/v1", inner)]


class _Endpoints:
    def __init__(self, models: LanguageModels, limits: RequestLimits, metrics: Metrics) -> None:
        self._models, self._limits, self._metrics = models, limits, metrics
        self._language_metrics = LanguageMetrics(metrics.registry, models)
        self._embedding = asyncio.Lock()  # a call uses all threads
        self._embeddings = 0

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(model) for model in self._models]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(_model(self._models.find(request.path_params["name"])))

    async def completions(self, request: Request) -> Response:
        return await _answered(self._generated(request, CompletionRequest))

    async def chat(self, request: Request) -> Response:
        return await _answered(self._generated(request, ChatRequest))

    async def embeddings(self, request: Request) -> Response:
        return await _answered(self._embedded(request))

    async def _generated(self, request: Request, kind: type[CompletionRequest] | type[ChatRequest]) -> Response:
        since = time.perf_counter()
        with ExitStack() as stack:
            async with body_of(request, self._limits) as body:
                parsed = await asyncio.to_thread(parse, kind, body)
                model = self._models.find(parsed.model)
                outcome = stack.enter_context(self._metrics.request(model.name, _VERSION))
                prompts = await asyncio.to_thread(_prompts, model, parsed)
                logprobs = parsed.alternatives if isinstance(parsed, ChatRequest) else parsed.logprobs
                answers = await asyncio.to_thread(model.submit, prompts, parsed, max_answer_tokens(parsed), logprobs)
            for answer_ in answers:
                stack.callback(answer_.cancel)
            for prompt in prompts:
                self._language_metrics.count_prompt(model.name, len(prompt.ids))
            prompt_of_answer = [prompt for prompt in prompts for _ in range(parsed.choices)]
            tokenizer, metrics = model.model.tokenizer, self._language_metrics
            choices = [
                Choice(i, a, prompt_of_answer[i], tokenizer, metrics.pace(model.name, since), parsed.stops)
                for i, a in enumerate(answers)
            ]
            form = Form(
                model.name, is_chat=isinstance(parsed, ChatRequest), has_logprobs=logprobs is not None,
                includes_usage=parsed.includes_usage,
            )  # fmt: skip
            if parsed.stream:
                events = _events(form, choices, outcome, parsed)
                return EventStream(request, events, self._limits, stack.pop_all().close)
            results = await answer(request, _collected(choices), self._limits)
            outcome.is_success = True
            return JSONResponse(form.response(choices, results))

    async def _embedded(self, request: Request) -> Response:
        async with body_of(request, self._limits) as body:
            parsed = await asyncio.to_thread(parse, EmbeddingRequest, body)
            model = self._models.find(parsed.model)
            with self._metrics.request(model.name, _VERSION) as outcome:
                ids = await asyncio.to_thread(model.embedding_ids, parsed.texts)
                if self._embeddings >= _EMBEDDINGS_WAITING:
                    raise BusyError("the queue of embeddings is full", fix="try again later")
                self._embeddings += 1
                try:
                    rows = await answer(request, self._rows(model, ids, parsed.dimensions), self._limits)
                finally:
                    self._embeddings -= 1
                outcome.is_success = True
        tokens = sum(map(len, ids))
        self._language_metrics.count_prompt(model.name, tokens)
        is_base64 = parsed.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _base64(row) if is_base64 else row.tolist()}
            for i, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})

    async def _rows(self, model: ServedLanguageModel, ids: list[list[int]], dimensions: int | None) -> list[np.ndarray]:
        """The embeddings, one text at a time, so that after a disconnect at most one more is computed."""
        rows: list[np.ndarray] = []
        for text_ids in ids:
            async with self._embedding:
                row = await asyncio.to_thread(model.embed, text_ids)
            if dimensions not in (None, len(row)):
                raise OpenAIError(400, "dimensions", expected=f"{len(row)}, the model's", got=dimensions,
                                  param="dimensions", code="unsupported_parameter")  # fmt: skip
            rows.append(row)
        return rows


async def _answered(response: Coroutine[Any, Any, Response]) -> Response:
    """The response. Unexpected errors are answered here, as Starlette would log them again."""
    try:
        return await response
    except (IngotError, HTTPException, ClientDisconnect):
        raise
    except Exception as error:
        return error_response(error)


def _prompts(model: ServedLanguageModel, parsed: CompletionRequest | ChatRequest) -> list[Prompt]:
    prompts = [model.chat(parsed)] if isinstance(parsed, ChatRequest) else model.completion(parsed)
    if len(prompts) * parsed.choices > MAX_CHOICES:
        got = len(prompts) * parsed.choices
        raise OpenAIError(400, "prompts times n", expected=f"at most {MAX_CHOICES}", got=got, param="n")
    return prompts


async def _collected(choices: Sequence[Choice]) -> list[Delta]:
    parts: dict[int, list[Delta]] = {choice.index: [] for choice in choices}
    async for choice, delta in deltas(choices):
        parts[choice.index].append(delta)
    return [Delta.join(choice_parts) for choice_parts in parts.values()]


async def _events(
    form: Form, choices: Sequence[Choice], outcome: Outcome, parsed: CompletionRequest | ChatRequest
) -> AsyncIterator[dict[str, Any]]:
    if isinstance(parsed, ChatRequest):
        for choice in choices:
            yield form.opening(choice)
    async for choice, delta in deltas(choices):
        if form.is_told(delta):
            yield form.chunk(choice, delta)
    if parsed.includes_usage:
        yield form.usage(choices)
    outcome.is_success = True


def _base64(row: np.ndarray) -> str:
    """The base64 of little-endian f32."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _model(model: ServedLanguageModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "ingot"}
