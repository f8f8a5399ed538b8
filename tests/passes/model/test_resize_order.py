"""Convolutions of one position and resizes change places where that saves work, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.passes.core.layout import assign_layouts
from ingot.passes.model.linear_order import order_linear
from ingot.passes.model.lower import lower_model_ops
from tests.passes.check import arg, count, graph, same_values

RNG = np.random.default_rng(3)


def conv(x: Node, window: int = 1, stride: int = 1, pad: int = 0, groups: int = 1) -> Node:
    w = RNG.standard_normal((6, int(x.shape[1]) // groups, window, window)).astype(np.float32)  # type: ignore[arg-type]
    return ops.Conv((stride,) * 2, ((pad, pad),) * 2, (1, 1), groups)(x, const(w))


def first(g: Graph) -> type:
    return type(next(n.op for n in g.nodes() if isinstance(n.op, ops.Conv | ops.Resize)))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_convolution_goes_first(mode: str, groups: int) -> None:
    x = arg("x", symbol("n"), 4, 5, 7)
    before = graph(conv(ops.Resize((10, 14), (2, 3), mode)(x), groups=groups))
    after = order_linear(before)
    assert first(before) is ops.Resize and first(after) is ops.Conv
    same_values(before, after, 1e-5, n=2)


def test_sizes_of_batch_and_channels_that_stay() -> None:
    """As ONNX writes it: a scale for every dimension."""
    x = arg("x", 2, 4, 5, 7)
    resize = ops.Resize((2, 4, 10, 21), (0, 1, 2, 3), "linear", scales=(1.0, 1.0, 2.0, 3.0))
    before = graph(conv(resize(x)))
    after = order_linear(before)
    assert first(after) is ops.Conv
    same_values(before, after, 1e-5)


def test_only_where_it_saves_work() -> None:
    x, large = arg("x", 2, 4, 5, 7), ops.Resize((10, 14), (2, 3), "linear")
    shared = large(x)
    crop = replace(large, coordinates="tf_crop_and_resize", roi=((0.0, 1.0), (0.0, 1.0)), extrapolation=3.0)
    channels = ops.Resize((8, 10, 14), (1, 2, 3), "linear")
    graphs = [
        graph(conv(ops.Resize((3, 4), (2, 3), "linear")(x))),  # makes the image smaller
        graph(conv(shared), ops.add(shared, shared)),  # both are needed
        graph(conv(large(x), window=3, pad=1)),
        graph(conv(large(x), stride=2)),
        graph(conv(large(x), pad=1)),
        graph(conv(crop(x))),
        graph(conv(channels(x))),
    ]
    for g in graphs:
        after = order_linear(g)
        assert after == g and count(after, ops.Conv) == 1


def test_infinities_and_nan() -> None:
    x = arg("x", 1, 4, 5, 7)
    before = graph(conv(ops.Resize((10, 14), (2, 3), "linear")(x)))
    after = order_linear(before)
    data = np.ones((1, 4, 5, 7), np.float32)
    data[0, 1, 2, 3], data[0, 2, 4, 0] = np.inf, np.nan
    (want,), (got,) = interpret(before, [data]), interpret(after, [data])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizes_keep_channels_last(mode: str) -> None:
    """Gathers of positions follow the convolution before them: one transpose at the end, of a result, is all."""
    x = arg("x", symbol("n"), 8, 5, 7)
    y = ops.Resize((9, 17), (2, 3), mode)(conv(x, window=3, pad=1))
    before = lower_model_ops(graph(conv(y, window=3, pad=1)), frozenset())
    after = assign_layouts(before)
    transposes = [n for n in after.nodes() if isinstance(n.op, ops.Transpose)]
    assert len(transposes) == 2 and transposes[0].inputs == (x,) and transposes[1] in after.outputs
    same_values(before, after, 1e-4, n=2)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_an_output_that_a_resize_enlarges_is_made_in_its_order(mode: str) -> None:
    """The convolution's result is transposed, and not the larger one, unless that is read in the order inside, too."""
    x = arg("x", symbol("n"), 8, 6, 7)
    small = ops.Relu()(conv(x, 3, pad=1))
    large = ops.Resize((12, 21), (2, 3), mode)(small)
    for outputs in ((large,), (large, conv(large, 3))):
        before = lower_model_ops(graph(*outputs))
        after = assign_layouts(before)
        transposed = {n.type.size for n in after.nodes() if isinstance(n.op, ops.Transpose)}
        assert (large.type.size in transposed) == (len(outputs) == 2)
        same_values(before, after, 1e-5, n=2)
