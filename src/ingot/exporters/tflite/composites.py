"""Decompositions of ops without a TFLite operator; loops and branches as subgraphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.exporters.tflite.emitter import Emitter, row, shape_of
from ingot.exporters.tflite.rows import places_within
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.kernel.math.coefficients import ERF_F32
from ingot.ir.node import Node, Op, Project, const
from ingot.ir.types import boolean, i32

Composite = Callable[[Node], Node]


def _erf(x: Node) -> Node:
    """1 - (1 - e/4)^4 with e = |x| S(|x|), as kernels compute it (`ir/kernel/math/exponential.py`)."""
    a = ops.minimum(ops.Abs()(x), 4.1)
    first, second, *rest = ERF_F32
    total = ops.mul(a, rest[-1])
    for c in rest[-2::-1]:
        total = ops.mul(ops.add(total, c), a)
    e = ops.mul(a, ops.add(total, first + second))
    for part in (1 / 8, 1 / 4):
        e = ops.sub(e, ops.mul(ops.mul(e, e), part))
    return ops.mul(ops.Sign()(x), e)


def _expm1(x: Node) -> Node:
    """ELU for x < 0; otherwise e^x - 1 = -(e^-x - 1) e^x."""
    positive = ops.mul(ops.Neg()(ops.Elu()(ops.Neg()(x))), ops.Exp()(x))
    return ops.where(ops.compare("LT", x, 0.0), ops.Elu()(x), positive)


def _log1p(x: Node) -> Node:
    """log(u) x / (u - 1) with u = 1 + x rounded: the quotient compensates for the rounding error (Kahan)."""
    u = ops.add(x, 1.0)
    difference = ops.sub(u, 1.0)
    is_small = ops.compare("EQ", difference, 0.0)
    safe = ops.where(is_small, ops.scalar(1.0), difference)
    scaled = ops.mul(ops.Log()(u), ops.div(x, safe))
    return ops.where(is_small, x, ops.where(ops.compare("EQ", u, float("inf")), u, scaled))


_FUNCTIONS: dict[type[Op], Composite] = {
    ops.Erf: _erf,
    ops.Expm1: _expm1,
    ops.Log1p: _log1p,
    ops.Tan: lambda x: ops.div(ops.Sin()(x), ops.Cos()(x)),
    ops.RoundAway: lambda x: ops.mul(ops.Sign()(x), ops.Floor()(ops.add(ops.Abs()(x), 0.5))),
    ops.IsNan: lambda x: ops.compare("NE", x, x),
    ops.IsFinite: lambda x: ops.compare("LT", ops.Abs()(x), float("inf")),
}


@row(*_FUNCTIONS)
def function(e: Emitter, n: Node) -> Node:
    (x,) = n.inputs
    if not x.dtype.is_float:
        raise Unsupported(f"of {x.dtype}")
    return _FUNCTIONS[type(n.op)](x)


@row(ops.Windows)
def windows(e: Emitter, n: Node) -> Node:
    """A lookup at constant indices."""
    assert isinstance(n.op, ops.Windows)
    op, count = n.op, shape_of(n)[n.op.dim]
    places = np.arange(count)[:, None] * op.step + np.arange(op.size) * op.dilation
    return ops.Take(op.dim)(n.inputs[0], const(places.astype(np.int32)))


@row(ops.CumReduce)
def cumulative(e: Emitter, n: Node) -> int:
    assert isinstance(n.op, ops.CumReduce)
    if n.op.kind != "sum" or str(n.dtype) not in ("f32", "i32", "i64"):
        raise Unsupported(f"of kind {n.op.kind} and {n.dtype}")
    inputs = [e.get(n.inputs[0]), e.model.constant(np.array(n.op.dim, np.int32))]
    options = {"exclusive": n.op.exclusive, "reverse": n.op.reverse}
    return e.add("CUMSUM", inputs, shape_of(n), "Cumsum", options, node=n)


@row(ops.GatherND)
def gather_nd(e: Emitter, n: Node) -> int:
    x, indices = n.inputs
    sizes = np.array(shape_of(x)[: shape_of(indices)[-1]])
    return e.add("GATHER_ND", [e.get(x), places_within(e, indices, sizes)], shape_of(n), node=n)


# --- run-time indices


def _starts(e: Emitter, starts: tuple[Node, ...], limits: tuple[int, ...]) -> int:
    """A vector of start indices, each clamped to 0 and its limit."""
    parts = [ops.reshape(ops.clip(ops.cast(s, i32), 0, r), (1,)) for s, r in zip(starts, limits, strict=True)]
    vector = ops.concat(parts, 0) if len(parts) > 1 else parts[0]
    return e.computed(vector)


@row(ops.DynamicSlice)
def dynamic_slice(e: Emitter, n: Node) -> int:
    x, *starts = n.inputs
    limits = tuple(a - b for a, b in zip(shape_of(x), shape_of(n), strict=True))
    inputs = [e.get(x), _starts(e, tuple(starts), limits), e.shape(shape_of(n))]
    return e.add("SLICE", inputs, shape_of(n), node=n)


@row(ops.DynamicUpdateSlice)
def dynamic_update_slice(e: Emitter, n: Node) -> int:
    x, update, *starts = n.inputs
    limits = tuple(a - b for a, b in zip(shape_of(x), shape_of(update), strict=True))
    inputs = [e.get(x), e.get(update), _starts(e, tuple(starts), limits)]
    return e.add("DYNAMIC_UPDATE_SLICE", inputs, shape_of(n), node=n)


# --- control flow


@row(Project)
def project(e: Emitter, n: Node) -> int:
    assert isinstance(n.op, Project)
    return e.results(n.inputs[0])[n.op.index]


@row(ops.While)
def loop(e: Emitter, n: Node) -> int:
    assert isinstance(n.op, ops.While)
    cond, body = e.subgraph(n.op.cond), e.subgraph(n.op.body)
    options = {"cond_subgraph_index": cond, "body_subgraph_index": body}
    return e.add_several("WHILE", [e.get(x) for x in n.inputs], n, "While", options)


@row(ops.Case)
def case(e: Emitter, n: Node) -> int:
    """Two branches: the second is the default."""
    assert isinstance(n.op, ops.Case)
    index, *operands = n.inputs
    if len(n.op.branches) != 2:
        raise Unsupported(f"of {len(n.op.branches)} branches")
    is_first = e.computed(ops.compare("EQ", ops.cast(index, i32), 0))
    assert e.model.tensors[is_first].dtype == str(boolean)
    options = {"then_subgraph_index": e.subgraph(n.op.branches[0]), "else_subgraph_index": e.subgraph(n.op.branches[1])}
    return e.add_several("IF", [is_first, *(e.get(x) for x in operands)], n, "If", options)
