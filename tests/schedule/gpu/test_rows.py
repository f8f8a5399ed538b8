"""Rows that are cut into parts, and rows that lie side by side: checked by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import Shape, TensorType, bf16, dtype_of, f16, f32, static_shape
from ingot.ops.group import Group as FusedGroup
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.schedule.gpu.blocks import Group
from ingot.schedule.gpu.machine import H100
from ingot.schedule.gpu.rows import RowTiles, lower_rows
from ingot.schedule.row_box import rows_of
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100 as TARGET

RNG = np.random.default_rng(0)
Build = Callable[[Node], Node]


def checked(build: Build, x: np.ndarray, shape: Shape | None = None, rtol: float = 1e-5) -> list[str]:
    """The names of the kernels."""
    node = Input("x", TensorType(dtype_of(x), shape or x.shape))()
    graph = Graph((node,), (build(node),))
    (got,) = run_checked(graph, [x], TARGET)
    np.testing.assert_allclose(got, interpret(graph, [x])[0], rtol=rtol, atol=1e-4)
    return [name.rstrip("_0123456789") for name in planned(graph, TARGET)[1]]


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_few_long_rows_are_cut() -> None:
    assert checked(ops.Reduce("sum", (0,)), floats(70000)) == ["parts", "rows"]
    assert checked(ops.Softmax(1), floats(2, 33000)) == ["parts", "parts", "rows"]
    assert checked(ops.Reduce("max", (0, 2)), floats(8, 3, 8000)) == ["parts", "rows"]
    assert checked(ops.Reduce("sum", (1,)), floats(1, 40000), (1, symbol("n"))) == ["rows"]


@pytest.mark.parametrize(
    ("shape", "groups", "kernels"),
    [
        ((2, 12, 5, 7), 4, ["rows"]),
        ((1, 6, 9, 4), 2, ["rows"]),
        ((1, 4, 101, 90), 2, ["rows"]),
        ((1, 10, 81, 90), 2, ["parts", "parts", "rows"]),
    ],
)
def test_moments_of_groups_of_channels(shape: tuple[int, ...], groups: int, kernels: list[str]) -> None:
    """Means far from 0; a NaN stays in its group."""
    c = shape[1]
    one, none = (1, 1), ((0, 0), (0, 0))

    def normed(x: Node) -> Node:
        weight = const(np.eye(c, dtype=np.float32).reshape(c, c, 1, 1))
        return ops.GroupNorm(groups)(ops.Conv(one, none, one)(x, weight), const(floats(c)), const(floats(c)))

    x = floats(*shape) + 10
    if shape[0] > 1:
        x[1, 0, 2, 3] = np.nan
    names = checked(normed, x, rtol=1e-4)
    assert [n for n in names if n in ("parts", "rows")] == kernels


@pytest.mark.parametrize("last", [False, True])
def test_places_in_parts(last: bool) -> None:
    x = floats(3, 40000)
    x[0, [100, 39000]] = 50
    x[1, [33000, 35000]] = np.nan
    x[2] = -np.inf
    assert checked(ops.ArgReduce("max", 1, last=last), x) == ["parts", "rows"]


def test_rows_side_by_side() -> None:
    assert checked(ops.Reduce("sum", (0,)), floats(3000, 40)) == ["parts", "rows"]
    assert checked(ops.Softmax(0), floats(700, 20)) == ["rows"]
    assert checked(ops.Softmax(1), floats(2, 9, 50)) == ["rows"]
    assert checked(ops.Reduce("sum", (1,)), floats(3, 400, 33)) == ["rows"]


@pytest.mark.parametrize(
    ("shape", "reduced", "tile", "parts"),
    [
        ((1, 128256), (1,), (1, 4096), 32),
        ((64, 8192), (1,), (1, 8192), 1),
        ((65536, 256), (0,), (64, 64), 128),
        ((65536, 64), (0,), (64, 64), 512),
        ((65536, 160), (0,), (32, 128), 64),
        ((32, 3136, 256), (1,), (64, 64), 4),
        ((64, 96, 3136), (1,), (32, 128), 1),
        ((8, 768, 196), (1,), (8, 1024), 1),
        ((1 << 20, 3), (0,), (4, 1024), 512),
    ],
)
def test_tiles_and_parts(shape: Shape, reduced: tuple[int, ...], tile: tuple[int, int], parts: int) -> None:
    x = Input("x", TensorType(f32, static_shape(shape)))()
    graph = Graph((x,), (ops.Reduce("sum", reduced)(x),))
    rows = rows_of(graph)
    assert rows is not None
    result = RowTiles(Group.of(graph, (Layout.contiguous(shape),), ()), rows, H100)
    assert (result.tile, result.suggested_parts) == (tile, parts)


@pytest.mark.parametrize(("shape", "operands", "tile", "warps"), [
    ((6304, 384), 1, (2, 512), 1), ((2048, 768), 3, (1, 1024), 1), ((4, 1024), 3, (1, 1024), 1),
    ((2048, 768), 4, (4, 1024), 8), ((6304, 256), 1, (16, 256), 8), ((2048, 1025), 1, (2, 2048), 8),
])  # fmt: skip
def test_a_warp_holds_rows(shape: tuple[int, int], operands: int, tile: tuple[int, int], warps: int) -> None:
    """If they are neither short nor too many for its registers."""
    inputs = tuple(Input(f"x{n}", TensorType(f32, shape))() for n in range(operands))
    graph = Graph(inputs, (ops.Reduce("sum", (1,))(reduce(ops.mul, inputs)),))
    rows = rows_of(graph)
    assert rows is not None
    result = RowTiles(Group.of(graph, (Layout.contiguous(shape),) * operands, ()), rows, H100)
    assert (result.tile, result.warps) == (tile, warps)
    arrays = [floats(5, shape[1]) for _ in inputs]
    arrays[0][3, -1] = np.nan
    small = tuple(Input(f"x{n}", TensorType(f32, a.shape))() for n, a in enumerate(arrays))
    (got,) = run_checked(Graph(small, (ops.Reduce("sum", (1,))(reduce(ops.mul, small)),)), arrays, TARGET)
    np.testing.assert_allclose(got, np.prod(arrays, 0).sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("shape", "kernels"), [((3, 50), 1), ((150, 9000), 1), ((2, 40000), 3)])
def test_values_of_rows_beside_their_box(shape: tuple[int, ...], kernels: int) -> None:
    """A norm and the mean that it subtracts are one group, of whole rows, of rows piece by piece and in parts."""
    x = floats(*shape)
    node = Input("x", TensorType(f32, x.shape))()
    mean = ops.mul(ops.Reduce("sum", (1,))(node), 1 / shape[1])
    centred = ops.Sub()(node, ops.BroadcastInDim(x.shape, (0,))(mean))
    spread = ops.BroadcastInDim(x.shape, (0,))(ops.Reduce("max", (1,))(ops.Abs()(centred)))
    graph = Graph((node,), (ops.Div()(centred, spread), mean))
    for got, want in zip(run_checked(graph, [x], TARGET), interpret(graph, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    assert len(planned(graph, TARGET)[1]) == kernels


@pytest.mark.parametrize("shape", [(3, 0), (0, 0), (0, 5), (1, 0)])
def test_sums_of_nothing(shape: tuple[int, ...]) -> None:
    """Places in the box are told by divisions, of which none is by 0."""
    checked(ops.Reduce("sum", (0, 1)), floats(*shape))
    checked(ops.Reduce("max", (1, 2)), floats(4, *shape))


@pytest.mark.parametrize(
    ("shape", "dims", "names"),
    [((4000, 40), (0,), ["parts", "rows"]), ((3, 70000), (1,), ["parts", "rows"]), ((200, 96), (1,), ["rows"])],
)
def test_results_that_wait_for_no_sum_are_stored_as_it_is_computed(
    shape: tuple[int, ...], dims: tuple[int, ...], names: list[str]
) -> None:
    """The gradient of a bias and that of what it was added to, which reads each element once."""
    x = Input("x", TensorType(f32, shape))()
    y = ops.Abs()(ops.Mul()(x, x))
    half = ops.Convert(f16)(y)
    total = ops.Reduce("sum", dims)(y)
    share = ops.Div()(y, ops.BroadcastInDim(shape, tuple({0, 1}.difference(dims)))(total))
    data = floats(*shape)
    for outputs, waits in ((half, total), False), ((half, total, share), True):
        body = Graph((x,), outputs)
        rows = rows_of(body)
        assert rows is not None
        layouts = [Layout.contiguous(static_shape(n.shape)) for n in (x, *outputs)]
        low = lower_rows(Group.of(body, layouts[:1], layouts[1:]), H100)
        assert [step.kernel.name for step in low.steps] == names
        stores = [sum(f"out{i}[" in show_kernel(step.kernel) for step in low.steps) for i in range(len(outputs))]
        assert stores == [1] * len(outputs)
        assert waits or len(low.steps) == 1 or "in0[" not in show_kernel(low.steps[-1].kernel)
        for got, want in zip(run_checked(body, [data], TARGET), interpret(body, [data]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3 if got.dtype == np.float16 else 1e-4)


def test_a_softmax_gradient_reads_the_cotangent_in_16_bits() -> None:
    """The product stores it as it is, and the rows, which read the weights anyway, multiply them."""
    y, v, g = (Input(n, TensorType(t, d))() for n, t, d in (
        ("y", f32, (6, 5, 9)), ("v", bf16, (6, 4, 9)), ("g", bf16, (6, 5, 4))
    ))  # fmt: skip
    cotangent = ops.mul(ops.cast(ops.DotGeneral(((0,), (0,)), ((2,), (1,)))(g, v), f32), y)
    result = ops.sub(
        cotangent, ops.mul(y, ops.broadcast_to(ops.reduce("sum", cotangent, (2,), keepdims=True), y.shape))
    )
    graph = Graph((y, v, g), (result, ops.reduce("sum", result, (0,))))
    inputs = [RNG.normal(size=static_shape(n.shape)).astype(n.dtype.numpy) for n in graph.inputs]
    for got, want in zip(run_checked(graph, inputs, TARGET), interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    trace = Trace()
    build_program(graph, features_of(f"null:{TARGET}"), 1, trace=trace)
    nodes = trace.stages[-1][2].nodes()
    (product,) = (n for n in nodes if isinstance(n.op, FusedGroup) and n.op.kind == "contraction")
    assert product.dtype == bf16 and y not in product.inputs
