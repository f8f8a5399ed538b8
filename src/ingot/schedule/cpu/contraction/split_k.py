"""The same products as another contraction, where that gives better loops.

few results, long reduction:      a[m, k] . b[k, n]  ->  sum over p of  a[p, m, k / p] . b[p, k / p, n]
few columns, rows side by side:   a . b              ->  transpose(b' . a')
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.dims import estimate, product
from ingot.ir.node import Node
from ingot.ops import Reduce
from ingot.ops.build import cast
from ingot.schedule.axes import Contraction
from ingot.schedule.cpu.contraction.cost_model import least_cycles
from ingot.schedule.cpu.machine import STREAM, Machine
from ingot.schedule.folds import accumulator

LEAST = 256  # turns of the reduction that a part has at least
WORTH = 40e-6  # seconds on one core: less is not worth a second kernel
SCATTERED = 1.5  # cycles to store a result beside which no other of its vector lies


def split_k(anchor: Node, machine: Machine) -> tuple[Node, Node] | None:
    """(products of the parts of a reduction, their sum); None where cutting it does not pay.

    It does where results are too few for all threads, or where each of them needs more of both operands than the
    second-level cache holds.
    """
    op = anchor.op
    if not isinstance(op, ops.DotGeneral) or len(op.contract[0]) != 1:
        return None
    a, b = anchor.inputs
    (at,), (bt,) = op.contract
    free = op.free(a.type.rank, b.type.rank)
    rows, columns = (estimate(product(x.shape[d] for d in dims)) for x, dims in zip((a, b), free, strict=True))
    batch, k = estimate(product(a.shape[d] for d in op.batch[0])), a.shape[at]
    if not isinstance(k, int):
        return None
    moved, flops = k * (rows * a.dtype.nbytes + columns * b.dtype.nbytes), 2 * rows * columns * k
    if max(batch * moved / STREAM, batch * flops / (machine.gflops * 1e9)) < WORTH:
        return None
    tiles = batch * -(-rows // 8) * -(-columns // 48)
    goal = 2 * machine.threads if machine.threads > 1 else 1
    need = max(-(-goal // max(tiles, 1)), moved // (machine.l2 // 2) if min(rows, columns) > 8 else 1)
    parts = _divisor(k, need)
    dtype = accumulator(anchor.dtype)
    if parts is None or parts * rows * columns * dtype.nbytes > moved // 4:
        return None
    batch_a, batch_b = ((d, *(i + (i > d) for i in dims)) for d, dims in zip((at, bt), op.batch, strict=True))
    op = ops.DotGeneral((batch_a, batch_b), ((at + 1,), (bt + 1,)), dtype)
    partial = op(_cut(a, at, parts), _cut(b, bt, parts))
    return partial, cast(Reduce("sum", (0,))(partial), anchor.dtype)


def _divisor(k: int, need: int) -> int | None:
    """Into how many equal parts to cut k: at least `need` and more than one; parts of whole vectors before others."""
    fit = [p for p in range(max(need, 2), min(8 * need, k // LEAST) + 1) if k % p == 0] if need > 1 else []
    return next((p for p in fit if k // p % 16 == 0), fit[0] if fit else None)


def _cut(x: Node, at: int, parts: int) -> Node:
    size = x.shape[at]
    assert isinstance(size, int)
    return ops.Reshape((*x.shape[:at], parts, size // parts, *x.shape[at + 1 :]))(x)


def swaps_operands(anchor: Node, c: Contraction, machine: Machine) -> bool:
    """Whether A, whose rows lie side by side, is better read as B is."""
    if not isinstance(anchor.op, ops.DotGeneral) or c.rows[-1].a != 1 or len(c.cols) > 1:
        return False
    other = replace(c.changed(), packed=False)
    results = estimate(product(x.extent for x in (*c.rows, *c.cols)))
    scattered = 0.0 if all(x.extent == 1 for x in c.cols) else SCATTERED * results
    return least_cycles(other, machine) + scattered < 0.8 * least_cycles(c, machine)


def swapped_operands(anchor: Node) -> Node:
    """A dot product with its operands changed round, and its result's dimensions put back."""
    op = anchor.op
    assert isinstance(op, ops.DotGeneral)
    a, b = anchor.inputs
    rows, columns = op.free(a.type.rank, b.type.rank)
    first = len(op.batch[0])
    (batch_a, batch_b), (contract_a, contract_b) = op.batch, op.contract
    turned = ops.DotGeneral((batch_b, batch_a), (contract_b, contract_a), op.dtype)(b, a)
    own, other = range(first + len(columns), first + len(columns) + len(rows)), range(first, first + len(columns))
    return ops.Transpose((*range(first), *own, *other))(turned)


__all__ = ["split_k", "swapped_operands", "swaps_operands"]
