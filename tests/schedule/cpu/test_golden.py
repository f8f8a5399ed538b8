"""Golden texts of kernel IR, a small case for each strategy: what a change does to loops shows in its diff.

A machine of four lanes keeps texts short. Intended changes: pytest --update-golden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Node, const
from ingot.ir.types import i64
from ingot.ops.group import Group
from ingot.passes.core.layout import assign_layouts, explicit_padding
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import NEON
from tests.passes.check import arg, graph

MACHINE = replace(NEON, threads=1)
S = symbol("s")


def weight(*shape: int) -> Node:
    return const(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def pointwise() -> Node:
    return ops.maximum(ops.add(arg("x", S, 10), arg("b", 10)), 0.0)


def blocked_transpose() -> Node:
    return ops.Transpose((1, 0))(arg("x", 8, 8))


def short_lines() -> Node:
    return ops.add(arg("x", S, 3), ops.BroadcastInDim((S, 3), (1,))(arg("b", 3)))


def concat() -> Node:
    return ops.Concat(1)(arg("x", 3, S), arg("y", 3, 5))


def gather() -> Node:
    return ops.Gather((1,), (0,), (), (), (0,), 1, (1, 12))(arg("x", 9, 12), arg("at", S, dtype=i64))


def row_sums() -> Node:
    return ops.Reduce("sum", (1,))(arg("x", 3, 37))


def row_columns() -> Node:
    return ops.Reduce("max", (0,))(arg("x", S, 10))


def short_rows() -> Node:
    return ops.Reduce("sum", (1,))(arg("x", S, 3))


def centered_rows() -> Node:
    x = arg("x", 2, 8)
    return ops.Sub()(x, ops.BroadcastInDim((2, 8), (0,))(ops.Reduce("max", (1,))(x)))


def arg_max() -> Node:
    return ops.ArgReduce("max", 1)(arg("x", 3, 19))


def cumulative_sum() -> Node:
    return ops.CumReduce("sum", 1)(arg("x", 3, 9))


def max_pool() -> Node:
    one = (1, 1, 1)
    return ops.ReduceWindow("max", (1, 2, 1), (1, 2, 1), ((0, 0),) * 3, one, one)(arg("x", 2, 8, 4))


def macro_kernel() -> Node:
    y = ops.DotGeneral(((), ()), ((1,), (0,)))(arg("x", 5, 3), weight(3, 9))
    return ops.maximum(ops.add(y, arg("b", 9)), 0.0)


def dot_products() -> Node:
    return ops.DotGeneral(((), ()), ((1,), (0,)))(arg("x", S, 9), weight(9, 1))


def convolution() -> Node:
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "OIHW", "NHWC")
    return op(arg("x", 1, 4, 4, 2), weight(4, 2, 3, 3))


def depthwise() -> Node:
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "OIHW", "NHWC", 4)
    return op(arg("x", 1, 4, 4, 4), weight(4, 1, 2, 2))


def block_quantized() -> Node:
    levels = const((np.arange(16 * 8) % 16).astype(np.uint8).reshape(8, 16))
    w = ops.Dequantize()(levels, const(np.full((8, 1), 8, np.uint8)), weight(8, 1))
    return ops.DotGeneral(((), ()), ((1,), (1,)))(arg("x", 1, 16), w)


def sparse() -> Node:
    places, starts = const(np.array([1, 4, 0], np.uint16)), const(np.array([0, 2, 3], np.int32))
    w = ops.Densify((8, 5))(weight(3, 4), places, starts)
    return ops.DotGeneral(((), ()), ((1,), (1,)))(arg("x", S, 5), w)


def attention_decode() -> Node:
    return ops.Attention("none", 0.5)(arg("q", 1, 1, 1, 4), arg("k", 1, 1, S, 4), arg("v", 1, 1, S, 4))


def attention_flash() -> Node:
    return ops.Attention("none", 0.5)(arg("q", 1, 1, 12, 2), arg("k", 1, 1, S, 2), arg("v", 1, 1, S, 2))


def recurrent() -> Node:
    x, h = arg("x", S, 1, 3), arg("h", 1, 1, 4)
    return ops.RNN(4)(x, weight(1, 4, 3), weight(1, 4, 4), weight(1, 8), h)


def sort_network() -> Node:
    return ops.Sort(1)(arg("x", 4, 4))


def scatter() -> Node:
    add = ops.Scatter("add", (1,), (0,), (), (), (0,), 1)
    return add(arg("x", 9, 4), arg("at", 3, 1, dtype=i64), arg("u", 3, 4))


MAKERS: tuple[Callable[[], Node], ...] = (
    pointwise, blocked_transpose, short_lines, concat, gather, row_sums, row_columns, short_rows, centered_rows,
    arg_max, cumulative_sum, max_pool, macro_kernel, dot_products, convolution, depthwise, block_quantized,
    sparse, attention_decode, attention_flash, recurrent, sort_network, scatter,
)  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_kernels_read_as_before(make: Callable[[], Node], golden: Callable[[str, str], None]) -> None:
    fused = fuse(explicit_padding(assign_layouts(graph(make()))))
    texts: list[str] = []
    for n in fused.nodes():
        if not isinstance(n.op, Group):
            continue
        ins, outs = (tuple(Layout.contiguous(v.shape) for v in values) for values in (n.inputs, n.results))
        low = lower(n.op, ins, outs, tuple(isinstance(i.op, Const) for i in n.inputs), MACHINE)
        texts += [show_kernel(step.kernel) for step in low.steps]
    golden(make.__name__, "\n".join(texts))
