"""Global pooling by the kernel that produces the image.

    y = group{depthwise, relu};  p = group{mean over height and width}(y)   ->   y, p = group{depthwise, relu, mean}

The kernel reduces each row of its results while it is in registers, and a small kernel reduces the rows: the image is
read once less. In squeeze-excite blocks the projection that follows still reads it.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import f32
from ingot.ops.core.base import Category, category, is_contraction
from ingot.ops.group import Group
from ingot.passes.fusion.groups import kind_of
from ingot.passes.fusion.merge import Merge, merge_groups
from ingot.passes.fusion.policy import FusionPolicy


def pool_in_producers(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph with global pools merged into their producers, and the image of each node."""
    if not policy.pools_images:
        return graph, {}
    users = graph.uses()
    pools: dict[Node, Node] = {}  # by the group whose result they fold
    for n in graph.nodes():
        producer = _pooled(n)
        if producer is not None and producer not in pools and _produces_rows(producer, users, graph):
            pools[producer] = n
    merges = (Merge.of((producer, pool), kind_of(producer), producer.loc) for producer, pool in pools.items())
    return merge_groups(graph, merges)


def _pooled(node: Node) -> Node | None:
    """The group whose result `node` reduces over all dimensions but the first and the last, if `node` reads no other
    computed value."""
    group = node.op
    if not isinstance(group, Group) or group.kind != "rows":
        return None
    computed = [i for i in node.inputs if not i.is_leaf]
    reductions = [n for n in group.body.nodes() if category(n.op) is Category.REDUCTION]
    if (
        len(computed) != 1
        or len(reductions) != 1
        or not all(i.constant is not None for i in node.inputs if i not in computed)
    ):
        return None
    x, (fold,) = group.body.inputs[node.inputs.index(computed[0])], reductions
    op, rank = fold.op, fold.inputs[0].type.rank
    if not isinstance(op, ops.Reduce) or op.dims != tuple(range(1, rank - 1)) or fold.inputs[0].shape != x.shape:
        return None
    small = all(product(n.shape) == product(fold.shape) for n in group.body.outputs)
    fold_is_only_path = not _dependents(group.body.outputs, x, fold).intersection(group.body.outputs)
    return (
        computed[0]
        if small and fold_is_only_path and fold.dtype == f32 and _is_elementwise_of(fold.inputs[0], x)
        else None
    )


def _produces_rows(producer: Node, users: dict[Node, list[Node]], graph: Graph) -> bool:
    """Whether the group's kernel produces an image row by row, and nothing else fixes the layout of the result."""
    group = producer.op
    if (
        not isinstance(group, Group)
        or group.kind not in ("contraction", "inverted_bottleneck")
        or len(producer.types) != 1
    ):
        return False
    anchor = [n for n in group.body.nodes() if is_contraction(n)][-1]
    has_fixed_layout = producer in graph.outputs or any(u.op.holds_operands for u in users[producer])
    image = isinstance(anchor.op, ops.Convolution) and anchor.type.rank > 3 and producer.dtype == f32
    return image and not has_fixed_layout and _is_elementwise_of(group.body.outputs[0], anchor)


def _is_elementwise_of(node: Node, base: Node) -> bool:
    """Whether element i of `base` is only needed for element i of `node`."""
    nodes = _dependents((node,), base) - {base}
    return all(category(n.op) is Category.ELEMENTWISE and n.shape == base.shape for n in nodes)


def _dependents(roots: tuple[Node, ...], base: Node, stop: Node | None = None) -> set[Node]:
    """The operands of `roots` that depend on `base`, except through `stop`."""
    dependents = {base}
    for n in topological(roots):
        if n is not stop and any(i in dependents for i in n.inputs):
            dependents.add(n)
    return dependents
