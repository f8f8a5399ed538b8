"""Cells of recurrent layers as one op, and LSTMs over time."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.node import Node
from ingot.ir.types import i64

row = Table()
_RESULTS = ("i", "cs", "f", "o", "ci", "co", "h")


def _cell(
    c: Call, x: Node, cs: Node, h: Node, w: Node, peepholes: Sequence[Node], b: Node, order: str, forget: float,
    clip: float,
) -> tuple[Node, ...]:  # fmt: skip
    """order: of the gates in w: input, forget, cell, output."""
    z = ops.add(ops.MatMul()(ops.concat([x, h], 1), w), b)
    n = cs.shape[1]
    gate = {name: ops.slice_axis(z, 1, k * n, (k + 1) * n) for k, name in enumerate(order)}
    peeps = c.flag("use_peephole")

    def opened(name: str, state: Node, weights: Node, forget_bias: float = 0.0) -> Node:
        value = ops.add(gate[name], forget_bias) if forget_bias else gate[name]
        return ops.Logistic()(ops.add(value, ops.mul(state, weights)) if peeps else value)

    i, f = opened("i", cs, peepholes[0]), opened("f", cs, peepholes[1], forget)
    ci = ops.Tanh()(gate["c"])
    new_cell = ops.add(ops.mul(ci, i), ops.mul(cs, f))
    new_cell = ops.clip(new_cell, -clip, clip) if clip > 0 else new_cell
    o = opened("o", new_cell, peepholes[2])
    co = ops.Tanh()(new_cell)
    return i, new_cell, f, o, ci, co, ops.mul(co, o)


@row("LSTMBlockCell", results=_RESULTS)
def lstm_cell(c: Call, x: Node, cs: Node, h: Node, w: Node, wci: Node, wcf: Node, wco: Node, b: Node) -> Result:
    clip = c.float("cell_clip", 3.0)
    return _cell(c, x, cs, h, w, (wci, wcf, wco), b, "icfo", c.float("forget_bias", 1.0), clip)


@row("BlockLSTM", "BlockLSTMV2", results=_RESULTS)
def lstm(
    c: Call, max_steps: Node, x: Node, cs: Node, h: Node, w: Node, wci: Node, wcf: Node, wco: Node, b: Node
) -> Result:
    """x[time, batch, features]; zeros from time `most` on."""
    second = c.op.endswith("V2")
    order, forget = ("ifco", 0.0) if second else ("icfo", c.float("forget_bias", 1.0))
    clip = c.float("cell_clip", 0.0 if second else 3.0)

    def step(parts: Sequence[Node], states: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        cell, out = states
        results = _cell(c, parts[0], cell, out, w, (wci, wcf, wco), b, order, forget, clip)
        return results, (results[1], results[6])

    stop = ops.reshape(ops.cast(max_steps, i64), ())
    results, _ = bodies.scan(c.walk.computed_sizes, step, [x], [cs, h], c.loc, stop)
    return list(results)


@row("GRUBlockCell", results=("r", "u", "c", "h"))
def gru_cell(c: Call, x: Node, h: Node, w_ru: Node, w_c: Node, b_ru: Node, b_c: Node) -> Result:
    n = h.shape[1]
    gates = ops.Logistic()(ops.add(ops.MatMul()(ops.concat([x, h], 1), w_ru), b_ru))
    r, u = ops.slice_axis(gates, 1, 0, n), ops.slice_axis(gates, 1, n, 2 * n)
    new = ops.Tanh()(ops.add(ops.MatMul()(ops.concat([x, ops.mul(h, r)], 1), w_c), b_c))
    return [r, u, new, ops.add(ops.mul(u, h), ops.mul(ops.sub(1.0, u), new))]
