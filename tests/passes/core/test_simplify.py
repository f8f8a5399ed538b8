# ruff: noqa: E501 - one case a line
from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.dims.text import parse_dim
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DTYPES, TensorType, bf16, f16, f32, f64, i8, i32, i64, u32
from ingot.passes.core.simplify import keeps_values, simplify
from tests.passes.check import arg, count, graph, same_values

S = symbol("s")
X = arg("x", S, 4, 6)
Y = arg("y", 8, 6)


def t(x: Node, *perm: int) -> Node:
    return ops.Transpose(perm)(x)


# fmt: off
CASES: list[tuple[str, Node, Node]] = [
    ("reshape", ops.Reshape((S * 24,))(ops.Reshape((S, 24))(X)), ops.Reshape((S * 24,))(X)),
    ("reshape back", ops.Reshape((S, 4, 6))(ops.Reshape((S, 24))(X)), X),
    ("transpose", t(t(X, 1, 2, 0), 2, 0, 1), X),
    ("transposes", t(t(X, 1, 2, 0), 1, 0, 2), t(X, 2, 1, 0)),
    ("transpose of sizes of 1", t(ops.Reshape((1, S, 1, 24))(X), 2, 1, 3, 0), ops.Reshape((1, S, 24, 1))(X)),
    ("broadcasts", ops.BroadcastInDim((3, 8, 6), (1, 2))(ops.BroadcastInDim((8, 6), (0, 1))(Y)), ops.BroadcastInDim((3, 8, 6), (1, 2))(Y)),
    ("bias", ops.BroadcastInDim((2, 8, 5, 6), (0, 1, 2, 3))(ops.Reshape((1, 8, 1, 6))(Y)), ops.BroadcastInDim((2, 8, 5, 6), (1, 3))(Y)),
    ("broadcast of nothing", ops.BroadcastInDim((8, 6), (0, 1))(Y), Y),
    ("broadcast that permutes", ops.BroadcastInDim((6, 1, 8), (2, 0))(Y), ops.Reshape((6, 1, 8))(t(Y, 1, 0))),
    ("transposed broadcast", t(ops.BroadcastInDim((3, 8, 6), (1, 2))(Y), 2, 0, 1), ops.BroadcastInDim((6, 3, 8), (2, 0))(Y)),
    ("slice all", ops.Slice((0, 0), (8, 6), (1, 1))(Y), Y),
    ("slices", ops.Slice((1, 2), (3, 4), (1, 1))(ops.Slice((2, 1), (7, 6), (1, 1))(Y)), ops.Slice((3, 3), (5, 5), (1, 1))(Y)),
    ("strided slice", ops.Slice((1, 0), (5, 5), (3, 1))(ops.Slice((2, 1), (7, 6), (1, 1))(Y)), ops.Slice((3, 1), (7, 6), (3, 1))(Y)),
    ("slice of concat", ops.Slice((9, 0), (15, 6), (2, 1))(ops.concat([Y, ops.Neg()(Y)])), ops.Slice((1, 0), (7, 6), (2, 1))(ops.Neg()(Y))),
    ("split and joined", ops.concat(list(ops.split(Y, [3, 1, 4]))), Y),
    ("concat of one", ops.Concat(0)(Y), Y),
    ("concats", ops.concat([Y, ops.concat([Y, ops.full((0, 6), 0.0)]), Y]), ops.Concat(0)(Y, Y, Y)),
    ("pad nothing", ops.pad(Y, (0, 0), (0, 0)), Y),
    ("pads", ops.pad(ops.pad(Y, (1, 0), (0, 2)), (1, 1), (1, 1)), ops.pad(Y, (2, 1), (1, 3))),
    ("pad that crops", ops.pad(Y, (-1, 2), (1, -3)), ops.pad(ops.Slice((1, 0), (8, 3), (1, 1))(Y), (0, 2), (1, 0))),
    ("crop", ops.pad(Y, (-1, 0), (0, -3)), ops.Slice((1, 0), (8, 3), (1, 1))(Y)),
    ("reverses", ops.Reverse((0, 1))(ops.Reverse((1,))(Y)), ops.Reverse((0,))(Y)),
    ("converts", ops.Convert(f16)(ops.Convert(f64)(X)), ops.Convert(f16)(X)),
    ("there and back", ops.Convert(f32)(ops.Convert(f64)(X)), X),
    ("reduce nothing", ops.Reduce("sum", ())(Y), Y),
    ("reduce ones", ops.Reduce("sum", (0, 2))(ops.Reshape((1, 8, 1, 6))(Y)), Y),
    ("reduces", ops.Reduce("max", (1,))(ops.Reduce("max", (1,))(X)), ops.Reduce("max", (1, 2))(X)),
    ("under broadcast", ops.mul(ops.add(ops.broadcast_to(Y, (3, 8, 6)), 2.0), ops.broadcast_to(Y, (3, 8, 6))), ops.broadcast_to(ops.mul(ops.add(Y, 2.0), Y), (3, 8, 6))),
    ("power of two", ops.div(X, 8.0), ops.mul(X, 0.125)),
    ("dynamic slice", ops.DynamicSlice((3, 2))(Y, const(9), const(-1)), ops.Slice((5, 0), (8, 2), (1, 1))(Y)),
    ("bitcast", ops.BitcastConvert(f32)(X), X),
    ("identities", ops.add(ops.mul(X, 1.0), ops.Neg()(ops.Neg()(ops.sub(X, 0.0)))), ops.Add()(X, X)),
]
# fmt: on


@pytest.mark.parametrize(("name", "before", "after"), CASES, ids=[c[0] for c in CASES])
def test_simplifies(name: str, before: Node, after: Node) -> None:
    g = graph(before)
    simplified_graph = simplify(g)
    assert simplified_graph.outputs[0] is after
    assert simplify(simplified_graph) is simplified_graph
    same_values(g, simplified_graph, 1e-5 if "reduce" in name else 0, s=3)


KEPT: list[Node] = [
    ops.Convert(f32)(ops.Convert(f16)(X)),
    ops.Convert(f32)(ops.Convert(i32)(X)),
    ops.Convert(i32)(ops.Convert(f64)(arg("u", 4, dtype=u32))),
    ops.Convert(bf16)(ops.Convert(f16)(ops.Convert(bf16)(X))),
    ops.div(X, 3.0),
    ops.add(X, 0.0),
    ops.mul(X, 0.0),
    ops.Slice((0, 0), (2, 6), (1, 1))(ops.Slice((0, 0), (8, 6), (3, 1))(Y)),
    ops.Slice((7, 0), (9, 6), (1, 1))(ops.concat([Y, ops.Neg()(Y)])),
    ops.pad(Y, (-9, 0), (2, 0)),  # crops the other side's padding, too
    ops.pad(X, (-1, 0, 0), (0, 0, 0)),
    ops.pad(ops.pad(Y, (1, 0), (0, 2), 1.0), (1, 1), (1, 1)),
    ops.Reduce("max", (1,))(ops.Reduce("min", (1,))(X)),
    ops.Add()(ops.broadcast_to(Y, (3, 8, 6)), arg("z", 3, 8, 6)),
]


@pytest.mark.parametrize("node", KEPT, ids=range(len(KEPT)))
def test_leaves_what_would_change_values(node: Node) -> None:
    g = graph(node)
    assert simplify(g) is g


def test_lossless_conversions_are_those_that_lose_nothing() -> None:
    def values(name: str) -> np.ndarray:
        d = DTYPES[name]
        if d.bits <= 8:
            return np.arange(256, dtype=np.uint8).view(d.numpy) if name != "bool" else np.array([False, True])
        if d.is_integer:
            info = np.iinfo(d.numpy)
            return np.array([info.min, info.min + 1, info.max, info.max - 1, 0], d.numpy)
        return np.arange(0, 1 << 16, 7, dtype=np.uint16).view(d.numpy) if d.bits == 16 else np.array([1.1], d.numpy)

    names = [n for n in DTYPES if n not in ("i4", "u4")]
    with np.errstate(all="ignore"):
        for a in names:
            x = values(a)
            for b in names:
                if keeps_values(DTYPES[a], DTYPES[b]):
                    roundtrip = x.astype(DTYPES[b].numpy).astype(DTYPES[a].numpy)
                    wide = x.astype(np.float64)
                    finite = np.isfinite(wide)
                    assert np.array_equal(roundtrip[finite], x[finite]), (a, b)
    assert keeps_values(i8, bf16)
    assert not keeps_values(i64, f64)


def test_a_case_of_a_constant_is_its_branch() -> None:
    p = arg("p", 3)
    branches = (Graph((p,), (ops.Neg()(p), p)), Graph((p,), (ops.Exp()(p), ops.Abs()(p))))
    v = arg("v", 3)
    for index, op in ((0, ops.Neg), (1, ops.Exp), (-1, ops.Exp), (9, ops.Exp)):
        simplified_graph = simplify(graph(*ops.Case(branches)(const(np.int32(index)), v).results))
        assert simplified_graph.outputs[0] is op()(v)
    w = arg("w", dtype=i32)
    g = graph(*ops.Case(branches)(w, v).results)
    assert count(simplify(g), ops.Case) == 1


def test_bodies_are_simplified() -> None:
    p = arg("p", 3)
    g = graph(ops.Group(Graph((p,), (ops.mul(p, 1.0),)), "pointwise")(arg("v", 3)))
    body = simplify(g).outputs[0].op.bodies[0]
    assert body.outputs == (p,)


def test_iota_transposed() -> None:
    g = graph(t(ops.Iota(TensorType(i64, (2, 3)), 1)(), 1, 0))
    simplified_graph = simplify(g)
    assert count(simplified_graph, ops.Transpose) == 0
    same_values(g, simplified_graph)


def test_a_slice_whose_sizes_would_get_another_form_stays() -> None:
    """Sums of maxima that are equal may have several forms: end - start is not the size that it was."""
    n, start, end = "max(0,n-3)-1", "min(max(0,n-3)-1,max(0,n-5))", "min(0,max(0,n-3)-1)"
    size = f"max(min(-1*n+3,0)+1,min(-1*n+5,0))+max({end},{start})"
    x = Input("x", TensorType(f32, (parse_dim(n),)))()
    inner = ops.Slice((parse_dim(start),), (parse_dim(f"max({end},{start})"),), (1,))(x)
    outer = ops.Slice((0,), (parse_dim(size),), (1,))(inner)
    assert ops.Slice((parse_dim(start),), (parse_dim(start) + parse_dim(size),), (1,))(x).type != outer.type
    assert simplify(Graph((x,), (outer,))).outputs[0].type == outer.type
