"""How each value is rounded: the range, and how much of its outliers goes to the weights, tried on a part of a sample.

SmoothQuant (Xiao et al., arXiv 2211.10438), which for convolutions is cross-layer equalization: channels are divided by
max|x|^a / max|w|^(1 - a) and weights multiplied with it. The division is one with what rounds the value, so that it
asks nothing of the op before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.support import progress
from ingot.transform.quantize.formats import DYNAMIC, LEVELS, PAIRED, SHARED, Rounding, smoothed
from ingot.transform.quantize.ranges import ENTRIES, LAST, METHODS, Levels, Seen, spread
from ingot.transform.quantize.sites import Group, Site
from ingot.transform.quantize.weights import by_channel

SMOOTHINGS = (0.5, 0.75, 0.9)
WINDOWS = 256 // ENTRIES  # of an entry of an image that convolutions are tried on
_FARTHEST = 1e4  # of factors from their mean
# factors for channels cost time, most where values were only moved as bytes before: they must gain something
_ENOUGH, _LITTLE = 3e-5, 1.3


def roundings(
    groups: Sequence[Group], seen: Mapping[str, Seen], formats: Sequence[str], methods: Sequence[str] = METHODS
) -> dict[tuple[str, str], Rounding]:
    """The best of each group and format that rounds values."""
    out: dict[tuple[str, str], Rounding] = {}
    for i, group in enumerate(groups):
        progress.report("round", i, len(groups))
        own = seen[group.name]
        if not own.usable:
            continue
        if group.recurrent:
            if DYNAMIC in formats:
                out[group.name, DYNAMIC] = Rounding(error=max(_weights_error(site) for site in group.sites))
            continue
        if PAIRED in formats:
            off = max(_weights_error(site) for site in group.sites)
            out[group.name, PAIRED] = Rounding(levels=own.levels("minmax"), error=off)
        asked = [f for f in LEVELS if f in formats and f != PAIRED and (f != SHARED or group.shared)]
        tried = _Tried(group, own) if asked else None
        for form in asked if tried else ():
            assert tried is not None
            judged = [tried.judged(r) for r in _candidates(group, own, form, methods)]
            plain = min((r for r in judged if r.factors is None), key=lambda r: r.error)
            best = min(judged, key=lambda r: r.error)
            out[group.name, form] = plain if plain.error < max(_ENOUGH, _LITTLE * best.error) else best
    return out


def _weights_error(site: Site) -> float:
    """Of rounding the weights alone, squared, over their squares."""
    w = site.weight()
    off = np.square(by_channel(site, w).value(site) - w, dtype=np.float64).sum()
    return float(off / max(np.square(w, dtype=np.float64).sum(), 1e-300))


def _candidates(group: Group, seen: Seen, form: str, methods: Sequence[str]) -> list[Rounding]:
    plain = [Rounding()] if form == DYNAMIC else [Rounding(m, levels=seen.levels(m)) for m in methods]
    unlike: dict[Levels | None, Rounding] = {}
    for r in plain:
        unlike.setdefault(r.levels, r)
    out = list(unlike.values())
    # others do not read products of channels and factors; weights of several groups have one form
    if form == SHARED or group.tied:
        return out
    for smoothing in SMOOTHINGS:
        factors = _factors(group, seen, smoothing)
        levels = None if form == DYNAMIC else seen.levels("minmax", factors)
        out.append(Rounding("minmax", smoothing, levels, factors))
    return out


def _factors(group: Group, seen: Seen, smoothing: float) -> np.ndarray:
    x = seen.largest().astype(np.float64)
    w = np.max([_largest(site, group.channels) for site in group.sites], axis=0)
    known = (x > 0) & (w > 0)
    s = np.where(known, np.maximum(x, 1e-30) ** smoothing / np.maximum(w, 1e-30) ** (1 - smoothing), 1.0)
    s[known] /= np.exp(np.log(s[known]).mean()) if known.any() else 1.0
    return (1 / np.clip(s, 1 / _FARTHEST, _FARTHEST)).astype(np.float32)


def _largest(site: Site, channels: int) -> np.ndarray:
    """The largest weight that each channel of the value meets."""
    magnitude, at = np.abs(site.weight()), site.axes.summed[1]
    if site.axes.groups == 1:
        return magnitude.max(axis=tuple(d for d in range(magnitude.ndim) if d != at)).astype(np.float64)
    rows = np.moveaxis(magnitude, (site.axes.out, at), (0, 1)).reshape(site.channels, magnitude.shape[at], -1).max(-1)
    return rows.reshape(site.axes.groups, -1, rows.shape[1]).max(axis=1).reshape(channels).astype(np.float64)


class _Tried:
    """A group's products on a part of a sample."""

    def __init__(self, group: Group, seen: Seen) -> None:
        self.group = group
        # rows of all parts side by side; entries of images one after the other
        parts = [np.concatenate(seen.parts)] if group.plain else seen.parts
        self.operands = [(site, *_operand(site, x, group)) for x in parts for site in group.sites]
        self.exact = [_product(site, x, site.weight(), group.plain) for site, x, _ in self.operands]
        self.squares = sum(float(np.square(y, dtype=np.float64).sum()) for y in self.exact)
        self._weights: dict[bytes, dict[str, np.ndarray]] = {}

    def judged(self, rounding: Rounding) -> Rounding:
        """`rounding` with its error."""
        factors, off = rounding.factors, 0.0
        key = b"" if factors is None else factors.tobytes()
        if key not in self._weights:
            self._weights[key] = {s.name: by_channel(s, smoothed(s, factors)).value(s) for s in self.group.sites}
        for (site, x, axis), exact in zip(self.operands, self.exact, strict=True):
            if factors is not None:
                x = x * factors.reshape([-1 if d == axis else 1 for d in range(x.ndim)])
            x = rounded(x, rounding.levels or spread(float(x.min()), float(x.max())))
            y = _product(site, x, self._weights[key][site.name], self.group.plain)
            off += float(np.square(y - exact, dtype=np.float64).sum())
        return replace(rounding, error=off / self.squares if self.squares else off)


def rounded(x: np.ndarray, levels: Levels) -> np.ndarray:
    q = np.clip(np.rint(x / np.float32(levels.scale)) + levels.zero, 0, LAST)
    return ((q - levels.zero) * np.float32(levels.scale)).astype(np.float32)


def _operand(site: Site, x: np.ndarray, group: Group) -> tuple[np.ndarray, int]:
    """What is multiplied with the weights, and its axis of channels: rows, or windows of some positions."""
    if group.plain:
        return x, 1
    op = site.node.op
    return (windows(op, x, site.node.inputs[1].type.shape[2:]), 1) if isinstance(op, ops.Conv) else (x, group.axis)


def windows(op: ops.Conv, x: np.ndarray, kernel: Sequence[DimLike]) -> np.ndarray:
    """[positions, C, *kernel] of x[N, C, *sizes]: what up to WINDOWS outputs of each entry are sums of."""
    sizes = [int(k) for k in kernel]  # type: ignore[arg-type]
    x = np.pad(x, [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in op.padding)])
    cut = (slice(max(-low, 0), n - max(-high, 0)) for (low, high), n in zip(op.padding, x.shape[2:], strict=True))
    x = x[(slice(None), slice(None), *cut)]
    spans = [(k - 1) * d + 1 for k, d in zip(sizes, op.dilation, strict=True)]
    counts = [(n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, op.strides, strict=True)]
    total = int(np.prod(counts))
    places = np.unravel_index(np.linspace(0, total - 1, min(total, WINDOWS)).astype(np.int64), counts)
    at = []
    for axis, (place, stride, dilation, size) in enumerate(zip(places, op.strides, op.dilation, sizes, strict=True)):
        inside = (np.arange(size) * dilation).reshape([-1 if d == axis else 1 for d in range(len(sizes))])
        at.append((place * stride).reshape(-1, *(1,) * len(sizes)) + inside)
    taken = x[(slice(None), slice(None), *at)]  # [N, C, positions, *kernel]
    return np.moveaxis(taken, 2, 1).reshape(-1, x.shape[1], *sizes)


def _product(site: Site, x: np.ndarray, w: np.ndarray, rows: bool) -> np.ndarray:
    """Of rows or windows and the weights, which is fast: f32, where a reference is exact."""
    if rows:
        return np.tensordot(x, w, ((1,), (site.axes.summed[1],)))
    if not isinstance(site.node.op, ops.Conv):
        y = site.node.op.reference(x, w)
        assert isinstance(y, np.ndarray)
        return y
    groups = site.axes.groups
    own = x.reshape(len(x), groups, -1).transpose(1, 0, 2)
    return np.matmul(own, w.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1))
