"""The exception that a row raises for a use of an op that it does not support."""

from __future__ import annotations


class Unsupported(Exception):
    """The importer gathers these into one UnsupportedOpError. Without a text: what was refused is listed already."""
