"""Gradients of `grid_sample`, with respect to the image and to the grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_CUBIC_A = -0.75  # Keys' parameter, PyTorch's choice


class _Tap(NamedTuple):
    """Elements that samples read along one axis: their positions (integers as floats), weights, and the derivatives of
    the weights by the position."""

    place: Tensor
    weight: Tensor
    slope: Tensor


def grid_sampled(
    grad: Tensor, x: Tensor, grid: Tensor, interpolation: int, padding: int, align: bool, output_mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x (N, C, *S) and of the grid (N, *out, axes), whose last axis starts with the innermost axis."""
    rank = x.dim() - 2
    sizes, count = x.shape[2:], math.prod(grid.shape[1:-1])
    flat, of_sample = x.flatten(2), grad.flatten(2)
    axes: list[list[_Tap]] = []
    scales: list[Tensor] = []
    for axis, size in enumerate(sizes):
        coordinates = grid[..., rank - 1 - axis].reshape(x.shape[0], count)
        place = (coordinates + 1) * ((size - 1) / 2) if align else ((coordinates + 1) * size - 1) / 2
        scale = torch.full_like(place, (size - 1) / 2 if align else size / 2)
        if interpolation != 2:
            place, inner = _inside(place, size, padding, align)
            scale = scale * inner
        axes.append(_taps(place, interpolation))
        scales.append(scale)
    of_x = torch.zeros_like(flat)
    of_places = [torch.zeros_like(s) for s in scales]
    for taps in itertools.product(*axes):
        index = torch.zeros_like(taps[0].place, dtype=torch.int64)
        is_inside = torch.ones_like(index, dtype=torch.bool)
        for tap, size in zip(taps, sizes, strict=True):
            # padding applies to each tap of a cubic
            position = _inside(tap.place, size, padding, align)[0] if interpolation == 2 else tap.place
            is_inside = is_inside & (position >= 0) & (position < size)
            index = index * size + position.nan_to_num(0).clamp(0, size - 1).to(torch.int64)
        rows = index[:, None].expand(of_sample.shape)
        weight = torch.where(is_inside, math.prod(t.weight for t in taps), 0.0)[:, None]
        if output_mask[0]:
            of_x = of_x.scatter_add(2, rows, of_sample * weight)
        if output_mask[1] and interpolation != 1:
            read = torch.where(is_inside, (of_sample * flat.gather(2, rows)).sum(1), 0.0)
            for axis, tap in enumerate(taps):
                other_weights = math.prod((t.weight for i, t in enumerate(taps) if i != axis), start=read)
                of_places[axis] = of_places[axis] + other_weights * tap.slope
    of_grid = torch.stack([p * s for p, s in zip(of_places, scales, strict=True)][::-1], -1).reshape(grid.shape)
    return of_x.reshape(x.shape) if output_mask[0] else None, of_grid if output_mask[1] else None


def _taps(place: Tensor, interpolation: int) -> list[_Tap]:
    if interpolation == 1:
        return [_Tap(place.round(), torch.ones_like(place), torch.zeros_like(place))]
    low = place.floor()
    t = place - low
    if interpolation == 0:
        one = torch.ones_like(t)
        return [_Tap(low, 1 - t, -one), _Tap(low + 1, t, one)]
    return [_Tap(low + i, *_cubic(t - i)) for i in range(-1, 3)]


def _cubic(d: Tensor) -> tuple[Tensor, Tensor]:
    """The cubic weight at a distance of up to 2, and its derivative (Keys 1981)."""
    a, s, sign = _CUBIC_A, d.abs(), d.sign()
    near = ((a + 2) * s - (a + 3)) * s * s + 1, (3 * (a + 2) * s - 2 * (a + 3)) * s
    outer_part = ((a * s - 5 * a) * s + 8 * a) * s - 4 * a, (3 * a * s - 10 * a) * s + 8 * a
    return torch.where(s <= 1, near[0], outer_part[0]), torch.where(s <= 1, near[1], outer_part[1]) * sign


def _inside(place: Tensor, size: int, padding: int, align: bool) -> tuple[Tensor, Tensor]:
    """`place` after padding is applied, and the derivative of that."""
    slope = torch.ones_like(place)
    if padding == 0:
        return place, slope
    if padding == 2:
        low, span = (0.0, size - 1) if align else (-0.5, size)
        if align and size == 1:
            return torch.zeros_like(place), torch.zeros_like(place)
        slope = torch.where(place < low, -1.0, 1.0).to(place.dtype)
        distance = (place - low).abs()
        periods = (distance / span).floor()
        offset = distance - periods * span
        even = torch.remainder(periods, 2) == 0
        place, slope = torch.where(even, offset + low, span - offset + low), torch.where(even, slope, -slope)
    within = (place > 0) & (place < size - 1)
    return place.clamp(0, size - 1), torch.where(within, slope, 0.0)
