"""Layouts against numpy's strides: whatever a layout says, the elements lie there."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.layout import Layout, reshape_groups
from ingot.ir.types import static_shape
from ingot.ops.views import is_strided_view, pull_back, strided_base, view_layout
from tests.passes.check import arg

S = symbol("s")


def elements(layout: Layout, buffer: np.ndarray) -> np.ndarray:
    """The value that lies in a flat buffer by a static layout."""
    shape, strides, (offset,) = map(static_shape, (layout.shape, layout.strides, (layout.offset,)))
    index = np.asarray(offset)
    for d, (n, s) in enumerate(zip(shape, strides, strict=True)):
        index = index + np.arange(n).reshape([-1 if i == d else 1 for i in range(len(shape))]) * s
    return buffer[np.broadcast_to(index, shape)]


DATA = np.arange(2 * 3 * 4)
BASE = Layout.contiguous((2, 3, 4))


def test_contiguous() -> None:
    np.testing.assert_array_equal(elements(BASE, DATA), DATA.reshape(2, 3, 4))
    assert BASE.is_contiguous and not BASE.slice((0, 1, 0), (2, 2, 4)).is_contiguous
    assert Layout((1, 4), (99, 1)).is_contiguous  # no step is taken along a size of 1


def test_symbolic_strides() -> None:
    layout = Layout.contiguous((2, S, 4))
    assert layout.strides == (S * 4, 4, 1) and layout.slice((1, 0, 2), (1, S, 2)).offset == S * 4 + 2


VIEWS = {
    "transpose": (ops.Transpose((2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "slice": (ops.Slice((0, 1, 1), (2, 3, 4), (1, 1, 2)), lambda x: x[:, 1:3, 1:4:2]),
    "merge": (ops.Reshape((6, 4)), lambda x: x.reshape(6, 4)),
    "split": (ops.Reshape((2, 3, 2, 1, 2)), lambda x: x.reshape(2, 3, 2, 1, 2)),
    "broadcast": (ops.BroadcastInDim((2, 5, 3, 4), (0, 2, 3)), lambda x: np.broadcast_to(x[:, None], (2, 5, 3, 4))),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_layouts(name: str) -> None:
    op, numpy = VIEWS[name]
    node = op(arg("x", 2, 3, 4))
    layout = view_layout(node, BASE)
    assert layout is not None and is_strided_view(node)
    np.testing.assert_array_equal(elements(layout, DATA), numpy(DATA.reshape(2, 3, 4)))


def test_a_reshape_across_a_gap_has_no_strides() -> None:
    x = arg("x", 2, 3, 4)
    part = ops.Slice((0, 0, 1), (2, 3, 3), (1, 1, 1))(x)
    assert strided_base(ops.Reshape((12,))(part), {}) is None
    assert strided_base(ops.Reshape((6, 2))(part), {}) is not None
    assert BASE.transpose((1, 0, 2)).reshape((6, 4)) is None


def test_broadcast_of_a_symbolic_size() -> None:
    layout = Layout.contiguous((1, 4)).broadcast((S, 4), (0, 1))
    assert layout.strides == (0, 1)


@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ((6, 4), (2, 3, 4), [((0,), (0, 1)), ((1,), (2,))]),
        ((2, 3, 4), (2, 12), [((0,), (0,)), ((1, 2), (1,))]),
        ((S, 4, 2), (S, 8), [((0,), (0,)), ((1, 2), (1,))]),
        ((4, 6), (6, 4), [((0, 1), (0, 1))]),
        ((2 * S, 3), (2, S, 3), [((0,), (0, 1)), ((1,), (2,))]),
    ],
)
def test_reshape_groups(old: tuple, new: tuple, groups: list) -> None:
    assert reshape_groups(old, new) == groups


def test_pull_back_through_views() -> None:
    x = arg("x", 2, 3, 4)
    root = ops.Reshape((3, 8))(ops.Transpose((1, 0, 2))(x))
    at = pull_back(root, x, Layout.contiguous((3, 8)))
    assert at is not None
    np.testing.assert_array_equal(elements(at, DATA), DATA.reshape(3, 2, 4).transpose(1, 0, 2))
    assert pull_back(ops.Exp()(x), x, BASE) is None
