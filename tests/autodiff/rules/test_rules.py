"""Every reverse rule against central differences in float64, on the shapes and attributes of the op's own samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import gradients, pullback
from ingot.autodiff.rules import RULES
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op, const
from ingot.ir.types import DType, TensorType, bf16, dtype_of, f16, f32, f64
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import ShapeError

STEP = 1e-5
# where functions are defined; the others take any numbers
DOMAINS: dict[type[Op], tuple[float, float]] = {
    ops.Sqrt: (0.5, 2), ops.Rsqrt: (0.5, 2), ops.Log: (0.5, 2), ops.Log1p: (-0.5, 2), ops.Asin: (-0.8, 0.8),
    ops.Acos: (-0.8, 0.8), ops.Atanh: (-0.8, 0.8), ops.Acosh: (1.5, 3), ops.Pow: (0.5, 2), ops.Div: (0.5, 2),
    ops.Cbrt: (0.3, 2), ops.Tan: (-1, 1), ops.Atan2: (0.5, 2), ops.Rem: (1.1, 2.9),
}  # fmt: skip

# whose operand is a symmetric matrix, and what gets a large diagonal
SYMMETRIC: tuple[type[Op], ...] = (ops.Cholesky, ops.Eigh)
DOMINANT: tuple[type[Op], ...] = (ops.Cholesky, ops.TriangularSolve)


def cases() -> Iterator[tuple[Op, tuple[np.ndarray, ...]]]:
    """Ops with float operands in float64, on random numbers."""
    rng = np.random.default_rng(0)
    # none of these is a derivative
    for cls in sorted(
        RULES.keys() - {ops.StopGradient, ops.UnknownGradient, ops.Cotangent, ops.CustomGradient}, key=lambda c: c.name
    ):
        low, high = DOMAINS.get(cls, (-2, 2))
        visited = set()
        for op, arrays in cls.samples():
            inputs = tuple(
                rng.uniform(low, high, a.shape) if dtype_of(a).is_float else a for a in map(np.asarray, arrays)
            )
            if isinstance(op, DOMINANT):
                inputs = (inputs[0] + 4 * np.eye(inputs[0].shape[-1]), *inputs[1:])
            if isinstance(op, ops.LU) and inputs[0].shape[-1] != inputs[0].shape[-2]:
                continue
            if isinstance(op, ops.AllReduce | ops.ReduceScatter) and op.kind != "sum":
                continue  # refused by name
            types = tuple(TensorType(dtype_of(a), a.shape) for a in inputs)
            try:
                result_types = op.infer(*types)
            except ShapeError:
                continue  # operands of several float types, which are one here
            results = result_types if isinstance(result_types, tuple) else (result_types,)
            finite = all(np.isfinite(y).all() for y in _arrays(op.reference(*inputs)) if y.dtype.kind == "f")
            if (op, types) not in visited and finite and any(r.dtype.is_float and r.dtype.bits == 64 for r in results):
                visited.add((op, types))
                yield op, inputs


def _arrays(arrays: np.ndarray | tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return arrays if isinstance(arrays, tuple) else (arrays,)


def _symmetric(x: Node) -> Node:
    return ops.mul(ops.add(x, ops.Transpose((*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))(x)), 0.5)


CASES = list(cases())


@pytest.mark.parametrize(("op", "arrays"), CASES, ids=lambda v: v.name if isinstance(v, Op) else "")
def test_central_differences(op: Op, arrays: tuple[np.ndarray, ...]) -> None:
    rng = np.random.default_rng(1)
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays))
    loss: Node | None = None
    operands = tuple(map(_symmetric, inputs)) if isinstance(op, SYMMETRIC) else inputs
    for r in (r for r in op(*operands).results if r.dtype.is_float):
        seed = const(rng.standard_normal([int(d) for d in r.shape]))
        part = ops.reduce_sum(ops.mul(r, seed))
        loss = part if loss is None else ops.add(loss, part)
    assert loss is not None
    by = [x for x in inputs if x.dtype.is_float]
    results = lower_model_ops(Graph(inputs, tuple(gradients(loss, by)))).outputs
    got = interpret(Graph(inputs, tuple(results)), list(arrays))
    for x, g in zip(by, got, strict=True):
        i = inputs.index(x)
        assert g.shape == arrays[i].shape and g.dtype == arrays[i].dtype
        direction = rng.standard_normal(arrays[i].shape)
        sides = []
        for sign in (1, -1):
            perturbed = [a + sign * STEP * direction if j == i else a for j, a in enumerate(arrays)]
            sides.append(float(interpret(Graph(inputs, (loss,)), perturbed)[0]))
        want = (sides[0] - sides[1]) / (2 * STEP)
        assert float((g * direction).sum()) == pytest.approx(want, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("key_heads", [4, 2])
def test_attention_with_dropout(key_heads: int) -> None:
    """Without a gradient of the sums, those of the lowering's products, with the same mask."""
    rng = np.random.default_rng(0)
    shapes = (2, 4, 19, 8), (2, key_heads, 23, 8), (2, key_heads, 23, 6), (4, 19, 23), (2, 4, 19, 6)
    arrays = [*(rng.standard_normal(s) for s in shapes), np.asarray(7 << 40)]
    q, k, v, bias, g, seed = inputs = tuple(
        Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays)
    )
    op = ops.AttentionWithSums("upper_left", 0.4, dropout=0.3)
    by = [q, k, v, bias]
    got, want = (
        interpret(lower_model_ops(Graph(inputs, tuple(gradients(ops.reduce_sum(ops.mul(y, g)), by)))), arrays)
        for y in (op(q, k, v, bias, seed).results[0], op.lower(q, k, v, bias, seed)[0])
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_rectified_at_zero_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    value = np.asarray([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf])
    x = Input("x", TensorType(dtype_of(value), value.shape))()
    (slope,) = gradients(ops.reduce_sum(ops.Relu()(x)), [x])
    (got,) = interpret(lower_model_ops(Graph((x,), (slope,))), [value])
    theirs = torch.tensor(value, requires_grad=True)
    torch.relu(theirs).sum().backward()
    np.testing.assert_array_equal(got, theirs.grad.numpy())


@pytest.mark.parametrize("slope", [ops.GeluDerivative(), ops.Logistic(), ops.Tanh(), ops.Erf()], ids=lambda op: op.name)
def test_slopes_of_flat_functions_are_0_where_squares_overflow(slope: Op) -> None:
    x = Input("x", TensorType(f32, (4,)))()
    (derivative,) = gradients(ops.reduce_sum(slope(x)), [x])
    graph = lower_model_ops(Graph((x,), (derivative,)))
    np.testing.assert_array_equal(interpret(graph, [np.asarray([2e19, -2e19, 3e38, -3e38], np.float32)])[0], 0)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_the_gradient_of_gelu_is_rounded_to_16_bits_once(dtype: DType, approximate: str) -> None:
    """Within half a unit in the last place of the one in float64, beside the errors of float32."""
    rng = np.random.default_rng(0)
    values = [rng.uniform(-2, 2, 4000).astype(dtype.numpy) for _ in range(2)]
    slopes: list[np.ndarray] = []
    for t in (dtype, f64):
        x, g = (Input(name, TensorType(t, (4000,)))() for name in "xg")
        derivative = lower_model_ops(Graph((x, g), (pullback(ops.Gelu(approximate), x, g),)))
        slopes.append(interpret(derivative, [v.astype(t.numpy) for v in values])[0].astype(np.float64))
    roundoff = 2.0**-8 if dtype == bf16 else 2.0**-11
    np.testing.assert_allclose(*slopes, rtol=1.01 * roundoff, atol=1e-6)


def test_products_with_zeros_and_extremes_that_tie_are_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    x = np.asarray([[2.0, 0.0, 3.0, 0.0, -1.0], [1.0, 1.0, 0.5, 2.0, 2.0], [0.0, 1.0, 0.0, -2.0, 4.0]])
    weight = np.random.default_rng(0).standard_normal(x.shape)
    cases = {
        "prod": torch.cumprod,
        "max": lambda v, d: torch.cummax(v, d).values,
        "min": lambda v, d: torch.cummin(v, d).values,
    }
    node = Input("x", TensorType(dtype_of(x), x.shape))()
    for kind, theirs in cases.items():
        for dim in (0, 1):
            loss = ops.reduce_sum(ops.mul(ops.CumReduce(kind, dim)(node), const(weight)))
            (got,) = interpret(Graph((node,), tuple(gradients(loss, [node]))), [x])
            leaf = torch.tensor(x, requires_grad=True)
            (theirs(leaf, dim) * torch.tensor(weight)).sum().backward()
            np.testing.assert_allclose(got, leaf.grad.numpy(), atol=1e-12)


def test_window_sums_of_any_kind() -> None:
    """Their gradient is their transpose: any strides, borders wider than windows, no window at all."""
    rng = np.random.default_rng(2)
    for _ in range(80):
        rank = int(rng.integers(0, 3))
        window, strides = (tuple(rng.integers(1, limit, rank).tolist()) for limit in (7, 5))
        padding = tuple(zip(*rng.integers(0, 6, (2, rank)).tolist(), strict=True))
        dilation, base = (tuple(rng.choice([1, 1, 2], rank).tolist()) for _ in range(2))
        op = ops.ReduceWindow("sum", window, strides, padding, dilation, base)
        x, direction = rng.standard_normal((2, *rng.integers(1, 7, rank)))
        node = Input("x", TensorType(dtype_of(x), x.shape))()
        seed = rng.standard_normal([int(d) for d in op(node).shape])
        loss = ops.reduce_sum(ops.mul(op(node), const(np.asarray(seed))))
        (got,) = interpret(Graph((node,), tuple(gradients(loss, [node]))), [x])
        assert got.shape == x.shape
        want = float((op.reference(direction) * seed).sum())
        assert float((got * direction).sum()) == pytest.approx(want, rel=1e-9, abs=1e-9), op
