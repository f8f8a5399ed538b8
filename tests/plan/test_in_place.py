"""Pointwise groups write over operands that nobody reads afterwards."""

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32
from ingot.ops.group import Group
from ingot.plan.storage import assign
from tests.schedule.compiled import check

SHAPE = (4, 6)


def group(op: ops.Elementwise, *operands: Node) -> Node:
    params = tuple(Input(f"p{i}", x.type)() for i, x in enumerate(operands))
    return Group(Graph(params, (op(*params),)), "pointwise")(*operands)


def test_last_reader_writes_over_its_operand():
    x = Input("x", TensorType(f32, SHAPE))()
    a = group(ops.Exp(), x)
    b = group(ops.Neg(), a)
    c = group(ops.Abs(), b)
    places = assign(Graph((x,), (c,))).places
    assert places[b].owner is a
    assert places[a].owner is a  # inputs are the user's
    assert places[c].owner is c  # outputs too


def test_values_that_are_read_later_stay():
    x = Input("x", TensorType(f32, SHAPE))()
    a = group(ops.Exp(), x)
    b = group(ops.Neg(), a)
    c = group(ops.Add(), a, b)
    d = group(ops.Abs(), c)
    places = assign(Graph((x,), (d,))).places
    assert places[b].owner is b
    assert places[c].owner is a


def test_other_positions_stay():
    x = Input("x", TensorType(f32, (4, 4)))()
    a = group(ops.Exp(), x)
    p = Input("p0", a.type)()
    turned = Group(Graph((p,), (ops.Neg()(ops.Transpose((1, 0))(p)),)), "pointwise")(a)
    out = group(ops.Abs(), turned)
    places = assign(Graph((x,), (out,))).places
    assert places[turned].owner is turned


def test_results_hold():
    x = Input("x", TensorType(f32, (7, 33)))()
    y = ops.Sin()(ops.Reduce("sum", (1,))(x))
    z = ops.Mul()(ops.BroadcastInDim((7, 33), (0,))(y), ops.Exp()(x))
    v = ops.Reverse((1,))(ops.Add()(z, ops.Neg()(x)))
    data = np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32)
    check(Graph((x,), (v, z)), [data])
