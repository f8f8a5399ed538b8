from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.rewrite import rewrite
from ingot.ir.types import DTYPES, DType, TensorType, boolean, f32
from ingot.passes.core.identities import DTYPE_KINDS, FAST_MATH, IDENTITIES, Identity, build, rule_set, variables
from ingot.passes.core.simplify import simplify
from ingot.support.errors import ShapeError

KINDS = ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "u32", "bool"]


def specials(dtype: DType) -> np.ndarray:
    if dtype.kind == "b":
        return np.array([True, False])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        values = [info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max]
        return np.array(values + ([-1, -2, -7] if dtype.kind == "i" else []), dtype.numpy)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 1e-40, -1e-40, 6e-8, 1.7, -2.3, 255.0, 6e4, -6e4, 1e38, -1e38]
    with np.errstate(all="ignore"):
        return np.array([*values, np.inf, -np.inf, np.nan]).astype(dtype.numpy)


def arguments(identity: Identity, dtype: DType) -> dict[str, np.ndarray]:
    """Every combination of special values of the variables, flattened."""
    names = list(dict.fromkeys(variables(identity.patterns[0])))
    pools = [specials(boolean if n in "pq" else dtype) for n in names]
    pools = [np.array([p[3 if len(p) > 3 else 0]]) if n in "cd" else p for n, p in zip(names, pools, strict=True)]
    grids = np.meshgrid(*[np.arange(len(p)) for p in pools], indexing="ij")
    return {n: p[g.reshape(-1)] for n, p, g in zip(names, pools, grids, strict=True)}


def left_graph(identity: Identity, dtype: DType) -> tuple[Graph, dict[str, np.ndarray]] | None:
    left, _ = identity.patterns
    first = next(iter(variables(left)))
    on = boolean if first in "pq" else dtype
    data = arguments(identity, dtype)
    size = len(next(iter(data.values())))
    bound: dict[str, Node] = {}
    for name, values in data.items():
        kind = TensorType(boolean if name in "pq" else dtype, (size,))
        bound[name] = const(values) if name in "cd" else Input(name, kind)()
    if on.kind not in DTYPE_KINDS[identity.when]:
        return None
    node = build(left, bound, TensorType(dtype, (size,)))
    if node is None:
        return None
    right = build(identity.patterns[1], bound, node.type)
    if right is None or right.types != node.types:
        return None
    inputs = tuple(n for n in bound.values() if isinstance(n.op, Input))
    return Graph(inputs, (node,)), data


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda i: f"{i.text} {i.when}")
def test_identities_hold_for_every_special_value(identity: Identity) -> None:
    count = 0
    for name in KINDS:
        dtype = DTYPES[name]
        try:
            example = left_graph(identity, dtype)
        except ShapeError:
            continue
        if example is None:
            continue
        graph, arrays = example
        rewritten = rewrite(graph, rule_set([identity]))
        assert rewritten.outputs != graph.outputs, f"{identity.text} does not fire on {dtype}"
        inputs = {n.op.label: arrays[n.op.label] for n in graph.inputs}  # type: ignore[attr-defined]
        (want,), (got,) = interpret(graph, inputs), interpret(rewritten, inputs)
        assert_same(want, got, identity, dtype)
        count += 1
    assert count, f"{identity.text} fits no dtype"


def assert_same(want: np.ndarray, got: np.ndarray, identity: Identity, dtype: DType) -> None:
    if want.dtype.kind in "iub" and want.dtype.name not in ("bfloat16",):
        assert np.array_equal(want, got), (dtype, want[want != got], got[want != got])
        return
    nan = np.isnan(want.astype(np.float64))
    assert np.array_equal(nan, np.isnan(got.astype(np.float64))), dtype
    a, b = want[~nan], got[~nan]
    bits = f"i{a.itemsize}"
    if not identity.ulps:
        wrong = a.view(bits) != b.view(bits)  # 0 is not -0
        assert not wrong.any(), (dtype, a[wrong], b[wrong])
        return
    distance = np.abs(a.view(bits).astype(np.float64) - b.view(bits).astype(np.float64))
    assert (distance <= identity.ulps).all(), (dtype, a[distance > 1], b[distance > 1])
    assert np.array_equal(np.signbit(a.astype(np.float64)), np.signbit(b.astype(np.float64)))


def test_fast_math_is_off_by_default_and_reads() -> None:
    x = Input("x", TensorType(f32, (3,)))()
    one = ops.add(ops.pow(ops.Sin()(x), 2.0), ops.pow(ops.Cos()(x), 2.0))
    g = Graph((x,), (one,))
    assert simplify(g).outputs[0] is not ops.full((3,), 1.0)
    assert simplify(g, fast_math=True).outputs[0] is ops.full((3,), 1.0)
    assert len(rule_set(FAST_MATH)) == len(FAST_MATH)


def test_fast_math_holds_for_ordinary_values() -> None:
    values = np.random.default_rng(0).uniform(0.5, 4, 64).astype(np.float32)
    for identity in FAST_MATH:
        left, _ = identity.patterns
        bound: dict[str, Node] = {}
        names = list(dict.fromkeys(variables(left)))
        for i, n in enumerate(names):
            like = TensorType(f32, (64,))
            bound[n] = const(np.roll(values, i)) if n in "cd" else Input(n, like)()
        node = build(left, bound, TensorType(f32, (64,)))
        assert node is not None
        g = Graph(tuple(n for n in bound.values() if isinstance(n.op, Input)), (node,))
        rewritten = rewrite(g, rule_set([identity]))
        assert rewritten.outputs != g.outputs, identity.text
        if not any(t in identity.text for t in ("lowest", "highest")):
            inputs = {n: np.roll(values, i) for i, n in enumerate(names) if n not in "cd"}
            np.testing.assert_allclose(interpret(rewritten, inputs)[0], interpret(g, inputs)[0], 3e-6)


def test_literals_are_exact() -> None:
    x = Input("x", TensorType(f32, (3,)))()
    rules = rule_set(IDENTITIES)
    for value, is_identity in ((0.0, True), (-0.0, False)):
        g = Graph((x,), (ops.add(x, value),))
        assert (rewrite(g, rules) is g) == is_identity
    g = Graph((x,), (ops.Mul()(const(np.ones(3, np.float32)), x), ops.mul(x, np.float32(1.0000001).item())))
    assert rewrite(g, rules).outputs == (x, g.outputs[1])


@pytest.mark.parametrize(
    "text",
    ["add(x) -> y", "x -> x", "nosuch(x) -> x", "add(x, y)", "add(x, y -> x", "add(x, y)) -> x", "add(x, $) -> x"],
)
def test_malformed_identities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="identity"):
        Identity(text).rule()
