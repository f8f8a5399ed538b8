"""Errors of rows: uses of an op that they do not support, and shapes that do not fit."""

from __future__ import annotations

from ingot.support.errors import ShapeError


class Unsupported(Exception):
    """The importer collects these into one UnsupportedOpError. No message: the refused op is already listed."""


def located(e: ShapeError, where: str) -> ShapeError:
    """`e` with the op where shapes do not fit, unless it tells that already, or has sizes that may be equated."""
    return e if e.sizes is not None or " at " in str(e) else ShapeError(str(e), where=where)


# of a row, which does not check that a node is well formed: axes in range, as many operands as there should be
MALFORMED_ERRORS = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


def malformed(error: Exception) -> str:
    """Why a node is refused that is not well formed."""
    return f"operands or attributes that do not fit it: {error}"
