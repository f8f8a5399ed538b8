"""Errors in OpenAI's form: {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ingot.language.engine import BusyError
from ingot.serving.errors import RequestError
from ingot.support.errors import IngotError, InputError

_REQUEST, _SERVER = "invalid_request_error", "server_error"
_RETRY_SECONDS = 1
_CLOSING = (408, 413, 415, 503)  # what is left of a body that was not read must not be taken for the next request
_logger = logging.getLogger("ingot.serving")


class OpenAIError(RequestError):
    """A request that is refused. param: the field that is wrong. code: a word that programs compare with."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        expected: object = None,
        got: object = None,
        fix: str = "",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(status, what, expected=expected, got=got, fix=fix)
        self.param, self.code = param, code


def status_of(error: Exception) -> int:
    if isinstance(error, RequestError | HTTPException):
        return error.status if isinstance(error, RequestError) else error.status_code
    if isinstance(error, BusyError):
        return 503
    return 400 if isinstance(error, InputError) else 500


def body_of_error(error: Exception) -> dict[str, Any]:
    """For an unexpected error, the client sees only its kind; the log has the details."""
    status = status_of(error)
    if isinstance(error, HTTPException):
        text = str(error.detail)
    elif isinstance(error, IngotError):
        text = str(error)
    else:
        text = f"the server failed: {type(error).__name__}; its log says more"
        _logger.error("a request failed", exc_info=error)
    kind = _SERVER if status >= 500 else _REQUEST
    param, code = (error.param, error.code) if isinstance(error, OpenAIError) else (None, None)
    if isinstance(error, BusyError):
        code = "overloaded"
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def error_response(error: Exception) -> JSONResponse:
    status = status_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if status in _CLOSING:
        headers["Connection"] = "close"
    if status == 503:
        headers["Retry-After"] = str(_RETRY_SECONDS)
    return JSONResponse(body_of_error(error), status, headers)


async def _answer(request: Request, error: Exception) -> Response:
    return error_response(error)


async def _goodbye(request: Request, error: Exception) -> Response:
    """The response is never read."""
    return Response(status_code=499)


HANDLERS: Any = {IngotError: _answer, HTTPException: _answer, ClientDisconnect: _goodbye}
