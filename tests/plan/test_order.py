"""Execution orders with short lifetimes."""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Graph, Input, Node, Op, topological
from ingot.ir.types import TensorType, f32
from ingot.ops.group import Group
from ingot.plan.order import overlap_exchanges, results_of_inputs_first, shortest_lifetimes
from ingot.plan.storage import assign


def _peak_live_values(order: list[Node], roots: list[Node]) -> int:
    last = {i: at for at, n in enumerate(order) for i in n.inputs}
    live = [sum(order.index(v) <= at <= last.get(v, -1) for v in order if v not in roots) for at in range(len(order))]
    return max(live)


def test_gradients_of_weights_come_as_soon_as_they_can() -> None:
    """Eight layers: each value of the forward pass dies before the next layer's gradient is computed."""
    kind = TensorType(f32, (4,))
    x, count = Input("x", kind)(), 8
    weights = [Input(f"w{i}", kind)() for i in range(count)]
    values = [x]
    for w in weights:
        values.append(ops.Mul()(values[-1], w))
    g = ops.Neg()(values[-1])
    updated: list[Node] = []
    for w, value in zip(reversed(weights), reversed(values[:-1]), strict=True):
        updated.insert(0, ops.Sub()(w, ops.Mul()(g, value)))
        g = ops.Mul()(ops.Mul()(g, w), ops.Neg()(value))
    order = shortest_lifetimes([x, *weights, *updated], lambda n: n.inputs)
    assert sorted(n.id for n in order) == sorted({n.id for n in order})
    assert all(order.index(i) < at for at, n in enumerate(order) for i in n.inputs)
    live = len(weights) + len(values)
    assert _peak_live_values(order, updated) <= live + 3


def test_a_backward_pass_whose_first_result_needs_most() -> None:
    """Results are the gradients of weights in the layers' order, computed from inputs: none waits for the last."""
    kind = TensorType(f32, (512,))
    values = [Input(f"x{i}", kind)() for i in range(8)]
    g = first = Input("g", kind)()
    gradients: list[Node] = []
    for value in reversed(values):
        gradients.insert(0, _grouped(ops.Reduce("sum", (0,)), _grouped(ops.Mul(), g, value)))
        g = _grouped(ops.Sub(), g, value)
    graph = Graph((*values, first), tuple(gradients))
    storage = assign(graph, graph.state_pairs)
    order = [n for n in storage.order if isinstance(n.op, Group)]
    assert _peak_live_values([*graph.nodes()], gradients) >= 8
    assert _peak_live_values(order, [*storage.graph.outputs]) <= 3


def _grouped(op: Op, *operands: Node) -> Node:
    body = tuple(Input(f"a{i}", x.type)() for i, x in enumerate(operands))
    kind = "reduction" if isinstance(op, ops.Reduce) else "pointwise"
    return Group(Graph(body, (op(*body),)), kind)(*operands)


def test_what_waits_for_an_exchange_comes_behind_what_does_not() -> None:
    """Two halves of two layers each take turns, and every node comes behind its operands."""
    kind = TensorType(f32, (4,))
    outputs: list[Node] = []
    sums: list[list[Node]] = []
    inputs = [Input(f"x{i}", kind)() for i in range(2)]
    for x in inputs:
        exchanges: list[Node] = []
        for _ in range(2):
            exchanges.append(ops.AllReduce(((0,),))(ops.Neg()(x)))
            x = ops.Exp()(exchanges[-1])
        sums.append(exchanges)
        outputs.append(x)
    order = topological([*inputs, *outputs])
    results = overlap_exchanges(order, lambda n: n.inputs, lambda n: isinstance(n.op, ops.AllReduce))
    assert sorted(n.id for n in results) == sorted(n.id for n in order)
    assert all(results.index(i) < at for at, n in enumerate(results) for i in n.inputs)
    (a, c), (b, d) = sums
    assert [n for n in results if isinstance(n.op, ops.AllReduce)] == [a, b, c, d]
    assert results.index(outputs[0]) > results.index(d)


def test_results_that_need_inputs_alone_come_first() -> None:
    kind = TensorType(f32, (4,))
    a, b, x = (Input(label, kind)() for label in "abx")
    copies = [ops.Neg()(i) for i in (a, b)]
    y = ops.Mul()(ops.Exp()(x), copies[0])
    z = ops.Mul()(y, copies[1])
    order = topological([a, b, x, z, *copies])
    assert order.index(copies[1]) > order.index(y)
    sorted_order = results_of_inputs_first(order, lambda n: n.inputs, {z, *copies}.__contains__)
    assert sorted_order[:5] == [a, b, x, *copies] and sorted_order[5:] == [ops.Exp()(x), y, z]
