"""Interleaved halves of a batch: while the sums of one are exchanged, the other is computed (Domino, Wang et al. 2024).

    f(all_reduce(g(x)))   ->   concat(f(all_reduce(g(x[:n/2]))), f(all_reduce(g(x[n/2:]))))

`plan.order` interleaves the halves.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import is_static
from ingot.ir.node import Const, Graph, Node, rebuild
from ingot.transform.shard.mesh import Mesh, Spec, unsplit
from ingot.transform.shard.partition import partition, plan
from ingot.transform.shard.propagate import Propagation

_AXIS = "half"
_MESH = Mesh(((_AXIS, 2),))
MIN_BYTES = 8 << 20  # of an exchange, on average; two halves of a smaller one take longer than the overlap saves


def in_turns(graph: Graph) -> Graph:
    """A device's graph with its batch cut into halves; unchanged if its exchanges are small or cannot be halved."""
    nbytes = _exchanged_bytes(graph)
    count = _exchange_count(graph)
    batch = next((n.shape[0] for n in graph.inputs if n.shape), 0)
    if graph.state or nbytes is None or nbytes < MIN_BYTES * count or not isinstance(batch, int) or batch % 2:
        return graph
    input_specs: dict[Node, Spec] = {n: unsplit(len(n.shape)) for n in graph.inputs}
    input_specs |= {n: ((_AXIS,), *unsplit(len(n.shape) - 1)) for n in graph.inputs if n.shape and n.shape[0] == batch}
    specs = Propagation(graph, _MESH, input_specs, splits_loops=False).run()
    output_specs = [specs.get(n) or unsplit(len(n.shape)) for n in graph.outputs]
    split = plan(graph, _MESH, specs, output_specs, splits_loops=False)
    halves = [partition(split, index) for index in range(2)]
    if any(_exchange_count(half) != count or _exchanged_bytes(half) != nbytes // 2 for half in halves):
        return graph
    parts = [_inlined_outputs(half, index, graph, input_specs) for index, half in enumerate(halves)]
    outputs = [
        ops.concat([*values], spec.index((_AXIS,))) if (_AXIS,) in spec else values[0]
        for *values, spec in zip(*parts, output_specs, strict=True)
    ]
    return graph.with_outputs(outputs)


def _exchanges(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if isinstance(n.op, ops.Collective)]


def _exchange_count(graph: Graph) -> int:
    return len(_exchanges(graph))


def _exchanged_bytes(graph: Graph) -> int | None:
    """The bytes of the operands of all exchanges; None if there are no exchanges, or symbolic sizes."""
    operand_bytes = [n.inputs[0].type.nbytes for n in _exchanges(graph)]
    return (
        sum(n for n in operand_bytes if isinstance(n, int))
        if operand_bytes and is_static(tuple(operand_bytes))
        else None
    )


def _inlined_outputs(half: Graph, index: int, graph: Graph, specs: dict[Node, Spec]) -> tuple[Node, ...]:
    """The outputs of a half, computed from the inputs and constants of the graph."""
    images: dict[Node, Node] = {}
    for local_input, graph_input in zip(half.inputs, graph.inputs, strict=True):
        size = local_input.shape[0] if local_input.shape else 0
        is_split = specs[graph_input] != unsplit(len(graph_input.shape))
        images[local_input] = (
            ops.slice_axis(graph_input, 0, size * index, size * (index + 1)) if is_split else graph_input
        )
    constants = {n.op.array: n for n in graph.nodes() if isinstance(n.op, Const)}
    images |= {n: constants[n.op.array] for n in half.nodes() if isinstance(n.op, Const) and n.op.array in constants}
    return rebuild(half.outputs, images)
