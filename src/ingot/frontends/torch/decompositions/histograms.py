"""Decompositions of histograms, for which torch has none, as torch code; decompose.py lists them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def histogram(x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False) -> tuple[Tensor, Tensor]:
    """(the weight in each bin, the bin edges `bins`); the last bin includes its upper edge."""
    flat = x.reshape(-1, 1)
    return histogramdd(flat, [bins], weight=None if weight is None else weight.flatten(), density=density), bins


def histogram_of_count(
    x: Tensor, bins: int = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (edges,) = edges_of_counts(x.reshape(-1, 1), [bins], range=range)
    return histogram(x, edges, weight=weight, density=density)


def edges_of_counts(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Edges of equally wide bins of each column of x (..., D), from its least to its largest element by default."""
    columns = x.reshape(-1, x.shape[-1])
    edges: list[Tensor] = []
    for axis, count in enumerate(bins):
        column = columns[:, axis]
        if range is not None:
            low, high = (x.new_full((), v) for v in range[2 * axis : 2 * axis + 2])
        elif column.shape[0]:
            low, high = column.amin(), column.amax()
        else:
            low, high = x.new_zeros(()), x.new_ones(())
        flat = low == high
        low, high = torch.where(flat, low - 0.5, low), torch.where(flat, high + 0.5, high)
        place = torch.arange(count + 1, dtype=x.dtype)
        step = (high - low) / count
        # computed from the nearer end, as in linspace
        edges.append(torch.where(place < (count + 1) // 2, low + step * place, high - step * (count - place)))
    return edges


def histogramdd_of_counts(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:  # fmt: skip
    return histogramdd(x, edges_of_counts(x, bins, range=range), weight=weight, density=density)


def histogramdd(x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False) -> Tensor:
    """The weight of the rows of x (..., D) in each cell of the grid of `bins`; rows outside are not counted."""
    rows = x.reshape(-1, x.shape[-1])
    counts = [b.shape[0] - 1 for b in bins]
    place = torch.zeros(rows.shape[0], dtype=torch.int64)
    is_inside = torch.ones(rows.shape[0], dtype=torch.bool)
    for axis, edges in enumerate(bins):
        column = rows[:, axis].contiguous()
        bin = torch.searchsorted(edges.contiguous(), column, right=True) - 1
        place = place * counts[axis] + bin.clamp(0, counts[axis] - 1)
        is_inside = is_inside & (column >= edges[0]) & (column <= edges[-1])
    row_weights = torch.ones_like(rows[:, 0]) if weight is None else weight.flatten()
    histogram_ = x.new_zeros(math.prod(counts)).index_add(
        0, place, torch.where(is_inside, row_weights, 0.0).to(x.dtype)
    )
    histogram_ = histogram_.reshape(counts)
    if density:
        histogram_ = histogram_ / histogram_.sum()
        for axis, edges in enumerate(bins):
            histogram_ = histogram_ / torch.diff(edges).reshape([-1 if i == axis else 1 for i, _ in enumerate(counts)])
    return histogram_
