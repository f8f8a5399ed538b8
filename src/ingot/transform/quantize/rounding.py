"""Choose the rounding of each value: its range, and how far outliers move to the weights, by trial on some samples.

SmoothQuant (Xiao et al., arXiv 2211.10438), which for convolutions is cross-layer equalization: channels are divided by
max|x|^a / max|w|^(1 - a) and weights multiplied by it. The division is fused with the rounding of the value, so that
the preceding op stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.support import progress
from ingot.transform.quantize.formats import DYNAMIC, LEVELS, PAIRED, SHARED_STATIC, Rounding, smooth_weights
from ingot.transform.quantize.ranges import MAX_ENTRIES, MAX_LEVEL, METHODS, Levels, ValueStats, levels_between
from ingot.transform.quantize.sites import Group, Site
from ingot.transform.quantize.weights import quantize_channels

SMOOTHINGS = (0.5, 0.75, 0.9)
WINDOWS_PER_ENTRY = 256 // MAX_ENTRIES  # windows of a batch entry for trials of convolutions
_MAX_FACTOR_RATIO = 1e4  # relative to the geometric mean of the factors
# factors for channels cost time: they are used only if the plain error is larger than this, and larger by this ratio
_NEGLIGIBLE_ERROR, _MIN_GAIN = 3e-5, 1.3


def roundings(
    groups: Sequence[Group], stats: Mapping[str, ValueStats], formats: Sequence[str], methods: Sequence[str] = METHODS
) -> dict[tuple[str, str], Rounding]:
    """The best rounding for each group and each format that rounds values."""
    out: dict[tuple[str, str], Rounding] = {}
    for i, group in enumerate(groups):
        progress.report("round", i, len(groups))
        group_stats = stats[group.name]
        if not group_stats.is_usable:
            continue
        if group.is_recurrent:
            if DYNAMIC in formats:
                out[group.name, DYNAMIC] = Rounding(error=max(_weights_error(site) for site in group.sites))
            continue
        if PAIRED in formats:
            error = max(_weights_error(site) for site in group.sites)
            out[group.name, PAIRED] = Rounding(levels=group_stats.levels("minmax"), error=error)
        forms = [f for f in LEVELS if f in formats and f != PAIRED and (f != SHARED_STATIC or group.is_shared)]
        trial = _Trial(group, group_stats) if forms else None
        for form in forms if trial else ():
            assert trial is not None
            candidates = [trial.with_error(r) for r in _candidates(group, group_stats, form, methods)]
            plain = min((r for r in candidates if r.factors is None), key=lambda r: r.error)
            best = min(candidates, key=lambda r: r.error)
            out[group.name, form] = plain if plain.error < max(_NEGLIGIBLE_ERROR, _MIN_GAIN * best.error) else best
    return out


def _weights_error(site: Site) -> float:
    """The relative squared error of rounding the weights alone."""
    w = site.weight()
    squared_error = np.square(quantize_channels(site, w).value(site) - w, dtype=np.float64).sum()
    return float(squared_error / max(np.square(w, dtype=np.float64).sum(), 1e-300))


def _candidates(group: Group, stats: ValueStats, form: str, methods: Sequence[str]) -> list[Rounding]:
    plain = [Rounding()] if form == DYNAMIC else [Rounding(m, levels=stats.levels(m)) for m in methods]
    distinct: dict[Levels | None, Rounding] = {}
    for r in plain:
        distinct.setdefault(r.levels, r)
    out = list(distinct.values())
    # other readers of a shared value cannot take its factors; tied weights must have the same form in all groups
    if form == SHARED_STATIC or group.tied:
        return out
    for smoothing in SMOOTHINGS:
        factors = _factors(group, stats, smoothing)
        levels = None if form == DYNAMIC else stats.levels("minmax", factors)
        out.append(Rounding("minmax", smoothing, levels, factors))
    return out


def _factors(group: Group, stats: ValueStats, smoothing: float) -> np.ndarray:
    x = stats.max_magnitudes().astype(np.float64)
    w = np.max([_largest(site, group.channels) for site in group.sites], axis=0)
    is_nonzero = (x > 0) & (w > 0)
    s = np.where(is_nonzero, np.maximum(x, 1e-30) ** smoothing / np.maximum(w, 1e-30) ** (1 - smoothing), 1.0)
    s[is_nonzero] /= np.exp(np.log(s[is_nonzero]).mean()) if is_nonzero.any() else 1.0
    return (1 / np.clip(s, 1 / _MAX_FACTOR_RATIO, _MAX_FACTOR_RATIO)).astype(np.float32)


def _largest(site: Site, channels: int) -> np.ndarray:
    """The largest magnitude among the weights of each channel of the value."""
    magnitude, at = np.abs(site.weight()), site.axes.contracted[1]
    if site.axes.groups == 1:
        return magnitude.max(axis=tuple(d for d in range(magnitude.ndim) if d != at)).astype(np.float64)
    rows = np.moveaxis(magnitude, (site.axes.out, at), (0, 1)).reshape(site.channels, magnitude.shape[at], -1).max(-1)
    return rows.reshape(site.axes.groups, -1, rows.shape[1]).max(axis=1).reshape(channels).astype(np.float64)


class _Trial:
    """A group's products on sampled parts of its value."""

    def __init__(self, group: Group, stats: ValueStats) -> None:
        self.group = group
        # rows of all parts are concatenated; batch entries of images stay separate
        parts = [np.concatenate(stats.parts)] if group.is_matrices else stats.parts
        self.operands = [(site, *_operand(site, x, group)) for x in parts for site in group.sites]
        self.exact = [_product(site, x, site.weight(), group.is_matrices) for site, x, _ in self.operands]
        self.squares = sum(float(np.square(y, dtype=np.float64).sum()) for y in self.exact)
        self._weights: dict[bytes, dict[str, np.ndarray]] = {}

    def with_error(self, rounding: Rounding) -> Rounding:
        """`rounding` with its error."""
        factors, error = rounding.factors, 0.0
        key = b"" if factors is None else factors.tobytes()
        if key not in self._weights:
            self._weights[key] = {
                s.name: quantize_channels(s, smooth_weights(s, factors)).value(s) for s in self.group.sites
            }
        for (site, x, axis), exact in zip(self.operands, self.exact, strict=True):
            if factors is not None:
                x = x * factors.reshape([-1 if d == axis else 1 for d in range(x.ndim)])
            x = round_values(x, rounding.levels or levels_between(float(x.min()), float(x.max())))
            y = _product(site, x, self._weights[key][site.name], self.group.is_matrices)
            error += float(np.square(y - exact, dtype=np.float64).sum())
        return replace(rounding, error=error / self.squares if self.squares else error)


def round_values(x: np.ndarray, levels: Levels) -> np.ndarray:
    q = np.clip(np.rint(x / np.float32(levels.scale)) + levels.zero, 0, MAX_LEVEL)
    return ((q - levels.zero) * np.float32(levels.scale)).astype(np.float32)


def _operand(site: Site, x: np.ndarray, group: Group) -> tuple[np.ndarray, int]:
    """The operand of the weights, as rows or as windows of some positions, and its channel axis."""
    if group.is_matrices:
        return x, 1
    op = site.node.op
    return (windows(op, x, site.node.inputs[1].type.shape[2:]), 1) if isinstance(op, ops.Conv) else (x, group.axis)


def windows(op: ops.Conv, x: np.ndarray, kernel: Sequence[DimLike]) -> np.ndarray:
    """[positions, C, *kernel] of x[N, C, *sizes]: the windows of up to WINDOWS_PER_ENTRY outputs of each entry."""
    sizes = [int(k) for k in kernel]  # type: ignore[arg-type]
    x = np.pad(x, [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in op.padding)])
    cut = (slice(max(-low, 0), n - max(-high, 0)) for (low, high), n in zip(op.padding, x.shape[2:], strict=True))
    x = x[(slice(None), slice(None), *cut)]
    spans = [(k - 1) * d + 1 for k, d in zip(sizes, op.dilation, strict=True)]
    counts = [(n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, op.strides, strict=True)]
    total = int(np.prod(counts))
    places = np.unravel_index(np.linspace(0, total - 1, min(total, WINDOWS_PER_ENTRY)).astype(np.int64), counts)
    at = []
    for axis, (place, stride, dilation, size) in enumerate(zip(places, op.strides, op.dilation, sizes, strict=True)):
        inside = (np.arange(size) * dilation).reshape([-1 if d == axis else 1 for d in range(len(sizes))])
        at.append((place * stride).reshape(-1, *(1,) * len(sizes)) + inside)
    patches = x[(slice(None), slice(None), *at)]  # [N, C, positions, *kernel]
    return np.moveaxis(patches, 2, 1).reshape(-1, x.shape[1], *sizes)


def _product(site: Site, x: np.ndarray, w: np.ndarray, rows: bool) -> np.ndarray:
    """The product of rows or windows with the weights, in f32: faster than the exact reference."""
    if rows:
        return np.tensordot(x, w, ((1,), (site.axes.contracted[1],)))
    if not isinstance(site.node.op, ops.Conv):
        y = site.node.op.reference(x, w)
        assert isinstance(y, np.ndarray)
        return y
    groups = site.axes.groups
    grouped = x.reshape(len(x), groups, -1).transpose(1, 0, 2)
    return np.matmul(grouped, w.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1))
