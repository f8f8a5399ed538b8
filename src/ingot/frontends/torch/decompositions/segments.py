"""Reductions of consecutive slices (`segment_reduce`), and their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_KINDS = {"prod": "prod", "max": "amax", "min": "amin"}


class _Segments(NamedTuple):
    """The slices as rows. at: the segment of each row; each of `batch` lines has `number` segments and one more for
    rows that belong to none. lengths: the number of rows of each segment, (batch, number)."""

    rows: Tensor
    at: Tensor
    lengths: Tensor
    batch: int
    number: int

    def flat(self, values: Tensor) -> Tensor:
        """A result (*lead, count, *rest) as one row for each segment."""
        tail = self.rows.shape[1:]
        rows = values.reshape(self.batch, self.number, *tail)
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


def reduced(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Slices along `axis` reduced in consecutive segments of `lengths` slices, or between `offsets`, separately for
    each index of the axes before it. An empty segment gives `initial`."""
    if indices is not None:
        raise NotImplementedError("segment_reduce by indices")
    lead, tail = data.shape[:axis], data.shape[axis + 1 :]
    rows, segment_of_row, counts, batch, count = _segments(data, lengths, offsets, axis)
    start = _START[reduce] if initial is None else initial
    result = data.new_full((batch * (count + 1), *tail), start)
    result = (
        result.index_add(0, segment_of_row, rows)
        if reduce in ("sum", "mean")
        else result.index_reduce(0, segment_of_row, rows, _KINDS[reduce])
    )
    result = result.reshape(batch, count + 1, *tail)[:, :count]
    if reduce == "mean":
        number = counts.reshape(batch, count, *(1 for _ in tail))
        empty = math.nan if initial is None else initial
        result = torch.where(number > 0, result / number.clamp(min=1), empty)
    return result.reshape(*lead, count, *tail)


def backward(
    grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """The gradient: of a sum, to all rows of the segment; of a mean, divided by their number; of an extreme, in equal
    parts to the rows that attain it; of a product, times the product of the other rows."""
    parts = _segments(data, lengths, offsets, axis)
    rows, segment_of_row, _, _, _ = parts
    of_row = parts.flat(grad)[segment_of_row]
    if reduce == "mean":
        number = rows.new_zeros(parts.batch * (parts.number + 1))
        number = number.index_add(0, segment_of_row, torch.ones_like(segment_of_row, dtype=rows.dtype))
        of_row = of_row / number[segment_of_row].reshape(-1, *(1 for _ in rows.shape[1:]))
    elif reduce in ("max", "min"):
        # NaN counts as the extreme
        result = parts.flat(output)[segment_of_row]
        is_extreme = ((rows == result) | (rows.isnan() & result.isnan())).to(rows.dtype)
        number = torch.zeros_like(parts.flat(output)).index_add(0, segment_of_row, is_extreme)
        of_row = torch.where(is_extreme > 0, of_row / number[segment_of_row].clamp(min=1), 0.0)
    elif reduce == "prod":
        of_row = of_row * _others(parts, 1.0 if initial is None else initial)
    return of_row.reshape(data.shape)


def _others(parts: _Segments, initial: float) -> Tensor:
    """For each row, the product of the other rows of its segment and of `initial`."""
    rows, segment_of_row = parts.rows, parts.at
    empty = rows.new_zeros(parts.batch * (parts.number + 1), *rows.shape[1:])
    zero = rows == 0
    product = (empty + initial).index_reduce(0, segment_of_row, torch.where(zero, 1.0, rows), "prod")[segment_of_row]
    zeros = empty.index_add(0, segment_of_row, zero.to(rows.dtype))[segment_of_row]
    without = torch.where(zero, product, product / torch.where(zero, 1.0, rows))
    return torch.where(zeros - zero.to(rows.dtype) > 0, 0.0, without)
