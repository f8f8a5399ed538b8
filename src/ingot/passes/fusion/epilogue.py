"""Epilogues: the pointwise ops that an anchor applies to its result before storing it.

c = conv(x, w);  y = c * sigmoid(c + b)   ->   add, sigmoid and multiply belong to conv
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.types import f32
from ingot.ops.core.base import Category, category
from ingot.passes.fusion.policy import FusionPolicy

_MAX_TAIL_OPS = 16  # ops between a value and the point where its paths join


def anchor_tails(graph: Graph, policy: FusionPolicy) -> dict[Node, Node]:
    """The pointwise nodes that follow an anchor in a chain, or on several paths that join again, and whose intermediate
    values nothing else needs; with the anchor of each."""
    tails: dict[Node, Node] = {}
    narrow_ends: dict[Node, Node] = {}  # the last value that an anchor's tail passes on, of few bits
    users, order = graph.uses(), graph.nodes()
    position = {n: i for i, n in enumerate(order)}
    for n in order:
        if n.op.takes_epilogue or n in tails:
            tail = _narrowest_tail(_tail_to_join(graph, n, users, position), users)
            anchor = tails.get(n, n)
            tails |= dict.fromkeys(tail, anchor)
            if policy.stores_narrow_results and tail and _is_narrow(tail[-1]):
                narrow_ends[anchor] = tail[-1]
    members: dict[Node, list[Node]] = {}
    for n, a in tails.items() if policy.widens_values else ():
        members.setdefault(a, []).append(n)
    narrow_ends |= {a: end for a, tail in members.items() if (end := _end_before_rows(a, tail, users)) is not None}
    return {n: a for n, a in tails.items() if position[n] <= position[narrow_ends.get(a, n)]}


def _is_narrow(n: Node) -> bool:
    return n.dtype.is_integer and n.dtype.bits <= 8


def _narrowest_tail(tail: list[Node], users: dict[Node, list[Node]]) -> list[Node]:
    """A tail without the ops after its last 8-bit value, if these only dequantize it and all readers are pointwise:
    they can recompute that, and a quarter of the bytes is stored."""
    last_narrow = max((i for i, n in enumerate(tail) if _is_narrow(n)), default=-1)
    widening = tail[last_narrow + 1 :]
    is_dequantization = all(isinstance(n.op, ops.Convert | ops.Sub | ops.Mul) for n in widening)
    if last_narrow < 0 or not widening or not is_dequantization:
        return tail
    pointwise = all(category(u.op) is Category.ELEMENTWISE for u in users.get(widening[-1], ()))
    return tail[: last_narrow + 1] if pointwise and users.get(widening[-1]) else tail


def _end_before_rows(anchor: Node, tail: list[Node], users: dict[Node, list[Node]]) -> Node | None:
    """The last 16-bit value of a tail, if what is behind it is computed as well by a kernel of rows that reads all of
    its operands anyway: half of the bytes is stored. So are weights times their cotangent, before a softmax's
    gradient."""
    values = [anchor, *tail]
    narrow = max((i for i, n in enumerate(values) if n.dtype.is_float and n.dtype.bits == 16), default=len(tail))
    behind = tail[narrow:]
    if not behind or tail[-1].dtype != f32 or not all(isinstance(n.op, ops.Convert | ops.Mul) for n in behind):
        return None
    readers = users.get(tail[-1], [])
    rows = [u for u in readers if isinstance(u.op, ops.Reduction)]
    others = [u for u in readers if u not in rows]
    operands = {i for n in behind for i in n.inputs if i not in values and i.type.size == anchor.type.size}
    is_of_rows = bool(rows) and all(any(_depends_on(u, r) for r in rows) for u in others)
    is_read = all(any(_depends_on(u, i, 2) for u in others) for i in operands)
    return values[narrow] if is_of_rows and is_read else None


def _depends_on(node: Node, value: Node, depth: int = 4) -> bool:
    return node is value or (depth > 0 and any(_depends_on(i, value, depth - 1) for i in node.inputs))


def _tail_to_join(graph: Graph, node: Node, users: dict[Node, list[Node]], position: dict[Node, int]) -> list[Node]:
    """The ops from `node` to the first op that is on every path from it, inclusive; none if a value among them is
    needed elsewhere. A convolution may shuffle channels into space first, as it stores them."""
    tail: list[Node] = []
    pending: set[Node] = set()
    last = node = _shuffled(graph, node, users)
    while len(tail) < _MAX_TAIL_OPS:
        pending.update(users.get(last, ()))
        if last in graph.outputs or not pending:
            return []
        last = min(pending, key=position.__getitem__)
        pending.remove(last)
        is_elementwise = category(last.op) is Category.ELEMENTWISE and last.shape == node.shape
        if not is_elementwise and not isinstance(last.op, ops.Reshape):
            return []
        tail.append(last)
        if not pending:
            return tail
    return []


def _shuffled(graph: Graph, node: Node, users: dict[Node, list[Node]]) -> Node:
    """The image into which the views after a convolution shuffle its channels, or `node` itself. Its innermost
    dimension is a part of the channels."""
    image = view = node
    while isinstance(node.op, ops.Convolution) and len(users.get(view, ())) == 1 and view not in graph.outputs:
        (view,) = users[view]
        keeps_innermost = isinstance(view.op, ops.Transpose) and view.op.permutation[-1] == view.type.rank - 1
        if not keeps_innermost and not isinstance(view.op, ops.Reshape):
            break
        image = view
    return image
