"""Round weights to levels of 8 or 4 bits: per output channel, or in blocks along the sum, optionally with error
feedback.

GPTQ (Frantar et al., arXiv 2210.17323): weights are rounded column by column along the sum. The columns that are not
rounded yet compensate for the error of each column, weighted by the values' second moments X^T X.
"""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Node, const
from ingot.ir.types import i8, u4, u8
from ingot.support.dataclass import dataclass
from ingot.transform.quantize.sites import Site

BLOCK_SIZE = 32
_SHRINK_FACTORS = np.linspace(0.7, 1.0, 13)
_PANEL_COLUMNS = 32  # the errors of so many columns are applied to the remaining ones at a time
_DAMPING_FRACTION = 0.01  # relative to the mean second moment, so that the inverse exists


@dataclass(frozen=True)
class Channels:
    """i8 levels in the shape of the weights. scale: per output channel."""

    q: np.ndarray
    scale: np.ndarray

    def node(self, site: Site) -> Node:
        scale = const(site.per_channel(self.scale))
        return ops.Dequantize()(const(self.q), ops.scalar(0, i8), scale, loc=site.node.inputs[1].loc)

    def value(self, site: Site) -> np.ndarray:
        return self.q.astype(np.float32) * site.per_channel(self.scale)

    @property
    def nbytes(self) -> int:
        return self.q.size + 4 * self.scale.size


@dataclass(frozen=True)
class Blocks:
    """Levels of `bits` bits of a matrix as q[channel, block, index], with zeros and scales [channel, block, 1]. depth:
    the length of the sum, without the padding of the last block."""

    bits: int
    q: np.ndarray
    zero: np.ndarray
    scale: np.ndarray
    depth: int

    def node(self, site: Site) -> Node:
        """The matrix with its axes in the model's order."""
        kind = (u4 if self.bits == 4 else u8).numpy
        loc = site.node.inputs[1].loc
        w = ops.Dequantize()(const(self.q.astype(kind)), const(self.zero.astype(kind)), const(self.scale), loc=loc)
        w = ops.slice_axis(ops.reshape(w, (self.q.shape[0], -1)), 1, 0, self.depth)
        return w if site.axes.out == 0 else ops.transpose(w, (1, 0))

    def value(self, site: Site) -> np.ndarray:
        w = (self.q.astype(np.float32) - self.zero.astype(np.float32)) * self.scale
        w = w.reshape(len(w), -1)[:, : self.depth]
        return w if site.axes.out == 0 else w.T

    @property
    def nbytes(self) -> int:
        return self.q.size * self.bits // 8 + self.zero.size * self.bits // 8 + 4 * self.scale.size


Quantized = Channels | Blocks


def quantize_channels(site: Site, w: np.ndarray, upper: np.ndarray | None = None) -> Channels:
    """Symmetric levels with the largest weight of each output channel at 127. upper: for a matrix, the
    `feedback_factor` of the moments of its operand."""
    largest = np.abs(site.by_channel(w)).max(axis=1)
    scale = np.where(largest > 0, largest / np.float32(127), 1).astype(np.float32)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    if upper is None:
        q = np.clip(np.rint(w / site.per_channel(scale)), -127, 127)
    else:
        rows, steps = w if site.axes.out == 0 else w.T, scale[:, None, None]
        middle = np.full_like(steps, 128)
        q = np.maximum(_round_with_feedback(rows, steps, middle, 8, rows.shape[1], upper) - 128, -127)
        q = q if site.axes.out == 0 else q.T
    return Channels(q.astype(np.int8), scale)


def quantize_blocks(
    site: Site, w: np.ndarray, bits: int, upper: np.ndarray | None = None, block: int = BLOCK_SIZE
) -> Blocks:
    """Asymmetric levels in blocks along the sum. upper: the `feedback_factor` of the moments of the operand."""
    rows = w if site.axes.out == 0 else w.T
    n, depth = rows.shape
    count = -(-depth // block)
    padded = np.zeros((n, count * block), np.float32)
    padded[:, :depth] = rows
    scale, zero = _fit_blocks(padded.reshape(n, count, block), bits)
    if upper is None:
        q = _round(padded.reshape(n, count, block), scale, zero, bits)
    else:
        q = _round_with_feedback(padded, scale, zero, bits, block, upper).reshape(n, count, block)
    return Blocks(bits, q.astype(np.uint8), zero.astype(np.uint8), scale, depth)


def _round(w: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int) -> np.ndarray:
    return np.clip(np.rint(w / scale) + zero, 0, (1 << bits) - 1)


def _fit_blocks(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The scale and zero of each block: its range, shrunk to the least squared error."""
    top = (1 << bits) - 1
    low, high = np.minimum(blocks.min(-1, keepdims=True), 0), np.maximum(blocks.max(-1, keepdims=True), 0)
    best: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for shrink in _SHRINK_FACTORS[::-1] if bits < 8 else (1.0,):
        scale = ((high - low) * np.float32(shrink / top)).astype(np.float32)
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, np.float32(1))
        zero = np.clip(np.rint(-low * np.float32(shrink) / scale), 0, top)
        error = (((_round(blocks, scale, zero, bits) - zero) * scale - blocks) ** 2).sum(-1, keepdims=True)
        if best is None:
            best = scale, zero, error
        else:
            better = error < best[2]
            best = tuple(np.where(better, a, b) for a, b in zip((scale, zero, error), best, strict=True))  # type: ignore[assignment]
    assert best is not None
    return best[0], best[1].astype(np.float32)


def _round_with_feedback(
    w: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int, block: int, upper: np.ndarray
) -> np.ndarray:
    """The levels of w[n, k], with scales and zeros per block. Columns beyond the size of `upper` are padding."""
    depth = len(upper)
    steps, zeros = (np.ascontiguousarray(p[:, :, 0].T) for p in (scale, zero))  # [block, n]
    remaining = np.array(w.T, np.float32, order="C")  # [k, n], so that a column of w is contiguous
    is_zero = remaining == 0  # pruned weights stay zero
    q = np.repeat(zeros, block, axis=0)[: len(remaining)]
    for start in range(0, depth, _PANEL_COLUMNS):
        stop = min(start + _PANEL_COLUMNS, depth)
        errors = np.empty((stop - start, len(w)), np.float32)
        for i in range(start, stop):
            s, z = steps[i // block], zeros[i // block]
            q[i] = np.where(is_zero[i], z, _round(remaining[i], s, z, bits))
            errors[i - start] = error = (remaining[i] - (q[i] - z) * s) / upper[i, i]
            remaining[i:stop] -= upper[i, i:stop, None] * error
        remaining[stop:depth] -= upper[start:stop, stop:].T @ errors
    return q.T


def feedback_factor(moments: np.ndarray) -> np.ndarray:
    """The factor that spreads a column's error over the following ones: the upper Cholesky factor of the inverse of the
    damped X^T X."""
    h = moments.astype(np.float64)
    diagonal = np.arange(len(h))
    mean = float(h[diagonal, diagonal].mean())
    h[diagonal, diagonal] += _DAMPING_FRACTION * mean if mean > 0 else 1.0
    # h = r r^T for an upper r, so that its inverse is u^T u for u = r^-1
    return _invert_upper(np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]).astype(np.float32)


def _invert_upper(upper: np.ndarray) -> np.ndarray:
    """The inverse of an upper triangular matrix, recursively by halves: a sixth of the work of a general inverse."""
    n = len(upper)
    if n <= 64:
        return np.linalg.inv(upper)
    a, d = _invert_upper(upper[: n // 2, : n // 2]), _invert_upper(upper[n // 2 :, n // 2 :])
    out = np.zeros_like(upper)
    out[: n // 2, : n // 2], out[n // 2 :, n // 2 :] = a, d
    out[: n // 2, n // 2 :] = -a @ upper[: n // 2, n // 2 :] @ d
    return out
