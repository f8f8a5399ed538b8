"""Products of sorted groups of rows, each with a matrix of its own: the experts of a mixture."""

from __future__ import annotations

from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import DimLike, dim_min, estimate
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, dtype_of, i64
from ingot.ops.core.base import check_count, round_to
from ingot.ops.core.reduce import CumReduce
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

# Rows of a block: more share a matrix that is read once, but the blocks' last rows are padding.
_MOST_ROWS = 64


@dataclass(frozen=True)
class GroupedMatMul(Op):
    """x [S, K], w [G, K, N], ends [G] -> [S, N]: rows ends[g - 1] to ends[g] of x, multiplied by w[g].

    `ends` ascends from 0 or more to S or less; rows from the last end on are 0. torch.nn.functional.grouped_mm of a 2-d
    and a 3-d operand.
    """

    name: ClassVar[str] = "grouped_matmul"

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        x, w, ends = inputs
        self.expect(x.dtype == w.dtype and x.dtype.kind != "b", f"expected numbers of one dtype, got {x} and {w}")
        self.expect(x.rank == 2 and w.rank == 3, f"expected [rows, k] and [groups, k, n], got {x} and {w}")
        self.expect(isinstance(w.shape[0], int), f"expected a known number of groups, got {w.shape[0]} of {w}")
        self.expect(x.shape[1] == w.shape[1], f"expected one k, got {x.shape[1]} of {x} and {w.shape[1]} of {w}")
        fits = ends.dtype.is_integer and ends.shape == w.shape[:1]
        self.expect(fits, f"expected an integer for each of {w.shape[0]} groups as ends, got {ends}")
        return x.with_shape((x.shape[0], w.shape[2]))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, w, ends = t.exact(inputs[0]), t.exact(inputs[1]), inputs[2]
        out, start = np.zeros((x.shape[0], w.shape[2]), x.dtype), 0
        with np.errstate(all="ignore"):
            for matrix, end in zip(w, ends.tolist(), strict=True):
                out[start:end] = x[start:end] @ matrix
                start = end
        return round_to(out, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        """Groups are cut into blocks of equally many rows, each of one group: there are at most S / rows + G of them,
        whatever the groups' sizes are (the blocks of MegaBlocks, Gale et al. 2022)."""
        x, w, ends = Term(inputs[0]), Term(inputs[1]), Term(inputs[2]).cast(i64)
        (count, depth), (groups, _, width) = x.shape, w.shape
        if 0 in (count, depth, groups, width):
            return t.full((count, width), 0, x.dtype).node
        assert isinstance(groups, int)
        rows = _block_rows(count, groups)
        blocks = dim_min(count, (count + groups * (rows - 1)) // rows)
        starts = t.concat((t.full((1,), 0, i64), ends.slice(0, 0, groups - 1)), 0)
        sized = (ends - starts + (rows - 1)) / rows
        last = sized.map(CumReduce("sum", 0))
        first = last - sized

        # block b: rows of its group from `low` on
        place = t.iota((blocks,), 0)
        group = t.minimum(_counted(last, place), groups - 1)
        low = t.take(starts, group, 0) + (place - t.take(first, group, 0)) * rows
        at = low.expand(1) + t.iota((blocks, rows), 1)
        held = t.take(x, t.minimum(at, t.size(count) - 1), 0)
        products = t.contract(held, t.take(w, group, 0), [(2, 1)], [(0, 0)])

        # row s: its place in the blocks
        row = t.iota((count,), 0)
        own = _counted(ends, row)
        group = t.minimum(own, groups - 1)
        inside = row - t.take(starts, group, 0)
        flat = t.minimum(t.take(first, group, 0) * rows + inside, t.size(blocks) * rows - 1)
        y = t.take(products.reshape((blocks * rows, width)), flat, 0)
        out = t.where((own < groups).expand(1), y, 0)
        assert isinstance(out, Term)
        return out.node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)

        def numbers(*shape: int) -> np.ndarray:
            return (rng.integers(-32, 33, shape) / 16).astype(np.float32)

        for count, ends in (
            (5, [2, 5]),
            (7, [0, 0, 7]),
            (7, [3, 3, 6]),
            (1, [0, 1, 1, 1]),
            (40, [1, 34, 34, 40]),
            (200, [90, 91, 200]),
            (3, [0, 0]),
            (0, [0, 0]),
        ):
            yield cls(), (numbers(count, 5), numbers(len(ends), 5, 3), np.asarray(ends, np.int32))
        x, w = numbers(6, 4), numbers(2, 4, 3)
        yield cls(), (x, w, np.asarray([6, 6], np.int64))
        yield cls(), (x[:, :0], w[:, :0], np.asarray([2, 6], np.int32))
        yield cls(), (x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16), np.asarray([2, 6], np.int32))


def _block_rows(count: DimLike, groups: int) -> int:
    """A power of 2: as many rows as a group is likely to have."""
    rows = 1
    while rows < _MOST_ROWS and rows * groups < estimate(count):
        rows *= 2
    return rows


def _counted(ends: Term, place: Term) -> Term:
    """How many of the ascending `ends` are at most `place`, for each."""
    return (ends.expand(0) <= place.expand(1)).cast(i64).sum((1,), keepdims=False)
