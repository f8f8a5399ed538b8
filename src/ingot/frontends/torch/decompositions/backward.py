"""Decompositions of backward ops for which torch has none.

Each takes the arguments of the ATen op that it replaces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._prims_common import suggest_memory_format

from ingot.frontends.torch.decompositions import bags, segments
from ingot.frontends.torch.decompositions.formats import in_format_of, of_torch
from ingot.frontends.torch.decompositions.grid_sampling import grid_sampled

_aten = torch.ops.aten
Ints = Sequence[int]
MAX_SEARCHED_TAPS = 32  # the largest window, if windows overlap, whose maximum is searched again by backward


def _for_all(values: Ints, rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def attention(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """The same op. It recomputes the scores and reads neither the result nor the sums of exponentials. The query, which
    it reads anyway, is passed instead of them, so that they are not saved."""
    if logsumexp is query:
        return NotImplemented
    return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, query, query, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )


def lstm(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, h0: Tensor, c0: Tensor, output: Tensor,
    h_last: Tensor, c_last: Tensor, grad: Tensor | None, of_h: Tensor | None, of_c: Tensor | None, reverse: bool,
    mode: int, hidden: int, num_layers: int, has_biases: bool, train: bool, bidirectional: bool, batch_sizes: Ints,
    batch_first: bool, workspace: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of one direction of a layer's input, weights, biases and state. x: (steps, batch, features).

    The gates are recomputed in one product for all steps, as the previous states are known from the outputs.
    """
    if reverse:
        x, output = x.flip(0), output.flip(0)
        grad = None if grad is None else grad.flip(0)
    steps = x.shape[0]
    h0, c0 = h0.reshape(x.shape[1], hidden), c0.reshape(x.shape[1], hidden)
    states_before = torch.cat([h0[None], output[:-1]])
    gated = x @ w_ih.t() + states_before @ w_hh.t()
    i, f, g, o = (gated + (b_ih + b_hh) if has_biases else gated).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cells = [c0]
    for t in range(steps):
        cells.append(f[t] * cells[-1] + i[t] * g[t])
    dh = torch.zeros_like(h0) if of_h is None else of_h.reshape(h0.shape)
    dc = torch.zeros_like(c0) if of_c is None else of_c.reshape(c0.shape)
    gates: list[Tensor] = []
    for t in reversed(range(steps)):
        dh = dh if grad is None else dh + grad[t]
        squashed = cells[t + 1].tanh()
        dc = dc + dh * o[t] * (1 - squashed * squashed)
        step = (
            dc * g[t] * i[t] * (1 - i[t]),
            dc * cells[t] * f[t] * (1 - f[t]),
            dc * i[t] * (1 - g[t] * g[t]),
            dh * squashed * o[t] * (1 - o[t]),
        )
        gates.append(torch.cat(step, -1))
        dh, dc = gates[-1] @ w_hh, dc * f[t]
    of_gates = torch.stack(gates[::-1])
    of_x = of_gates @ w_ih
    flat = of_gates.flatten(0, 1)
    of_bias = flat.sum(0)
    of_w_ih, of_w_hh = flat.t() @ x.flatten(0, 1), flat.t() @ states_before.flatten(0, 1)
    of_x = of_x.flip(0) if reverse else of_x
    return of_x, of_w_ih, of_w_hh, of_bias, of_bias, dh[None], dc[None]


def average_pool(
    rank: int, grad: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool,
    count_include_pad: bool, divisor: int | None,
) -> Any:  # fmt: skip
    """The same op, which reads only the image's sizes, so that forward does not save the image."""
    if _is_nothing(x):
        return NotImplemented
    backward = (_aten.avg_pool2d_backward, _aten.avg_pool3d_backward)[rank - 2]
    return backward(grad, _spread_zero(grad, x), kernel, stride, padding, ceil_mode, count_include_pad, divisor)


def adaptive_average_pool(rank: int, grad: Tensor, x: Tensor) -> Any:
    """The same op, which reads only the image's sizes."""
    if _is_nothing(x):
        return NotImplemented
    return (_aten._adaptive_avg_pool2d_backward, _aten._adaptive_avg_pool3d_backward)[rank - 2](
        grad, _spread_zero(grad, x)
    )


def _spread_zero(grad: Tensor, x: Tensor) -> Tensor:
    """A zero broadcast to the shape of x, which takes no memory."""
    return grad.new_zeros([]).expand(x.shape)


def _is_nothing(x: Tensor) -> bool:
    return x.untyped_storage().nbytes() == x.element_size()


def resized(forward: Callable[..., Tensor], corners: bool) -> Callable[..., Any]:
    """The backward pass of a resize that is a linear map along each axis: the same op for images of static sizes; else
    by the transposed maps, which are obtained by resizing the identity matrix."""
    _infer_open_batches(getattr(_aten, f"{forward.__name__}_backward").default)

    def backward(grad: Tensor, output_size: Ints, input_size: Ints, *options: Any) -> Any:
        rank = len(output_size)
        if _is_static(*output_size, *input_size[2:]):
            return NotImplemented
        align, scales = (options[:1], options[1:]) if corners else ((), options)
        for i in range(rank):
            identity = torch.eye(input_size[2 + i], dtype=grad.dtype, device=grad.device)
            image = identity.reshape(1, input_size[2 + i], *(input_size[2 + i] if j == i else 1 for j in range(rank)))
            sizes = [output_size[i] if j == i else 1 for j in range(rank)]
            # by scales or by sizes, for all axes: a single element does not depend on the scale
            factors = [scales[i] if j == i else 1.0 for j in range(rank)] if scales and scales[i] else [None] * rank
            axis_gradient = forward(image, sizes, *align, *factors).reshape(input_size[2 + i], output_size[i])
            axis = 2 + i
            grad = (grad.transpose(axis, -1) @ axis_gradient.transpose(0, 1)).transpose(axis, -1)
        return grad

    return backward


# resizes whose gradients have the cotangent's memory format; those of others are contiguous
_IN_FORMAT_OF_COTANGENT = (_aten.upsample_bilinear2d_backward.default, _aten.upsample_trilinear3d_backward.default)


def _infer_open_batches(backward: torch._ops.OpOverload) -> None:
    """Register a rule for the shape of a resize's gradient where torch's own is for static sizes only."""
    if DispatchKey.Meta in backward.py_kernels:
        return

    @backward.py_impl(DispatchKey.Meta)
    def infer(grad: Tensor, output_size: Ints, input_size: Ints, *options: Any, **named: Any) -> Tensor:
        memory_format = torch.contiguous_format
        if backward in _IN_FORMAT_OF_COTANGENT:
            memory_format = suggest_memory_format(grad)
        return torch.empty(tuple(input_size), dtype=grad.dtype, device=grad.device, memory_format=memory_format)


def maximum_pool(
    rank: int, grad: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool,
    indices: Tensor,
) -> Any:  # fmt: skip
    """The same op, which searches small windows again for their maxima, so that forward computes no indices: the maxima
    are passed instead. For other windows, each gradient is added at the index of the maximum."""
    if indices.is_floating_point():
        return NotImplemented
    sizes, steps = _for_all(kernel, rank), _for_all(stride or kernel, rank)
    overlap = any(n > s for n, s in zip(sizes, steps, strict=True)) or set(dilation) != {1}
    if (overlap and math.prod(sizes) > MAX_SEARCHED_TAPS) or not _is_static(*x.shape[-rank:], *grad.shape[-rank:]):
        return _scattered(grad, x, indices, rank)
    pool = (_aten.max_pool2d_with_indices, _aten.max_pool3d_with_indices)[rank - 2]
    window = kernel, stride, padding, dilation, ceil_mode
    return _searched(rank, grad, x, window, pool(x, *window)[0])


def adaptive_maximum_pool(rank: int, grad: Tensor, x: Tensor, indices: Tensor) -> Any:
    """As `maximum_pool`, where the windows are adjacent and of one size; else an element looks for its place in the few
    windows that hold it."""
    sizes, counts = x.shape[-rank:], grad.shape[-rank:]
    if not _is_static(*sizes, *counts) or 0 in (*sizes, *counts):
        return _scattered(grad, x, indices, rank)
    if any(n % m for n, m in zip(sizes, counts, strict=True)):
        most = [_most_windows(n, m) for n, m in zip(sizes, counts, strict=True)]
        is_few = math.prod(most) <= MAX_SEARCHED_TAPS
        return _found(grad, x, indices, most) if is_few else _scattered(grad, x, indices, rank)
    kernel = [n // m for n, m in zip(sizes, counts, strict=True)]
    pool = (_aten.adaptive_max_pool2d, _aten.adaptive_max_pool3d)[rank - 2]
    return _searched(rank, grad, x, (kernel, kernel, [0] * rank, [1] * rank, False), pool(x, counts)[0])


def _most_windows(size: int, count: int) -> int:
    """The most of `count` adaptive windows that hold one of `size` elements."""
    return max(-(-(i + 1) * count // size) - i * count // size for i in range(size))


def _found(grad: Tensor, x: Tensor, indices: Tensor, most: Sequence[int]) -> Tensor:
    """The sum of the gradients of those adaptive windows of an element that its place is the index of. most: windows of
    an element along each axis."""
    rank, sizes, counts = len(most), x.shape[-len(most) :], grad.shape[-len(most) :]
    place = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
    elements = [torch.arange(size, device=x.device) for size in sizes]
    # the windows of element i are those from i * count // size to before ceil((i + 1) * count / size)
    firsts = [(e * m).div(n, rounding_mode="floor") for e, n, m in zip(elements, sizes, counts, strict=True)]
    ends = [(e * m + m + n - 1).div(n, rounding_mode="floor") for e, n, m in zip(elements, sizes, counts, strict=True)]
    total = torch.zeros_like(x)
    for steps in itertools.product(*map(range, most)):
        index, part, is_held = indices, grad, place >= 0
        for i, step in reversed([*enumerate(steps)]):  # the innermost first, so that whole lines are selected at last
            window = firsts[i] + step
            is_held = is_held & (window < ends[i]).reshape(-1, *(1,) * (rank - 1 - i))
            last = counts[i] - 1
            index, part = (v.index_select(i - rank, window.clamp(max=last)) for v in (index, part))
        total = total + torch.where(is_held & (index == place), part, 0)
    return total


def _searched(rank: int, grad: Tensor, x: Tensor, window: Sequence[Any], maxima: Tensor) -> Tensor:
    """The backward pass of a pool with its maxima, from a call equal to forward's, which the graph computes once."""
    backward = (_aten.max_pool2d_with_indices_backward, _aten.max_pool3d_with_indices_backward)[rank - 2]
    return backward(grad, x, *window, maxima)


def _is_static(*sizes: object) -> bool:
    return all(isinstance(n, int) for n in sizes)


def _scattered(grad: Tensor, x: Tensor, indices: Tensor, rank: int) -> Tensor:
    lead = x.dim() - rank
    flat = torch.zeros_like(x).flatten(lead)
    return flat.scatter_add(-1, indices.flatten(lead), grad.flatten(lead)).reshape(x.shape)


def shrink(grad: Tensor, x: Tensor, bound: float) -> Tensor:
    """hardshrink's and softshrink's gradient: 0 between -bound and bound."""
    return torch.where((x >= -bound) & (x <= bound), 0.0, grad)


def padded(op: Any, composition: Callable[..., Tensor]) -> Callable[..., Any]:
    """The backward pass of a reflection or replication pad: the same op, which reads only sizes, where these are
    static."""

    def backward(grad: Tensor, x: Tensor, padding: Ints) -> Any:
        if _is_nothing(x):
            return NotImplemented
        if not _is_static(*x.shape[-(len(padding) // 2) :], *padding):
            return composition(grad, x, padding)
        return op(grad, _spread_zero(grad, x), padding)

    return backward


def _replication_pad(grad: Tensor, x: Tensor, padding: Ints) -> Tensor:
    """Gradients of repeated elements are added to the edge's."""
    rank = len(padding) // 2
    for i in range(rank):
        axis = grad.dim() - 1 - i
        low, size = padding[2 * i], x.shape[axis]
        place = (torch.arange(grad.shape[axis], device=x.device) - low).clamp(0, size - 1)
        shape = [*grad.shape[:axis], size, *grad.shape[axis + 1 :]]
        grad = grad.new_zeros(shape).index_add(axis, place, grad)
    return grad


def group_norm(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, batch: int, channels: int,
    elements: int, groups: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of x, weight and bias; mean, scale (1 / deviation): (batch, groups). Written without reshaping the
    image, so that its memory layout is preserved."""
    wide = torch.promote_types(x.dtype, torch.float32)
    count, shape = channels // groups * elements, (batch, channels, *[1] * (x.dim() - 2))
    images, gradients = x.to(wide), grad.to(wide)
    total, products = (v.reshape(batch, channels, elements).sum(-1) for v in (gradients, gradients * images))
    weights = None if weight is None else weight.to(wide).reshape(channels)

    def of_groups(v: Tensor) -> Tensor:
        return (v if weights is None else v * weights).reshape(batch, groups, channels // groups).sum(-1)

    def of_channels(v: Tensor) -> Tensor:
        return v.unsqueeze(-1).expand(batch, groups, channels // groups).reshape(batch, channels)

    mean, scale = mean.to(wide).reshape(batch, groups), scale.to(wide).reshape(batch, groups)
    slope = (of_groups(total) * mean - of_groups(products)) * scale**3 / count
    offset = -slope * mean - of_groups(total) * scale / count
    factor = of_channels(scale) if weights is None else of_channels(scale) * weights
    of_x = gradients * factor.reshape(shape) + images * of_channels(slope).reshape(shape)
    of_x = (of_x + of_channels(offset).reshape(shape)).to(x.dtype)
    of_weight = ((products - total * of_channels(mean)) * of_channels(scale)).sum(0)
    of_x = of_x.contiguous(memory_format=suggest_memory_format(x))
    results = (of_x, *(v if weight is None else v.to(weight.dtype) for v in (of_weight, total.sum(0))))
    return tuple(v if is_wanted else None for v, is_wanted in zip(results, output_mask, strict=True))


def weight_norm(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The gradients of v and g in v g / |v|."""
    other_axes = [d for d in range(v.dim()) if d != axis % v.dim()]
    norms = norms.to(g.dtype)
    of_g = (grad * v).sum(other_axes, keepdim=True) / norms
    return g / norms * (grad - v * of_g / norms), of_g.to(g.dtype)


def _distance_slope(difference: Tensor, distance: Tensor, grad: Tensor, p: float) -> Tensor:
    """The gradient of differences along the last axis, whose p-norm is `distance`; 0 where that is 0."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return grad * difference.sign()
    if p == math.inf:
        return grad * difference.sign() * (difference.abs() == distance)
    # ratios of at most 1, so that no power overflows
    share = difference / torch.where(distance == 0, 1.0, distance)
    slope = share if p == 2 else share.sign() * share.abs().pow(p - 1)
    return torch.where(difference == 0, 0.0, grad * slope)


def distances(grad: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor) -> Tensor:
    """The gradient of cdist's first operand (..., rows, size); the distances are (..., rows, rows of b)."""
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    return _distance_slope(difference, distance.unsqueeze(-1), grad.unsqueeze(-1), p).sum(-2)


def distances_of_pairs(grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    """pdist's gradient: the two rows of a pair get opposite gradients."""
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1).unbind(0)
    slope = _distance_slope(x[first] - x[second], distance[:, None], grad[:, None], p)
    return torch.zeros_like(x).index_add(0, first, slope).index_add(0, second, -slope)


def masked_scatter(grad: Tensor, mask: Tensor, sizes: Ints) -> Tensor:
    """The gradient of the source: its k-th element gets the gradient at the mask's k-th true element."""
    size = math.prod(sizes)
    flat = mask.expand(grad.shape).flatten()
    rank = torch.cumsum(flat.to(torch.int64), 0) - 1
    place = torch.where(flat, rank, size)
    return grad.new_zeros(size + 1).scatter(0, place, grad.flatten())[:size].reshape(list(sizes))


def random_relu(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    if training and upper - lower > 1e-6:
        return grad * noise
    return torch.where(x > 0, grad, grad * ((lower + upper) / 2))


# by the op that they replace
BACKWARD: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention,
    _aten.mkldnn_rnn_layer_backward.default: lstm,
    _aten.avg_pool2d_backward.default: in_format_of(1, partial(average_pool, 2)),
    _aten.avg_pool3d_backward.default: partial(average_pool, 3),
    _aten._adaptive_avg_pool2d_backward.default: in_format_of(1, partial(adaptive_average_pool, 2)),
    _aten._adaptive_avg_pool3d_backward.default: partial(adaptive_average_pool, 3),
    _aten.max_pool2d_with_indices_backward.default: in_format_of(1, partial(maximum_pool, 2)),
    _aten.max_pool3d_with_indices_backward.default: in_format_of(1, partial(maximum_pool, 3)),
    _aten.adaptive_max_pool2d_backward.default: in_format_of(1, partial(adaptive_maximum_pool, 2)),
    _aten.adaptive_max_pool3d_backward.default: partial(adaptive_maximum_pool, 3),
    _aten.fractional_max_pool2d_backward.default: lambda grad, x, kernel, sizes, at: _scattered(grad, x, at, 2),
    _aten.fractional_max_pool3d_backward.default: lambda grad, x, kernel, sizes, at: _scattered(grad, x, at, 3),
    _aten._cdist_backward.default: distances,
    _aten._pdist_backward.default: distances_of_pairs,
    _aten.masked_scatter_backward.default: masked_scatter,
    _aten.rrelu_with_noise_backward.default: random_relu,
    _aten.grid_sampler_2d_backward.default: grid_sampled,
    _aten.grid_sampler_3d_backward.default: grid_sampled,
    _aten._segment_reduce_backward.default: segments.backward,
    _aten._embedding_bag_backward.default: bags.table,
    _aten._embedding_bag_per_sample_weights_backward.default: bags.weights,
    _aten.hardshrink_backward.default: shrink,
    _aten.softshrink_backward.default: shrink,
    **{
        op.default: in_format_of(1, padded(op, composition)) if images else padded(op, composition)
        for op, composition, images in (
            (_aten.reflection_pad1d_backward, of_torch(_aten.reflection_pad1d_backward.default), False),
            (_aten.reflection_pad2d_backward, of_torch(_aten.reflection_pad2d_backward.default), True),
            (_aten.reflection_pad3d_backward, of_torch(_aten.reflection_pad3d_backward.default), True),
            (_aten.replication_pad1d_backward, _replication_pad, False),
            (_aten.replication_pad2d_backward, _replication_pad, True),
            (_aten.replication_pad3d_backward, _replication_pad, True),
        )
    },
    _aten._weight_norm_interface_backward.default: weight_norm,
    _aten.native_group_norm_backward.default: group_norm,
    _aten.upsample_nearest1d_backward.default: resized(_aten.upsample_nearest1d, False),
    _aten.upsample_nearest2d_backward.default: resized(_aten.upsample_nearest2d, False),
    _aten.upsample_nearest3d_backward.default: resized(_aten.upsample_nearest3d, False),
    _aten._upsample_nearest_exact1d_backward.default: resized(_aten._upsample_nearest_exact1d, False),
    _aten._upsample_nearest_exact2d_backward.default: resized(_aten._upsample_nearest_exact2d, False),
    _aten._upsample_nearest_exact3d_backward.default: resized(_aten._upsample_nearest_exact3d, False),
    _aten.upsample_linear1d_backward.default: resized(_aten.upsample_linear1d, True),
    _aten.upsample_bilinear2d_backward.default: resized(_aten.upsample_bilinear2d, True),
    _aten.upsample_bicubic2d_backward.default: resized(_aten.upsample_bicubic2d, True),
    _aten.upsample_trilinear3d_backward.default: resized(_aten.upsample_trilinear3d, True),
    _aten._upsample_bilinear2d_aa_backward.default: in_format_of(0, resized(_aten._upsample_bilinear2d_aa, True)),
    _aten._upsample_bicubic2d_aa_backward.default: in_format_of(0, resized(_aten._upsample_bicubic2d_aa, True)),
}
