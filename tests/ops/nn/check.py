"""Run an op by its reference, by its lowering (a primitive: by its rule), and by its lowering on symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.types import TensorType, dtype_of
from tests.ops.evaluate import evaluate

Dynamic = Mapping[int, Mapping[int, str]]  # operand -> axis -> symbol


def operands(inputs: tuple[np.ndarray, ...], dynamic: Dynamic | None = None) -> tuple[Node, ...]:
    arrays = []
    for i, x in enumerate(inputs):
        axes = (dynamic or {}).get(i, {})
        shape = tuple(symbol(axes[a]) if a in axes else n for a, n in enumerate(x.shape))
        arrays.append(Input(f"x{i}", TensorType(dtype_of(x), shape))())
    return tuple(arrays)


def run(op: Op, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The op's reference, checked against its type rule."""
    nodes = operands(inputs)
    return interpret(Graph(nodes, op(*nodes).results), inputs)


def run_lowered(op: Op, *inputs: np.ndarray, dynamic: Dynamic | None = None) -> tuple[np.ndarray, ...]:
    """The op's lowering, whose types must be the op's, or its rule for one element."""
    if isinstance(op, ops.Elementwise):
        names = [f"x{i}" for i in range(len(inputs))]
        value = op.scalar(*(k.var(n, dtype_of(x)) for n, x in zip(names, inputs, strict=True)))
        return (evaluate(value, dict(zip(names, inputs, strict=True))),)
    nodes = operands(inputs, dynamic)
    node = op(*nodes)
    low = op.lower(*nodes)
    assert low is not None
    results = low if isinstance(low, tuple) else low.results
    assert tuple(n.type for n in results) == node.types, (results, node.types)
    return interpret(Graph(nodes, results), inputs)


def close(got: object, want: object, dtype: np.dtype, scale: float = 1.0) -> None:
    rtol = {"float64": 1e-10, "float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2}.get(dtype.name, 0) * scale
    g, w = np.asarray(got), np.asarray(want)
    assert g.shape == w.shape, (g.shape, w.shape)
    if dtype.kind in "iub":
        np.testing.assert_array_equal(g, w)
        return
    g, w = g.astype(np.float64), w.astype(np.float64)
    finite = np.abs(w[np.isfinite(w)])
    np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * min(1.0, float(finite.max(initial=0))))


def check(op: Op, *inputs: np.ndarray, want: object = None, dynamic: Dynamic | None = None, scale: float = 1.0) -> None:
    """Reference = lowering (= lowering with `dynamic` sizes) = `want`."""
    expected = run(op, *inputs)
    results = [run_lowered(op, *inputs)]
    if dynamic is not None:
        results.append(run_lowered(op, *inputs, dynamic=dynamic))
    if want is not None:
        results.append(want if isinstance(want, tuple) else (want,))  # type: ignore[arg-type]
    for way in results:
        assert len(way) == len(expected)
        for g, e in zip(way, expected, strict=True):
            close(np.asarray(g), e, e.dtype, scale)
