"""Builders and symbolic type rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DTYPES, TensorType, boolean, f16, f32, i8, i32, i64, u8
from ingot.support.errors import ShapeError

S = symbol("s0")


def arg(*shape: Any, dtype: Any = f32, label: str = "x") -> Node:
    return Input(label, TensorType(dtype, shape))()


def run(output: Node, *arrays: np.ndarray) -> np.ndarray:
    inputs = tuple(sorted(_inputs(output), key=lambda n: n.op.label))  # type: ignore[attr-defined]
    return interpret(Graph(inputs, (output,)), arrays)[0]


def _inputs(node: Node) -> set[Node]:
    return {node} if isinstance(node.op, Input) else {n for i in node.inputs for n in _inputs(i)}


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[:, 1:],
        np.s_[:, -2:],
        np.s_[:, :-1],
        np.s_[:, 5:],
        np.s_[:, -9:9],
        np.s_[:, ::2],
        np.s_[:, ::-1],
        np.s_[:, 2:0:-1],
        np.s_[:, -1:-9:-2],
        np.s_[:, 2:1],
    ],
)
def test_slice_axis_follows_python(key: tuple) -> None:
    s = key[1]
    got = run(ops.slice_axis(arg(2, 3, 4), 1, s.start, s.stop, s.step or 1), X)
    np.testing.assert_array_equal(got, X[key])


def test_slice_of_a_symbolic_axis() -> None:
    y = ops.slice_axis(arg(S, 4), 0, -1)
    assert y.shape == (1, 4)
    assert ops.slice_axis(arg(S, 4), 0, 0, S).shape == (S, 4)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(run(y, x), x[-1:])
    np.testing.assert_array_equal(run(ops.slice_axis(arg(S, 4), 0, 0, 2), x), x[:2])
    np.testing.assert_array_equal(run(ops.slice_axis(arg(S, 4), 0, 0, 7), x), x)


def test_broadcasting_follows_numpy() -> None:
    a, b = arg(2, 1, 4), arg(3, 1, label="y")
    assert ops.add(a, b).shape == (2, 3, 4)
    assert ops.add(arg(S, 4), 1.5).shape == (S, 4)
    assert ops.where(arg(4, dtype=boolean), arg(2, 1, label="y"), 0).shape == (2, 4)
    with pytest.raises(ShapeError, match=r"axis -1.*expected 4 or 1, got 3"):
        ops.add(arg(2, 4), arg(2, 3, label="y"))
    with pytest.raises(ShapeError, match="s0"):
        ops.add(arg(S), arg(symbol("s1"), label="y"))


def test_numbers_take_the_nodes_dtype() -> None:
    assert ops.mul(arg(2, dtype=f16), 2).dtype == f16
    assert ops.sub(1, arg(2, dtype=i8)).dtype == i8
    with pytest.raises(ShapeError, match=r"1\.5 is no i32"):
        ops.add(arg(2, dtype=i32), 1.5)


def test_reshape_resolves_minus_one_symbolically() -> None:
    assert ops.reshape(arg(S, 3, 4), (S, -1)).shape == (S, 12)
    assert ops.reshape(arg(S, 3, 4), (-1, 6)).shape == (S * 2, 6)
    assert ops.flatten(arg(S, 3, 4), 0, 1).shape == (S * 3, 4)
    with pytest.raises(ShapeError, match="does not split"):
        ops.reshape(arg(S, 3), (-1, 2))


def test_mean_and_variance_of_a_symbolic_axis() -> None:
    x = np.random.default_rng(0).normal(3, 1, (5, 4)).astype(np.float32)
    np.testing.assert_allclose(run(ops.mean(arg(S, 4), 0), x), x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(run(ops.var(arg(S, 4), 0, correction=1), x), x.var(0, ddof=1), rtol=1e-5)


def test_split_stack_squeeze() -> None:
    parts = ops.split(arg(2, 3, 4), (1, 3), -1)
    assert [p.shape for p in parts] == [(2, 3, 1), (2, 3, 3)]
    assert ops.squeeze(parts[0], -1).shape == (2, 3)
    assert ops.stack([arg(2), arg(2, label="y")], 1).shape == (2, 2)
    with pytest.raises(ShapeError, match="sum to 4"):
        ops.split(arg(2, 3, 4), (1, 1), -1)


def test_floor_mod_follows_python() -> None:
    a, b = np.meshgrid(np.arange(-7, 8, dtype=np.int64), np.asarray([-3, -1, 2, 5]))
    got = run(ops.floor_mod(arg(*a.shape, dtype=i64), arg(*b.shape, dtype=i64, label="y")), a, b)
    np.testing.assert_array_equal(got, a % b)


def test_symbolic_type_rules() -> None:
    image = arg(1, 3, S, S)
    w = arg(8, 3, 3, 3, label="w")
    conv = ops.Convolution((2, 2), ((1, 1), (1, 1)), (1, 1), (1, 1), "NCHW", "OIHW", "NCHW")
    assert conv(image, w).shape == (1, 8, (S + 1) // 2, (S + 1) // 2)
    convolution = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "NCHW", "OIHW", "NCHW")
    assert convolution(image, w).shape == (1, 8, S, S)
    assert ops.Concat(0)(arg(S, 2), arg(S, 2, label="y")).shape == (S * 2, 2)
    assert ops.Pad((1,), (-1,), (1,))(arg(S), const(np.float32(0))).shape == (S * 2 - 1,)
    assert ops.DotGeneral(contract=((1,), (1,)))(arg(S, 4), arg(S, 4, label="y")).shape == (S, S)
    with pytest.raises(ShapeError, match="expected 12"):
        ops.Reshape((S, 2))(arg(3, 4))


def test_errors_say_where() -> None:
    with pytest.raises(ShapeError, match=r"concatenate: operand 1 differs on axis 1: expected 4, got 8.* at m.py:31"):
        ops.Concat(0)(arg(2, 4), arg(2, 8, label="y"), loc="m.py:31")


@pytest.mark.parametrize(
    ("wide", "narrow"), [("f32", "u8"), ("f64", "f16"), ("i16", "bool"), ("u16", "i4"), ("f32", "i32")]
)
def test_bitcast_between_widths(wide: str, narrow: str) -> None:
    wide_dtype, narrow_dtype = DTYPES[wide], DTYPES[narrow]
    x = np.array([[1.5, -2.0, 0.0]]).astype(wide_dtype.numpy)
    if narrow == "bool":
        x = np.array([[0x0100, 0x0001, 0x0101]]).astype(wide_dtype.numpy)
    parts = ops.bitcast(const(x), narrow_dtype)
    assert parts.shape == (
        (1, 3) if wide_dtype.bits == narrow_dtype.bits else (1, 3, wide_dtype.bits // narrow_dtype.bits)
    )
    bits = np.unpackbits(x.view(np.uint8), bitorder="little")
    unit = np.unpackbits(run(parts).view(np.uint8).reshape(-1, max(narrow_dtype.bits // 8, 1)), 1, bitorder="little")
    np.testing.assert_array_equal(unit[:, : narrow_dtype.bits].ravel(), bits)
    np.testing.assert_array_equal(run(ops.bitcast(parts, wide_dtype)).view(np.uint8), x.view(np.uint8))


def test_bitcast_rejects_incomplete_elements() -> None:
    with pytest.raises(ShapeError, match="expected a last axis of 4, got u8"):
        ops.bitcast(arg(3, 2, dtype=u8), f32)
