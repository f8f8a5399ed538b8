"""One request at a time, until the engine for many is there."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ingot.api.language_model import LanguageModel, _texts
from ingot.language.engine import Answer, BusyError
from ingot.language.text.generation import Piece, Request, generate
from ingot.support.dataclass import dataclass


@dataclass
class Statistics:
    waiting: int
    running: int


def request_of(lm: LanguageModel, *, max_tokens: int | None, stop: Any, schema: Any = None, grammar: Any = None,
               logit_bias: Any, logprobs: Any, ignore_ends: bool, **sampling: Any) -> Request:  # fmt: skip
    constraint = None
    if schema is not None or grammar is not None:
        constraint = lm._grammars.constraint(schema, None, grammar)
    return Request(
        lm.context if max_tokens is None else max_tokens,
        lm._sampling(sampling),
        () if ignore_ends else lm._ends,
        _texts(stop),
        logit_bias or {},
        logprobs,
        constraint,
        True,
    )


class SerialEngine:
    def __init__(self, lm: LanguageModel, queue: int) -> None:
        self._lm, self._most = lm, queue
        self._waiting: deque[tuple[list[int], Request, Answer]] = deque()
        self._running: Answer | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, ids: list[int], request: Request) -> Answer:
        self._lm._generating().check(ids)
        with self._changed:
            if self._closed or len(self._waiting) >= self._most:
                raise BusyError("the queue is full", fix="try again later")
            answer = Answer(len(ids))
            self._waiting.append((ids, request, answer))
            self._changed.notify()
        return answer

    def statistics(self) -> Statistics:
        return Statistics(len(self._waiting), int(self._running is not None))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._running:
                self._running.cancel()
            for _, _, a in self._waiting:
                a.cancel()
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                ids, request, answer = self._waiting.popleft()
                self._running = answer
            try:
                for piece in (
                    () if answer.is_cancelled else generate(self._lm._generating(), self._lm.tokenizer, ids, request)
                ):
                    if answer.is_cancelled:
                        break
                    answer.put(piece)
                if not answer.is_finished:
                    answer.put(Piece((), "", "cancelled"))
            except Exception as error:
                answer.fail(error)
            self._running = None
