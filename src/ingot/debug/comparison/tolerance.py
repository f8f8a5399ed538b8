"""The difference of two results, and whether it is within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import ml_dtypes
import numpy as np

from ingot.support.dataclass import dataclass

# By the result's dtype: largest difference allowed, in parts of the expected result's largest finite magnitude.
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}

_ROUNDING_ULPS = 32  # of the largest magnitude


@dataclass(frozen=True)
class Agreement:
    """`error`: the largest absolute difference; `relative`: that over the expected result's largest finite magnitude.

    `place`: index of the largest difference. `note`: what differs besides numbers (shape, dtype, NaNs), "" if nothing.
    `size`: of the difference, "rounding" where it is as small as what sums in the result's type are off.
    """

    error: float
    relative: float
    place: tuple[int, ...]
    note: str
    ok: bool
    size: Literal["none", "rounding", "larger"] = "larger"

    @property
    def words(self) -> str:
        """A remark for the user beside the numbers."""
        if self.note:
            return self.note
        if self.size == "rounding":
            return "(rounding)" if self.ok else "by rounding alone: the tolerance is below what the type holds"
        return "(equal)" if self.size == "none" else ""

    def __str__(self) -> str:
        if self.note:
            return self.note
        at = f" at {list(self.place)}" if self.place and self.error else ""
        return f"largest error {self.error:.3g} ({self.relative:.2g} of the largest magnitude){at}"


def _failed(note: str, place: tuple[int, ...] = ()) -> Agreement:
    return Agreement(np.inf, np.inf, place, note, False)


def agree(got: np.ndarray, expected: np.ndarray, tolerance: float | None = None) -> Agreement:
    """Compare a result with the expected one. Integers and booleans must be equal; so must NaNs and infinities.

    `tolerance` overrides TOLERANCE for floats.
    """
    if got.shape != expected.shape:
        return _failed(f"shape {list(got.shape)} instead of {list(expected.shape)}")
    if got.dtype != expected.dtype:
        return _failed(f"dtype {got.dtype} instead of {expected.dtype}")
    if expected.size == 0:
        return Agreement(0.0, 0.0, (), "", True, "none")
    if expected.dtype.name not in TOLERANCE:
        return _exact(got, expected)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    special = ~np.isfinite(b)
    wrong = (special | ~np.isfinite(a)) & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if np.isnan(b).all() and not wrong.any():
        return Agreement(
            0.0, 0.0, (), f"all {a.size} values are NaN, as expected: no number was compared", True, "none"
        )
    if np.isnan(a).all():
        return _failed(f"all {a.size} values are NaN instead of numbers")
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        note = f"{wrong.sum()} of {a.size} values: first {a[place]} instead of {b[place]} at {list(place)}"
        return _failed(note, place)
    difference = np.abs(np.where(special, 0.0, a) - np.where(special, 0.0, b))
    place = tuple(int(i) for i in np.unravel_index(int(difference.argmax()), difference.shape))
    error = float(difference[place])
    relative = error / (float(np.abs(b[~special]).max(initial=0.0)) or 1.0)
    limit = TOLERANCE[expected.dtype.name] if tolerance is None else tolerance
    size = "none" if not error else "rounding" if relative <= _ROUNDING_ULPS * _epsilon(expected.dtype) else "larger"
    return Agreement(error, relative, place, "", relative <= limit, size)


def _epsilon(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def _exact(got: np.ndarray, expected: np.ndarray) -> Agreement:
    different = got != expected
    if not different.any():
        return Agreement(0.0, 0.0, (), "", True, "none")
    place = tuple(int(i) for i in np.argwhere(different)[0])
    count = int(different.sum())
    note = f"{count} of {got.size} values differ: first {got[place]} instead of {expected[place]} at {list(place)}"
    return _failed(note, place)


def worst(results: Sequence[Agreement]) -> Agreement:
    """The agreement with the largest difference; failures come before successes."""
    return max(results, key=lambda a: (not a.ok, a.relative))
