"""Products of sorted groups of rows, each with its own matrix, as in a mixture of experts."""

from __future__ import annotations

from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import DimLike, dim_min, estimate
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, dtype_of, i64
from ingot.ops.core.base import check_count, round_to
from ingot.ops.core.reduce import CumReduce
from ingot.ops.core.shape import Reshape, Transpose
from ingot.ops.nn import terms as t
from ingot.ops.nn.quant import Dequantize, DequantizeBlocks, EmbeddingLookup
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

# A block's rows share one read of the matrix; larger blocks have more padding rows at the end of a group.
_MAX_BLOCK_ROWS = 64


@dataclass(frozen=True)
class GroupedMatMul(Op):
    """x[S,K], w[G,K,N], ends[G] -> [S,N]: rows ends[g - 1]:ends[g] of the result are those of x times w[g].

    ends: integers, ascending, in [0, S]; rows from the last end on are 0. As torch.nn.functional.grouped_mm of a 2-d
    and a 3-d operand. The number of groups is static.
    """

    name: ClassVar[str] = "grouped_matmul"

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        x, w, ends = inputs
        self.expect(x.dtype == w.dtype and x.dtype.kind != "b", f"expected numbers of one dtype, got {x} and {w}")
        self.expect(x.rank == 2 and w.rank == 3, f"expected [rows, k] and [groups, k, n], got {x} and {w}")
        self.expect(isinstance(w.shape[0], int), f"expected a known number of groups, got {w.shape[0]} of {w}")
        self.expect(x.shape[1] == w.shape[1], f"expected one k, got {x.shape[1]} of {x} and {w.shape[1]} of {w}")
        is_matching = ends.dtype.is_integer and ends.shape == w.shape[:1]
        self.expect(is_matching, f"expected an integer for each of {w.shape[0]} groups as ends, got {ends}")
        return x.with_shape((x.shape[0], w.shape[2]))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, w, ends = t.as_f64(inputs[0]), t.as_f64(inputs[1]), inputs[2]
        out, start = np.zeros((x.shape[0], w.shape[2]), x.dtype), 0
        with np.errstate(all="ignore"):
            for matrix, end in zip(w, ends.tolist(), strict=True):
                out[start:end] = x[start:end] @ matrix
                start = end
        return round_to(out, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        """Each group is split into blocks of equally many rows: at most S / rows + G blocks, whatever the group sizes.

        As in MegaBlocks (Gale et al. 2022).
        """
        x, w, ends = Term(inputs[0]), Term(inputs[1]), Term(inputs[2]).cast(i64)
        (count, depth), (groups, _, width) = x.shape, w.shape
        if 0 in (count, depth, groups, width):
            return t.full((count, width), 0, x.dtype).node
        assert isinstance(groups, int)
        rows = _block_rows(count, groups)
        blocks = dim_min(count, (count + groups * (rows - 1)) // rows)
        starts = t.concat((t.full((1,), 0, i64), ends.slice(0, 0, groups - 1)), 0)
        group_blocks = (ends - starts + (rows - 1)) / rows
        block_ends = group_blocks.map(CumReduce("sum", 0))
        block_starts = block_ends - group_blocks

        # block b: rows of its group from first_row on
        block = t.iota((blocks,), 0)
        group = t.minimum(_count_ends(block_ends, block), groups - 1)
        first_row = t.take(starts, group, 0) + (block - t.take(block_starts, group, 0)) * rows
        row_index = first_row.expand(1) + t.iota((blocks, rows), 1)
        block_x = t.take(x, t.minimum(row_index, t.size(count) - 1), 0)
        products = t.contract(block_x, _matrices(w.node, t.term(group)), [(2, 1)], [(0, 0)])

        # row s: its position in the blocks
        row = t.iota((count,), 0)
        row_group = _count_ends(ends, row)
        group = t.minimum(row_group, groups - 1)
        row_in_group = row - t.take(starts, group, 0)
        flat = t.minimum(t.take(block_starts, group, 0) * rows + row_in_group, t.size(blocks) * rows - 1)
        y = t.take(products.reshape((blocks * rows, width)), flat, 0)
        out = t.where((row_group < groups).expand(1), y, 0)
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


def _matrices(w: Node, group: Term) -> Term:
    """w[group]. Of constant levels, seen through views of each group, these are gathered, and dequantized then."""
    views: list[Node] = []
    source = w
    while isinstance(source.op, Reshape | Transpose) and source.inputs[0].shape[0] == w.shape[0]:
        if isinstance(source.op, Transpose) and source.op.permutation[0] != 0:
            break
        views.append(source)
        (source,) = source.inputs
    if not isinstance(source.op, Dequantize | DequantizeBlocks) or source.inputs[0].constant is None:
        return t.take(Term(w), group, 0)
    y = EmbeddingLookup().lower(source, group.node)
    for view in reversed(views):
        y = Reshape((*group.shape, *view.shape[1:]))(y) if isinstance(view.op, Reshape) else view.op(y)
    return Term(y)


def _block_rows(count: DimLike, groups: int) -> int:
    """The rows of a block: a power of two near the average rows of a group."""
    rows = 1
    while rows < _MAX_BLOCK_ROWS and rows * groups < estimate(count):
        rows *= 2
    return rows


def _count_ends(ends: Term, positions: Term) -> Term:
    """For each position, the number of the ascending `ends` that are at most the position."""
    return (ends.expand(0) <= positions.expand(1)).cast(i64).sum((1,), keepdims=False)
