"""Decompositions of ops for which torch has none, as torch code: scans, sorts, selections and bit operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log of the running sum of exp: log2(n) sums of neighbours at distances 1, 2, 4, ... (Hillis and Steele 1986).

    In double, as PyTorch does. For a length known only at run time, each prefix is summed separately, O(n^2).
    """
    if x.is_complex():
        raise NotImplementedError("logcumsumexp of complex numbers")
    if not x.dim():
        return x.clone()
    y = x.double().movedim(dim, -1)
    n = y.shape[-1]
    if isinstance(n, torch.SymInt):
        place = torch.arange(n, device=x.device)
        y = torch.where(place <= place[:, None], y.unsqueeze(-2), -math.inf).logsumexp(-1)
    else:
        step = 1
        while step < n:
            y = torch.logaddexp(y, F.pad(y[..., :-step], (step, 0), value=-math.inf))
            step *= 2
    return y.movedim(-1, dim).to(x.dtype).contiguous()


def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent values, and its last position: the longest run of the sorted values."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, places = torch.sort(x.to(torch.uint8) if x.dtype == torch.bool else x, dim=dim, stable=True)
    lines = values.movedim(dim, -1)
    positions = torch.arange(lines.shape[-1]).expand(lines.shape)
    is_run_start = F.pad(lines[..., 1:] != lines[..., :-1], (1, 0), value=True)
    length = positions - torch.cummax(torch.where(is_run_start, positions, 0), -1).values
    value, place = _one_of(values, places, dim, length.argmax(-1, keepdim=True).movedim(-1, dim), keepdim)
    return value.to(x.dtype), place


def _one_of(values: Tensor, places: Tensor, dim: int, index: Tensor, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The element of both at index `at` (of size 1 along `dim`)."""
    value, place = (torch.gather(v, dim, index) for v in (values, places))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower median of the elements that are not NaN; NaN sorts last."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, places = torch.sort(x, dim=dim, stable=True)
    rank = ((~torch.isnan(x)).sum(dim, keepdim=True) - 1).clamp(min=0) // 2
    return _one_of(values, places, dim, rank, keepdim)


def nanmedian_of_all(x: Tensor) -> Tensor:
    empty = any(isinstance(n, int) and n == 0 for n in x.shape)
    return x.new_full((), math.nan) if empty else nanmedian(x.flatten(), 0)[0]


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The positions of the first `size` elements that are not zero, [size, rank], padded with `fill_value`."""
    flat = (x != 0).flatten()
    rank = torch.cumsum(flat.to(torch.int64), 0) - 1
    # elements that are not requested go to one more entry
    rank = torch.where(flat & (rank < size), rank, size)
    positions = torch.full((size + 1,), -1, dtype=torch.int64).scatter(0, rank, torch.arange(flat.shape[0]))[:size]
    columns: list[Tensor] = []
    place = positions
    for n in reversed(x.shape):
        columns.append(torch.where(positions < 0, fill_value, place % max(n, 1)))
        place = place // max(n, 1)
    return torch.stack(columns[::-1], 1) if columns else positions.new_empty((size, 0))


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return x.flatten().index_put((index.flatten(),), source.flatten(), accumulate).reshape(x.shape)


def pdist(x: Tensor, p: float = 2) -> Tensor:
    """Distances of all pairs of rows, in order."""
    n = x.shape[0]
    # triu_indices would fix an open size at the example's
    if isinstance(n, torch.SymInt):
        first, second = torch.ones(n, n, dtype=torch.bool).triu(1).nonzero().unbind(1)
    else:
        first, second = torch.triu_indices(n, n, 1).unbind(0)
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


def nextafter(x: Tensor, y: Tensor) -> Tensor:
    """The next number after `x` towards `y`: floats are ordered as the integers of their bits."""
    x, y = torch.broadcast_tensors(x, y)
    kind = _BITS[x.dtype]
    bits = x.contiguous().view(kind)
    step = torch.where((y > x) == (x > 0), bits + 1, bits - 1)
    smallest = torch.where(y > 0, 1, torch.iinfo(kind).min + 1).to(kind)
    value = torch.where(x == 0, smallest, step).view(x.dtype)
    return torch.where(x == y, y, torch.where(torch.isnan(x) | torch.isnan(y), math.nan, value))


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """(m, e) with x = m 2^e and 1/2 <= |m| < 1; (x, 0) for 0, infinities and NaN."""
    v = (x if x.dtype == torch.float64 else x.float()).contiguous()
    digits, bias, kind = (52, 1022, torch.int64) if v.dtype == torch.float64 else (23, 126, torch.int32)
    small = v.abs() < torch.finfo(v.dtype).tiny
    bits = torch.where(small, v * 2.0**digits, v).view(kind)
    field = (2 * bias + 3) << digits
    exponent = ((bits & field) >> digits) - bias - torch.where(small, digits, 0).to(kind)
    mantissa = ((bits & ~field) | (bias << digits)).view(v.dtype)
    plain = (v == 0) | ~torch.isfinite(v)
    return torch.where(plain, v, mantissa).to(x.dtype), torch.where(plain, 0, exponent).to(torch.int32)


def fractional_max_pool(
    x: Tensor, kernel: Sequence[int], output: Sequence[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Maxima of windows at random positions given by `samples` (N, C, axes), and their indices (Graham 2014).

    x is (N, C, *S) or (C, *S). For two axes, the samples are in reverse order, as in PyTorch.
    """
    n = len(kernel)
    planes = x if x.dim() > n + 1 else x.unsqueeze(0)
    space = planes.shape[2:]
    # a layer may hold more samples than there are planes
    columns = samples[: planes.shape[0]].unbind(-1)
    samples_by_axis = columns[::-1] if n == 2 else columns
    place = torch.zeros((), dtype=torch.int64)
    for axis, (size, window, count, sample) in enumerate(zip(space, kernel, output, samples_by_axis, strict=True)):
        starts = _interval_starts(size - window, count, sample)
        indices = starts.unsqueeze(-1) + torch.arange(window)
        shape = [1] * (2 * n)
        shape[axis], shape[n + axis] = count, window
        place = place * size + indices.reshape(*planes.shape[:2], *shape)
    place = place.flatten(2 + n)
    windows = planes.flatten(2).gather(2, place.flatten(2)).reshape(place.shape)
    values, best = windows.max(-1)
    places = place.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    return (values, places) if planes is x else (values.squeeze(0), places.squeeze(0))


def _interval_starts(last: int, count: int, sample: Tensor) -> Tensor:
    """The starts of `count` windows [..., count], the last at `last`; sample: a number from 0 to 1 for each row."""
    if count < 2:
        return torch.full((*sample.shape, count), last)
    alpha = sample.new_full((), last) / sample.new_full((), count - 1)
    first = sample.unsqueeze(-1)
    starts = ((torch.arange(count - 1) + first) * alpha).to(torch.int64) - (first * alpha).to(torch.int64)
    return torch.cat([starts, torch.full_like(starts[..., :1], last)], -1)


def hash_tensor(x: Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Tensor:
    """The exclusive or of all elements as 64 bits, floats as doubles, by combining halves log2(n) times."""
    bits = x.to(torch.float64).view(torch.int64) if x.is_floating_point() else x.to(torch.int64)
    axes = sorted(d % max(x.dim(), 1) for d in dim or range(x.dim()))
    if x.dim():
        kept_axes = [i for i in range(x.dim()) if i not in axes]
        bits = bits.permute(*kept_axes, *axes).flatten(len(kept_axes))
    else:
        bits = bits.reshape(1)
    if not bits.shape[-1]:
        bits = F.pad(bits, (0, 1))
    while (n := bits.shape[-1]) > 1:
        bits = bits[..., : n // 2] ^ bits[..., n // 2 :] if n % 2 == 0 else F.pad(bits, (0, 1))
    hashed = bits.squeeze(-1)
    for axis in axes if keepdim and x.dim() else ():
        hashed = hashed.unsqueeze(axis)
    return hashed.view(torch.uint64)


def embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The rows at `indices`, scaled down to norm `max_norm` where theirs is larger."""
    named = torch.zeros(weight.shape[0], dtype=torch.bool).index_fill(0, indices.flatten(), True)
    norms = torch.linalg.vector_norm(weight, norm_type, -1)
    scale = torch.where(named & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
    return weight * scale[:, None]


def determinant(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(the determinant, LU, pivots) of (..., n, n); for complex numbers only the determinant is computed."""
    if x.is_complex():
        return torch.linalg.eigvals(x).prod(-1), *_unfactored(x)
    lu, pivots = _factored(x)
    return _parity(pivots).to(x.dtype) * _diagonal(lu).prod(-1), lu, pivots


def log_determinant(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(the determinant's sign, the logarithm of its magnitude, LU, pivots) of (..., n, n)."""
    if x.is_complex():
        values = torch.linalg.eigvals(x)
        return values.sgn().prod(-1), values.abs().log().sum(-1), *_unfactored(x)
    lu, pivots = _factored(x)
    diagonal = _diagonal(lu)
    sign = _parity(pivots).to(x.dtype) * diagonal.sign().prod(-1)
    return sign, diagonal.abs().log().sum(-1), lu, pivots


def _factored(x: Tensor) -> tuple[Tensor, Tensor]:
    """LU and pivots of x's transpose where x is row-major, as LAPACK is column-major: gradients use these factors."""
    lu, pivots, _ = torch.linalg.lu_factor_ex(x.mT if x.is_contiguous() else x)
    return lu, pivots


def _unfactored(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(x), torch.zeros(x.shape[:-1], dtype=torch.int32)


def _diagonal(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1)


def _parity(pivots: Tensor) -> Tensor:
    is_swapped = pivots != torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1 - 2 * (is_swapped.sum(-1) % 2)


def each_alone() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """The ops of `foreach` optimizers on lists of tensors, one tensor at a time, as torch's generic kernels do."""
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    names = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::_foreach_")}
    packets = [getattr(torch.ops.aten, name.removeprefix("aten::")) for name in sorted(names)]
    overloads = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return {op: partial(op._op_dk, key) for op in overloads if not op._schema.is_mutable}
