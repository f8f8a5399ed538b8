"""What becomes one group: golden texts of a few graphs, and rules that must hold for any."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Input, Node, Project, const
from ingot.ir.show import show
from ingot.ir.types import TensorType, bf16, f32, i64
from ingot.ops.group import Group
from ingot.passes.core.layout import assign_layouts, explicit_padding
from ingot.passes.core.simplify import simplify
from ingot.passes.fusion.fuse import fuse
from ingot.passes.fusion.policy import FusionPolicy
from ingot.passes.model.lower import lower_model_ops
from ingot.pipeline.build import optimize
from ingot.pipeline.cpu import cpu_passes
from tests.conformance.dags import random_graph
from tests.passes.check import arg, graph, random_inputs

RNG = np.random.default_rng(0)


def weight(*shape: int) -> Node:
    return const(RNG.normal(size=shape).astype(np.float32))


def pipeline(*outputs: Node) -> Graph:
    return fuse(simplify(explicit_padding(assign_layouts(simplify(lower_model_ops(graph(*outputs)))))))


def groups(g: Graph) -> list[Group]:
    return [n.op for n in g.nodes() if isinstance(n.op, Group)]


def conv(x: Node, out_channels: int, size: int, pad: int) -> Node:
    c = x.shape[1]
    assert isinstance(c, int)
    return ops.Conv((1, 1), ((pad, pad), (pad, pad)), (1, 1))(x, weight(out_channels, c, size, size))


def mlp() -> Node:
    x = arg("x", symbol("s"), 8)
    return ops.Gelu()(ops.add(ops.MatMul()(x, weight(8, 16)), weight(16)))


def softmax() -> Node:
    return ops.Softmax(1)(arg("x", 5, 33))


def residual() -> Node:
    x = arg("x", 4, 8)
    return ops.LayerNorm((1,))(ops.add(x, ops.MatMul()(x, weight(8, 8))), weight(8), weight(8))


def dense_block() -> Node:
    x = arg("x", 1, 4, 6, 6)
    a = ops.Relu()(conv(x, 4, 1, 0))
    b = ops.Relu()(conv(ops.Concat(1)(x, a), 4, 1, 0))
    return conv(ops.Concat(1)(x, a, b), 4, 1, 0)


def halo() -> Node:
    return conv(ops.Relu()(conv(arg("x", 1, 8, 6, 6), 8, 3, 1)), 8, 3, 1)


def dense_layer() -> Node:
    x = arg("x", 1, 16, 12, 12)
    y = ops.Concat(1)(x, ops.Relu()(conv(x, 8, 3, 1)))
    normed = ops.add(ops.mul(y, weight(1, 24, 1, 1)), weight(1, 24, 1, 1))
    return ops.Relu()(conv(ops.Relu()(normed), 16, 1, 0))


def gated() -> Node:
    x = ops.Silu()(conv(arg("x", symbol("n"), 8, 14, 14), 8, 3, 1))
    squeezed = ops.Reshape((*x.shape[:2], 1, 1))(ops.Reduce("max", (2, 3))(x))
    return conv(ops.mul(x, ops.Logistic()(conv(squeezed, 8, 1, 0))), 4, 1, 0)


def inverted_residual() -> Node:
    x = ops.Relu()(conv(arg("x", symbol("n"), 16, 40, 40), 72, 1, 0))
    depthwise = ops.Conv((2, 2), ((1, 1), (1, 1)), (1, 1), groups=72)(x, weight(72, 1, 3, 3))
    return conv(ops.Relu()(depthwise), 16, 1, 0)


GOLDEN: tuple[Callable[[], Node], ...] = (
    mlp, softmax, residual, dense_block, dense_layer, gated, inverted_residual, halo,
)  # fmt: skip


@pytest.mark.parametrize("make", GOLDEN, ids=lambda f: f.__name__)
def test_golden(make: Callable[[], Node], golden: Callable[[str, str], None]) -> None:
    golden(make.__name__, show(pipeline(make()), inline=4))


def test_ways_that_part_and_meet_are_an_epilogue() -> None:
    x = conv(arg("x", 1, 8, 16, 16), 8, 3, 1)
    bodies = [g.body for g in groups(pipeline(conv(ops.mul(x, ops.Logistic()(x)), 8, 1, 0))) if g.kind == "contraction"]
    assert [any(isinstance(n.op, ops.Logistic) for n in body.nodes()) for body in bodies] == [True, False]


def test_a_chain_behind_a_matmul_is_its_epilogue() -> None:
    (only,) = groups(pipeline(mlp()))
    assert only.kind == "contraction"


def test_long_chains_are_several_kernels() -> None:
    """An unrolled loop: kernels are lowered recursively, and compile the slower the longer they are."""
    x = arg("x", 8)
    y = x
    for _ in range(400):
        y = ops.Tanh()(ops.Add()(y, x))
    sizes = [len(g.body.nodes()) for g in groups(pipeline(y))]
    assert sum(sizes) >= 800 and max(sizes) <= 140


@pytest.mark.parametrize("members", [4, 32])
def test_a_policy_bounds_groups(members: int) -> None:
    x = y = arg("x", 8)
    for _ in range(100):
        y = ops.Tanh()(ops.Add()(y, x))
    fused = fuse(graph(y), FusionPolicy(max_ops=members))
    sizes = [sum(not isinstance(n.op, Input) for n in g.body.nodes()) for g in groups(fused)]
    assert max(sizes) == members and sum(sizes) == 200


def test_softmax_is_one_group() -> None:
    (only,) = groups(pipeline(softmax()))
    assert only.kind == "rows"


def test_a_norm_stays_whole_in_front_of_a_matmul() -> None:
    """Though its last steps alone could be computed by the matmul."""
    x = arg("x", 128, 64)
    mean = ops.BroadcastInDim((128, 64), (0,))(ops.Reduce("sum", (1,))(x))
    y = ops.Convert(bf16)(ops.Mul()(ops.Sub()(x, mean), x))
    g = pipeline(ops.DotGeneral(((), ()), ((1,), (0,)), f32)(y, weight(64, 32)))
    assert [group.kind for group in groups(g)] == ["rows", "contraction"]


def test_what_a_group_norm_subtracts_its_mean_from_is_not_stored() -> None:
    """The mean runs over two boxes, so that neither kernel which reads the differences could compute it."""
    x = arg("x", 1, 32, 24, 24)
    y = conv(ops.Silu()(ops.GroupNorm(8, 1e-5)(conv(x, 32, 3, 1), weight(32), weight(32))), 32, 3, 1)
    kernels = [
        n for n in optimize(graph(y), cpu_passes()).nodes() if isinstance(n.op, Group) and n.type.size == 32 * 24 * 24
    ]
    assert len(kernels) == 5  # transpositions at both ends, two convolutions and what lies between them


def test_padding_of_a_computed_value_is_storage() -> None:
    g = pipeline(halo())
    assert [n.op.name for n in g.nodes() if isinstance(n.op, ops.Pad | ops.Concat)] == ["pad", "pad"]


def test_a_value_that_pads_may_be_computed() -> None:
    x = arg("x", 2, 3)
    value = ops.Exp()(ops.Reduce("max", (0, 1))(x))
    g = graph(ops.Neg()(ops.Pad((0, 1), (0, 2), (0, 0))(ops.Exp()(x), value)))
    data = random_inputs(g, {})
    for want, got in zip(interpret(g, data), interpret(fuse(g), data), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_a_pad_with_negative_zero_is_no_halo() -> None:
    x = ops.Exp()(arg("x", 4, 8))
    padded = ops.Pad((1, 0), (0, 0), (0, 0))(x, const(np.asarray(-0.0, np.float32)))
    g = fuse(graph(ops.DotGeneral(((), ()), ((1,), (0,)))(padded, weight(8, 8))))
    assert not any(isinstance(n.op, ops.Pad) for n in g.nodes())


def test_a_scalar_constant_that_a_contraction_reads_is_memory() -> None:
    ones = ops.BroadcastInDim((8, 4), ())(const(np.float32(1)))
    (only,) = groups(fuse(graph(ops.DotGeneral(((), ()), ((1,), (0,)))(arg("x", 3, 8), ones))))
    assert len(only.body.inputs) == 2


def test_every_output_is_a_value_of_its_own() -> None:
    x, c = arg("x", 3), const(np.arange(3, dtype=np.float32))
    y = ops.Exp()(x)
    g = fuse(Graph((x,), (y, y, x, c, ops.Reshape((3, 1))(y))))
    assert len(set(g.outputs)) == 5 and all(isinstance(n.op, Group | Project) for n in g.outputs)


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_groups_are_closed_and_exact(seed: int) -> None:
    """Only groups, storage ops and leaves are left; values stay the same; nothing that is read twice is lost."""
    before, sizes = random_graph(seed, seed % 2 == 0)
    after = optimize(before, cpu_passes())
    for n in after.nodes():
        assert isinstance(n.op, Group | ops.Concat | ops.Pad | Input | Const | Project), n.op
    plain = fuse(before)
    data = random_inputs(before, sizes)
    with np.errstate(all="ignore"):
        for want, got in zip(interpret(before, data), interpret(plain, data), strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_types_of_inputs_are_kept() -> None:
    g = fuse(graph(ops.Exp()(arg("x", symbol("s"), 3))))
    assert g.inputs[0].dtype == f32 and g.symbols() == ("s",)


def test_gathered_rows_are_stored_before_they_are_transposed() -> None:
    """Along the innermost dimension of the result each element would be looked up."""
    x, at = arg("x", 9, 40), Input("at", TensorType(i64, (30,)))()
    rows = ops.Take(0)(x, at)
    transposed = ops.Transpose((1, 0))(ops.mul(rows, 2.0))
    g = pipeline(ops.add(transposed, 1.0))
    assert [next(n.op.name for n in p.body.nodes() if n.inputs) for p in groups(g)][1:] == ["transpose"]
    # as they lie, they are read where they are needed
    assert len(groups(pipeline(ops.add(ops.mul(rows, 2.0), 1.0)))) == 1


def test_resized_images_stay_channels_last() -> None:
    """Nearest pixels repeated, borders reflected: what lies between two convolutions moves no data."""
    x = arg("x", 1, 3, 8, 9)
    y = ops.Resize((16, 18), (2, 3))(conv(x, 20, 3, 1))
    y = ops.PadMode((0, 0, 1, 1), (0, 0, 1, 1), "reflect")(y)
    g = pipeline(conv(y, 8, 3, 0))
    inner = [n for p in groups(g)[:-1] for n in p.body.nodes()]
    assert not any(isinstance(n.op, ops.Transpose) for n in inner)


def test_a_transposed_value_that_a_box_repeats_is_stored() -> None:
    """Graph attention: scores of pairs from a row's and a column's part, of which the latter lies across the rows."""
    n = symbol("n")
    x, y = arg("x", n, 8), arg("y", n, 8)
    rows = ops.BroadcastInDim((8, n, n), (0, 1))(ops.Transpose((1, 0))(x))
    columns = ops.BroadcastInDim((8, n, n), (0, 2))(ops.Transpose((1, 0))(y))
    g = pipeline(ops.Softmax(2)(ops.add(rows, columns)))
    op_names = [[m.op.name for m in p.body.nodes() if m.inputs] for p in groups(g)]
    assert op_names[0] == ["transpose"] and len(op_names) == 2
    assert op_names[1].count("transpose") == 1  # what a row reads once is read where it lies


def test_scores_of_few_heads_are_turned_in_front_of_a_softmax() -> None:
    """Beside a convolution, in front of which transposes only relabel: vectors run along the reduced rows."""
    scores = ops.Add()(arg("s", 1, 40, 40, 4), arg("t", 1, 40, 40, 4))
    soft = ops.Softmax(3)(ops.mul(ops.Transpose((0, 3, 1, 2))(scores), 2.0))
    g = pipeline(ops.Reshape((1, 4, 40, 40))(conv(soft, 4, 3, 1)))
    (rows,) = (p for p in groups(g) if p.kind == "rows")
    (maximum,) = (n for n in rows.body.nodes() if isinstance(n.op, ops.Reduce) and n.op.kind == "max")
    assert maximum.inputs[0].shape == (1, 4, 40, 40) and maximum.op.attributes()["dims"] == (3,)


@pytest.mark.parametrize(("rows", "width", "count"), [(6000, 96, 2), (6000, 64, 1), (4000, 96, 1)])
def test_tall_columns_of_wide_rows_are_read_as_they_lie(rows: int, width: int, count: int) -> None:
    x = arg("x", rows, width)
    assert len(groups(pipeline(ops.sub(x, ops.reduce_sum(x, (0,), keepdims=True))))) == count
