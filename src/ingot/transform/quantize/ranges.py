"""The range of a value that the 256 levels cover: statistics from calibration, and four methods to choose the range.

- minmax: the full observed range.
- percentile: all but the outermost 0.01% of the elements on each side.
- entropy: the range whose levels' distribution is nearest to the values' (Kullback-Leibler; Migacz, GTC 2017).
- mse: the range with the least mean squared error of rounding and clipping.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from ingot.support.dataclass import dataclass

METHODS = ("minmax", "percentile", "entropy", "mse")
BIN_COUNT, MAX_LEVEL = 2048, 255
MAX_PARTS, ROWS_PER_PART = 4, 32  # calls whose values are sampled for trying roundings, and the rows of each
MAX_ENTRIES = 2  # batch entries sampled of images: the first, and the one with the largest magnitude
_TAIL_FRACTION = 1e-4
_CUT_FRACTIONS = np.linspace(0.2, 1.0, 41)


@dataclass(frozen=True)
class Levels:
    """u8 levels of a value: (level - zero) * scale."""

    scale: float
    zero: int

    def sublevels(self) -> Levels:
        """The levels of the residual, which is between two levels."""
        return Levels(float(np.float32(self.scale / (MAX_LEVEL + 1))), (MAX_LEVEL + 1) // 2)


@dataclass
class ValueStats:
    """Statistics of a value over the samples, from two passes: bounds and channels first, then a histogram."""

    low: float = np.inf
    high: float = -np.inf
    finite: bool = True
    count: int = 0  # of positions, each with all channels
    lows: NDArray[np.float32] | None = None  # by channel
    highs: NDArray[np.float32] | None = None
    total: NDArray[np.float64] | None = None
    parts: list[NDArray[np.float32]] = field(default_factory=list)  # samples: rows of some calls, or batch entries
    extreme: float = 0.0  # the magnitude of the second part
    bins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BIN_COUNT, np.int64))

    def add_bounds(self, x: np.ndarray, axis: int, plain: bool) -> None:
        """The first pass. plain: whether only matrices read the value, so that its parts are rows."""
        if x.size == 0:
            return
        rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
        lows, highs, total = rows.min(axis=0), rows.max(axis=0), rows.sum(axis=0, dtype=np.float64)
        if not np.isfinite(lows).all() or not np.isfinite(highs).all():
            self.finite = False
            return
        if self.lows is None or self.highs is None or self.total is None:
            self.lows, self.highs, self.total = lows, highs, total
        else:
            lows, highs, total = np.minimum(self.lows, lows), np.maximum(self.highs, highs), self.total + total
            self.lows, self.highs, self.total = lows, highs, total
        self.low, self.high = float(lows.min()), float(highs.max())
        if not plain:
            self._keep_entry(x, axis, float(np.maximum(-lows, highs).max()))
        elif len(self.parts) < MAX_PARTS:
            self.parts.append(rows[:: max(1, len(rows) // ROWS_PER_PART)][:ROWS_PER_PART].copy())
        self.count += len(rows)

    def _keep_entry(self, x: np.ndarray, axis: int, largest: float) -> None:
        """Keep the first entry, and the one with the largest magnitude."""
        if not self.parts:
            self.parts.append((x if axis == 0 else x[:1]).copy())
        if largest <= self.extreme:
            return
        at = 0 if axis == 0 else int(np.abs(x).reshape(len(x), -1).max(axis=1).argmax())
        self.extreme = largest
        del self.parts[1:]
        if self.count or at:
            self.parts.append((x if axis == 0 else x[at : at + 1]).copy())

    def add_histogram(self, x: np.ndarray) -> None:
        """The second pass."""
        if self.is_usable and self.high > self.low:
            at = (x.reshape(-1) - np.float32(self.low)) * np.float32(BIN_COUNT / (self.high - self.low))
            self.bins += np.bincount(np.clip(at, 0, BIN_COUNT - 1).astype(np.int32), minlength=BIN_COUNT)

    @property
    def is_usable(self) -> bool:
        return self.finite and self.count > 0

    def mean(self) -> NDArray[np.float64]:
        """The mean of each channel."""
        assert self.total is not None
        return self.total / max(self.count, 1)

    def max_magnitudes(self) -> NDArray[np.float32]:
        """The largest magnitude of each channel."""
        assert self.lows is not None and self.highs is not None
        return np.maximum(np.abs(self.lows), np.abs(self.highs))

    def levels(self, method: str, factors: NDArray[np.float32] | None = None) -> Levels:
        """The levels for a method. factors: the factor of each channel; given these, the full range is covered."""
        if factors is None:
            return levels_between(*_range(method, self.bins, self.low, self.high))
        assert self.lows is not None and self.highs is not None
        return levels_between(float((self.lows * factors).min()), float((self.highs * factors).max()))


def levels_between(low: float, high: float) -> Levels:
    """Levels from `low` to `high`; 0 is one of them exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / (MAX_LEVEL))
    if not scale >= np.finfo(np.float32).tiny:
        return Levels(1.0, 0)
    return Levels(float(scale), int(np.clip(np.rint(-low / scale), 0, MAX_LEVEL)))


def _range(method: str, bins: NDArray[np.int64], low: float, high: float) -> tuple[float, float]:
    total = int(bins.sum())
    if method == "minmax" or total == 0 or not high > low:
        return low, high
    edges = np.linspace(low, high, BIN_COUNT + 1)
    if method == "percentile":
        cumulative = np.cumsum(bins)
        first = int(np.searchsorted(cumulative, _TAIL_FRACTION * total, side="right"))
        last = int(np.searchsorted(cumulative, (1 - _TAIL_FRACTION) * total, side="left"))
        return float(edges[min(first, BIN_COUNT - 1)]), float(edges[min(last, BIN_COUNT - 1) + 1])
    centers = (edges[:-1] + edges[1:]) / 2
    cost = _squared_error if method == "mse" else _divergence
    cuts = [(low * c, high * c) for c in _CUT_FRACTIONS]
    return min(reversed(cuts), key=lambda cut: cost(bins, centers, *cut))


def _squared_error(bins: NDArray[np.int64], centers: NDArray[np.float64], low: float, high: float) -> float:
    """The sum of squared errors, with all elements of a bin at its center."""
    levels = levels_between(low, high)
    q = np.clip(np.rint(centers / levels.scale) + levels.zero, 0, MAX_LEVEL)
    bin_error = levels.scale**2 / 12  # what a bin's width hides of the rounding
    return float((bins * (((q - levels.zero) * levels.scale - centers) ** 2 + bin_error)).sum())


def _divergence(bins: NDArray[np.int64], centers: NDArray[np.float64], low: float, high: float) -> float:
    """The divergence of the levels' distribution from the histogram with its tails moved to the ends."""
    levels = levels_between(low, high)
    level_index = np.clip(np.rint(centers / levels.scale) + levels.zero, 0, MAX_LEVEL).astype(np.int64)
    is_inside = (centers >= min(low, 0.0)) & (centers <= max(high, 0.0))
    if not is_inside.any():
        return np.inf
    p = np.where(is_inside, bins, 0).astype(np.float64)
    first, last = np.flatnonzero(is_inside)[[0, -1]]
    p[first] += bins[:first].sum()
    p[last] += bins[last + 1 :].sum()
    is_counted = is_inside & (bins > 0)
    mass = np.bincount(level_index[is_counted], bins[is_counted], MAX_LEVEL + 1)
    width = np.bincount(level_index[is_counted], minlength=MAX_LEVEL + 1)
    q = np.where(is_counted, (mass / np.maximum(width, 1))[level_index], 0.0)
    p, q = p / p.sum(), q / max(q.sum(), 1e-300)
    is_positive = p > 0
    return float((p[is_positive] * np.log(p[is_positive] / np.maximum(q[is_positive], 1e-12))).sum())
