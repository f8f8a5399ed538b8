"""Authentication of requests by a key: `Authorization: Bearer KEY`."""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ingot.serving.openai.errors import OpenAIError, error_response

# what says nothing but that the server lives
_OPEN = ("/health", "/v2/health/live", "/v2/health/ready")


class KeyRequired:
    """An application that only answers requests with the key. Keys are compared in constant time, by their hashes, so
    that not even the length of the key leaks."""

    def __init__(self, application: ASGIApp, key: str) -> None:
        self._application, self._hash = application, _hash(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(_hash(key.strip()), self._hash):
                got = "none" if not scheme else "another"
                error = OpenAIError(401, "the key", expected="Authorization: Bearer KEY with the server's key", got=got,
                                    code="invalid_api_key")  # fmt: skip
                response = error_response(error)
                response.headers["WWW-Authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await self._application(scope, receive, send)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
