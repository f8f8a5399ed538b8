"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot import ops
from ingot.autodiff import pullback, pullbacks
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.elementwise import compare, select
from ingot.frontends.torch.aten.layers import symbolic
from ingot.frontends.torch.aten.reduce import arg_extreme, reduced
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    cast,
    expand,
    require_elements,
    scalar_like,
    sizes_per_axis,
    sums_of,
)
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node, Op, const
from ingot.ir.types import i64
from ingot.ops.nn import terms as t

aten = Table()

Ints = int | Sequence[int]
Pairs = tuple[tuple[int, int], ...]
Sizes = tuple[DimLike, ...]


def per_axis(values: DimLike | Sequence[DimLike], count: int) -> tuple[int, ...]:
    """As `sizes_per_axis`, but only for numbers."""
    sizes = sizes_per_axis(values, count)
    numbers = tuple(v for v in sizes if isinstance(v, int))
    if len(numbers) < len(sizes):
        raise Unsupported(f"a stride, padding, dilation or window of symbolic size {sizes}")
    return numbers


def both_sides(padding: DimLike | Sequence[DimLike], count: int) -> Pairs:
    return tuple((p, p) for p in per_axis(padding, count))


def add_channels(x: Node, bias: Node | None) -> Node:
    """x (N, C, *S) plus bias (C), in x's dtype."""
    if bias is None:
        return x
    return ops.Add()(x, ops.BroadcastInDim(x.shape, (1,))(cast(bias, x.dtype)))


def batched(x: Node, spatial: int, run: Callable[[Node], Node]) -> Node:
    """`run` on x (N, C, *S); an unbatched x (C, *S) becomes a batch of one and back."""
    if x.type.rank == spatial + 2:
        return run(x)
    result = run(ops.expand_dims(x, 0))
    return reshape(result, result.shape[1:])


def _convolve(
    c: Context, x: Node, weight: Node, bias: Node | None, stride: Ints, padding: Sequence[Sizes], dilation: Ints,
    groups: int,
) -> Node:  # fmt: skip
    n = weight.type.rank - 2
    sums = None if bias is None else sums_of(x.dtype)
    windows = (sizes_per_axis(stride, n), padding, sizes_per_axis(dilation, n))

    def products(x: Node, w: Node, strides: tuple[int, ...], padding: Pairs, dilation: tuple[int, ...]) -> Node:
        return ops.Conv(strides, padding, dilation, groups, sums, c.tf32)(x, w)

    return batched(x, n, lambda v: cast(add_channels(symbolic.convolved(v, weight, *windows, products), bias), v.dtype))


@aten(
    "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding",
    "convolution.default", "_convolution.default", by_name=True,
)  # fmt: skip
def convolution(
    c: Context, x: Node, weight: Node, bias: Node | None = None, *, stride: Ints = 1, padding: Ints | str = 0,
    dilation: Ints = 1, groups: int = 1, transposed: bool = False, output_padding: Ints = 0, **unused: object,
) -> Node:  # fmt: skip
    if transposed:
        assert not isinstance(padding, str)
        return conv_transpose(c, x, weight, bias, stride, padding, output_padding, groups, dilation)
    n = weight.type.rank - 2
    if padding == "same":
        # an odd element goes to the high side, as in PyTorch
        totals = [d * (k - 1) for d, k in zip(sizes_per_axis(dilation, n), weight.shape[2:], strict=True)]
        return _convolve(c, x, weight, bias, stride, [(t // 2, t - t // 2) for t in totals], dilation, groups)
    amounts = 0 if padding == "valid" or isinstance(padding, str) else padding
    return _convolve(c, x, weight, bias, stride, [(p, p) for p in sizes_per_axis(amounts, n)], dilation, groups)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    c: Context, x: Node, weight: Node, bias: Node | None = None, stride: Ints = 1, padding: Ints = 0,
    output_padding: Ints = 0, groups: int = 1, dilation: Ints = 1,
) -> Node:  # fmt: skip
    n = weight.type.rank - 2
    sums = None if bias is None else sums_of(x.dtype)
    padding_amounts, output_amounts = sizes_per_axis(padding, n), sizes_per_axis(output_padding, n)
    cut = [symbolic.symbolic(p, q) for p, q in zip(padding_amounts, output_amounts, strict=True)]
    # symbolic padding is cropped after the op
    low, high = (
        [0 if c else v for v, c in zip(values, cut, strict=True)] for values in (padding_amounts, output_amounts)
    )
    op = ops.ConvTranspose(
        per_axis(stride, n), both_sides(low, n), per_axis(high, n), per_axis(dilation, n), groups, sums, c.tf32
    )

    def run(v: Node) -> Node:
        result = op(v, weight)
        for axis, (p, q, c) in enumerate(zip(padding_amounts, output_amounts, cut, strict=True), 2):
            result = symbolic.padded(result, axis, -p, q - p) if c else result
        return cast(add_channels(result, bias), v.dtype)

    return batched(x, n, run)


@aten("convolution_backward.default", by_name=True)
def convolution_backward(
    c: Context, grad: Node, x: Node, weight: Node, bias_sizes: Ints | None, *, output_mask: Sequence[bool],
    **windows: Any,
) -> tuple[Node | None, ...]:  # fmt: skip
    """The gradients of x, of the weight and of the bias, where they are wanted."""
    gradients = pullbacks(lambda x, w: convolution(c, x, w, None, **windows), (x, weight), grad)
    gradients.append(reduced("sum", grad, (0, *range(2, grad.type.rank)), keepdim=False))
    return tuple(g if w else None for g, w in zip(gradients, output_mask, strict=True))


def _window(kernel: Ints, stride: Ints | None, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(kernel, stride) per axis; no stride means the kernel's."""
    k = per_axis(kernel, n)
    return k, (per_axis(stride, n) if stride is not None and stride != () and stride != [] else k)


def _max_window(
    n: int, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...], Pairs, tuple[int, ...], bool]:  # fmt: skip
    k, s = _window(kernel_size, stride, n)
    return k, s, both_sides(padding, n), per_axis(dilation, n), ceil_mode


def _max_pool(n: int) -> Callable[..., Node]:
    def max_pool(c: Context, x: Node, *window: Any, **named: Any) -> Node:
        op = ops.MaxPool(*_max_window(n, *window, **named))
        return batched(x, n, lambda v: op(v))

    return max_pool


def _max_pool_indices(n: int) -> Callable[..., tuple[Node, ...]]:
    def max_pool(c: Context, x: Node, *window: Any, **named: Any) -> tuple[Node, ...]:
        op = ops.MaxPoolIndices(*_max_window(n, *window, **named))
        if x.type.rank == n + 2:
            return op(x).results
        return tuple(reshape(r, r.shape[1:]) for r in op(ops.expand_dims(x, 0)).results)

    return max_pool


def _max_pool_backward(n: int) -> Callable[..., Node]:
    def backward(c: Context, grad: Node, x: Node, *window_and_indices: Any) -> Node:
        """The gradient by the windows' maxima, which `decompositions.backward.maximum_pool` passes for their indices;
        of a graph that has indices, by the maxima computed again."""
        *window, indices = window_and_indices
        maxima = indices if indices.dtype == x.dtype else None
        return pullback(lambda v: _max_pool(n)(c, v, *window), x, grad, maxima)

    return backward


def _avg_pool(n: int) -> Callable[..., Node]:
    def avg_pool(
        c: Context, x: Node, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Node:  # fmt: skip
        k, s = _window(kernel_size, stride, n)
        padding_pairs, ones = both_sides(padding, n), (1,) * n
        op = ops.AvgPool(
            k, s, padding_pairs, ones, ceil_mode, count_include_pad=count_include_pad, divisor=divisor_override
        )
        return batched(x, n, lambda v: op(v))

    return avg_pool


def _avg_pool_backward(n: int) -> Callable[..., Node]:
    def backward(c: Context, grad: Node, x: Node, *window: Any) -> Node:
        return pullback(lambda v: _avg_pool(n)(c, v, *window), x, grad)

    return backward


def _adaptive_backward(n: int) -> Callable[..., Node]:
    def backward(c: Context, grad: Node, x: Node) -> Node:
        pool = _adaptive(n, ops.AdaptiveAvgPool)
        return pullback(lambda v: pool(c, v, grad.shape[-n:]), x, grad)

    return backward


def _adaptive(n: int, make: Callable[[Sizes], Op]) -> Callable[..., Node]:
    def adaptive(c: Context, x: Node, output_size: DimLike | Sequence[DimLike]) -> Node:
        op = make(sizes_per_axis(output_size, n))
        require_elements(c, x.shape[-n:], "an adaptive pool")
        return batched(x, n, lambda v: op(v))

    return adaptive


for _n in (1, 2, 3):
    aten.add(f"max_pool{_n}d.default", _max_pool(_n))
    aten.add(f"max_pool{_n}d_with_indices.default", _max_pool_indices(_n))
    aten.add(f"avg_pool{_n}d.default", _avg_pool(_n))
    aten.add(f"adaptive_avg_pool{_n}d.default", _adaptive(_n, ops.AdaptiveAvgPool))
    if _n > 1:
        aten.add(f"_adaptive_avg_pool{_n}d.default", _adaptive(_n, ops.AdaptiveAvgPool))
        aten.add(f"max_pool{_n}d_with_indices_backward.default", _max_pool_backward(_n))
        aten.add(f"avg_pool{_n}d_backward.default", _avg_pool_backward(_n))
        aten.add(f"_adaptive_avg_pool{_n}d_backward.default", _adaptive_backward(_n))


def _adaptive_max(n: int) -> Callable[..., tuple[Node | None, ...]]:
    pool = _adaptive(n, ops.AdaptiveMaxPool)

    def adaptive(c: Context, x: Node, output_size: DimLike | Sequence[DimLike]) -> tuple[Node | None, ...]:
        # the importer refuses a read of a missing result
        sizes = [d for d in sizes_per_axis(output_size, n) if isinstance(d, int)]
        fixed = len(sizes) == n and all(isinstance(d, int) and d > 0 for d in x.shape[-n:])
        return pool(c, x, output_size), _places_of_largest(x, sizes) if fixed else None

    return adaptive


_MAX_SELECTED_TAPS = 16  # of a window along an axis, which are compared one after the other


def _places_of_largest(x: Node, output_size: Sequence[int]) -> Node:
    """The flat position in the image of each adaptive window's largest element or, as in PyTorch, its last NaN."""
    n = len(output_size)
    lead, sizes = x.shape[:-n], [int(d) for d in x.shape[-n:]]
    spans = [
        (np.arange(count) * size // count, -(-(np.arange(count) + 1) * size // count))
        for size, count in zip(sizes, output_size, strict=True)
    ]
    if all((end - begin).max(initial=1) <= _MAX_SELECTED_TAPS for begin, end in spans) and x.dtype.is_float:
        return _selected_places(x, spans)
    windows, flat = x, np.zeros((1,) * (2 * n), np.int64)
    hidden = np.zeros((1,) * (2 * n), np.bool_)
    for i, (size, (begin, end)) in enumerate(zip(sizes, spans, strict=True)):
        indices = begin[:, None] + np.arange(int((end - begin).max(initial=1)))
        shape = tuple(indices.shape[(i, n + i).index(j)] if j in (i, n + i) else 1 for j in range(2 * n))
        hidden = hidden | (indices >= end[:, None]).reshape(shape)
        indices = np.minimum(indices, size - 1)
        flat = flat * size + indices.reshape(shape)
        windows = ops.Take(len(lead) + 2 * i)(windows, const(indices))
    order = (*range(0, 2 * n, 2), *range(1, 2 * n, 2))
    windows = ops.transpose(windows, (*range(len(lead)), *(len(lead) + i for i in order)))
    taps = product(windows.shape[len(lead) + n :])
    rows = reshape(windows, (*lead, *output_size, taps))
    axis = rows.type.rank - 1
    is_outside = expand(const(np.broadcast_to(hidden, flat.shape).reshape(*output_size, -1)), rows.shape)
    tap = arg_extreme("max", select(is_outside, scalar_like(ops.identity_of("max", x.dtype), x), rows), axis, True)
    if x.dtype.is_float:
        missing = ops.And()(ops.IsNan()(rows), ops.Not()(is_outside))
        number = ops.iota(rows.shape, axis)
        last = reduced("max", select(missing, number, scalar_like(-1, number)), (axis,), True)
        tap = select(compare("GE", last, scalar_like(0, last)), last, tap)
    places = expand(const(np.ascontiguousarray(flat.reshape(*output_size, -1))), rows.shape)
    return reshape(ops.GatherElements(axis)(places, tap), (*lead, *output_size))


def _selected_places(x: Node, spans: Sequence[tuple[np.ndarray, np.ndarray]]) -> Node:
    """`_places_of_largest`, axis by axis: the first of equal elements, the last NaN. The outermost axis first, so that
    the most elements are compared line by line."""
    values, places = t.as_term(x), None
    sizes = [int(d) for d in x.shape[-len(spans) :]]
    dtype = np.int32 if math.prod(sizes) < 2**31 else np.int64
    for i, (begin, end) in enumerate(spans):
        axis, stride = x.type.rank - len(spans) + i, math.prod(sizes[i + 1 :])
        selected: tuple[t.Term, t.Term] | None = None
        for tap in range(int((end - begin).max(initial=1))):
            index = np.minimum(begin + tap, end - 1)  # a shorter window reads its last element again
            value = t.take(values, index, axis)
            place = t.as_term((index * stride).astype(dtype)).spread(value.shape, (axis,))
            if places is not None:
                place = place + t.take(places, index, axis)
            if selected is not None:
                largest, at = selected
                is_larger, is_nan = value > largest, value.map(ops.IsNan())
                if places is not None:  # else each place is behind those before
                    is_larger |= value.equals(largest) & (place < at)
                    is_nan &= (place > at) | largest.equals(largest)
                is_larger |= is_nan
                value, place = t.term(t.where(is_larger, value, largest)), t.term(t.where(is_larger, place, at))
            selected = value, place
        assert selected is not None
        values, places = selected
    assert places is not None
    return places.cast(i64).node


for _n in (1, 2, 3):
    aten.add(f"adaptive_max_pool{_n}d.default", _adaptive_max(_n))


@aten("local_response_norm.default")
def local_response_norm(
    c: Context, x: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Node:
    return ops.LocalResponseNorm(size, float(alpha), float(beta), float(k))(x)
