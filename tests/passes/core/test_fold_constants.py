from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Const, Node, const, deferred_const
from ingot.ir.types import TensorType, f16, f32, i64
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.simplify import simplify
from ingot.support.errors import LimitError
from ingot.support.limits import Limits, limited
from tests.passes.check import arg, count, graph, same_values

W = const(np.arange(12, dtype=np.float32).reshape(3, 4))


def test_folds_through_the_reference() -> None:
    x = arg("x", 4, 3)
    g = graph(ops.Add()(x, ops.Transpose((1, 0))(ops.Exp()(ops.mul(W, 0.5)))))
    folded = fold_constants(g)
    assert len(folded.nodes()) == 3
    same_values(g, folded)
    assert fold_constants(folded) is folded


def test_folds_scalars_and_several_results() -> None:
    values, order = ops.Sort(1, True, True)(W, ops.Iota(TensorType(i64, (3, 4)), 1)()).results
    g = graph(ops.add(ops.scalar(2.0), 3.0), values, order)
    folded = fold_constants(g)
    assert all(isinstance(o.op, Const) for o in folded.outputs)
    assert folded.outputs[0].shape == ()
    same_values(g, folded)


def test_never_makes_something_big_of_something_small() -> None:
    big = (1 << 20, 1 << 20)
    remaining = [
        ops.full(big, 1.0),
        ops.Iota(TensorType(i64, (1 << 40,)), 0)(),
        ops.pad(W, (1 << 30, 0), (0, 0)),
        ops.Exp()(ops.full(big, 1.0)),
        ops.full((64,), 1.0),
        ops.Iota(TensorType(f32, (2000,)), 0)(),
        ops.concat([W] * 500),
    ]
    for node in remaining:
        g = graph(node)
        assert fold_constants(g) is g, node


def test_looks_through_what_stays_because_of_its_size() -> None:
    total = ops.reduce_sum(ops.full((1000, 1000), 1.0))
    (result,) = fold_constants(graph(total)).outputs
    assert isinstance(result.op, Const)
    assert result.op.value == 1e6
    shifted = ops.add(W, ops.full((3, 4), 1.0))
    assert isinstance(fold_constants(graph(shifted)).outputs[0].op, Const)


def test_a_wider_type_is_worth_twice_the_memory() -> None:
    half = const(np.ones((64, 64), np.float16))
    assert isinstance(fold_constants(graph(ops.Convert(f32)(half))).outputs[0].op, Const)
    byte = const(np.ones((64, 128), np.int8))
    assert not isinstance(fold_constants(graph(ops.Convert(f32)(byte))).outputs[0].op, Const)
    assert isinstance(fold_constants(graph(ops.Convert(f16)(byte))).outputs[0].op, Const)


def test_symbols_are_not_constants() -> None:
    s = symbol("s")
    x = arg("x", s)
    g = graph(ops.add(x, ops.full((s,), 1.0)), ops.DimValue(s)())
    assert fold_constants(g) is g


def test_with_simplify_a_mask_becomes_small() -> None:
    x = arg("x", 4, 4)
    ones = ops.full((4, 4), 2.0)
    g = graph(ops.Mul()(x, ops.Sqrt()(ops.Mul()(ones, ones))))
    folded = fold_constants(simplify(fold_constants(g)))
    assert count(folded, ops.Sqrt) == 0
    same_values(g, folded)


def test_what_would_be_a_kernel_of_its_own_may_grow() -> None:
    """Distances between positions, written into a tensor and multiplied by weights: no constant is as large."""
    far = ops.sub(ops.broadcast_to(ops.arange(128), (64, 128)), ops.expand_dims(ops.arange(64), 1))
    iota = ops.Iota(TensorType(i64, (64, 1)), 0)()
    rows = ops.Scatter("set", (1,), (0,), (), (), (0,), 1)(ops.full((96, 128), 1, i64), iota, far)
    g = graph(ops.DotGeneral(((), ()), ((1,), (0,)))(ops.cast(rows, f32), const(np.ones((128, 4), np.float32))), far)
    folded = fold_constants(g)
    assert isinstance(folded.outputs[0].op, Const)
    assert not isinstance(folded.outputs[1].op, Const)
    same_values(g, folded)


def test_what_costs_more_than_to_be_read_may_grow() -> None:
    """A filter's table of sines, of a row and a column, is no step of each run."""
    x, row, column = arg("x", 200, 300), np.arange(300, dtype=np.float32), np.arange(200, dtype=np.float32)
    table = ops.Sin()(ops.sub(ops.reshape(const(row), (1, 300)), ops.reshape(const(column), (200, 1))))
    g = graph(ops.mul(x, ops.mul(table, 2.0)))
    folded = fold_constants(g)
    assert count(folded, ops.Sin) == 0 and count(folded, ops.Mul) == 1
    same_values(g, folded)


def test_leaves_to_kernels_what_would_take_the_reference_minutes() -> None:
    def zeros(*shape: int) -> Node:
        return deferred_const(TensorType(f32, shape), lambda: np.zeros(shape, np.float32), "")

    spatial = ((1, 1), ((1, 1), (1, 1)), (1, 1))
    x, pools = zeros(1, 1024, 64, 64), ((1, 1, 64, 64), (1,) * 4, ((0, 0),) * 4, (1,) * 4, (1,) * 4)
    long = [
        ops.Conv(*spatial)(x, zeros(1024, 1024, 3, 3)),
        ops.DotGeneral(contract=((1,), (0,)))(zeros(8192, 8192), zeros(8192, 8192)),
        ops.ReduceWindow("max", *pools)(zeros(1, 8, 512, 512)),
        ops.LU()(zeros(4096, 4096)).results[0],
    ]
    for node in long:
        g = graph(node)
        assert fold_constants(g) is g, node
    short = [
        ops.Conv(*spatial)(zeros(1, 64, 32, 32), zeros(8, 64, 3, 3)),
        ops.DotGeneral(contract=((1,), (0,)))(x_ := zeros(4096, 4096), x_),
    ]
    assert all(isinstance(fold_constants(graph(node)).outputs[0].op, Const) for node in short)


def test_the_time_of_a_compilation_holds_while_constants_are_folded() -> None:
    with limited(Limits(seconds=1e-9)), pytest.raises(LimitError, match="seconds"):
        fold_constants(graph(ops.Exp()(W)))


def test_what_two_graphs_fold_is_one_array() -> None:
    """A loop's body is a graph of its own: its weights are those of the graph around it."""
    w = const(np.ones((300, 300), np.float32))
    (first,), (second,) = (fold_constants(graph(ops.Exp()(w), at)).outputs[:1] for at in (arg("x", 2), arg("y", 3)))
    assert first.constant is not None and first.constant == second.constant
    (other,) = fold_constants(graph(ops.Tanh()(w))).outputs
    assert other.constant != first.constant
