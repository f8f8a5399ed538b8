"""Global pools that the kernel before them computes: against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node
from ingot.ir.types import static_shape
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph
from tests.schedule.cpu.windows.test_inverted_bottleneck import (
    conv,
    image,
    kinds,
    padded,
    relu,
    residual,
    shifted,
    silu,
    values,
)


def pooled(y: Node, kind: str) -> Node:
    """Over all positions, as [n, 1, 1, c]; the mean, if `kind` is none."""
    total = ops.Reduce("sum" if kind == "mean" else kind, (1, 2))(y)
    if kind == "mean":
        height, width = static_shape(y.shape[1:3])
        total = ops.div(total, float(height * width))
    n, c = total.shape
    return ops.Reshape((n, 1, 1, c))(total)


def excited(y: Node, kind: str, out_channels: int) -> Node:
    """Squeeze-excite: a projection of the image scaled by what is made of its pool."""
    (c,) = static_shape(y.shape[-1:])
    excited_rows = relu(conv(pooled(y, kind), values(1, 1, c, 8) / np.float32(c), 1, 1))
    gate = ops.Logistic()(shifted(conv(excited_rows, values(1, 1, 8, c), 1, 1)))
    scaled = ops.mul(y, ops.BroadcastInDim(y.shape, (0, 3))(ops.Reshape((gate.shape[0], c))(gate)))
    return shifted(conv(scaled, values(1, 1, c, out_channels), 1, 1))


def depthwise(x: Node, window: int = 3, stride: int = 1) -> Node:
    (c,) = static_shape(x.shape[-1:])
    return silu(shifted(conv(padded(x, 1, 1), values(window, window, 1, c), stride, c)))


def check_sizes(graph: Graph, *shapes: tuple[int, ...]) -> None:
    """One program, compiled once, against the interpreter at each shape of its input."""
    model = compile_graph(graph)
    for shape in shapes:
        xs = [values(*shape)]
        want = interpret(graph, xs)[0]
        assert np.abs(np.asarray(model(*xs)) - want).max() <= 4e-6 * np.abs(want).max()


def pools(graph: Graph) -> int:
    """Groups that pool what they make."""
    return sum(isinstance(n.op, Group) and n.op.kind != "rows" and len(n.types) == 2 for n in fuse(graph).nodes())


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("kind", ["mean", "max", "min", "prod"])
@pytest.mark.parametrize(("height", "width", "channels", "stride"), [(17, 23, 37, 1), (9, 14, 64, 2), (1, 1, 5, 1)])
def test_sizes(height: int, width: int, channels: int, stride: int, kind: str, machine: Machine) -> None:
    x = image(2, height, width, channels)
    y = depthwise(x, stride=stride)
    if kind == "prod":
        # factors near 1: a product of hundreds of others leaves the range of f32, where depends on the order
        y = ops.add(ops.mul(y, 2.0**-10), 1.0)
    graph = Graph((x,), (excited(y, kind, 11),))
    assert pools(graph) == 1
    check(graph, [values(2, height, width, channels)], machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_image_that_is_widened(machine: Machine) -> None:
    x = image(2, 40, 37, 5)
    graph = Graph((x,), (excited(residual(x, 70, 5, 2, (1, 2), silu), "mean", 19),))
    assert pools(graph) == 1 and "inverted_bottleneck" in kinds(graph)
    check(graph, [values(2, 40, 37, 5)], machine=machine)


def test_batch_of_any_size() -> None:
    x = image(symbol("n"), 15, 18, 48)
    graph = Graph((x,), (excited(depthwise(x), "mean", 24),))
    assert pools(graph) == 1
    check_sizes(graph, *((n, 15, 18, 48) for n in (1, 3, 8)))


def test_height_and_width_of_any_size() -> None:
    x = image(1, symbol("h"), symbol("w"), 20)
    graph = Graph((x,), (excited(depthwise(x), "max", 12),))
    assert pools(graph) == 1
    check_sizes(graph, (1, 4, 9, 20), (1, 13, 31, 20))


def test_nan_and_infinity_stay_in_their_channels() -> None:
    x, xs = image(1, 12, 13, 16), values(1, 12, 13, 16)
    xs[0, 3, 4, 2], xs[0, 5, 5, 7], xs[0, 0, 0, 9] = np.nan, np.inf, -np.inf
    y = relu(shifted(conv(padded(x, 1, 1), values(3, 3, 1, 16), 1, 16)))
    total = ops.mul(pooled(y, "sum"), 2.0)
    graph = Graph((x,), (ops.mul(y, 2.0), total))
    assert pools(graph) == 1
    check(graph, [xs])


def test_same_result_on_any_number_of_threads() -> None:
    x = image(1, 33, 31, 48)
    graph = Graph((x,), (excited(depthwise(x), "mean", 8),))
    xs = values(1, 33, 31, 48)
    np.testing.assert_array_equal(compile_graph(graph, threads=1)(xs), compile_graph(graph, threads=2)(xs))


def _over_lines(y: Node) -> Node:
    return ops.Reduce("sum", (1,))(y)


def _over_channels(y: Node) -> Node:
    return ops.Reduce("sum", (1, 2, 3))(y)


def _of_half(y: Node) -> Node:
    height, width, channels = static_shape(y.shape[1:])
    return ops.Reduce("sum", (1, 2))(ops.Slice((0, 0, 0, 0), (1, height // 2, width, channels), (1, 1, 1, 1))(y))


def _over_transposed(y: Node) -> Node:
    return ops.Reduce("sum", (1, 2))(ops.Transpose((0, 2, 1, 3))(y))


@pytest.mark.parametrize("fold", [_over_lines, _over_channels, _of_half, _over_transposed])
def test_other_folds_stay_apart(fold) -> None:
    x = image(1, 10, 12, 16)
    y = depthwise(x)
    result = fold(y)
    graph = Graph((x,), (ops.mul(y, 2.0), result))
    assert pools(graph) == 0
    check(graph, [values(1, 10, 12, 16)])


def test_image_that_is_an_output_stays_where_it_is_wanted() -> None:
    x: Node = image(1, 10, 12, 16)
    y = depthwise(x)
    graph = Graph((x,), (y, pooled(y, "mean")))
    assert pools(graph) == 0
    check(graph, [values(1, 10, 12, 16)])


def pointwise(x: Node, out_channels: int, window: int = 1, groups: int = 1) -> Node:
    (c,) = static_shape(x.shape[-1:])
    return shifted(
        conv(padded(x, window // 2, window // 2), values(window, window, c // groups, out_channels), 1, groups)
    )


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("kind", ["mean", "max", "prod"])
@pytest.mark.parametrize(
    ("n", "height", "width", "channels", "out_channels", "window", "groups"),
    [
        (1, 30, 31, 24, 37, 1, 1),  # parts of an image
        (3, 7, 7, 70, 96, 1, 1),  # several images to a chunk, none to a tile
        (2, 14, 13, 32, 48, 3, 2),  # lines of an image, channels in groups
        (1, 5, 1, 16, 19, 1, 1),
        (2, 1, 1, 16, 19, 1, 1),  # a pool of one position
        (1, 12, 12, 70, 70, 3, 1),  # by Winograd's algorithm
    ],
)
def test_contractions(
    n: int,
    height: int,
    width: int,
    channels: int,
    out_channels: int,
    window: int,
    groups: int,
    kind: str,
    machine: Machine,
) -> None:
    x = image(n, height, width, channels)
    y = pointwise(x, out_channels, window, groups)
    y = ops.add(ops.mul(y, 2.0**-12), 1.0) if kind == "prod" else relu(y)
    graph = Graph((x,), (excited(y, kind, 8),))
    assert pools(graph) == 1
    check(graph, [values(n, height, width, channels)], machine=machine)


def test_residuals_and_images_of_any_number() -> None:
    x = image(symbol("n"), 7, 9, 48)
    graph = Graph((x,), (excited(relu(ops.add(pointwise(x, 48), x)), "mean", 24),))
    assert pools(graph) == 1
    check_sizes(graph, *((n, 7, 9, 48) for n in (1, 2, 5)))


def test_contraction_on_images_of_any_size() -> None:
    x = image(symbol("n"), symbol("h"), symbol("w"), 20)
    graph = Graph((x,), (excited(relu(pointwise(x, 40)), "max", 12),))
    assert pools(graph) == 1
    check_sizes(graph, (1, 1, 1, 20), (2, 4, 9, 20), (1, 13, 31, 20))


def test_contraction_keeps_nan_in_its_channel_and_any_number_of_threads() -> None:
    x, xs = image(1, 40, 41, 16), values(1, 40, 41, 16)
    xs[0, 33, 20, 3] = np.nan
    y = relu(pointwise(x, 33))
    graph = Graph((x,), (ops.mul(y, 2.0), ops.mul(pooled(y, "sum"), 2.0)))
    assert pools(graph) == 1
    check(graph, [xs])
    xs = values(1, 40, 41, 16)
    one, two = (compile_graph(graph, threads=threads)(xs) for threads in (1, 2))
    assert isinstance(one, tuple) and isinstance(two, tuple)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_that_are_computed_are_pooled_from_memory() -> None:
    x = image(2, 20, 21, 16)
    scaled = relu(shifted(x))
    graph = Graph((x,), (excited(relu(shifted(conv(scaled, values(1, 1, 16, 40), 1, 1))), "mean", 8),))
    check(graph, [values(2, 20, 21, 16)])
