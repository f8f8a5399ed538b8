"""Views as layouts: where the elements of a reshaped, transposed, sliced or broadcast value lie in memory."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.ir.layout import Layout
from ingot.ir.node import Node, Op
from ingot.ops.core.base import inverse
from ingot.ops.core.shape import BroadcastInDim, Reshape, Slice, Transpose, Windows

VIEWS = (BroadcastInDim, Reshape, Slice, Transpose, Windows)
WHOLE_VIEWS = (Reshape, Transpose)  # each element of the operand once


def base_of(node: Node, kinds: tuple[type[Op], ...] = VIEWS) -> Node:
    """The value under a chain of views."""
    while isinstance(node.op, kinds):
        node = node.inputs[0]
    return node


def view_layout(node: Node, layout: Layout) -> Layout | None:
    """The layout of a view `node` of a value that lies at `layout`; None where no strides express it."""
    if not isinstance(node.op, VIEWS):
        return None
    return layout.viewed(node.shape, node.op.index_map(node.inputs[0].shape, node.shape))


def strided(node: Node, layouts: Mapping[Node, Layout]) -> tuple[Node, Layout] | None:
    """The stored value under a chain of views, and the layout of `node` in it; None where the chain has no strides.

    `layouts` gives the stored values; one that it does not name is taken to be contiguous.
    """
    chain: list[Node] = []
    base = node
    while base not in layouts and isinstance(base.op, VIEWS):
        chain.append(base)
        base = base.inputs[0]
    layout: Layout | None = layouts.get(base) or Layout.contiguous(base.shape)
    for view in reversed(chain):
        if layout is None:
            return None
        layout = view_layout(view, layout)
    return None if layout is None else (base, layout)


def strided_view(node: Node) -> bool:
    """Whether `node` can be read in place from the value that it is a view of."""
    return isinstance(node.op, VIEWS) and strided(node, {}) is not None


def pull_back(root: Node, source: Node, layout: Layout) -> Layout | None:
    """Where element i of `source` has to be written, when `root`, reached from it by reshapes and transposes alone,
    lies at `layout`; None where other ops lie between or no strides express it."""
    at: Layout | None = layout
    node = root
    while node is not source:
        if at is None or not isinstance(node.op, Reshape | Transpose):
            return None
        below = node.inputs[0]
        at = at.reshape(below.shape) if isinstance(node.op, Reshape) else at.transpose(inverse(node.op.permutation))
        node = below
    return at
