"""A table of measurements by key: a search with the same table repeats none of them, and has the same result.

The file is one JSON object, {key: number or list or mapping}. It is rewritten after each measurement, so that an
interrupted search can be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

from ingot.support.errors import InputError
from ingot.support.files import atomic_write, open_regular

T = TypeVar("T", float, dict[str, float], list[float])
Value = float | dict[str, float] | list[float]
_MAX_FILE_BYTES = 64 << 20  # bytes of a file that is read


class Table:
    """Measurements by key, stored in a file if a path is given."""

    def __init__(self, path: Path | None = None, prefix: str = "") -> None:
        """prefix: identifies the model, machine and samples. Raises InputError for a file that is not a table."""
        self.path, self.prefix = path, prefix
        self.values: dict[str, Value] = _read(path) if path is not None and path.exists() else {}

    def get(self, key: str, measure: Callable[[], T]) -> T:
        key = f"{self.prefix} {key}"
        if key not in self.values:
            self.values[key] = measure()
            self._write()
        return cast("T", self.values[key])

    def update(self, values: Mapping[str, Value]) -> None:
        """Add measurements of workers, by keys without the prefix. Raises InputError for malformed ones."""
        if not all(map(_is_value, values.values())):
            raise InputError("a worker's answer", expected="numbers", got=values)
        self.values |= {f"{self.prefix} {key}": value for key, value in values.items()}
        self._write()

    def take(self) -> dict[str, Value]:
        """What has been measured, by keys without the prefix, and forget it."""
        entries = {key.removeprefix(f"{self.prefix} "): value for key, value in self.values.items()}
        self.values.clear()
        return entries

    def has(self, key: str) -> bool:
        return f"{self.prefix} {key}" in self.values

    def _write(self) -> None:
        if self.path is not None:
            atomic_write(self.path, [json.dumps(self.values, indent=0).encode()], durable=False)


def _read(path: Path) -> dict[str, Value]:
    try:
        with open_regular(path) as file:
            text = file.read(_MAX_FILE_BYTES + 1)
        values = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"table {path}", expected="a table of measured times", got=str(error)) from error
    if not isinstance(values, dict) or len(text) > _MAX_FILE_BYTES or not all(map(_is_value, values.values())):
        raise InputError(f"table {path}", expected="a table of measured times", got="another JSON value")
    return values


def _is_value(value: object) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
    return all(isinstance(p, int | float) and not isinstance(p, bool) for p in parts)
