"""What a row raises for a use of an op that it does not support."""

from __future__ import annotations


class Unsupported(Exception):
    """The importer collects these into one UnsupportedOpError. No message: the refused op is already listed."""


# of a row, which does not check that a node is well formed: axes in range, as many operands as there should be
MALFORMED_ERRORS = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


def malformed(error: Exception) -> str:
    """Why a node is refused that is not well formed."""
    return f"operands or attributes that do not fit it: {error}"
