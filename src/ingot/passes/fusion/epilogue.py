"""Epilogues: the pointwise ops behind an anchor that it applies to its result before storing it.

c = conv(x, w);  y = c * sigmoid(c + b)   ->   add, sigmoid and multiply belong to conv
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ops.core.base import Category, category

_MEETING = 16  # ops on the ways from a value that part and meet again


def anchor_tails(graph: Graph) -> dict[Node, Node]:
    """Pointwise nodes that follow an anchor one by one, or apart and together again, so that nothing else needs the
    values between; and the anchor of each."""
    tails: dict[Node, Node] = {}
    users, order = graph.uses(), graph.nodes()
    place = {n: i for i, n in enumerate(order)}
    for n in order:
        if n.op.takes_epilogue or n in tails:
            tails |= dict.fromkeys(_as_stored(_until_they_meet(graph, n, users, place), users), tails.get(n, n))
    return tails


def _as_stored(tail: list[Node], users: dict[Node, list[Node]]) -> list[Node]:
    """A tail without the steps behind its last value of 8 bits, where these only say what that stands for, which
    pointwise readers can do again: a quarter of the bytes is stored."""
    narrow = max((i for i, n in enumerate(tail) if n.dtype.is_integer and n.dtype.bits <= 8), default=-1)
    wide = tail[narrow + 1 :]
    meaning = all(isinstance(n.op, ops.Convert | ops.Sub | ops.Mul) for n in wide)
    if narrow < 0 or not wide or not meaning:
        return tail
    pointwise = all(category(u.op) is Category.ELEMENTWISE for u in users.get(wide[-1], ()))
    return tail[: narrow + 1] if pointwise and users.get(wide[-1]) else tail


def _until_they_meet(graph: Graph, node: Node, users: dict[Node, list[Node]], place: dict[Node, int]) -> list[Node]:
    """The ops between `node` and the first that every way from it leads through, that one too; none if a value among
    them is needed elsewhere. A convolution may shuffle channels into space first, as it stores them."""
    between: list[Node] = []
    waiting: set[Node] = set()
    last = node = _shuffled(graph, node, users)
    while len(between) < _MEETING:
        waiting.update(users.get(last, ()))
        if last in graph.outputs or not waiting:
            return []
        last = min(waiting, key=place.__getitem__)
        waiting.remove(last)
        same = category(last.op) is Category.ELEMENTWISE and last.shape == node.shape
        if not same and not isinstance(last.op, ops.Reshape):
            return []
        between.append(last)
        if not waiting:
            return between
    return []


def _shuffled(graph: Graph, node: Node, users: dict[Node, list[Node]]) -> Node:
    """The image that the channels of a convolution are shuffled into by the views behind it, or `node` itself: its
    innermost dimension is a part of the channels."""
    found = at = node
    while isinstance(node.op, ops.Convolution) and len(users.get(at, ())) == 1 and at not in graph.outputs:
        (at,) = users[at]
        stays = isinstance(at.op, ops.Transpose) and at.op.permutation[-1] == at.type.rank - 1
        if not stays and not isinstance(at.op, ops.Reshape):
            break
        found = at
    return found
