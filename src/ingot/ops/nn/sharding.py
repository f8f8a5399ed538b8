"""Annotations of how values are to be split over several devices."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.ops.core.base import check_count
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Sharding(Op):
    """x, with the wish that it is split over a mesh; on one device it is x.

    Either axes: for each dimension the names of the mesh axes that split it, the outermost first. Or tiles and ranks
    (XLA's tile assignment): the device ranks[i] has tile i, in row-major order, of a grid of `tiles`; one more tile
    dimension than x has is that of copies.
    """

    name: ClassVar[str] = "sharding"
    axes: tuple[tuple[str, ...], ...] = ()
    tiles: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        fits = len(self.axes) == x.rank if not self.tiles else len(self.tiles) in (x.rank, x.rank + 1)
        self.expect(fits, f"expected a split of each dimension of {x}, got {self.axes or self.tiles}")
        is_grid = not self.tiles or sorted(self.ranks) == list(range(math.prod(self.tiles)))
        self.expect(is_grid, f"ranks: expected each device of a grid of {self.tiles} once, got {self.ranks}")
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0]

    def lower(self, *inputs: Node) -> Node:
        return inputs[0]

    @classmethod
    def samples(cls) -> Samples:
        yield cls((("tp",), ("dp", "ep"))), (np.arange(6, dtype=np.float32).reshape(3, 2),)
        yield cls((), (2, 1, 2), (0, 2, 1, 3)), (np.arange(6, dtype=np.int32).reshape(3, 2),)
