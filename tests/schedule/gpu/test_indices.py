"""The indices of kernels: how wide they are, for which no memory is taken, and where rolled values are read."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, Shape, TensorType, bf16, f32, i8
from ingot.schedule.gpu.blocks import HINT_32_BIT_INDICES, MAX_ELEMENTS_32_BIT
from ingot.support.errors import CompileError
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100


def arg(name: str, dtype: DType, *shape: int) -> Node:
    return Input(name, TensorType(dtype, shape))()


def narrow(*outputs: Node, inputs: tuple[Node, ...]) -> dict[str, bool]:
    """Whether the indices of each kernel are 32 bits wide, by its name."""
    kernels = planned(Graph(inputs, outputs), H100)[1].values()
    return {kernel.name.rstrip("_0123456789"): HINT_32_BIT_INDICES in kernel.hints for kernel in kernels}


def copied(channels: int) -> dict[str, bool]:
    """A convolution whose kernel [O, I, 3, 2] is copied with its columns side by side."""
    none, one = ((0, 0), (0, 0)), (1, 1)
    x, w = arg("x", bf16, 2, 13, 14, channels), arg("w", bf16, 1 << 15, channels, 3, 2)
    y = ops.Convolution(one, none, one, one, "NHWC", "OIHW", "NHWC", dtype=f32)(x, w)
    return narrow(y, inputs=(x, w))


def test_a_copy_of_more_places_than_32_bits_count_has_wide_indices() -> None:
    """The other kernel, too, as it reads the copy."""
    assert copied(1 << 10) == {"columns": True, "product": True}
    assert copied(1 << 14) == {"columns": False, "product": False}


def test_positions_behind_the_end_are_counted_as_well() -> None:
    """A loop over this many elements ends behind them."""

    def summed(shape: Shape) -> dict[str, bool]:
        x = Input("x", TensorType(i8, shape))()
        return narrow(ops.Reduce("max", (0,))(x), inputs=(x,))

    assert summed((MAX_ELEMENTS_32_BIT,)) == {"parts": True, "rows": True}
    assert summed(((1 << 31) - 1,)) == {"parts": False, "rows": False}


def test_lines_whose_places_an_i32_does_not_hold_are_refused() -> None:
    def ordered(length: int) -> dict[str, bool]:
        x = arg("x", i8, length)
        return narrow(*ops.Sort(0)(x).results, inputs=(x,))

    assert {"sort_runs", "merge", "sort"} == ordered((1 << 31) - 1).keys()
    with pytest.raises(CompileError, match="fewer than 2147483648"):
        ordered(1 << 31)


def test_a_value_that_is_rolled_is_read_at_one_place() -> None:
    """Not once for each of the pieces, nor for each pair of them along two axes; along the innermost one vectors of
    each piece are loaded."""

    def rolled(axes: tuple[int, ...]) -> int:
        x = arg("x", f32, 2, 6, 5, 16)
        y = ops.Exp()(x)
        for axis in axes:
            cut = tuple(2 if d == axis else n for d, n in enumerate(y.shape))
            start = tuple(2 if d == axis else 0 for d in range(4))
            first, last = ops.Slice((0,) * 4, cut, (1,) * 4)(y), ops.Slice(start, y.shape, (1,) * 4)(y)
            y = ops.Concat(axis)(last, first)
        graph = Graph((x,), (y,))
        values = np.arange(2 * 6 * 5 * 16, dtype=np.float32).reshape(2, 6, 5, 16) / 960
        (got,) = run_checked(graph, [values], H100)
        np.testing.assert_allclose(got, np.roll(np.exp(values), [-2] * len(axes), axes), rtol=1e-6)
        (kernel,) = planned(graph, H100)[1].values()
        return show_kernel(kernel).count("exp(")

    assert [rolled(axes) for axes in ((1,), (1, 2), (3,))] == [1, 1, 2]


def test_columns_that_are_split_have_no_remainder() -> None:
    """Of queries, keys and values [3, n, heads, rows, 32] as rows of 288 columns, in tiles of 32 columns."""
    x = arg("x", bf16, 3, 512, 3, 49, 32)
    y = ops.Reshape((512 * 49, 288))(ops.Transpose((1, 3, 0, 2, 4))(x))
    (kernel,) = planned(Graph((x,), (y,)), H100)[1].values()
    text = show_kernel(kernel)
    assert "spread" in text and "% 288" not in text


def test_a_piece_of_a_tile_of_one_row_is_selected() -> None:
    """A tile of one lane is no scalar, of which a branch could be taken."""
    x, y = arg("x", f32, 5, 3, 16), arg("y", f32, 5, 4, 16)
    values = ops.Concat(1)(ops.Exp()(x), y)
    graph = Graph((x, y), (values, ops.Reduce("sum", (2,))(values)))
    arrays = [np.arange(n, dtype=np.float32).reshape(5, -1, 16) / 320 for n in (240, 320)]
    for got, want in zip(run_checked(graph, arrays, H100), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
