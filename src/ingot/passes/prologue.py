"""Prologues: the operand of a contraction that its own group may compute.

    r = relu(x * scale + shift); dot(r, w)   ->   for a block of rows: scratch = relu(x * scale + shift)
                                                                       scratch . w, all columns

The rows of the first operand never reach memory: they are written and read once less, and there is one kernel less.
In return each block of columns computes them again, and each block of rows streams the second operand again.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.node import Node
from ingot.ir.types import Shape

BLOCK = 256 << 10  # bytes of rows that surely stay in a core's caches while all columns read them
TILE = 16  # rows that a block has at least
ROWS = 128  # fewer are cut by columns between the cores: each would compute them all


def panel_operand(anchor: Node) -> Node | None:
    """The operand that `anchor` reads row by row and could compute so itself, where that pays; None: none."""
    loops = _loops(anchor)
    if loops is None or anchor.inputs[0] is anchor.inputs[1]:
        return None
    a, b = anchor.inputs
    rows, columns, k = loops
    sized = [d for d in columns if d != 1]
    if not isinstance(k, int) or k == 0 or len(sized) > 1:
        return None
    row, count = k * a.dtype.nbytes, estimate(product(rows))
    small = count * row <= BLOCK
    # otherwise the second operand is streamed for each block of rows: from cache, if it is no larger than a few
    again = estimate(product(sized)) * k * b.dtype.nbytes <= 4 * BLOCK
    return a if count >= ROWS and row * TILE <= BLOCK and (small or again) else None


def _loops(anchor: Node) -> tuple[Shape, Shape, DimLike] | None:
    """(rows, columns, reduction) of a contraction whose rows do not overlap and lie along its reduction."""
    op = anchor.op
    if isinstance(op, ops.DotGeneral):
        a, b = anchor.inputs
        if op.contract[0] != (a.type.rank - 1,):
            return None
        free_a, free_b = op.free(a.type.rank, b.type.rank)
        return tuple(a.shape[d] for d in free_a), tuple(b.shape[d] for d in free_b), a.shape[-1]
    if not isinstance(op, ops.Convolution) or op.lhs_layout[-1] != "C" or op.feature_groups * op.batch_groups != 1:
        return None
    w = dict(zip(op.rhs_layout, anchor.inputs[1].shape, strict=True))
    if any(w[c] != 1 for c in op.spatial):
        return None
    rows = tuple(d for c, d in zip(op.out_layout, anchor.shape, strict=True) if c != "C")
    return rows, (w["O"],), w["I"]
