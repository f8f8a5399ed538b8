"""Share the copies that views need.

    a = reshape[mn,k](transpose[m,n,k](x));  b = reshape[k,mn](transpose[k,m,n](x))   ->   b = transpose(a)

A view that strides cannot express, such as heads that are merged behind the rows, is a copy. Of several such views of
a value those that strides express as views of the first one read its copy: an output, or one whose rows are read along
the rows of the value, if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.node import Graph, Node, Op, rebuild
from ingot.ops.views import BIJECTIVE_VIEWS, base_of, is_strided_view
from ingot.passes.view_chains import keeps_rows, views_between


def share_copies(graph: Graph) -> Graph:
    """Let views that are copies of the same elements be views of one of them (see module)."""
    users, outputs = graph.uses(), set(graph.outputs)
    copies: dict[Node, list[Node]] = {}
    for n in graph.nodes():
        if not isinstance(n.op, BIJECTIVE_VIEWS) or is_strided_view(n):
            continue
        source = base_of(n, BIJECTIVE_VIEWS)
        is_read = n in outputs or any(not isinstance(u.op, BIJECTIVE_VIEWS) for u in users.get(n, ()))
        if is_read and source.constant is None:
            copies.setdefault(source, []).append(n)
    views: dict[Node, tuple[Node, list[Op]]] = {}
    for several in copies.values():
        bases: list[Node] = []
        for n in sorted(several, key=lambda n: (n in outputs, keeps_rows(n)), reverse=True):
            found = ((base, views_between(base, n)) for base in bases)
            base, between = next(((b, v) for b, v in found if v is not None), (n, None))
            if between is None:
                bases.append(n)
            else:
                views[n] = base, between
    if not views:
        return graph
    memo: dict[Node, Node] = {}

    def image(n: Node) -> Node:
        """Of a view, whose source has one."""
        if n not in memo:
            memo[n] = n.with_inputs([image(n.inputs[0])])
        return memo[n]

    def shared(n: Node, inputs: Sequence[Node]) -> Node:
        if n not in views:
            return n.with_inputs(inputs)
        base, between = views[n]
        x = image(base)
        for op in between:
            x = op(x, loc=n.loc)
        return x

    return graph.with_outputs(rebuild(graph.outputs, memo, shared))


__all__ = ["share_copies"]
