"""One kernel for groups that only differ in scalar constants: the constants become operands.

    group(x) {x * 0.5 + x}      =>      group(x, 0.5) {x * p + x}
    group(y) {y * 0.2 + y}              group(y, 0.2) {y * p + y}

The layers of a quantized network often differ only in their scales, and each would otherwise be compiled to a kernel of
its own. Only constants that plain arithmetic reads: a kernel is not better for knowing their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Input, Node, Op, rebuild
from ingot.ops.group import Group

_ARITHMETIC = (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Quantize)


def share_kernels(graph: Graph) -> Graph:
    """Turn the scalar constants in which otherwise equal groups differ into operands (see module)."""
    groups = dict.fromkeys(n.op for n in graph.nodes() if isinstance(n.op, Group))
    scalars = {group: _scalars(group.body) for group in groups}
    similar: dict[tuple[Group, int], list[Group]] = {}
    for group in groups:
        if scalars[group]:
            similar.setdefault((_without(group, scalars[group]), len(scalars[group])), []).append(group)
    images: dict[Op, tuple[Group, list[Node]]] = {}
    for alike_groups in similar.values():
        values = zip(*(scalars[group] for group in alike_groups), strict=True)
        differing = [i for i, of_each in enumerate(values) if any(c.op != of_each[0].op for c in of_each)]
        for group in alike_groups if differing else ():
            operands = [scalars[group][i] for i in differing]
            images[group] = _without(group, operands), operands
    if not images:
        return graph

    def shared(n: Node, inputs: Sequence[Node]) -> Node:
        if n.op not in images:
            return n.with_inputs(inputs)
        group, constants = images[n.op]
        return group(*inputs, *(c.op(loc=c.loc) for c in constants), loc=n.loc)

    return graph.with_outputs(rebuild(graph.outputs, rule=shared))


def _scalars(body: Graph) -> list[Node]:
    """Floats and levels of one element that only plain arithmetic reads, directly or spread."""
    users = body.uses()
    constants = (n for n in body.nodes() if n.constant is not None and n.type.size == 1)
    return [n for n in constants if (n.dtype.is_float or n.dtype.bits == 8) and _plain(n, body, users)]


def _plain(n: Node, body: Graph, users: Mapping[Node, Sequence[Node]]) -> bool:
    read = users.get(n, ())
    return (
        bool(read)
        and n not in body.outputs
        and all(
            _plain(u, body, users) if isinstance(u.op, ops.BroadcastInDim) else isinstance(u.op, _ARITHMETIC)
            for u in read
        )
    )


def _without(group: Group, constants: Sequence[Node]) -> Group:
    """The group with these constants replaced by additional operands."""
    body, first = group.body, len(group.body.inputs)
    input_of: dict[Node, Node] = {c: Input(f"p{first + i}", c.type)() for i, c in enumerate(constants)}
    inputs = (*body.inputs, *input_of.values())
    return replace(group, body=replace(body, inputs=inputs, outputs=rebuild(body.outputs, dict(input_of))))


__all__ = ["share_kernels"]
