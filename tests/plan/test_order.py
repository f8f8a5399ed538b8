"""Orders in which values die early."""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType, f32
from ingot.plan.order import shortest_lives


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
