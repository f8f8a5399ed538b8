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
    """The slices as rows. at: the segment of each row, of `number` in each of `batch` lines and one more, which has
    what belongs to none. held: how many rows a segment has, (batch, number)."""

    rows: Tensor
    at: Tensor
    held: Tensor
    batch: int
    number: int

    def flat(self, values: Tensor) -> Tensor:
        """A result (*lead, count, *rest) as a row for each segment."""
        rest = self.rows.shape[1:]
        rows = values.reshape(self.batch, self.number, *rest)
        extra_row = rows.new_zeros(self.batch, 1, *rest)
        return torch.cat([rows, extra_row], 1).reshape(-1, *rest)


def _segments(data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> _Segments:
    if offsets is None:
        assert lengths is not None
        offsets = F.pad(torch.cumsum(lengths, -1), (1, 0))
    rest, count = data.shape[axis + 1 :], offsets.shape[-1] - 1
    batch, size = math.prod(data.shape[:axis]), data.shape[axis]
    offsets, rows = offsets.reshape(batch, count + 1), data.reshape(batch * size, *rest)
    place = torch.arange(size, dtype=offsets.dtype).expand(batch, size).contiguous()
    at = torch.searchsorted(offsets.contiguous(), place, right=True) - 1
    at = torch.where(at < 0, count, at) + torch.arange(batch)[:, None] * (count + 1)
    return _Segments(rows, at.flatten(), offsets[:, 1:] - offsets[:, :-1], batch, count)


def reduced(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Slices along `axis` reduced in consecutive segments of `lengths` slices, or between `offsets`; the axes before it
    have segments of their own. An empty segment gives `initial`."""
    if indices is not None:
        raise NotImplementedError("segment_reduce by indices")
    lead, rest = data.shape[:axis], data.shape[axis + 1 :]
    rows, at, counts, batch, count = _segments(data, lengths, offsets, axis)
    start = _START[reduce] if initial is None else initial
    out = data.new_full((batch * (count + 1), *rest), start)
    out = out.index_add(0, at, rows) if reduce in ("sum", "mean") else out.index_reduce(0, at, rows, _KINDS[reduce])
    out = out.reshape(batch, count + 1, *rest)[:, :count]
    if reduce == "mean":
        number = counts.reshape(batch, count, *(1 for _ in rest))
        empty = math.nan if initial is None else initial
        out = torch.where(number > 0, out / number.clamp(min=1), empty)
    return out.reshape(*lead, count, *rest)


def backward(
    grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """A sum's goes to all rows of the segment, a mean's divided by their number, a maximum's to the rows that are it,
    in equal parts; a product's times the product of the others."""
    parts = _segments(data, lengths, offsets, axis)
    rows, at, _, _, _ = parts
    of_row = parts.flat(grad)[at]
    if reduce == "mean":
        number = rows.new_zeros(parts.batch * (parts.number + 1))
        number = number.index_add(0, at, torch.ones_like(at, dtype=rows.dtype))
        of_row = of_row / number[at].reshape(-1, *(1 for _ in rows.shape[1:]))
    elif reduce in ("max", "min"):
        # NaN is the largest and the least
        result = parts.flat(output)[at]
        is_extreme = ((rows == result) | (rows.isnan() & result.isnan())).to(rows.dtype)
        number = torch.zeros_like(parts.flat(output)).index_add(0, at, is_extreme)
        of_row = torch.where(is_extreme > 0, of_row / number[at].clamp(min=1), 0.0)
    elif reduce == "prod":
        of_row = of_row * _others(parts, 1.0 if initial is None else initial)
    return of_row.reshape(data.shape)


def _others(parts: _Segments, initial: float) -> Tensor:
    """The product of the other rows of each row's segment, and of `initial`."""
    rows, at = parts.rows, parts.at
    empty = rows.new_zeros(parts.batch * (parts.number + 1), *rows.shape[1:])
    zero = rows == 0
    product = (empty + initial).index_reduce(0, at, torch.where(zero, 1.0, rows), "prod")[at]
    zeros = empty.index_add(0, at, zero.to(rows.dtype))[at]
    without = torch.where(zero, product, product / torch.where(zero, 1.0, rows))
    return torch.where(zeros - zero.to(rows.dtype) > 0, 0.0, without)
