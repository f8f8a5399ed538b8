"""Global pooling by the kernel that makes the image.

    y = group{depthwise, relu};  p = group{mean over height and width}(y)   ->   y, p = group{depthwise, relu, mean}

The kernel folds each line of its results while it is in registers, and a small one folds the lines: the image is read
once less. In squeeze-excite blocks it is read again, by the projection behind them, but not to be pooled.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ir.types import f32
from ingot.ops.core.base import Category, category, is_contraction
from ingot.ops.group import Group


def pool_in_producers(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """A fused graph whose global pools are computed with what they pool, and which groups became which."""
    users = graph.uses()
    pools: dict[Node, Node] = {}  # by the group whose result they fold
    for n in graph.nodes():
        made = _pooled(n)
        if made is not None and made not in pools and _makes_lines(made, users, graph):
            pools[made] = n
    memo: dict[Node, Node] = {}
    became: dict[Node, Node] = {}

    def joined(n: Node, inputs: Sequence[Node]) -> Node:
        if n not in pools:
            return n.with_inputs(inputs)
        became[n] = _joined(n, pools[n], inputs)
        image, memo[pools[n]] = became[n].results
        return image

    return graph.with_outputs(rebuilt(graph.outputs, memo, joined)), became


def _pooled(node: Node) -> Node | None:
    """The group whose result `node` folds over all of its dimensions but the first and the last, reading nothing else
    that is computed."""
    group = node.op
    if not isinstance(group, Group) or group.kind != "rows":
        return None
    made = [i for i in node.inputs if not i.is_leaf]
    found = [n for n in group.body.nodes() if category(n.op) is Category.REDUCTION]
    if len(made) != 1 or len(found) != 1 or not all(i.constant is not None for i in node.inputs if i not in made):
        return None
    x, (fold,) = group.body.inputs[node.inputs.index(made[0])], found
    op, rank = fold.op, fold.inputs[0].type.rank
    if not isinstance(op, ops.Reduce) or op.dims != tuple(range(1, rank - 1)) or fold.inputs[0].shape != x.shape:
        return None
    small = all(product(n.shape) == product(fold.shape) for n in group.body.outputs)
    alone = not _reached(group.body.outputs, x, fold).intersection(group.body.outputs)
    return made[0] if small and alone and fold.dtype == f32 and _in_place(fold.inputs[0], x) else None


def _makes_lines(made: Node, users: dict[Node, list[Node]], graph: Graph) -> bool:
    """Whether the group's kernel makes its result line by line of an image, and nothing decides where that lies."""
    group = made.op
    if not isinstance(group, Group) or group.kind not in ("contraction", "inverted_bottleneck") or len(made.types) != 1:
        return False
    anchor = [n for n in group.body.nodes() if is_contraction(n)][-1]
    placed = made in graph.outputs or any(u.op.holds_operands for u in users[made])
    image = isinstance(anchor.op, ops.Convolution) and anchor.type.rank > 3 and made.dtype == f32
    return image and not placed and _in_place(group.body.outputs[0], anchor)


def _in_place(node: Node, base: Node) -> bool:
    """Whether element i of `base` is needed for element i of `node` alone."""
    between = _reached((node,), base) - {base}
    return all(category(n.op) is Category.ELEMENTWISE and n.shape == base.shape for n in between)


def _reached(roots: tuple[Node, ...], base: Node, stop: Node | None = None) -> set[Node]:
    """What needs `base` among all that `roots` need, not counting the ways through `stop`."""
    found = {base}
    for n in topological(roots):
        if n is not stop and any(i in found for i in n.inputs):
            found.add(n)
    return found


def _joined(made: Node, pool: Node, inputs: Sequence[Node]) -> Node:
    """One group with the results of both."""
    first, second = made.op, pool.op
    assert isinstance(first, Group) and isinstance(second, Group)
    params, outer = list(first.body.inputs), list(inputs)
    (image,) = first.body.outputs
    inside: dict[Node, Node] = {}
    for p, value in zip(second.body.inputs, pool.inputs, strict=True):
        if value is made:
            inside[p] = image
            continue
        params.append(Input(f"p{len(params)}", p.type)())
        inside[p] = params[-1]
        outer.append(value)
    body = Graph(tuple(params), (image, *rebuilt(second.body.outputs, inside)))
    return Group(body, first.kind)(*outer, loc=made.loc)
