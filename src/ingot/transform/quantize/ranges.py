"""Which range of a value the 256 levels cover: what calibration has seen of it, and four ways to cut its tails.

- minmax: everything that was seen.
- percentile: all but the outermost 0.01% of the elements on each side.
- entropy: the cut whose levels' distribution is nearest to the values' (Kullback-Leibler; Migacz, GTC 2017).
- mse: the cut with the least mean squared error of rounding and cutting.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from ingot.support.dataclass import dataclass

METHODS = ("minmax", "percentile", "entropy", "mse")
BINS, LAST = 2048, 255
PARTS, ROWS = 4, 32  # calls of which a part is kept to try rounding on, and rows of each
ENTRIES = 2  # of images: the first, and that with the largest magnitude, which is cut most
_TAIL = 1e-4
_CUTS = np.linspace(0.2, 1.0, 41)


@dataclass(frozen=True)
class Levels:
    """u8 levels of a value: (level - zero) * scale."""

    scale: float
    zero: int

    def within(self) -> Levels:
        """Of what lies between two levels."""
        return Levels(float(np.float32(self.scale / (LAST + 1))), (LAST + 1) // 2)


@dataclass
class Seen:
    """What samples have shown of a value, over two walks: bounds and channels first, then a histogram within."""

    low: float = np.inf
    high: float = -np.inf
    finite: bool = True
    count: int = 0  # of positions, each with all channels
    lows: NDArray[np.float32] | None = None  # by channel
    highs: NDArray[np.float32] | None = None
    total: NDArray[np.float64] | None = None
    parts: list[NDArray[np.float32]] = field(default_factory=list)  # of the value: rows of some calls, or ENTRIES
    extreme: float = 0.0  # magnitude of what is in the second part
    bins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def bound(self, x: np.ndarray, axis: int, plain: bool) -> None:
        """The first walk. plain: only matrices read the value, so that a part of it is rows."""
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
        elif len(self.parts) < PARTS:
            self.parts.append(rows[:: max(1, len(rows) // ROWS)][:ROWS].copy())
        self.count += len(rows)

    def _keep_entry(self, x: np.ndarray, axis: int, largest: float) -> None:
        """The first, and the one of the largest magnitude."""
        if not self.parts:
            self.parts.append((x if axis == 0 else x[:1]).copy())
        if largest <= self.extreme:
            return
        at = 0 if axis == 0 else int(np.abs(x).reshape(len(x), -1).max(axis=1).argmax())
        self.extreme = largest
        del self.parts[1:]
        if self.count or at:
            self.parts.append((x if axis == 0 else x[at : at + 1]).copy())

    def fill(self, x: np.ndarray) -> None:
        """The second walk."""
        if self.usable and self.high > self.low:
            at = (x.reshape(-1) - np.float32(self.low)) * np.float32(BINS / (self.high - self.low))
            self.bins += np.bincount(np.clip(at, 0, BINS - 1).astype(np.int32), minlength=BINS)

    @property
    def usable(self) -> bool:
        return self.finite and self.count > 0

    def mean(self) -> NDArray[np.float64]:
        """By channel."""
        assert self.total is not None
        return self.total / max(self.count, 1)

    def largest(self) -> NDArray[np.float32]:
        """Magnitude by channel."""
        assert self.lows is not None and self.highs is not None
        return np.maximum(np.abs(self.lows), np.abs(self.highs))

    def levels(self, method: str, factors: NDArray[np.float32] | None = None) -> Levels:
        """factors: what each channel is multiplied with first; then all of the range is covered."""
        if factors is None:
            return spread(*_range(method, self.bins, self.low, self.high))
        assert self.lows is not None and self.highs is not None
        return spread(float((self.lows * factors).min()), float((self.highs * factors).max()))


def spread(low: float, high: float) -> Levels:
    """Levels from `low` to `high`; 0 is one of them exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / (LAST))
    if not scale >= np.finfo(np.float32).tiny:
        return Levels(1.0, 0)
    return Levels(float(scale), int(np.clip(np.rint(-low / scale), 0, LAST)))


def _range(method: str, bins: NDArray[np.int64], low: float, high: float) -> tuple[float, float]:
    total = int(bins.sum())
    if method == "minmax" or total == 0 or not high > low:
        return low, high
    edges = np.linspace(low, high, BINS + 1)
    if method == "percentile":
        below = np.cumsum(bins)
        first = int(np.searchsorted(below, _TAIL * total, side="right"))
        last = int(np.searchsorted(below, (1 - _TAIL) * total, side="left"))
        return float(edges[min(first, BINS - 1)]), float(edges[min(last, BINS - 1) + 1])
    centres = (edges[:-1] + edges[1:]) / 2
    cost = _squared if method == "mse" else _divergence
    cuts = [(low * c, high * c) for c in _CUTS]
    return min(reversed(cuts), key=lambda cut: cost(bins, centres, *cut))


def _squared(bins: NDArray[np.int64], centres: NDArray[np.float64], low: float, high: float) -> float:
    """The sum of squared errors where each bin's elements lie at its centre."""
    levels = spread(low, high)
    q = np.clip(np.rint(centres / levels.scale) + levels.zero, 0, LAST)
    within = levels.scale**2 / 12  # what a bin's width hides of the rounding
    return float((bins * (((q - levels.zero) * levels.scale - centres) ** 2 + within)).sum())


def _divergence(bins: NDArray[np.int64], centres: NDArray[np.float64], low: float, high: float) -> float:
    """Of what the levels say from what was seen, its tails moved to the ends."""
    levels = spread(low, high)
    at = np.clip(np.rint(centres / levels.scale) + levels.zero, 0, LAST).astype(np.int64)
    inside = (centres >= min(low, 0.0)) & (centres <= max(high, 0.0))
    if not inside.any():
        return np.inf
    p = np.where(inside, bins, 0).astype(np.float64)
    first, last = np.flatnonzero(inside)[[0, -1]]
    p[first] += bins[:first].sum()
    p[last] += bins[last + 1 :].sum()
    kept = inside & (bins > 0)
    mass = np.bincount(at[kept], bins[kept], LAST + 1)
    width = np.bincount(at[kept], minlength=LAST + 1)
    q = np.where(kept, (mass / np.maximum(width, 1))[at], 0.0)
    p, q = p / p.sum(), q / max(q.sum(), 1e-300)
    here = p > 0
    return float((p[here] * np.log(p[here] / np.maximum(q[here], 1e-12))).sum())
