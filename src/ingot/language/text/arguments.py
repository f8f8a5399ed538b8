"""Conversion of arguments that callers may give in several forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.support.errors import InputError


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,)
    if stop is not None and not isinstance(stop, Sequence):
        raise InputError("stop", expected="a text or several", got=repr(stop))
    return tuple(stop or ())


def token_ids(values: Sequence[int]) -> list[int]:
    is_list = isinstance(values, Sequence | np.ndarray) and not isinstance(values, bytes | bytearray)
    ids = values.tolist() if isinstance(values, np.ndarray) else values
    if not is_list or not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids):
        raise InputError("the prompt", expected="a text or a list of token ids", got=repr(values)[:80])
    return [int(i) for i in ids]


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raises InputError for ids that are no tokens of a vocabulary."""
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise InputError("token ids", expected=f"0 to {vocabulary - 1}", got=[min(ids), max(ids)])


def is_several(prompt: Any) -> bool:
    """Whether it is a list of prompts. Raises InputError for a list that mixes texts and ids."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    kinds = {
        str if isinstance(one, str) else Sequence for one in prompt if isinstance(one, str | Sequence | np.ndarray)
    }
    if len(kinds) > 1:
        raise InputError("prompts", expected="texts, or lists of token ids", got="both")
    return bool(kinds)
