"""Rewrites of a contraction into one with better loops.

few results, long reduction:      a[m, k] . b[k, n]  ->  sum over p of  a[p, m, k / p] . b[p, k / p, n]
few columns, contiguous rows:     a . b              ->  transpose(b' . a')
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.dims import estimate, product
from ingot.ir.node import Node
from ingot.ops import Reduce
from ingot.ops.build import cast
from ingot.schedule.axes import Contraction
from ingot.schedule.cpu.contraction.cost_model import min_cycles
from ingot.schedule.cpu.machine import MEMORY_BYTES_PER_SECOND, Machine
from ingot.schedule.folds import accumulator

MIN_K_PER_PART = 256
MIN_SECONDS = 40e-6  # on one core; less is not worth a second kernel
CYCLES_PER_SCATTERED_RESULT = 1.5  # to store a result whose vector is not contiguous


def split_k(anchor: Node, machine: Machine) -> tuple[Node, Node] | None:
    """Return (partial products, their sum) of a split reduction, or None if splitting does not pay.

    It pays if there are too few results for all threads, or if each result needs more of both operands than L2 holds.
    """
    op = anchor.op
    if not isinstance(op, ops.DotGeneral) or len(op.contract[0]) != 1:
        return None
    a, b = anchor.inputs
    (a_dim,), (b_dim,) = op.contract
    free = op.free(a.type.rank, b.type.rank)
    rows, columns = (estimate(product(x.shape[d] for d in dims)) for x, dims in zip((a, b), free, strict=True))
    batch, k = estimate(product(a.shape[d] for d in op.batch[0])), a.shape[a_dim]
    if not isinstance(k, int):
        return None
    moved_bytes, flops = k * (rows * a.dtype.nbytes + columns * b.dtype.nbytes), 2 * rows * columns * k
    if max(batch * moved_bytes / MEMORY_BYTES_PER_SECOND, batch * flops / (machine.gflops * 1e9)) < MIN_SECONDS:
        return None
    tiles = batch * -(-rows // 8) * -(-columns // 48)
    min_tiles = 2 * machine.threads if machine.threads > 1 else 1
    min_parts = max(-(-min_tiles // max(tiles, 1)), moved_bytes // (machine.l2 // 2) if min(rows, columns) > 8 else 1)
    parts = _part_count(k, min_parts)
    dtype = accumulator(anchor.dtype)
    if parts is None or parts * rows * columns * dtype.nbytes > moved_bytes // 4:
        return None
    batch_a, batch_b = ((d, *(i + (i > d) for i in dims)) for d, dims in zip((a_dim, b_dim), op.batch, strict=True))
    op = ops.DotGeneral((batch_a, batch_b), ((a_dim + 1,), (b_dim + 1,)), dtype)
    partial = op(_split_dim(a, a_dim, parts), _split_dim(b, b_dim, parts))
    return partial, cast(Reduce("sum", (0,))(partial), anchor.dtype)


def _part_count(k: int, min_parts: int) -> int | None:
    """The number of equal parts to split k into: at least `min_parts` and more than one. Parts of full vectors are
    preferred."""
    divisors = (
        [p for p in range(max(min_parts, 2), min(8 * min_parts, k // MIN_K_PER_PART) + 1) if k % p == 0]
        if min_parts > 1
        else []
    )
    return next((p for p in divisors if k // p % 16 == 0), divisors[0] if divisors else None)


def _split_dim(x: Node, dim: int, parts: int) -> Node:
    size = x.shape[dim]
    assert isinstance(size, int)
    return ops.Reshape((*x.shape[:dim], parts, size // parts, *x.shape[dim + 1 :]))(x)


def should_swap_operands(anchor: Node, c: Contraction, machine: Machine) -> bool:
    """Whether A, if its rows are contiguous, is better used as B."""
    if not isinstance(anchor.op, ops.DotGeneral) or c.rows[-1].a != 1 or len(c.cols) > 1:
        return False
    swapped = replace(c.transposed(), packed=False)
    results = estimate(product(x.extent for x in (*c.rows, *c.cols)))
    store_cycles = 0.0 if all(x.extent == 1 for x in c.cols) else CYCLES_PER_SCATTERED_RESULT * results
    return min_cycles(swapped, machine) + store_cycles < 0.8 * min_cycles(c, machine)


def swap_operands(anchor: Node) -> Node:
    """Return the dot product with swapped operands, its result transposed back."""
    op = anchor.op
    assert isinstance(op, ops.DotGeneral)
    a, b = anchor.inputs
    rows, columns = op.free(a.type.rank, b.type.rank)
    batch_rank = len(op.batch[0])
    (batch_a, batch_b), (contract_a, contract_b) = op.batch, op.contract
    swapped = ops.DotGeneral((batch_b, batch_a), (contract_b, contract_a), op.dtype)(b, a)
    row_dims, column_dims = (
        range(batch_rank + len(columns), batch_rank + len(columns) + len(rows)),
        range(batch_rank, batch_rank + len(columns)),
    )
    return ops.Transpose((*range(batch_rank), *row_dims, *column_dims))(swapped)


__all__ = ["should_swap_operands", "split_k", "swap_operands"]
