"""Kernels that hold rows and add columns, as the gradients of norms do: checked by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.kernel import For
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, Shape, TensorType, bf16, f32
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100 as TARGET

TOLERANCES = (1e-4, 1e-2, 1e-4, 1e-4, 1e-2)  # the second and the last are rounded to 16 bits
RNG = np.random.default_rng(0)


def norm_gradients(box: tuple[int, int, int], of_gradient: DType = bf16, kind: str = "sum") -> Graph:
    """The gradients of a layer norm's input, in two types, of its weight, of its bias, and of the bias of the layer in
    front of it. The gradient of the result has the rows as one dimension."""
    flat = (box[0] * box[1], box[2])
    g, x = Input("g", TensorType(of_gradient, flat))(), Input("x", TensorType(f32, box))()
    mean, scale = (Input(n, TensorType(f32, (*box[:2], 1)))() for n in ("mean", "scale"))
    weight, other = Input("weight", TensorType(f32, box[2:]))(), Input("other", TensorType(f32, box))()

    def full(n: Node, *dims: int) -> Node:
        return ops.BroadcastInDim(box, dims)(n)

    gradient = ops.Convert(f32)(ops.Reshape(box)(g))
    normed = ops.Mul()(ops.Sub()(x, full(mean, 0, 1, 2)), full(scale, 0, 1, 2))
    scaled = ops.Mul()(gradient, full(weight, 2))
    total, along = (full(ops.Reduce("sum", (2,))(v), 0, 1) for v in (scaled, ops.Mul()(scaled, normed)))
    result = ops.Sub()(ops.Sub()(scaled, total), ops.Mul()(normed, along))
    result = ops.Add()(other, ops.Mul()(full(scale, 0, 1, 2), result))
    narrow = ops.Convert(bf16)(result)
    sums = [ops.Reduce(kind, (0, 1))(n) for n in (ops.Mul()(gradient, normed), gradient)]
    bias = ops.Convert(f32)(ops.Reduce(kind, (0,))(ops.Reshape(flat)(narrow)))
    return Graph((g, x, mean, scale, weight, other), (result, narrow, *sums, bias))


def floats(n: Node) -> np.ndarray:
    shape: Shape = n.shape
    return RNG.normal(size=shape).astype(n.dtype.numpy)


def checked(graph: Graph, arrays: list[np.ndarray]) -> list[str]:
    """The names of the kernels."""
    results = zip(run_checked(graph, arrays, TARGET), interpret(graph, arrays), TOLERANCES, strict=True)
    for got, want, tolerance in results:
        scale = np.nanmax(np.abs(want[np.isfinite(want)].astype(np.float64)), initial=1.0)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), tolerance, tolerance * scale)
    return [name.rstrip("_0123456789") for name in planned(graph, TARGET)[1]]


@pytest.mark.parametrize(
    "box", [(3, 17, 300), (1, 2, 300), (2, 1101, 260), (5, 1, 1000), (2, 3, 1024), (0, 4, 256), (4, 2, 0)]
)
def test_the_gradients_of_a_norm_are_two_kernels(box: tuple[int, int, int]) -> None:
    graph = norm_gradients(box)
    names = checked(graph, [floats(n) for n in graph.inputs])
    assert names == ([] if 0 in box[2:] else ["rows", "rows"])


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_a_nan_stays_in_its_row_and_its_columns(kind: str) -> None:
    graph = norm_gradients((2, 700, 257), f32, kind)
    arrays = [floats(n) for n in graph.inputs]
    arrays[0][3, 5], arrays[1][1, 650, 7], arrays[5][0, 2, 256] = np.nan, np.inf, -np.inf
    assert checked(graph, arrays) == ["rows", "rows"]


def test_results_are_the_same_bits_again() -> None:
    graph = norm_gradients((2, 500, 320))
    arrays = [floats(n) for n in graph.inputs]
    for a, b in zip(run_checked(graph, arrays, TARGET), run_checked(graph, arrays, TARGET), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("rows", "stages"), [(2048, 0), (6304, 3)])
def test_many_turns_load_ahead(rows: int, stages: int) -> None:
    """Rows of 384, of which a tile has two: 2 turns of six programs for each multiprocessor, and 6 of four."""
    kernels = planned(norm_gradients((1, rows, 384)), TARGET)[1]
    loops = [s for s in next(iter(kernels.values())).body if isinstance(s, For)]
    assert [s.stages for s in loops] == [stages]
