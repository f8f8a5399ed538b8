"""Checked access to the values of a file's description by key: files are untrusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.language.architecture import Architecture
from ingot.support.errors import ImportModelError

MAX_SIZE = 1 << 31  # the largest size or count


class Settings:
    """where: the name of the description, for messages. prefix: of every key."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values, self.where, self._prefix = values, where, prefix

    def get(self, key: str) -> Any:
        """The value; None if the key is missing."""
        return self._values.get(self._prefix + key)

    @property
    def names(self) -> list[str]:
        return [key.removeprefix(self._prefix) for key in self._values if key.startswith(self._prefix)]

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The integer of the first key that exists."""
        key, value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= MAX_SIZE:
            raise self.error(key, f"an integer from {least} to {MAX_SIZE}", value)
        return int(value)

    def number(self, *keys: str, default: float | None = None) -> float:
        key, value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
            raise self.error(key, "a finite number", value)
        return float(value)

    def positive(self, *keys: str, default: float | None = None) -> float:
        value = self.number(*keys, default=default)
        if value <= 0:
            raise self.error(keys[0], "a number above 0", value)
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        key, value = self._first(keys, default)
        if not isinstance(value, str):
            raise self.error(key, "a text", value)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool | np.bool_):
            raise self.error(key, "true or false", value)
        return default if value is None else bool(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; () if it is absent."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple | np.ndarray):
            raise self.error(key, "a list of numbers", value)
        items = Settings(dict(zip(map(str, range(len(value))), value, strict=True)), self.where, "")
        return tuple(items.number(str(i)) for i in range(len(value)))

    def inner(self, key: str) -> Settings | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, "an object", value)
        return Settings(value, f"{self.where}'s {key}")

    def error(self, key: str, expected: str, got: Any) -> ImportModelError:
        got_text = "none" if got is None else repr(got)[:80]
        return ImportModelError(self._prefix + key, expected=expected, got=got_text, where=self.where)

    def _first(self, keys: tuple[str, ...], default: Any) -> tuple[str, Any]:
        for key in keys:
            if (value := self.get(key)) is not None:
                return key, value
        return keys[0], default


def without_layers(
    s: Settings, keys: tuple[str, str, str], family: str, switches: Mapping[str, Any], width: int, heads: int,
    key_heads: int, context: int,
) -> Architecture:  # fmt: skip
    """The record of a model without its layers. keys: of the width, the key heads, and the head width, which is by
    default the model's width divided by the number of heads. switches: fields of the record other than sizes.

    Raises ImportModelError for sizes that are not divisible by the number of heads.
    """
    width_key, key_heads_key, head_width_key = keys
    if heads % key_heads:
        raise s.error(key_heads_key, f"a divisor of the {heads} heads", key_heads)
    if s.get(head_width_key) is None and width % heads:
        raise s.error(width_key, f"a multiple of the {heads} heads", width)
    head_width = s.count(head_width_key, default=width // heads)
    return Architecture(
        family=family, width=width, heads=heads, key_heads=key_heads, head_width=head_width, context=context,
        layers=(), **switches,
    )  # fmt: skip
