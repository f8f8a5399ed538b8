"""How values are to be split over several devices, and what each device computes of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op, Samples, Types, const, rebuild
from ingot.ir.types import TensorType, f32, u32
from ingot.ops.core.base import check_count
from ingot.ops.core.binary import Add, Convert, Mul
from ingot.ops.core.collective import simulated
from ingot.ops.core.shape import BroadcastInDim
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError


@dataclass(frozen=True)
class Sharding(Op):
    """x, annotated with a split over a mesh; the identity on one device.

    Either axes: for each dimension the names of the mesh axes that split it, the outermost first. Or tiles and ranks
    (XLA's tile assignment): the device ranks[i] has tile i, in row-major order, of a grid of `tiles`; a dimension of
    the grid beyond the rank of x is for copies.
    """

    name: ClassVar[str] = "sharding"
    axes: tuple[tuple[str, ...], ...] = ()
    tiles: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        has_split = len(self.axes) == x.rank if not self.tiles else len(self.tiles) in (x.rank, x.rank + 1)
        self.expect(has_split, f"expected a split of each dimension of {x}, got {self.axes or self.tiles}")
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


Axes = tuple[tuple[str, ...], ...]  # for each dimension the mesh axes that split it, the outermost first


@dataclass(frozen=True)
class PerDevice(Op):
    """A computation of each device of a mesh on its parts of the operands (JAX's shard_map, sdy.manual_computation).

    mesh: axes and their sizes; ranks are in row-major order. in_axes, out_axes: the splits of operands and results.
    body: the computation of one device, on its rank, a u32 scalar, and its parts; its collectives refer to ranks of the
    mesh.
    """

    name: ClassVar[str] = "per_device"
    mesh: tuple[tuple[str, int], ...]
    in_axes: tuple[Axes, ...]
    out_axes: tuple[Axes, ...]
    body: Graph

    @property
    def count(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.mesh)

    def infer(self, *inputs: TensorType) -> Types:
        check_count(self, inputs, len(self.in_axes))
        counts = dict(self.mesh)
        names = {a for axes in (*self.in_axes, *self.out_axes) for split in axes for a in split}
        self.expect(names <= counts.keys(), f"expected axes of the mesh {counts}, got {sorted(names)}")
        rank, *parts = (n.type for n in self.body.inputs)
        self.expect(rank == TensorType(u32, ()), f"expected a rank of u32[] as the body's first input, got {rank}")
        wholes = [self._global_type(part, axes) for part, axes in zip(parts, self.in_axes, strict=True)]
        self.expect(wholes == [*inputs], f"expected operands {wholes}, got {[*inputs]}")
        results = zip(self.body.outputs, self.out_axes, strict=True)
        result_types = tuple(self._global_type(n.type, axes) for n, axes in results)
        return result_types[0] if len(result_types) == 1 else result_types

    def _global_type(self, part: TensorType, axes: Axes) -> TensorType:
        counts = dict(self.mesh)
        self.expect(len(axes) == part.rank, f"expected a split of each dimension of {part}, got {axes}")
        factors = [math.prod(counts[a] for a in split) for split in axes]
        return part.with_shape(tuple(d * factor for d, factor in zip(part.shape, factors, strict=True)))

    def on_rank(self, rank: int, parts: Sequence[Node]) -> tuple[Node, ...]:
        """The results of a device's parts."""
        images = dict(zip(self.body.inputs, (const(np.uint32(rank)), *parts), strict=True))
        return rebuild(self.body.outputs, images)

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        def run(rank: int) -> tuple[np.ndarray, ...]:
            parts = [x[self._cut(x.shape, axes, rank)] for x, axes in zip(inputs, self.in_axes, strict=True)]
            return interpret(self.body, [np.asarray(np.uint32(rank)), *parts])

        by_rank = simulated(self.count, run)
        out: list[np.ndarray] = []
        for i, axes in enumerate(self.out_axes):
            first, counts = by_rank[0][i], dict(self.mesh)
            factors = [math.prod(counts[a] for a in split) for split in axes]
            shape = tuple(d * factor for d, factor in zip(first.shape, factors, strict=True))
            result = np.empty(shape, first.dtype)
            for rank in range(self.count):
                result[self._cut(shape, axes, rank)] = by_rank[rank][i]
            out.append(result)
        return out[0] if len(out) == 1 else tuple(out)

    def _cut(self, shape: tuple[int, ...], axes: Axes, rank: int) -> tuple[slice, ...]:
        """Where a device's part is in a whole array."""
        position = dict(zip(dict(self.mesh), np.unravel_index(rank, [size for _, size in self.mesh]), strict=True))
        cut: list[slice] = []
        for size, split in zip(shape, axes, strict=True):
            count, index = 1, 0
            for axis in split:
                count, index = count * dict(self.mesh)[axis], index * dict(self.mesh)[axis] + int(position[axis])
            cut.append(slice(size // count * index, size // count * (index + 1)))
        return tuple(cut)

    def lower(self, *inputs: Node) -> Node | tuple[Node, ...]:
        if self.count > 1:
            fix = f"ingot.compile(..., mesh={dict(self.mesh)}), or ingot.simulate of it"
            raise InputError("a computation of several devices", expected="their mesh", got="one device", fix=fix)
        results = self.on_rank(0, inputs)
        return results[0] if len(results) == 1 else results

    @classmethod
    def samples(cls) -> Samples:
        rank, x = Input("rank", TensorType(u32, ()))(), Input("x", TensorType(f32, (3, 2)))()
        shift = BroadcastInDim((3, 2), ())(Convert(f32)(rank))
        body = Graph((rank, x), (Add()(Mul()(x, x), shift), Add()(x, x)))
        yield cls((("tp", 1),), ((("tp",), ()),), (((), ("tp",)), ((), ())), body), (np.ones((3, 2), np.float32),)
