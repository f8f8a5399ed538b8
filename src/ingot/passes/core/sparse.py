"""Sparse constant weights: of mostly zeros only the blocks with other elements are stored, where that is faster.

    dot(x[m, k], w[n, k])  ->  dot(x, densify(values[blocks, 4], columns[blocks], starts))

Zeros are found in the constants: masks that multiply weights have been folded by then. Quantized weights of 8 bits have
the same zeros; their blocks are stored in runs of four, as dot instructions sum them. A target chooses the height of
blocks, if any, with which a product is fastest. Results only differ by the order of sums: infinities and NaN times zero
are NaN in both (`schedule/cpu/contraction/compressed/sparse.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Node, const, rebuild
from ingot.ir.types import f32, i8, i32, u8
from ingot.ops.core.base import is_contraction

Height = Callable[[Node, Callable[[int], int]], int]
MIN_ZERO_PART = 0.3  # with a smaller part of zeros, no product was faster
SAMPLE_ROWS = 64  # rows that are tested first
BLOCKS_PER_RUN = 4  # of 8-bit weights


def always_dense(n: Node, blocks: Callable[[int], int]) -> int:
    """Keep every product dense: for targets without sparse kernels."""
    return 0


def keep_blocks(graph: Graph, height: Height) -> Graph:
    """Replace sparse weights by their nonzero blocks (see module). height: the block height with which a product is
    fastest, given the number of blocks of each height; 0: it stays dense."""
    if height is always_dense:  # no target kernel
        return graph

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        new = n.with_inputs(inputs)
        rows = _rows(new) if is_contraction(n) else None
        if rows is None:
            return new
        product, order = rows
        w = inputs[1]
        assert w.constant is not None
        value = w.constant.value.transpose(order)
        if not _is_sparse(value[:: max(1, len(value) // SAMPLE_ROWS)]) or not _is_sparse(value):
            return new
        matrix = value.reshape(value.shape[0], -1)
        chosen = height(new, lambda h: stored_block_count(matrix, h))
        return new if chosen == 0 else product(_blocks(value, chosen, w.loc))

    return graph.with_outputs(rebuild(graph.outputs, rule=image))


def _rows(n: Node) -> tuple[Callable[[Node], Node], tuple[int, ...]] | None:
    """(a function from weights whose first dimension is the output's to the product `n` of them, the permutation that
    brings its own weights to this order); None where there are no kernels for it."""
    op, (x, w) = n.op, n.inputs
    is_supported = (x.dtype, w.dtype, n.dtype) in ((f32, f32, f32), (u8, i8, i32))
    if w.constant is None or not is_supported or 0 in x.shape or 0 in w.shape:
        return None
    if isinstance(op, ops.DotGeneral):
        _, free = op.free(x.type.rank, w.type.rank)
        if any(op.batch) or len(free) != 1 or not op.contract[1]:
            return None
        contracted = op.contract[0], tuple(range(1, w.type.rank))
        return lambda form: replace(op, contract=contracted)(x, form, loc=n.loc), (*free, *op.contract[1])
    assert isinstance(op, ops.Convolution)
    plain = op.feature_groups == op.batch_groups == 1 and all(d == 1 for d in op.lhs_dilation)
    if not plain or any(map(any, op.padding)):
        return None
    layout = f"O{''.join(op.spatial)}I"
    order = tuple(op.rhs_layout.index(c) for c in layout)
    return lambda form: replace(op, rhs_layout=layout)(x, form, loc=n.loc), order


def _is_sparse(weights: np.ndarray) -> bool:
    # of a mask: numpy counts nonzero floats one by one
    return bool(np.count_nonzero(weights != 0) <= (1 - MIN_ZERO_PART) * weights.size)


def nonzero_blocks(matrix: np.ndarray, height: int) -> np.ndarray:
    """[groups, columns]: whether a block has an element other than zero."""
    rows, columns = matrix.shape
    padded = np.zeros((-(-rows // height) * height, columns), bool)
    padded[:rows] = matrix != 0
    return np.asarray(padded.reshape(-1, height, columns).any(1))


def stored_block_count(matrix: np.ndarray, height: int) -> int:
    """The number of stored blocks of weights, including those that fill runs."""
    counts = nonzero_blocks(matrix, height).sum(1)
    return int(counts.sum()) if matrix.dtype != np.int8 else int((-(-counts // BLOCKS_PER_RUN) * BLOCKS_PER_RUN).sum())


def _blocks(value: np.ndarray, height: int, loc: str) -> Node:
    matrix = value.reshape(value.shape[0], -1)
    rows, columns = matrix.shape
    is_stored = nonzero_blocks(matrix, height)
    if is_stored.sum() < 2:
        is_stored[0, :2] = True  # a constant of one element would be no operand
    group, column = np.nonzero(is_stored)
    padded = np.zeros((len(is_stored) * height, columns), matrix.dtype)
    padded[:rows] = matrix
    values = padded.reshape(-1, height, columns)[group, :, column]
    starts = np.concatenate([[0], np.cumsum(is_stored.sum(1))]).astype(np.int32)
    places = column.astype(np.uint16 if columns <= 1 << 16 else np.int32)
    if matrix.dtype == np.int8:
        values, places, starts = _in_runs(values, places, starts)
    parts = (const(np.ascontiguousarray(p), loc=loc) for p in (values, places, starts))
    return ops.Densify(value.shape)(*parts, loc=loc)


def _in_runs(values: np.ndarray, places: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The blocks of each group in runs; the last run is filled with zeros."""
    counts = np.diff(starts)
    ends = np.concatenate([[0], np.cumsum(-(-counts // BLOCKS_PER_RUN))]).astype(np.int32)
    index = np.arange(len(values)) + np.repeat(ends[:-1] * BLOCKS_PER_RUN - starts[:-1], counts)
    filled = np.zeros((ends[-1] * BLOCKS_PER_RUN, values.shape[1]), values.dtype)
    columns = np.zeros(len(filled), places.dtype)
    filled[index], columns[index] = values, places
    return (
        filled.reshape(-1, BLOCKS_PER_RUN, values.shape[1]).transpose(0, 2, 1),
        columns.reshape(-1, BLOCKS_PER_RUN),
        ends,
    )


__all__ = ["Height", "always_dense", "keep_blocks", "nonzero_blocks", "stored_block_count"]
