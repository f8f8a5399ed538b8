"""Norms of images, from model ops to kernels: against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import optimize
from ingot.pipeline.cpu import KernelAssembler, cpu_passes
from ingot.plan.link import link
from ingot.runtime.executor import CompiledModel
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import HOST, MACHINES, NATIVE, lowering

RNG = np.random.default_rng(7)


def values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def compiled(graph: Graph, machine: Machine = NATIVE) -> CompiledModel:
    program = link(optimize(graph, cpu_passes()), lowering(machine), KernelAssembler(HOST), stages={}, meta={})
    return CompiledModel(program, threads=machine.threads)


def normed(kind: str, groups: int, shape: tuple[DimLike, ...]) -> Graph:
    """conv -> norm -> relu"""
    x = Input("x", TensorType(f32, shape))()
    c = shape[1]
    assert isinstance(c, int)
    y = ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1))(x, const(values(c, c, 1, 1) / np.float32(c)))
    scale, bias = const(values(c)), const(values(c))
    if kind == "instance":
        y = ops.InstanceNorm(1e-5)(y, scale, bias)
    else:
        y = ops.GroupNorm(groups)(y, scale, bias)
    return Graph((x,), (ops.Max()(y, ops.BroadcastInDim(y.shape, ())(ops.scalar(0.0))),))


def agree(graph: Graph, xs: np.ndarray, machine: Machine = NATIVE) -> None:
    (want,), got = interpret(graph, [xs]), np.asarray(compiled(graph, machine)(xs))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    finite = np.isfinite(want)
    assert np.abs(got[finite] - want[finite]).max(initial=0) <= 2e-5 * np.abs(want[finite]).max(initial=1e-30)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(("kind", "groups"), [("group", 1), ("group", 4), ("group", 20), ("instance", 0)])
@pytest.mark.parametrize(("height", "width"), [(41, 37), (40, 64), (3, 5), (1, 1)])
def test_sizes(kind: str, groups: int, height: int, width: int, machine: Machine) -> None:
    agree(normed(kind, groups, (2, 40, height, width)), values(2, 40, height, width) + 3, machine)


@pytest.mark.parametrize("kind", ["group", "instance"])
def test_nan_and_infinity_stay_in_their_groups(kind: str) -> None:
    xs = values(2, 16, 50, 66)
    xs[1, 3, 7, 65] = np.nan
    agree(normed(kind, 2, (2, 16, 50, 66)), xs)


@pytest.mark.parametrize("kind", ["group", "instance"])
def test_batch_of_any_size(kind: str) -> None:
    graph = normed(kind, 1, (symbol("n"), 24, 56, 56))
    model = compiled(graph)
    for n in (1, 3, 9):
        xs = values(n, 24, 56, 56)
        (want,) = interpret(graph, [xs])
        assert np.abs(np.asarray(model(xs)) - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("groups", [1, 4, 20])
@pytest.mark.parametrize("sizes", [(41, 37), (16, 16), (1, 1), (5,), (3, 2, 5)])
def test_group_norms_alone_are_one_kernel(groups: int, sizes: tuple[int, ...], machine: Machine) -> None:
    """Cut into groups in front of the norm, and joined behind it: both are strides of the arrays in memory."""
    x = Input("x", TensorType(f32, (3, 20, *sizes)))()
    graph = Graph((x,), (ops.GroupNorm(groups)(x, const(values(20)), const(values(20))),))
    program = link(optimize(graph, cpu_passes()), lowering(machine), KernelAssembler(HOST), stages={}, meta={})
    # three rows are cut in parts; images of one pixel have no dimensions to reduce
    assert groups == 1 or sizes == (1, 1) or len(program.steps) == 1
    agree(graph, values(3, 20, *sizes) + 3, machine)


@pytest.mark.parametrize("axis", [0, 1])
def test_results_that_are_reshaped_into_a_concat(axis: int) -> None:
    """Where the place in the concat has no strides for the shape before, the result is stored twice."""
    x = Input("x", TensorType(f32, (4, 60)))()
    y = ops.reshape(ops.Softmax(1)(x), (8, 30))
    graph = Graph((x,), (ops.concat([y, ops.reshape(ops.sub(x, 1.0), (8, 30))], axis),))
    agree(graph, values(4, 60))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("dims", [(1, 3), (2,), (0, 1, 2, 3), (3,), (0,)])
@pytest.mark.parametrize("kind", ["sum", "sqrt", "argmax", "concat", "kept"])
def test_reductions_in_another_shape(kind: str, dims: tuple[int, ...], machine: Machine) -> None:
    """A value for each row, whose result is a reshape of it."""
    x = Input("x", TensorType(f32, (2, 4, 5, 9)))()
    y = ops.ArgReduce("max", dims[0])(x) if kind == "argmax" else ops.Reduce("sum", dims)(x)
    y = ops.Sqrt()(ops.Abs()(y)) if kind == "sqrt" else y
    if kind == "kept":  # reduced dimensions as 1, one of the others in two
        y = ops.Sqrt()(ops.Abs()(ops.reshape(y, tuple(1 if i in dims else d for i, d in enumerate(x.shape)))))
        y = ops.reshape(y, tuple(n for d in y.shape for n in ((2, 1, 2) if d == 4 else (d,))))
    y = ops.reshape(y, (1, int(y.type.size), 1)) if kind != "kept" else y
    y = ops.concat([y, y, ops.add(y, 1.0)], 2) if kind == "concat" else y
    agree(Graph((x,), (y,)), values(2, 4, 5, 9), machine)


def test_softmax_of_few_long_rows() -> None:
    x = Input("x", TensorType(f32, (2, 50257)))()
    agree(Graph((x,), (ops.Softmax(1)(x),)), values(2, 50257) * 4)


def test_joined_rows_keep_what_runs_along_one_dimension() -> None:
    x, w = (Input(s, TensorType(f32, t))() for s, t in (("x", (3, 40, 36, 20)), ("w", (20,))))
    y = ops.mul(x, ops.BroadcastInDim(x.shape, (3,))(w))
    graph = Graph((x, w), (ops.Reduce("sum", (1, 2, 3))(y),))
    xs, ws = values(3, 40, 36, 20), values(20)
    (want,) = interpret(graph, [xs, ws])
    assert np.abs(np.asarray(compiled(graph)(xs, ws)) - want).max() <= 1e-5 * np.abs(xs).sum((1, 2, 3)).max() / 20


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", [(30000,), (17, 40, 33), (3, 5)])
def test_levels_of_whole_reductions(shape: tuple[int, ...], machine: Machine) -> None:
    """Each level reads the sums of all levels before it."""
    x = y = Input("x", TensorType(f32, shape))()
    dims = tuple(range(len(shape)))
    for _ in range(3):
        total = ops.div(ops.Reduce("sum", dims)(y), 0.6 * np.prod(shape))
        y = ops.sub(y, ops.broadcast_to(total, shape))
    agree(Graph((x,), (y,)), values(*shape) + 1, machine)
