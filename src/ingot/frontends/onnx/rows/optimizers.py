"""Steps of optimizers (ai.onnx.preview.training). Inputs: R, T, then all tensors X, all gradients G, their states."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.node import Node

TRAINING = "ai.onnx.preview.training"
# (x, regularized gradient, states) -> (new x, new states)
Step = Callable[[Node, Node, tuple[Node, ...]], tuple[Node, ...]]


def _stepped(c: Call, states: int, step: Step) -> Result:
    """Apply a step to every tensor: all new X, then all tensors of each new state."""
    count, remainder = divmod(len(c) - 2, 2 + states)
    if remainder:
        raise Unsupported(f"{len(c)} inputs for tensors of {states} states")
    lines: list[tuple[Node, ...]] = []
    for i in range(count):
        x, g, *own_states = (c.x(2 + i + k * count) for k in range(2 + states))
        lines.append(step(x, ops.add(ops.mul(x, c.float("norm_coefficient", 0.0)), g), tuple(own_states)))
    return [line[k] for k in range(1 + states) for line in lines]


def _scalar_as(x: Node, scalar: Node) -> Node:
    return ops.cast(ops.reshape(scalar, ()), x.dtype)


@onnx_op("Adagrad", domain=TRAINING)
def adagrad(c: Call) -> Result:
    def step(x: Node, g: Node, states: tuple[Node, ...]) -> tuple[Node, ...]:
        decayed = ops.add(ops.mul(_scalar_as(x, c.x(1)), c.float("decay_factor", 0.0)), 1.0)
        rate = ops.div(_scalar_as(x, c.x(0)), decayed)
        h = ops.add(states[0], ops.mul(g, g))
        scale = ops.add(ops.Sqrt()(h), c.float("epsilon", 1e-6))
        return ops.sub(x, ops.div(ops.mul(rate, g), scale)), h

    return _stepped(c, 1, step)


@onnx_op("Momentum", domain=TRAINING)
def momentum(c: Call) -> Result:
    alpha, beta, mode = c.float("alpha"), c.float("beta"), c.str("mode")
    if mode not in ("standard", "nesterov"):
        raise Unsupported(f"mode {mode!r}")

    def step(x: Node, g: Node, states: tuple[Node, ...]) -> tuple[Node, ...]:
        # the first gradient is not damped
        part = ops.where(ops.compare("GT", ops.reshape(c.x(1), ()), 0), ops.scalar(beta, x.dtype), 1.0)
        v = ops.add(ops.mul(states[0], alpha), ops.mul(g, part))
        direction = v if mode == "standard" else ops.add(g, ops.mul(v, alpha))
        return ops.sub(x, ops.mul(direction, _scalar_as(x, c.x(0)))), v

    return _stepped(c, 1, step)


@onnx_op("Adam", domain=TRAINING)
def adam(c: Call) -> Result:
    alpha, beta = c.float("alpha", 0.9), c.float("beta", 0.999)

    def step(x: Node, g: Node, states: tuple[Node, ...]) -> tuple[Node, ...]:
        v = ops.add(ops.mul(states[0], alpha), ops.mul(g, 1 - alpha))
        h = ops.add(ops.mul(states[1], beta), ops.mul(ops.mul(g, g), 1 - beta))
        rate, update_count = _scalar_as(x, c.x(0)), _scalar_as(x, c.x(1))
        shrinks = [ops.sub(1.0, ops.pow(ops.scalar(base, x.dtype), update_count)) for base in (alpha, beta)]
        corrected = ops.div(ops.mul(rate, ops.Sqrt()(shrinks[1])), shrinks[0])
        rate = ops.where(ops.compare("GT", update_count, 0.0), corrected, rate)
        delta = ops.div(ops.mul(v, rate), ops.add(ops.Sqrt()(h), c.float("epsilon", 1e-6)))
        return ops.mul(ops.sub(x, delta), 1 - c.float("norm_coefficient_post", 0.0)), v, h

    return _stepped(c, 2, step)
