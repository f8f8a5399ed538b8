"""Compute only the parts of values that are read.

    slice[:, 0](layer_norm(x + dot(gelu(dot(h, v)), w)))   ->   x0 = slice[:, 0](x), h0 = slice[:, 0](h)
                                                                layer_norm(x0 + dot(gelu(dot(h0, v)), w))

A classifier reads one token of its encoder, the caller of a language model the logits of the last position: of the last
layer only attention's keys and values need the other positions. A traversal from the outputs finds the box of each
value that its readers need (`Op.cropped` says what an op reads for a part of its result); one from the inputs builds
the smaller values. Only where a sum of products gets smaller: a slice between pointwise ops and their producer prevents
their fusion.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import DimLike, dim_max, dim_min, estimate, is_at_most, product
from ingot.ir.node import Graph, Node, Op
from ingot.ir.rewrite import current_fuel
from ingot.ir.types import Box
from ingot.ops.core.base import box_shape, full_box
from ingot.support.dataclass import dataclass

MAX_CROPPED_PART = 0.75  # the largest part of a sum of products that is worth a slice


@dataclass(frozen=True)
class _Window:
    """`box` of a value, which `op` computes from the boxes `reads` of its operands (None: an operand that it does not
    need). op None: the full value."""

    box: Box
    op: Op | None
    reads: tuple[Box | None, ...]


def crop_unread(graph: Graph) -> Graph:
    """Reduce sums of products, and the ops between them and their readers, to the elements that are read (see
    module)."""
    nodes = graph.nodes()
    if not any(isinstance(n.op, ops.Slice) for n in nodes):
        return graph
    smaller = _nodes_to_crop(nodes, _parts(graph, nodes, set(nodes)))
    if not smaller or not current_fuel().burn("crop"):
        return graph
    broadcasts = {n for n in nodes if isinstance(n.op, ops.BroadcastInDim)}  # free at any size
    parts = _parts(graph, nodes, smaller | broadcasts)
    images: dict[Node, Node] = {}
    for n in nodes:
        part = parts.get(n)
        if part is None:
            continue  # an operand that is no longer read
        if part.op is None:
            images[n] = n.with_inputs([images[i] for i in n.inputs])
            continue
        reads = zip(n.inputs, part.reads, strict=True)
        inputs = [_slice(images[i], parts[i].box, box) for i, box in reads if box is not None]
        is_full_slice = isinstance(part.op, ops.Slice) and inputs[0].shape == box_shape(part.box)
        images[n] = inputs[0] if is_full_slice else part.op(*inputs, loc=n.loc)
    return graph.with_outputs([images[o] for o in graph.outputs])


def _parts(graph: Graph, nodes: list[Node], allowed: set[Node]) -> dict[Node, _Window]:
    """The part of each value that is read, if those in `allowed` are cropped to it and others computed in full."""
    boxes: dict[Node, Box] = {o: _full_box(o) for o in graph.outputs}
    parts: dict[Node, _Window] = {}
    for n in reversed(nodes):
        if n not in boxes:
            continue
        part = _Window(_full_box(n), None, tuple(map(_full_box, n.inputs)))
        box = boxes[n] if n in allowed else part.box
        if (box != part.box or isinstance(n.op, ops.Slice)) and n.op.computes:
            cropped = n.op.cropped(box, *(i.type for i in n.inputs))
            part = part if cropped is None or (box, cropped[1]) == (part.box, part.reads) else _Window(box, *cropped)
        parts[n] = part
        for i, read in zip(n.inputs, part.reads, strict=True):
            if read is not None:
                boxes[i] = _hull(boxes[i], read, _full_box(i)) if i in boxes else read
    return parts


def _full_box(n: Node) -> Box:
    return full_box(n.shape) if len(n.types) == 1 else ()


def _slice(x: Node, present: Box, box: Box) -> Node:
    """`box` of a value whose box `present` is `x`."""
    if present == box:
        return x
    low = tuple(at - start for (at, _), (start, _) in zip(box, present, strict=True))
    high = tuple(end - start for (_, end), (start, _) in zip(box, present, strict=True))
    return ops.Slice(low, high, (1,) * len(box))(x, loc=x.loc)


def _hull(a: Box, b: Box, full: Box) -> Box:
    """The bounding box of two boxes, with full dimensions where the bounds cannot be compared."""
    if a == b or full in (a, b):
        return a if a == b else full
    hull: list[tuple[DimLike, DimLike]] = []
    for (low, high), (other_low, other_high), rest in zip(a, b, full, strict=True):
        low_known = is_at_most(low, other_low) or is_at_most(other_low, low)
        high_known = is_at_most(high, other_high) or is_at_most(other_high, high)
        hull.append((dim_min(low, other_low), dim_max(high, other_high)) if low_known and high_known else rest)
    return tuple(hull)


def _nodes_to_crop(nodes: list[Node], parts: dict[Node, _Window]) -> set[Node]:
    """The nodes to crop: sums of products that get much smaller, and their users."""
    smaller: set[Node] = set()
    for n in nodes:
        part = parts.get(n)
        if part is None or part.box == _full_box(n):
            continue
        reads = [i for i, box in zip(n.inputs, part.reads, strict=True) if box is not None]
        if _is_much_smaller(n, part) or any(i in smaller for i in reads):
            smaller.add(n)
    return smaller


def _is_much_smaller(n: Node, part: _Window) -> bool:
    """Whether `n` is a sum of products and the part takes much less time."""
    if n.op.flops(*(x.type for x in n.inputs)) == 0:
        return False
    return estimate(product(box_shape(part.box))) <= MAX_CROPPED_PART * estimate(n.type.size)


__all__ = ["crop_unread"]
