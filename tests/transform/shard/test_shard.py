"""Graphs over simulated devices: as on one, with no more exchanges than needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import gradients
from ingot.autodiff.graphs import differentiable
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i64
from ingot.ops.core.collective import simulated
from ingot.support.errors import InputError
from ingot.transform.shard.combine import combine_sums
from ingot.transform.shard.graph import collectives, graphs_of, shard
from ingot.transform.shard.mesh import MarkTable, Mesh, mesh_of
from ingot.transform.shard.simulate import simulate

RNG = np.random.default_rng(0)


def x_of(*shape: Any, name: str = "x", dtype: Any = f32) -> Node:
    return Input(name, TensorType(dtype, shape))()


def weight(name: str, *shape: int) -> Node:
    return const(RNG.standard_normal(shape, np.float32), loc=name)


def check(
    graph: Graph, mesh: Mapping[str, int], marks: Mapping[str, Any], inputs: Sequence[np.ndarray]
) -> dict[str, int]:
    """The results are those of one device; the exchanges of a device."""
    sharded = shard(graph, mesh_of(mesh), marks)
    for got, want in zip(simulate(sharded, inputs), interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    counts = {tuple(sorted(collectives(g).items())) for g in graphs_of(sharded)}
    assert len(counts) == 1
    return dict(counts.pop())


def block(x: Node, name: str, heads: int = 4, width: int = 32) -> Node:
    """A block of a transformer."""
    batch, length, _ = x.shape

    def norm(y: Node, part: str) -> Node:
        return ops.LayerNorm((2,))(y, weight(f"{name}.{part}", width))

    def project(y: Node, part: str, out_features: int) -> Node:
        w = weight(f"{name}.{part}.weight", out_features, int(y.shape[2]))
        return ops.add(ops.MatMul()(y, ops.transpose(w, (1, 0))), weight(f"{name}.{part}.bias", out_features))

    y = norm(x, "before")
    q, k, v = (
        ops.transpose(ops.reshape(project(y, part, width), (batch, length, heads, width // heads)), (0, 2, 1, 3))
        for part in "qkv"
    )
    attention = ops.transpose(ops.Attention("upper_left", 0.3)(q, k, v), (0, 2, 1, 3))
    x = ops.add(x, project(ops.reshape(attention, (batch, length, width)), "o", width))
    return ops.add(x, project(ops.Gelu()(project(norm(x, "between"), "up", 4 * width)), "down", width))


def transformer(batch: Any, length: Any) -> Graph:
    x = x_of(batch, length, 32)
    return Graph((x,), (block(block(x, "0"), "1"),))


MEGATRON = {f"*.{part}.weight": ("tp", 0) for part in ("q", "k", "v", "up")}


@pytest.mark.parametrize("devices", [2, 4])
def test_two_blocks_of_a_transformer_take_four_sums(devices: int) -> None:
    x = RNG.standard_normal((2, 7, 32), np.float32)
    assert check(transformer(2, 7), {"tp": devices}, MEGATRON, [x]) == {"all_reduce": 4}


def test_open_lengths_and_batches_stay_open() -> None:
    graph = transformer(symbol("b"), symbol("s"))
    sharded = shard(graph, mesh_of({"dp": 2, "tp": 2}), {**MEGATRON, "x": ("dp", 0)})
    for batch, length in ((2, 5), (6, 1)):
        x = RNG.standard_normal((batch, length, 32), np.float32)
        (got,), (want,) = simulate(sharded, [x]), interpret(graph, [x])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert collectives(graphs_of(sharded)[0]) == {"all_reduce": 4}
    assert sharded.outputs == ((("dp",), (), ()),)  # split like the input


def test_marks_of_both_ends_of_a_product() -> None:
    """Weights that are split along the summed dimension, too: nothing changes."""
    marks = {**MEGATRON, "*.o.weight": ("tp", 1), "*.down.weight": ("tp", 1)}
    x = RNG.standard_normal((1, 3, 32), np.float32)
    assert check(transformer(1, 3), {"tp": 2}, marks, [x]) == {"all_reduce": 4}


def test_an_output_is_whole_unless_the_caller_works_in_parts() -> None:
    x = x_of(4, 8)
    graph = Graph((x,), (ops.MatMul()(x, weight("w", 8, 6)),), output_names=("y",))
    value = RNG.standard_normal((4, 8), np.float32)
    assert check(graph, {"tp": 2}, {"w": ("tp", 1)}, [value]) == {"all_gather": 1}
    assert check(graph, {"tp": 2}, {"w": ("tp", 1), "y": ("tp", 1)}, [value]) == {}
    assert check(graph, {"tp": 2}, {"x": ("tp", 0)}, [value]) == {}
    assert check(graph, {"tp": 2}, {"x": ("tp", 0), "y": None}, [value]) == {"all_gather": 1}


def test_a_sum_that_is_wanted_in_parts_is_scattered() -> None:
    x = x_of(4, 8)
    product = ops.MatMul()(x, weight("w", 8, 6))
    graph = Graph((x,), (product,), output_names=("y",))
    marks = {"w": ("tp", 0), "y": ("tp", 1)}
    value = RNG.standard_normal((4, 8), np.float32)
    assert check(graph, {"tp": 2}, marks, [value]) == {"reduce_scatter": 1}


def test_a_dimension_that_moves_goes_to_all() -> None:
    x = x_of(4, 8)
    graph = Graph((x,), (ops.add(x, 1.0),), output_names=("y",))
    value = RNG.standard_normal((4, 8), np.float32)
    assert check(graph, {"tp": 2}, {"x": ("tp", 0), "y": ("tp", 1)}, [value]) == {"all_to_all": 1}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_over_the_batch_gather_nothing(groups: int) -> None:
    """XLA#47945: a grouped convolution gathered its batch."""
    x = x_of(4, 4, 6, 6)
    y = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), groups)(x, weight("w", 8, 4 // groups, 3, 3))
    value = RNG.standard_normal((4, 4, 6, 6), np.float32)
    assert check(Graph((x,), (ops.Relu()(y),)), {"dp": 2}, {"x": ("dp", 0)}, [value]) == {}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gradients_of_convolutions_over_the_batch_take_a_sum_each(groups: int) -> None:
    x, w = x_of(4, 4, 6, 6), x_of(8, 4 // groups, 3, 3, name="w")
    y = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), groups)(x, w)
    core = differentiable(Graph((x, w), (ops.reduce_sum(ops.mul(y, y)),)), True)
    graph = replace(core, outputs=tuple(gradients(core.outputs[0], [x, w])))
    values = [RNG.standard_normal([int(d) for d in n.shape], np.float32) for n in graph.inputs]
    assert check(graph, {"dp": 2}, {"x": ("dp", 0)}, values) == {"all_reduce": 1}


def test_channels_of_a_grouped_convolution() -> None:
    x = x_of(1, 4, 5, 5)
    y = ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1), 4)(x, weight("w", 4, 1, 3, 3))
    value = RNG.standard_normal((1, 4, 5, 5), np.float32)
    assert check(Graph((x,), (y,), output_names=("y",)), {"tp": 2}, {"w": ("tp", 0), "y": ("tp", 1)}, [value]) == {}


def test_groups_are_not_cut() -> None:
    """Eight channels in two groups over four devices."""
    x = x_of(1, 8, 4, 4)
    y = ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1), 2)(x, weight("w", 8, 4, 3, 3))
    value = RNG.standard_normal((1, 8, 4, 4), np.float32)
    check(Graph((x,), (y,), output_names=("y",)), {"tp": 4}, {"w": ("tp", 0), "y": ("tp", 1)}, [value])


def test_gradients_of_groups_in_parts_gather_nothing() -> None:
    x, w = x_of(4, 8, 6, 6), x_of(8, 2, 3, 3, name="w")
    y = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 4)(x, w)
    core = differentiable(Graph((x, w), (ops.reduce_sum(ops.mul(y, y)),)), True)
    graph = replace(core, outputs=tuple(gradients(core.outputs[0], [w])), output_names=("g",))
    values = [RNG.standard_normal([int(d) for d in n.shape], np.float32) for n in graph.inputs]
    assert check(graph, {"tp": 2}, {"x": ("tp", 1), "w": ("tp", 0), "g": ("tp", 0)}, values) == {}


def test_sums_of_sums_are_summed_once() -> None:
    """x a + x b, whose operands are both partial."""
    x = x_of(4, 8)
    y = ops.add(ops.MatMul()(x, weight("a", 8, 6)), ops.MatMul()(x, weight("b", 8, 6)))
    value = RNG.standard_normal((4, 8), np.float32)
    graph = Graph((x,), (ops.Relu()(y),))
    assert check(graph, {"tp": 2}, {"a": ("tp", 0), "b": ("tp", 0)}, [value]) == {"all_reduce": 1}


def test_a_sum_with_several_readers_is_summed_once() -> None:
    x = x_of(4, 8)
    y = ops.MatMul()(x, weight("a", 8, 6))
    graph = Graph((x,), (ops.mul(y, 2.0), ops.Relu()(y)))
    value = RNG.standard_normal((4, 8), np.float32)
    assert check(graph, {"tp": 2}, {"a": ("tp", 0)}, [value]) == {"all_reduce": 1}


def test_gradients_of_several_weights_take_one_sum() -> None:
    x, a, b = x_of(4, 8), x_of(8, 6, name="a"), x_of(6, 3, name="b")
    core = differentiable(Graph((x, a, b), (ops.reduce_sum(ops.MatMul()(ops.Relu()(ops.MatMul()(x, a)), b)),)), True)
    graph = replace(core, outputs=(*core.outputs, *gradients(core.outputs[0], [a, b])))
    values = [RNG.standard_normal([int(d) for d in n.shape], np.float32) for n in graph.inputs]
    assert check(graph, {"dp": 2}, {"x": ("dp", 0)}, values) == {"all_reduce": 1}


def test_large_sums_are_apart_and_buckets_bounded() -> None:
    x = x_of(2)
    scalars = [ops.reduce_sum(ops.mul(x, float(i + 1))) for i in range(4)]
    sums = [
        ops.AllReduce(((0, 1),))(ops.broadcast_to(s, (n,)))
        for s, n in zip(scalars, (300_000, 250_000, 9, 9), strict=True)
    ]
    combined = combine_sums(Graph((x,), tuple(sums)))
    shapes = [n.shape for n in combined.nodes() if isinstance(n.op, ops.AllReduce)]
    assert sorted(shapes) == [(250_018,), (300_000,)]
    value = np.ones(2, np.float32)
    for got, n in zip(
        simulated(2, lambda rank: interpret(combined, [value * rank]))[0], (300_000, 250_000, 9, 9), strict=True
    ):
        assert got.shape == (n,)


def test_a_lookup_in_parts_of_words_and_its_gradient() -> None:
    ids, table = x_of(4, 3, name="ids", dtype=i64), weight("words", 10, 8)
    graph = Graph((ids,), (ops.Take(0)(table, ids),))
    value = RNG.integers(0, 10, (4, 3))
    assert check(graph, {"dp": 2}, {"ids": ("dp", 0)}, [value]) == {}
    rows = x_of(4, 3, 8, name="rows")
    flat = ops.reshape(ids, (12,))
    added = ops.Scatter("add", (1,), (0,), (), (), (0,), 1)(
        ops.full((10, 8), 0.0, f32), flat, ops.reshape(rows, (12, 8))
    )
    values = [value, RNG.standard_normal((4, 3, 8), np.float32)]
    marks = {"ids": ("dp", 0), "rows": ("dp", 0)}
    assert check(Graph((ids, rows), (added,)), {"dp": 2}, marks, values) == {"all_reduce": 1}


@pytest.mark.parametrize("has_lengths", [False, True])
def test_sequences_of_a_recurrent_layer(has_lengths: bool) -> None:
    x, state = x_of(5, 4, 3), x_of(1, 4, 2, name="state")
    weights = weight("w", 1, 8, 3), weight("r", 1, 8, 2), weight("b", 1, 16)
    lengths = [const(np.array([5, 0, 3, 1], np.int64))] if has_lengths else []
    layer = ops.LSTM(2, has_lengths=has_lengths)(x, *weights, state, state, *lengths)
    values = [RNG.standard_normal(shape, np.float32) for shape in ((5, 4, 3), (1, 4, 2))]
    assert check(Graph((x, state), layer.results), {"dp": 2}, {"x": ("dp", 1)}, values) == {}


def test_an_axis_of_one_device_changes_nothing() -> None:
    x = RNG.standard_normal((1, 3, 32), np.float32)
    assert check(transformer(1, 3), {"tp": 1}, MEGATRON, [x]) == {}


def test_two_weights_of_one_shape_are_split_apart() -> None:
    """Both are scaled by the same broadcast number, which is split like neither."""
    x, rate = x_of(2, 8), x_of(name="rate")
    a, b = (ops.mul(weight(n, 8, 8), ops.broadcast_to(rate, (8, 8))) for n in "ab")
    graph = Graph((x, rate), (ops.MatMul()(ops.MatMul()(x, a), b),))
    values = [RNG.standard_normal((2, 8), np.float32), np.float32(0.5)]
    values[1] = np.asarray(values[1])
    assert check(graph, {"tp": 2}, {"a": ("tp", 1), "b": ("tp", 0)}, values) == {"all_reduce": 1}


# --- refusals


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"nothing": ("tp", 0)}, "patterns that match some of"),
        ({"x": ("ep", 0)}, "a mesh axis: one of tp"),
        ({"x": ("tp", 5)}, "one of its 2 dimensions"),
        ({"x": ("tp", 1)}, "a multiple of 2"),
        ({"x": [("tp", 0), ("tp", 1)]}, "each mesh axis once"),
        ({"x": "tp"}, "or None"),
        ({"x": ("tp", "0")}, "a mesh axis and a dimension"),
        ({1: ("tp", 0)}, "patterns of names"),
    ],
)
def test_marks_that_do_not_fit(marks: Any, message: str) -> None:
    x = x_of(4, 7)
    with pytest.raises(InputError, match=message):
        graphs_of(shard(Graph((x,), (ops.add(x, 1.0),)), mesh_of({"tp": 2}), marks))


@pytest.mark.parametrize("mesh", [{}, {"tp": 0}, {"tp": 2.0}, {"": 2}, {"a": 1 << 20}, "tp", None])
def test_meshes_that_do_not_fit(mesh: Any) -> None:
    with pytest.raises(InputError):
        mesh_of(mesh)


def test_ranks_and_groups_of_a_mesh() -> None:
    mesh = Mesh((("dp", 2), ("tp", 3)))
    assert mesh.size == 6 and mesh.index(4, ("dp",)) == 1 and mesh.index(4, ("tp",)) == 1
    assert mesh.groups(("tp",)) == ((0, 1, 2), (3, 4, 5))
    assert mesh.groups(("dp",)) == ((0, 3), (1, 4), (2, 5))
    assert mesh.groups(("tp", "dp")) == ((0, 3, 1, 4, 2, 5),)
    assert MarkTable({"a.*": [("dp", 1), ("tp", 1)]}, mesh).spec("a.b", 2) == ((), ("dp", "tp"))


def test_placements_of_dtensor_are_marks():
    torch_tensor = pytest.importorskip("torch.distributed.tensor")
    shard_, replicate_, partial_ = torch_tensor.Shard, torch_tensor.Replicate, torch_tensor.Partial
    grid = mesh_of({"dp": 2, "tp": 4})
    marks = {
        "a": [shard_(1), shard_(0)],
        "b": [replicate_(), shard_(-1)],
        "c": (replicate_(), replicate_()),
        "d": [shard_(0)] * 2,
    }
    table = MarkTable(marks, grid)
    assert table.spec("a", 2) == (("tp",), ("dp",)) and table.spec("b", 3) == ((), (), ("tp",))
    assert table.spec("c", 1) == ((),) and table.spec("d", 1) == (("dp", "tp"),) and table.spec("e", 1) is None
    assert MarkTable({"a": shard_(0)}, mesh_of({"tp": 2})).spec("a", 1) == (("tp",),)
    for wrong in ([partial_(), replicate_()], [shard_(0)], [shard_(0), "tp"]):
        with pytest.raises(InputError, match=r"Shard\(dim\) or Replicate\(\) for each of dp, tp"):
            MarkTable({"a": wrong}, grid)


def test_a_device_mesh_of_pytorch_is_a_mesh():
    torch = pytest.importorskip("torch")

    def device_mesh(names: Any, ranks: Any) -> Any:
        kind = type("DeviceMesh", (), {"__module__": "torch.distributed.device_mesh"})
        result: Any = kind()
        result.mesh_dim_names, result.mesh = names, torch.tensor(ranks)
        return result

    assert mesh_of(device_mesh(("dp", "tp"), [[0, 1, 2], [3, 4, 5]])) == mesh_of({"dp": 2, "tp": 3})
    for names, ranks in ((None, [0, 1]), (("dp",), [1, 0])):
        with pytest.raises(InputError, match="a DeviceMesh"):
            mesh_of(device_mesh(names, ranks))
