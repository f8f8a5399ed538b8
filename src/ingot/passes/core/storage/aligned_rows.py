"""Rows of matrices that start at aligned addresses, as tensor cores' operands are loaded in vectors of 16 bytes.

    g[2048, 50257] @ w   ->   g' @ w,   where g' = pad(g, high = (0, 7))[:, :50257]

The matrix lies in the padded one: its producer writes it there, and an input is copied. A vocabulary of odd size would
otherwise be read element by element, several times, by the products of the gradients of logits.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import estimate, is_static, product
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Graph, Node, rebuild
from ingot.ops.views import base_of, strided_base

MIN_FREE_SIZE = 256  # rows and columns of a product's result: with fewer, the copy costs more than it saves
MIN_MATRIX_BYTES = 1 << 20


def align_rows(graph: Graph, alignment_bytes: int) -> Graph:
    """product(x) -> product(pad(x)[...]) for large matrices of 16-bit elements whose rows are not aligned"""
    aligned: dict[Node, Node] = {}  # by their unaligned originals, in the graph to be

    def rule(n: Node, images: Sequence[Node]) -> Node:
        if not isinstance(n.op, ops.DotGeneral) or not _is_large(n):
            return n.with_inputs(images)
        return n.with_inputs([_with_aligned_rows(x, alignment_bytes, aligned) for x in images])

    return graph.with_outputs(rebuild(graph.outputs, rule=rule))


def _is_large(n: Node) -> bool:
    assert isinstance(n.op, ops.DotGeneral)
    x, y = n.inputs
    if not is_static((*x.shape, *y.shape)):
        return False
    free = n.op.free(x.type.rank, y.type.rank)
    return all(
        estimate(product(v.shape[d] for d in axes)) >= MIN_FREE_SIZE for v, axes in zip((x, y), free, strict=True)
    )


def _with_aligned_rows(x: Node, alignment_bytes: int, aligned: dict[Node, Node]) -> Node:
    """The operand of a product as a view of aligned rows; itself where that is not possible, or where it is so."""
    base = base_of(x)
    size = base.dtype.nbytes
    unit = alignment_bytes // size
    is_stored = not isinstance(base.op, Const) and not base.op.duplicable  # products unpack levels as they read them
    if base.dtype.bits != 16 or base.type.rank < 2 or not is_stored or base.shape[-1] % unit == 0:
        return x
    width = base.shape[-1] + -base.shape[-1] % unit
    layout = Layout(base.shape, Layout.contiguous((*base.shape[:-1], width)).strides)
    if estimate(product(base.shape)) * size < MIN_MATRIX_BYTES or strided_base(x, {base: layout}) is None:
        return x
    if base not in aligned:
        zeros = (0,) * base.type.rank
        padded = ops.pad(base, zeros, (*zeros[1:], width - base.shape[-1]), loc=base.loc)
        aligned[base] = ops.Slice(zeros, base.shape, (1,) * base.type.rank)(padded, loc=base.loc)
    return _on(x, base, aligned[base])


def _on(view: Node, base: Node, new_base: Node) -> Node:
    """The view of `base`, of another base."""
    return new_base if view is base else view.with_inputs([_on(view.inputs[0], base, new_base), *view.inputs[1:]])


__all__ = ["align_rows"]
