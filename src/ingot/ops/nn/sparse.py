"""Block-sparse weights: only blocks with a nonzero element are stored."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.dims import ceildiv, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, i32, i64, static_shape, u16
from ingot.ops import build as b
from ingot.ops.core.indexing import Scatter
from ingot.ops.nn.quant import Dequantize, DequantizeBlocks
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Densify(Op):
    """values[blocks, height], columns[blocks], starts[groups + 1] -> the dense tensor of `shape`, zero elsewhere.

    Block compressed rows (BSR with blocks of height x 1; CSR for height 1). The rows of the matrix are the first
    dimension of `shape`, its columns all other dimensions, flattened. Group g is rows g * height to (g + 1) * height;
    its blocks are starts[g] to starts[g + 1], each `height` values of one column. Rows beyond the last are dropped.
    columns: u16 or i32; starts: i32.

    Alternatively blocks are stored in runs of n, as values[runs, height, n] and columns[runs, n], and `starts` counts
    runs: n values of a row are contiguous, as 8-bit dot product instructions read them. Blocks at one position are
    added, so that zeros may fill a run.
    """

    name: ClassVar[str] = "densify"
    duplicable: ClassVar[bool] = True
    shape: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 3, f"expected values, columns and starts, got {len(inputs)} operands")
        values, columns, starts = inputs
        is_valid = values.rank in (2, 3) and values.is_static
        self.expect(is_valid, f"expected values [blocks, height] or [runs, height, blocks], got {values}")
        blocks, height, *run = static_shape(values.shape)
        is_valid = columns.dtype in (u16, i32) and columns.shape == (blocks, *run)
        self.expect(is_valid, f"expected a column a block: {columns}")
        rank = len(self.shape)
        self.expect(rank > 1 and min(*self.shape, height) > 0, f"expected a matrix, got {self.shape}")
        groups = ceildiv(self.shape[0], height)
        self.expect(starts == TensorType(i32, (groups + 1,)), f"expected i32[{groups + 1}] of starts, got {starts}")
        return TensorType(values.dtype, self.shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        values, columns, starts = inputs
        run, height, (rows, *rest) = int(np.prod(columns.shape[1:])), values.shape[1], self.shape
        values = np.moveaxis(values, 1, -1).reshape(-1, height)
        out = np.zeros((-(-rows // height) * height, int(np.prod(rest))), values.dtype)
        group = np.repeat(np.arange(len(starts) - 1), np.diff(starts) * run)
        np.add.at(out, (group[:, None] * height + np.arange(height), columns.reshape(-1, 1)), values)
        return out[:rows].reshape(self.shape)

    def lower(self, *inputs: Node) -> Node:
        values, columns, starts = inputs
        (_, height, *run), (rows, *rest) = static_shape(values.shape), self.shape
        if run:
            values, starts = b.transpose(values, (0, 2, 1)), b.mul(starts, run[0])
        blocks = int(product(static_shape(columns.shape)))
        groups, width = static_shape(starts.shape)[0] - 1, int(product(rest))
        ends = b.reshape(b.slice_axis(b.cast(starts, i64), 0, 1, groups + 1), (1, groups))
        is_after = b.compare("GE", b.reshape(b.arange(blocks), (blocks, 1)), ends)
        group = b.reduce_sum(b.cast(is_after, i64), (1,))
        rows_of_values = b.add(b.mul(b.reshape(group, (blocks, 1)), height), b.reshape(b.arange(height), (1, height)))
        flat_index = b.add(b.mul(rows_of_values, width), b.reshape(b.cast(columns, i64), (blocks, 1)))
        flat = b.full((groups * height * width,), 0, values.dtype)
        indices = b.reshape(flat_index, (blocks * height, 1))
        flat = Scatter("add", (), (0,), (), (), (0,), 1)(flat, indices, b.reshape(values, (blocks * height,)))
        return b.reshape(b.slice_axis(b.reshape(flat, (groups * height, width)), 0, 0, rows), self.shape)

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(3)
        for shape, height, dtype in (((8, 6), 4, np.uint16), ((7, 2, 3), 1, np.int32), ((10, 5), 4, np.int32)):
            groups, width = -(-shape[0] // height), int(np.prod(shape[1:]))
            is_kept = rng.random((groups, width)) < 0.4
            is_kept[0] = False
            starts = np.concatenate([[0], np.cumsum(is_kept.sum(1))]).astype(np.int32)
            columns = np.nonzero(is_kept)[1].astype(dtype)
            yield cls(shape), (rng.standard_normal((len(columns), height)).astype(np.float32), columns, starts)
        runs = np.array([[5, 0, 2, 0], [1, 3, 0, 0], [4, 2, 1, 3]], np.uint16)
        yield cls((7, 6)), (rng.integers(-9, 9, (3, 4, 4)).astype(np.int8), runs, np.array([0, 1, 3], np.int32))


# the compressed forms in which products read constant weights
LEVEL_FORMS = (Dequantize, DequantizeBlocks)
WEIGHT_FORMS = (*LEVEL_FORMS, Densify)

__all__ = ["LEVEL_FORMS", "WEIGHT_FORMS", "Densify"]
