"""The exception that a row raises for a use of an op that it does not support."""

from __future__ import annotations


class Unsupported(Exception):
    """The importer collects these into one UnsupportedOpError. No message: the refused op is already listed."""
