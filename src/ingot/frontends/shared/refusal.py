"""Errors of rows: uses of an op that they do not support, and shapes that do not fit."""

from __future__ import annotations

from ingot.support.errors import ShapeError


class Unsupported(Exception):
    """The importer collects these into one UnsupportedOpError. No message: the refused op is already listed."""


def located(e: ShapeError, where: str) -> ShapeError:
    """`e` with the op where shapes do not fit, unless it tells that already, or has sizes that may be equated."""
    return e if e.sizes is not None or " at " in str(e) else ShapeError(str(e), where=where)
