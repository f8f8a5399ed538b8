"""Views as layouts: the memory layout of reshaped, transposed, sliced and broadcast values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ingot.ir.layout import Layout
from ingot.ir.node import Node, Op
from ingot.ops.core.base import inverse
from ingot.ops.core.shape import BroadcastInDim, Pad, Reshape, Slice, Transpose, Windows, fill_byte

VIEWS = (BroadcastInDim, Reshape, Slice, Transpose, Windows)
BIJECTIVE_VIEWS = (Reshape, Transpose)  # each element of the operand occurs once


def base_of(node: Node, kinds: tuple[type[Op], ...] = VIEWS) -> Node:
    """The value that a chain of views starts from."""
    while isinstance(node.op, kinds):
        node = node.inputs[0]
    return node


def view_layout(node: Node, layout: Layout) -> Layout | None:
    """The layout of the view `node` of a value with `layout`; None if strides cannot express it."""
    if not isinstance(node.op, VIEWS):
        return None
    return layout.view(node.shape, node.op.index_map(node.inputs[0].shape, node.shape))


def strided_base(node: Node, layouts: Mapping[Node, Layout]) -> tuple[Node, Layout] | None:
    """The stored value that `node` is a view of, and the layout of `node` in it; None if strides cannot express it.

    layouts: the layouts of stored values; others are assumed to be contiguous.
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


def zero_padding(image: Node) -> Node | None:
    """The Pad of which an image [N,*S,C] is a dense part, if it puts a static number of zeros around S alone."""
    pad = image
    if isinstance(image.op, Slice) and all(s == 1 for s in image.op.strides):
        pad = image.inputs[0]
    if not isinstance(pad.op, Pad) or any(pad.op.interior) or fill_byte(pad) != 0:
        return None
    amounts = [*zip(pad.op.low, pad.op.high, strict=True)]
    if len(amounts) < 3 or any(amounts[0]) or any(amounts[-1]):
        return None
    return pad if all(isinstance(n, int) and n >= 0 for pair in amounts for n in pair) else None


def is_strided_view(node: Node, layouts: Mapping[Node, Layout] = MappingProxyType({})) -> bool:
    """Whether `node` can be read in place from the value that it is a view of. layouts: see `strided_base`."""
    return isinstance(node.op, VIEWS) and strided_base(node, layouts) is not None


def pull_back(root: Node, source: Node, layout: Layout) -> Layout | None:
    """The layout in which to write `source` so that `root`, its view by reshapes and transposes, has `layout`.

    None if other ops are between them, or if strides cannot express it.
    """
    result: Layout | None = layout
    node = root
    while node is not source:
        if result is None or not isinstance(node.op, Reshape | Transpose):
            return None
        source_node = node.inputs[0]
        result = (
            result.reshape(source_node.shape)
            if isinstance(node.op, Reshape)
            else result.transpose(inverse(node.op.permutation))
        )
        node = source_node
    return result
