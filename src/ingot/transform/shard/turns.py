"""Halves of a batch in turns: while the sums of one travel between devices, the other is computed (Domino, Wang et al.
2024).

    f(all_reduce(g(x)))   ->   concat(f(all_reduce(g(x[:n/2]))), f(all_reduce(g(x[n/2:]))))

`plan.order` has the halves take turns.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import is_static
from ingot.ir.node import Const, Graph, Node, rebuild
from ingot.transform.shard.mesh import Mesh, Spec, whole
from ingot.transform.shard.partition import partition, plan
from ingot.transform.shard.propagate import Propagation

_AXIS = "half"
_MESH = Mesh(((_AXIS, 2),))
MIN_BYTES = 8 << 20  # of an exchange, on the average: two halves of less take longer than they hide


def in_turns(graph: Graph) -> Graph:
    """A device's graph with its batch in two halves; as it is if its exchanges are small, or do not come in halves."""
    nbytes = _exchanged_bytes(graph)
    count = _count(graph)
    batch = next((n.shape[0] for n in graph.inputs if n.shape), 0)
    if graph.state or nbytes is None or nbytes < MIN_BYTES * count or not isinstance(batch, int) or batch % 2:
        return graph
    fixed: dict[Node, Spec] = {n: whole(len(n.shape)) for n in graph.inputs}
    fixed |= {n: ((_AXIS,), *whole(len(n.shape) - 1)) for n in graph.inputs if n.shape and n.shape[0] == batch}
    specs = Propagation(graph, _MESH, fixed, splits_loops=False).run()
    outputs = [specs.get(n) or whole(len(n.shape)) for n in graph.outputs]
    split = plan(graph, _MESH, specs, outputs, splits_loops=False)
    halves = [partition(split, index) for index in range(2)]
    if any(_count(half) != count or _exchanged_bytes(half) != nbytes // 2 for half in halves):
        return graph
    parts = [_inlined(half, index, graph, fixed) for index, half in enumerate(halves)]
    joined = [
        ops.concat([*values], spec.index((_AXIS,))) if (_AXIS,) in spec else values[0]
        for *values, spec in zip(*parts, outputs, strict=True)
    ]
    return graph.with_outputs(joined)


def _exchanges(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if isinstance(n.op, ops.Collective)]


def _count(graph: Graph) -> int:
    return len(_exchanges(graph))


def _exchanged_bytes(graph: Graph) -> int | None:
    """The bytes of all exchanges' operands; None if there are none, or open sizes."""
    found = [n.inputs[0].type.nbytes for n in _exchanges(graph)]
    return sum(n for n in found if isinstance(n, int)) if found and is_static(tuple(found)) else None


def _inlined(half: Graph, index: int, graph: Graph, specs: dict[Node, Spec]) -> tuple[Node, ...]:
    """The outputs of a half, computed from the graph's own inputs and constants."""
    images: dict[Node, Node] = {}
    for own, given in zip(half.inputs, graph.inputs, strict=True):
        size = own.shape[0] if own.shape else 0
        is_split = specs[given] != whole(len(given.shape))
        images[own] = ops.slice_axis(given, 0, size * index, size * (index + 1)) if is_split else given
    constants = {n.op.array: n for n in graph.nodes() if isinstance(n.op, Const)}
    images |= {n: constants[n.op.array] for n in half.nodes() if isinstance(n.op, Const) and n.op.array in constants}
    return rebuild(half.outputs, images)
