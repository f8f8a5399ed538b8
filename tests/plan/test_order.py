"""Orders in which values die early."""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.types import TensorType, f32
from ingot.ops.group import Group
from ingot.plan.order import shortest_lives
from ingot.plan.storage import assign


def _most_alive(order: list[Node], roots: list[Node]) -> int:
    last = {i: at for at, n in enumerate(order) for i in n.inputs}
    alive = [sum(order.index(v) <= at <= last.get(v, -1) for v in order if v not in roots) for at in range(len(order))]
    return max(alive)


def test_gradients_of_weights_come_as_soon_as_they_can() -> None:
    """Eight layers: of the values of the forward pass each dies before the next layer's gradient is made."""
    kind = TensorType(f32, (4,))
    x, count = Input("x", kind)(), 8
    weights = [Input(f"w{i}", kind)() for i in range(count)]
    values = [x]
    for w in weights:
        values.append(ops.Mul()(values[-1], w))
    g = ops.Neg()(values[-1])
    moved: list[Node] = []
    for w, value in zip(reversed(weights), reversed(values[:-1]), strict=True):
        moved.insert(0, ops.Sub()(w, ops.Mul()(g, value)))
        g = ops.Mul()(ops.Mul()(g, w), ops.Neg()(value))
    order = shortest_lives([x, *weights, *moved], lambda n: n.inputs)
    assert sorted(n.id for n in order) == sorted({n.id for n in order})
    assert all(order.index(i) < at for at, n in enumerate(order) for i in n.inputs)
    kept = len(weights) + len(values)
    assert _most_alive(order, moved) <= kept + 3


def test_a_backward_pass_whose_first_result_needs_most() -> None:
    """Gradients of weights in the layers' order, of values that come from elsewhere: none waits for the last."""
    kind = TensorType(f32, (512,))
    values = [Input(f"x{i}", kind)() for i in range(8)]
    g = first = Input("g", kind)()
    found: list[Node] = []
    for value in reversed(values):
        found.insert(0, _grouped(ops.Reduce("sum", (0,)), _grouped(ops.Mul(), g, value)))
        g = _grouped(ops.Sub(), g, value)
    graph = Graph((*values, first), tuple(found))
    storage = assign(graph, graph.lasting)
    order = [n for n in storage.order if isinstance(n.op, Group)]
    assert _most_alive([*graph.nodes()], found) >= 8
    assert _most_alive(order, [*storage.graph.outputs]) <= 3


def _grouped(op: Op, *operands: Node) -> Node:
    body = tuple(Input(f"a{i}", x.type)() for i, x in enumerate(operands))
    kind = "reduction" if isinstance(op, ops.Reduce) else "pointwise"
    return Group(Graph(body, (op(*body),)), kind)(*operands)
