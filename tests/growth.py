"""Graphs that grow by steps, each of which uses the value before it more than once.

Who walks all ways through them, or computes a value again for each, does not come to an end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ingot import ops
from ingot.ir.kernel import Kernel
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, boolean, f32
from ingot.pipeline.build import optimize
from ingot.pipeline.cpu import TARGET, cpu_passes
from ingot.plan.link import link
from ingot.support.native import Code
from ingot.targets.cpu.workers import host_features


class _Counted:
    """Takes kernels as an assembler does, and makes nothing of them."""

    def __init__(self) -> None:
        self.kernels = 0

    def add(self, kernel: Kernel) -> None:
        self.kernels += 1

    def finish(self) -> Code:
        return Code(host_features(), b"", {})


def lowered(graph: Graph) -> int:
    """How many kernels a MODEL graph becomes on this machine's CPU, up to their machine code."""
    isa, counter = host_features(), _Counted()
    lower = partial(TARGET.lower, machine=TARGET.machine(isa, 1, {}))
    link(optimize(graph, cpu_passes()), lower, counter, stages={}, meta={})
    return counter.kernels


Step = Callable[[Node], Node]
SQUARE = (8, 8)


def _rotated(x: Node) -> Node:
    return ops.concat([ops.slice_axis(x, 1, 1, 8), ops.slice_axis(x, 1, 0, 1)], 1)


def _gathered(x: Node) -> Node:
    return ops.Take(0)(x, const(np.array([3, 1, 2, 0, 7, 6, 5, 4])))


STEPS: dict[str, Step] = {
    "ode": lambda x: ops.add(x, ops.mul(ops.Tanh()(x), 0.1)),
    "newton": lambda x: ops.sub(x, ops.div(ops.sub(ops.mul(x, x), 2.0), ops.add(ops.mul(x, 2.0), 9.0))),
    "double": lambda x: ops.mul(ops.add(x, x), 0.5),
    "where": lambda x: ops.where(ops.compare("LT", x, 0.0), ops.add(x, 1.0), x),
    "transpose": lambda x: ops.mul(ops.Tanh()(x), ops.transpose(x)),
    "flip": lambda x: ops.mul(ops.add(x, ops.flip(x, 0)), 0.5),
    "rotate": lambda x: ops.mul(ops.add(x, _rotated(x)), 0.5),
    "pad": lambda x: ops.mul(ops.add(x, ops.slice_axis(ops.pad(x, (1, 0), (0, 0)), 0, 0, 8)), 0.5),
    "gather": lambda x: ops.mul(ops.add(x, _gathered(x)), 0.5),
    "reshape": lambda x: ops.add(ops.mul(x, 0.5), ops.reshape(ops.transpose(ops.reshape(x, (4, 16))), (8, 8))),
    "row": lambda x: ops.sub(x, ops.mul(ops.slice_axis(x, 0, 0, 1), 0.5)),
    "mean": lambda x: ops.sub(x, ops.mean(x, 1, keepdims=True)),
    "softmax": lambda x: ops.add(x, ops.Softmax(1)(x)),
    "product": lambda x: ops.add(x, ops.Tanh()(ops.linear(x, const(np.eye(8, dtype=np.float32))))),
    "square": lambda x: ops.Tanh()(ops.MatMul()(x, x)),
    "maxima": lambda x: ops.minimum(ops.maximum(x, -6.0), ops.mul(x, 0.5)),
}


def chain(step: Step, count: int) -> Graph:
    """`count` steps behind a product of matrices."""
    first = Input("x", TensorType(f32, SQUARE))()
    x = ops.linear(first, const(np.linspace(-1, 1, 64, dtype=np.float32).reshape(SQUARE)))
    for _ in range(count):
        x = step(x)
    return Graph((first,), (x,))


def fan(count: int) -> Graph:
    """One value that `count` chains read, whose results meet."""
    first = Input("x", TensorType(f32, SQUARE))()
    middle = ops.Exp()(first)
    parts = [ops.Tanh()(ops.mul(middle, float(i))) for i in range(count)]
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return Graph((first,), (total, *parts[:3], ops.concat(parts, 0)))


def doubled_concat(count: int) -> Graph:
    """A value joined with itself time and again."""
    first = Input("x", TensorType(f32, (2,)))()
    x: Node = first
    for _ in range(count):
        x = ops.concat([x, x], 0)
    return Graph((first,), (ops.slice_axis(x, 0, 0, 2),))


def masked(count: int) -> Graph:
    """Attention whose mask uses itself twice, in conditions and in sums."""
    x, m = Input("x", TensorType(f32, (2, 8, 16)))(), Input("m", TensorType(boolean, SQUARE))()
    keep, added = m, ops.where(m, ops.scalar(0.5), ops.scalar(0.0))
    for _ in range(count):
        keep = ops.and_(ops.or_(keep, m), keep)
        added = ops.add(added, added)
    scores = ops.MatMul()(x, ops.transpose(x, (0, 2, 1)))
    for _ in range(count):
        scores = ops.add(scores, ops.mul(scores, 0.5))
    lowest = ops.where(keep, ops.scalar(0.0), ops.scalar(-np.inf))
    weights = ops.Softmax(2)(ops.add(scores, ops.add(lowest, ops.mul(added, 1e-6))))
    return Graph((x, m), (ops.MatMul()(weights, x),))
