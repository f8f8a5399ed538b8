"""Two contractions in one kernel, the rows between them in scratch: against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, static_shape
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph
from tests.schedule.cpu.windows.test_inverted_bottleneck import conv, image, kinds, padded, relu, silu, values

DOT = ops.DotGeneral(((), ()), ((1,), (0,)))


def rows(*shape: DimLike) -> Node:
    return Input("x", TensorType(f32, shape))()


def linear(x: Node, weight: np.ndarray, is_transposed: bool = False) -> Node:
    """Along the last dimension, with a bias. is_transposed: the weights are [out, in]."""
    last = x.type.rank - 1
    dot = ops.DotGeneral(((), ()), ((last,), (1 if is_transposed else 0,)))
    y = dot(x, const(weight.T.copy() if is_transposed else weight))
    return ops.add(y, ops.BroadcastInDim(y.shape, (last,))(const(values(weight.shape[1]))))


def mlp(x: Node, hidden: int, out_features: int, is_transposed: bool = False) -> Node:
    (narrow,) = static_shape(x.shape[-1:])
    wide = silu(linear(x, values(narrow, hidden) / 4, is_transposed))
    return linear(wide, values(hidden, out_features) / 4, is_transposed)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(
    ("count", "narrow", "hidden", "out_features", "is_transposed"),
    [
        (3001, 33, 100, 33, False),
        (700, 70, 391, 70, True),
        (1024, 64, 272, 1, False),
        (4099, 1, 65, 7, True),
        (513, 200, 600, 17, False),
    ],
)
def test_sizes(count: int, narrow: int, hidden: int, out_features: int, is_transposed: bool, machine: Machine) -> None:
    x = rows(count, narrow)
    y = mlp(x, hidden, out_features, is_transposed)
    graph = Graph((x,), (ops.add(x, y) if out_features == narrow else y,))
    assert kinds(graph) == ["contraction"]
    check(graph, [values(count, narrow)], machine=machine)


def test_batch_and_length_of_any_size() -> None:
    x = rows(symbol("n"), symbol("s"), 40)
    graph = Graph((x,), (ops.add(x, mlp(x, 3000, 40)),))
    assert kinds(graph) == ["contraction"]
    model = compile_graph(graph)
    for n, s in ((1, 128), (3, 77), (2, 1)):
        xs = [values(n, s, 40)]
        want = interpret(graph, xs)[0]
        assert np.abs(np.asarray(model(*xs)) - want).max() <= 4e-6 * np.abs(want).max()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_convolutions_of_an_image_in_a_halo(machine: Machine) -> None:
    x = image(2, 29, 31, 24)
    inside = padded(relu(x), 1, 1)  # read by another convolution, so that its lines lie apart in memory
    middle = ops.Slice((0, 1, 1, 0), (2, 30, 32, 24), (1, 1, 1, 1))(inside)
    wide = silu(conv(middle, values(1, 1, 24, 200) / 4, 1, 1))
    y = ops.add(conv(wide, values(1, 1, 200, 24) / 4, 1, 1), conv(inside, values(3, 3, 24, 24) / 4, 1, 1))
    graph = Graph((x,), (y,))
    check(graph, [values(2, 29, 31, 24)], machine=machine)


def test_weights_that_are_used_twice() -> None:
    x, w = rows(1500, 190), const(values(190, 190) / 8)
    graph = Graph((x,), (DOT(silu(DOT(x, w)), w),))
    assert kinds(graph) == ["contraction"]
    check(graph, [values(1500, 190)])


def test_nan_and_infinity_stay_in_their_rows() -> None:
    x, xs = rows(2000, 32), values(2000, 32)
    xs[3, 5], xs[1999, 0], xs[700, 31] = np.nan, np.inf, -np.inf
    wide = relu(linear(x, values(32, 160)))
    graph = Graph((x,), (linear(wide, np.abs(values(160, 32))),))
    assert kinds(graph) == ["contraction"]
    check(graph, [xs])


def test_same_result_on_any_number_of_threads() -> None:
    x, xs = rows(1111, 60), values(1111, 60)
    graph = Graph((x,), (mlp(x, 300, 60),))
    np.testing.assert_array_equal(compile_graph(graph, threads=1)(xs), compile_graph(graph, threads=2)(xs))


def test_contractions_that_are_not_fused() -> None:
    x = rows(2000, 48)
    wide = silu(linear(x, values(48, 192)))
    small = rows(200, 48)
    scaled = ops.mul(ops.Logistic()(x), 3.0)
    for graph in (
        Graph((x,), (linear(wide, values(192, 48)), wide)),  # the rows between are a result too
        Graph((x,), (ops.add(linear(wide, values(192, 48)), linear(wide, values(192, 48))),)),  # two read them
        Graph((small,), (mlp(small, 192, 48),)),  # they fit a core's cache
        Graph((x,), (mlp(x, 6000, 48),)),  # weights that do not
        Graph((x,), (mlp(scaled, 192, 48),)),  # the first computes its own rows
    ):
        assert len(kinds(graph)) > 1
        check(graph, [values(*static_shape(graph.inputs[0].shape))])
