"""The answer to a request: pieces of text, which any thread may take while the engine computes the next.

answer = engine.submit(ids, Request(max_tokens=64))
for piece in answer: print(piece.text)          blocks until there is one; raises the engine's error
answer.subscribe(wake);  answer.take()          never blocks: for an event loop
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

from ingot.language.text.generation import AnswerPart
from ingot.support.errors import InputError

CANCELLED = "cancelled"


class BusyError(InputError):
    """The engine's queue is full, or the engine is closed: a request may be retried later, or elsewhere."""


class Answer:
    """The pieces of an answer as they come. The last one has a `finish`: "stop", "length" or "cancelled".

    prompt_tokens: the tokens of the prompt. cached_tokens: those that earlier requests had computed. generated_tokens:
    the tokens so far.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens, self.cached_tokens, self.generated_tokens = prompt_tokens, 0, 0
        self.is_cancelled = False
        self._finish_reason = ""
        self._pieces: list[AnswerPart] = []
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[], object]] = []

    @property
    def finish_reason(self) -> str:
        """The `finish` of the last piece; "" before it."""
        return self._finish_reason

    @property
    def is_finished(self) -> bool:
        """Whether no more pieces will come."""
        return bool(self._finish_reason) or self._error is not None

    def cancel(self) -> None:
        """End the answer before the engine's next step, and free its pages."""
        self.is_cancelled = True

    def subscribe(self, callback: Callable[[], object]) -> None:
        """Call back for each piece and for a failure, on the engine's thread, and immediately if there is one already.
        A callback must not block: `lambda: loop.call_soon_threadsafe(event.set)`. If it raises, as for a closed event
        loop, the answer is cancelled."""
        with self._changed:
            self._subscribers.append(callback)
            is_late = bool(self._pieces) or self.is_finished
        if is_late:
            self._notify([callback])

    def take(self) -> list[AnswerPart]:
        """The pieces since the last call, without waiting. Raises the engine's error if there are none: take until
        there are none, as callbacks may come together."""
        with self._changed:
            pieces, self._pieces = self._pieces, []
            if not pieces and self._error is not None:
                raise self._error
            return pieces

    def __iter__(self) -> Iterator[AnswerPart]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self.is_finished)
            pieces = self.take()
            if not pieces:
                return
            yield from pieces

    def until_left(self) -> Generator[AnswerPart]:
        """The same for a single reader: the answer is cancelled when it stops reading."""
        try:
            yield from self
        finally:
            self.cancel()

    # --- for the engine

    def put(self, piece: AnswerPart) -> None:
        with self._changed:
            self._pieces.append(piece)
            self.generated_tokens += len(piece.tokens)
            self._finish_reason = piece.finish
            self._changed.notify_all()
        self._notify([*self._subscribers])

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._notify([*self._subscribers])

    def _notify(self, callbacks: list[Callable[[], object]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:
                self.cancel()
