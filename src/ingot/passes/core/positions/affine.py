"""Integers that are affine in their own position, and ranges of integers."""

from __future__ import annotations

from typing import Protocol

from ingot.ir.dims import DimLike, bounds
from ingot.ir.node import Node
from ingot.ir.types import Shape
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Affine:
    """The element at index i is constant + sum(steps * i)."""

    constant: DimLike
    steps: tuple[DimLike, ...]

    @property
    def is_constant(self) -> bool:
        return all(isinstance(s, int) and s == 0 for s in self.steps)

    def range(self, shape: Shape) -> tuple[DimLike, DimLike] | None:
        """(lowest, highest) element of a value of `shape`; None where a step's sign depends on symbols."""
        low = high = self.constant
        for step, size in zip(self.steps, shape, strict=True):
            lo, hi = bounds(step)
            if lo is not None and lo >= 0:
                high = high + step * (size - 1)
            elif hi is not None and hi <= 0:
                low = low + step * (size - 1)
            else:
                return None
        return low, high


Range = tuple[DimLike | None, DimLike | None]

UNKNOWN: Range = (None, None)


def at_least(a: DimLike | None, b: DimLike | None) -> bool:
    """Whether a >= b for all values of the symbols."""
    if a is None or b is None:
        return False
    low = bounds(a - b)[0]
    return low is not None and low >= 0


class IntegerAnalysis(Protocol):
    """The analysis of integer values that the rule of an op uses for its operands. depth: the remaining levels of
    operands."""

    def form(self, n: Node, depth: int) -> Affine | None: ...

    def range(self, n: Node, depth: int) -> Range: ...
