"""Reductions of consecutive slices (`segment_reduce`), and their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_INITIAL_VALUES = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_INDEX_REDUCE_KINDS = {"prod": "prod", "max": "amax", "min": "amin"}


class _Segments(NamedTuple):
    """The slices as rows. segment_of_row: each of `batch` lines has `segment_count` segments, and one more for rows
    that belong to none. lengths: the number of rows of each segment, (batch, segment_count)."""

    rows: Tensor
    segment_of_row: Tensor
    lengths: Tensor
    batch: int
    segment_count: int

    def flat(self, values: Tensor) -> Tensor:
        """A result (*lead, count, *rest) as one row for each segment."""
        tail = self.rows.shape[1:]
        rows = values.reshape(self.batch, self.segment_count, *tail)
        extra_row = rows.new_zeros(self.batch, 1, *tail)
        return torch.cat([rows, extra_row], 1).reshape(-1, *tail)


def _segments(data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> _Segments:
    if offsets is None:
        assert lengths is not None
        offsets = F.pad(torch.cumsum(lengths, -1), (1, 0))
    tail, count = data.shape[axis + 1 :], offsets.shape[-1] - 1
    batch, size = math.prod(data.shape[:axis]), data.shape[axis]
    offsets, rows = offsets.reshape(batch, count + 1), data.reshape(batch * size, *tail)
    place = torch.arange(size, dtype=offsets.dtype).expand(batch, size).contiguous()
    segment_of_row = torch.searchsorted(offsets.contiguous(), place, right=True) - 1
    segment_of_row = torch.where(segment_of_row < 0, count, segment_of_row) + torch.arange(batch)[:, None] * (count + 1)
    return _Segments(rows, segment_of_row.flatten(), offsets[:, 1:] - offsets[:, :-1], batch, count)


def segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Slices along `axis` reduced in consecutive segments of `lengths` slices, or between `offsets`, separately for
    each index of the axes before it. An empty segment gives `initial`."""
    if indices is not None:
        raise NotImplementedError("segment_reduce by indices")
    lead, tail = data.shape[:axis], data.shape[axis + 1 :]
    rows, segment_of_row, counts, batch, count = _segments(data, lengths, offsets, axis)
    start = _INITIAL_VALUES[reduce] if initial is None else initial
    result = data.new_full((batch * (count + 1), *tail), start)
    result = (
        result.index_add(0, segment_of_row, rows)
        if reduce in ("sum", "mean")
        else result.index_reduce(0, segment_of_row, rows, _INDEX_REDUCE_KINDS[reduce])
    )
    result = result.reshape(batch, count + 1, *tail)[:, :count]
    if reduce == "mean":
        row_counts = counts.reshape(batch, count, *(1 for _ in tail))
        empty = math.nan if initial is None else initial
        result = torch.where(row_counts > 0, result / row_counts.clamp(min=1), empty)
    return result.reshape(*lead, count, *tail)


def backward(
    grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """The gradient: of a sum, to all rows of the segment; of a mean, divided by their number; of an extreme, in equal
    parts to the rows that attain it; of a product, times the product of the other rows."""
    parts = _segments(data, lengths, offsets, axis)
    rows, segment_of_row, _, _, _ = parts
    row_grad = parts.flat(grad)[segment_of_row]
    if reduce == "mean":
        row_counts = rows.new_zeros(parts.batch * (parts.segment_count + 1))
        row_counts = row_counts.index_add(0, segment_of_row, torch.ones_like(segment_of_row, dtype=rows.dtype))
        row_grad = row_grad / row_counts[segment_of_row].reshape(-1, *(1 for _ in rows.shape[1:]))
    elif reduce in ("max", "min"):
        # NaN counts as the extreme
        result = parts.flat(output)[segment_of_row]
        is_extreme = ((rows == result) | (rows.isnan() & result.isnan())).to(rows.dtype)
        row_counts = torch.zeros_like(parts.flat(output)).index_add(0, segment_of_row, is_extreme)
        row_grad = torch.where(is_extreme > 0, row_grad / row_counts[segment_of_row].clamp(min=1), 0.0)
    elif reduce == "prod":
        row_grad = row_grad * _product_of_others(parts, 1.0 if initial is None else initial)
    return row_grad.reshape(data.shape)


def _product_of_others(parts: _Segments, initial: float) -> Tensor:
    """For each row, the product of the other rows of its segment and of `initial`."""
    rows, segment_of_row = parts.rows, parts.segment_of_row
    zeros = rows.new_zeros(parts.batch * (parts.segment_count + 1), *rows.shape[1:])
    is_zero = rows == 0
    product = (zeros + initial).index_reduce(0, segment_of_row, torch.where(is_zero, 1.0, rows), "prod")[segment_of_row]
    zero_counts = zeros.index_add(0, segment_of_row, is_zero.to(rows.dtype))[segment_of_row]
    product = torch.where(is_zero, product, product / torch.where(is_zero, 1.0, rows))
    return torch.where(zero_counts - is_zero.to(rows.dtype) > 0, 0.0, product)
