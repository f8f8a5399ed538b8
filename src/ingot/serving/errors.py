"""The error of a request that cannot be served."""

from __future__ import annotations

from ingot.support.errors import InputError, message


class RequestError(InputError):
    """A request that is refused. status: HTTP's number for the reason."""

    def __init__(self, status: int, what: str, *, expected: object = None, got: object = None, fix: str = "") -> None:
        super().__init__(message(what, expected=expected, got=got, fix=fix or None))
        self.status = status
