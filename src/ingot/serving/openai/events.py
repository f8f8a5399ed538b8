"""A stream of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), each a JSON object,
with OpenAI's end marker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingot.serving.application import RequestLimits, answer
from ingot.serving.openai.errors import body_of_error

_DONE_EVENT = b"data: [DONE]\n\n"
_ERROR_SECONDS = 1.0  # to send an error to a client that may not read any more


class EventStream(Response):
    """events: stopped when the client disconnects. If they raise an error or take too long, that is reported as the
    last event. close: called at the end."""

    media_type = "text/event-stream"

    def __init__(
        self, request: Request, events: AsyncIterator[dict[str, Any]], limits: RequestLimits, close: Callable[[], None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request, self._events, self._limits, self._close = request, events, limits, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await answer(self._request, self._send(send), self._limits)
        except ClientDisconnect:
            return
        except Exception as error:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ERROR_SECONDS):
                    await send(_body(_event(body_of_error(error))))
                    await send(_body(b"", is_last=True))
        else:
            await send(_body(_DONE_EVENT, is_last=True))
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        async for event in self._events:
            await send(_body(_event(event)))


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _body(data: bytes, *, is_last: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": not is_last}
