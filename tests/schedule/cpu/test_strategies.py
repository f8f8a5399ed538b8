"""Each strategy's kernels under the kernel interpreter, for every kind of machine.

Checked are values, bounds, and that chunks share nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import substitute, symbol
from ingot.ir.interp import interpret
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Graph, Node, const
from ingot.ir.types import i64
from ingot.ops.group import Group
from ingot.passes.core.layout import assign_layouts, explicit_padding
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import AVX2, AVX512, NEON, SSE, Machine
from tests.passes.check import arg, graph, random_inputs

MACHINES = {"avx512": AVX512, "avx2": AVX2, "neon": NEON, "sse": SSE}
S = symbol("s")
SIZES = {"s": 11}
RNG = np.random.default_rng(0)


def weight(*shape: int) -> Node:
    return const(RNG.integers(-8, 9, shape).astype(np.float32) / 4)


def run(g: Graph, arrays: list[np.ndarray], machine: Machine, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """A graph of groups alone, each value in a contiguous buffer of its exact size."""
    values: dict[Node, np.ndarray] = dict(zip(g.inputs, arrays, strict=True))
    for n in g.nodes():
        if isinstance(n.op, Const):
            values[n] = n.op.value
        if not isinstance(n.op, Group):
            continue
        ins = tuple(Layout.contiguous(i.shape) for i in n.inputs)
        outs = tuple(Layout.contiguous(r.shape) for r in n.results)
        low = lower(n.op, ins, outs, tuple(isinstance(i.op, Const) for i in n.inputs), machine)
        results = [
            np.zeros(tuple(int(substitute(d, sizes)) for d in r.shape), r.dtype.numpy)  # type: ignore[arg-type]
            for r in n.results
        ]
        packs = [p.apply(values[n.inputs[p.index]]) for p in low.packs]

        memory = {
            "in": [values[i] for i in n.inputs], "out": results, "pack": packs,
            "temp": [np.full(int(substitute(t, sizes)), 0xFF, np.uint8) for t in low.temps],  # type: ignore[arg-type]
        }  # fmt: skip
        for step in low.steps:
            verify_kernel(step.kernel)
            buffers = {
                p.name: memory[a.kind][a.index].view(p.dtype.numpy) if a.kind == "temp" else memory[a.kind][a.index]
                for p, a in zip(step.kernel.params, step.args, strict=True)
            }
            run_kernel(step.kernel, buffers, {v.name: sizes[v.name] for v in step.kernel.dims})
        values |= dict(zip(n.results, results, strict=True))
    return [values[o] for o in g.outputs]


def bias_and_tanh() -> Node:
    return ops.Tanh()(ops.add(arg("x", 3, 37), arg("b", 37)))


def one_number() -> Node:
    return ops.Tanh()(ops.Exp()(arg("x")))


def transposed() -> Node:
    return ops.Transpose((0, 2, 1))(ops.Exp()(arg("x", 2, 5, S)))


def reshaped() -> Node:
    return ops.Reshape((S, 6))(ops.Transpose((1, 0, 2))(arg("x", 2, S, 3)))


def sliced_and_reversed() -> Node:
    return ops.Reverse((1,))(ops.Slice((1, 2), (4, 33), (2, 3))(arg("x", 5, 37)))


def added_to_its_own_rows() -> Node:
    x = arg("x", 3, 1, 16)
    row = ops.Slice((1, 0, 0), (3, 1, 16), (2, 1, 1))(x)
    return ops.add(x, ops.BroadcastInDim((3, 1, 16), (0, 1, 2))(row))


def padded() -> Node:
    return ops.Pad((1, 2), (0, 3), (1, 0))(arg("x", 3, S), const(np.float32(2)))


def concatenation() -> Node:
    x, y = arg("x", 3, S), arg("y", 3, 5)
    return ops.Concat(1)(x, y, ops.Neg()(x))


def joined_of_many() -> Node:
    x = arg("x", 300, 32)
    return ops.Concat(1)(*(ops.Slice((i, 0), (i + 1, 32), (1, 1))(x) for i in range(300)))


def joined_copies() -> Node:
    """Along a dimension that what is copied does not have."""
    x = arg("x", 4, 5)
    return ops.Concat(2)(*(ops.BroadcastInDim((4, 5, n), (0, 1))(x) for n in (3, 2)))


def joined_rows_padded() -> Node:
    rows = ops.Concat(0)(arg("x", 3), arg("y", 4))
    wide = ops.BroadcastInDim((7, 37), (0,))(rows)
    return ops.Pad((0, 1), (0, 2), (0, 1))(wide, const(np.float32(2)))


def gathered() -> Node:
    gather = ops.Gather((1,), (0,), (), (), (0,), 1, (1, 21))
    return gather(arg("x", 9, 21), ops.Sub()(arg("at", S, dtype=i64), ops.BroadcastInDim((S,), ())(const(np.int64(2)))))


def softmax_rows() -> Node:
    return _softmax(arg("x", 3, 37), 1)


def softmax_columns() -> Node:
    return _softmax(arg("x", 5, 37), 0)


def softmax_symbolic() -> Node:
    return _softmax(arg("x", 3, S), 1)


def _softmax(x: Node, dim: int) -> Node:
    remaining_axes = tuple(d for d in range(2) if d != dim)
    e = ops.Exp()(ops.Sub()(x, ops.BroadcastInDim(x.shape, remaining_axes)(ops.Reduce("max", (dim,))(x))))
    return ops.Div()(e, ops.BroadcastInDim(x.shape, remaining_axes)(ops.Reduce("sum", (dim,))(e)))


def total() -> Node:
    return ops.Reduce("sum", (0, 1))(ops.Abs()(arg("x", 5, 13)))


def first_largest() -> Node:
    return ops.ArgReduce("max", 1)(ops.Floor()(arg("x", 5, 19)))


def pooled() -> Node:
    one = (1, 1, 1)
    op = ops.ReduceWindow("max", (1, 3, 1), (1, 2, 1), ((0, 0), (1, 1), (0, 0)), one, one)
    return ops.Neg()(op(arg("x", 2, 9, 19)))


def matmul() -> Node:
    y = ops.DotGeneral(((), ()), ((1,), (0,)))(arg("x", 7, 9), weight(9, 37))
    return ops.maximum(ops.add(y, arg("b", 37)), 0.0)


def matmul_of_inputs() -> Node:
    return ops.DotGeneral(((0,), (0,)), ((2,), (2,)))(arg("x", 2, S, 9), arg("y", 2, 5, 9))


def one_column() -> Node:
    return ops.DotGeneral(((), ()), ((1,), (0,)))(arg("x", S, 9), weight(9, 1))


def convolution() -> Node:
    op = ops.Convolution((2, 1), ((0, 0), (0, 0)), (1, 1), (1, 2), "NHWC", "OIHW", "NHWC")
    return op(arg("x", 2, 7, 8, 5), weight(11, 5, 3, 2))


def grouped() -> Node:
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "OIHW", "NHWC", 2)
    return op(arg("x", S, 4, 5, 6), weight(4, 3, 2, 2))


def depthwise() -> Node:
    op = ops.Convolution((2, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "OIHW", "NHWC", 19)
    return op(arg("x", 2, 7, 8, 19), weight(19, 1, 3, 3))


MAKERS: tuple[Callable[[], Node], ...] = (
    bias_and_tanh, one_number, transposed, reshaped, sliced_and_reversed, added_to_its_own_rows, padded, concatenation,
    joined_copies, joined_rows_padded, gathered, softmax_rows, softmax_columns,
    softmax_symbolic, total, first_largest, pooled, matmul, matmul_of_inputs, one_column, convolution, grouped,
    depthwise,
)  # fmt: skip


# how many parts there are is one to all machines
@pytest.mark.parametrize(
    ("make", "machine"),
    [*itertools.product(MAKERS, MACHINES), (joined_of_many, "avx2")],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_kernels(make: Callable[[], Node], machine: str) -> None:
    before = graph(make())
    after = fuse(explicit_padding(assign_layouts(before)))
    arrays = random_inputs(before, SIZES)
    got = run(after, arrays, replace(MACHINES[machine], threads=2), SIZES)
    for g, w in zip(got, interpret(before, arrays), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-6, atol=2e-6)
