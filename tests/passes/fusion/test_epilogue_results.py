"""What is computed by element from a stored result, by the kernel that stores it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node
from ingot.ir.types import bf16, f32
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.passes.fusion.policy import FusionPolicy
from tests.passes.check import arg, graph, random_inputs

POLICY = FusionPolicy(computes_rows=False, pools_images=False, joins_row_results=True, joins_epilogues=True)


def kinds(g: Graph, policy: FusionPolicy = POLICY) -> list[tuple[str, int]]:
    """The kind of each group and how many results it has; the values are those of the graph."""
    fused = fuse(g, policy)
    inputs = random_inputs(g, {})
    for got, want in zip(interpret(fused, inputs), interpret(g, inputs), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-5)
    return [(n.op.kind, len(n.types)) for n in fused.nodes() if isinstance(n.op, Group)]


def dot(a: Node, b: Node) -> Node:
    return ops.DotGeneral(((), ()), ((1,), (0,)))(a, b)


X, W, V = arg("x", 4, 6), arg("w", 6, 8), arg("v", 8, 5)


def test_an_activation_whose_argument_is_kept_is_the_products_second_result() -> None:
    y = dot(X, W)
    z = ops.reshape(ops.Tanh()(ops.reshape(y, (2, 2, 8))), (4, 8))
    assert kinds(graph(y, dot(z, V))) == [("contraction", 2), ("contraction", 1)]


def test_a_gradient_in_two_types_is_stored_by_one_kernel() -> None:
    y = ops.Sub()(X, ops.BroadcastInDim(X.shape, (0,))(ops.Reduce("sum", (1,))(X)))
    results = kinds(graph(y, ops.Convert(bf16)(y), ops.Transpose((1, 0))(y)))
    assert results[0] == ("rows", 2)


def test_a_norm_whose_moments_are_kept_is_one_kernel() -> None:
    y, *moments = ops.Standardize((1,)).lower(X)
    assert kinds(graph(y, *(ops.reshape(v, (4, 1)) for v in moments)))[0][0] == "rows"
    assert len(kinds(graph(y, *(ops.reshape(v, (4, 1)) for v in moments)))) == 1


def test_other_elements_and_what_depends_on_the_product_stay_apart() -> None:
    y = dot(X, W)
    transposed = ops.Tanh()(ops.Transpose((1, 0))(y))
    assert ("contraction", 2) not in kinds(graph(y, transposed))
    # the other operand is computed from the product
    total = ops.BroadcastInDim(y.shape, (0,))(ops.Reduce("sum", (1,))(y))
    assert all(n == 1 for kind, n in kinds(graph(y, ops.Mul()(y, ops.Exp()(total)))) if kind == "contraction")


def test_values_of_16_bits_are_widened_by_their_readers() -> None:
    narrow = ops.Convert(bf16)(ops.Exp()(X))
    wide = ops.Convert(f32)(narrow)
    total = ops.Reduce("sum", (0, 1))(wide)
    fused = fuse(graph(total, ops.Transpose((1, 0))(ops.Tanh()(wide))), replace(POLICY, widens_values=True))
    stored = [n.types[0].dtype for n in fused.nodes() if isinstance(n.op, Group)]
    assert stored.count(bf16) == 1 and f32 in stored


def test_a_vector_is_computed_by_its_readers() -> None:
    scaled = ops.Mul()(ops.Add()(arg("a", 8), arg("b", 8)), arg("c", 8))
    y = ops.Mul()(arg("y", 64, 8), ops.BroadcastInDim((64, 8), (1,))(scaled))
    counts = [
        sum(isinstance(n.op, Group) for n in fuse(graph(y), policy).nodes())
        for policy in (POLICY, replace(POLICY, repeats_vectors=True))
    ]
    assert counts == [2, 1]


def test_a_sum_that_several_windows_need_is_stored() -> None:
    """Each element of an image reads four windows of a pool: of two images summed, but not of three."""

    def counts(images: int) -> int:
        summed = ops.Abs()(arg("i0", 1, 5, 5, 8))
        for i in range(1, images):
            summed = ops.Add()(summed, arg(f"i{i}", 1, 5, 5, 8))
        windows = []
        for low in ((0, 0), (0, 1), (1, 0), (1, 1)):
            before, after = (0, *low, 0), (0, *(1 - n for n in low), 0)
            padded = ops.pad(summed, before, after)
            blocks = ops.BroadcastInDim((1, 6, 2, 6, 2, 8), (0, 1, 3, 5))(padded)
            windows.append(ops.mul(blocks, float(1 + low[0] + 2 * low[1])))
        total = ops.Reshape((1, 12, 12, 8))(ops.Add()(ops.Add()(*windows[:2]), ops.Add()(*windows[2:])))
        policy = replace(POLICY, repeats_vectors=True, max_paths=16)
        return len(kinds(graph(total), policy))

    assert [counts(n) for n in (1, 2, 3)] == [1, 1, 2]


def test_sums_that_read_a_part_of_another_image_are_apart_from_a_product() -> None:
    y, x = dot(X, W), ops.Slice((0, 0), (4, 8), (1, 1))(arg("x", 4, 12))
    sums = ops.Reduce("sum", (0,))(ops.Mul()(y, x)), ops.Reduce("sum", (0,))(y)
    assert ("contraction", 1) in kinds(graph(y, *sums))


def gate_gradients(g: Node) -> tuple[Node, Node]:
    """Of y * silu(x) for the gradient `g` of the result."""
    x, y = ops.cast(ops.reshape(arg("gate", 32, dtype=bf16), (4, 8)), f32), arg("linear", 4, 8)
    s = ops.Logistic()(x)
    slope = ops.Mul()(s, ops.Add()(ops.Mul()(x, ops.Sub()(ops.full(x.shape, 1.0), s)), ops.full(x.shape, 1.0)))
    return ops.Mul()(g, ops.Mul()(x, s)), ops.Mul()(ops.Mul()(g, y), slope)


def test_costly_work_on_other_values_is_no_further_result_of_a_product() -> None:
    fused = fuse(graph(*gate_gradients(dot(X, W))), replace(POLICY, widens_values=True))
    groups = [(n.op.kind, len(n.types)) for n in fused.nodes() if isinstance(n.op, Group)]
    assert groups == [("contraction", 1), ("pointwise", 2)]  # with a logistic function


def test_a_long_function_of_another_value_is_no_epilogue_of_a_product() -> None:
    """A gradient of GELU is, but where its product is what the function is of, or nothing else is read."""

    def slope(x: Node) -> Node:
        density = ops.Exp()(ops.mul(ops.Mul()(x, x), -0.5))
        share = ops.mul(ops.add(ops.Erf()(ops.mul(x, 0.7)), 1.0), 0.5)
        return ops.Add()(ops.Mul()(ops.mul(density, 0.4), x), share)

    other, product = arg("y", 4, 8), dot(X, W)
    for y, kernels in (
        (ops.Mul()(product, slope(other)), ["contraction", "pointwise"]),
        (ops.Mul()(other, slope(product)), ["contraction"]),
        (ops.Mul()(product, ops.Tanh()(other)), ["contraction"]),
    ):
        limited = replace(POLICY, max_costly_epilogue=8)
        assert [kind for kind, _ in kinds(graph(y), limited)] == kernels
        for joined in (POLICY, replace(limited, min_costly_epilogue_elements=33)):
            assert [kind for kind, _ in kinds(graph(y), joined)] == ["contraction"]


def test_a_value_that_only_the_joined_groups_read_is_not_stored() -> None:
    y = dot(X, W)
    others = [arg(label, 4, 8) for label in "ab"]
    results = kinds(graph(*(ops.Mul()(ops.Add()(ops.Abs()(y), o), o) for o in others)))
    assert results == [("contraction", 2)]


def test_groups_behind_merged_ones_keep_their_reasons() -> None:
    y = dot(X, W)
    g, reasons = graph(y, dot(ops.Tanh()(y), V)), dict[Node, str]()
    fused = fuse(g, POLICY, reasons)
    assert {n for n in fused.nodes() if isinstance(n.op, Group)} == reasons.keys()
