"""Weights at levels of 8 or 4 bits: per output channel, or in blocks along the sum, with or without error feedback.

GPTQ (Frantar et al., arXiv 2210.17323): weights are rounded column by column along the sum, and what rounding one
column costs is made up for by those not rounded yet, as the values' second moments X^T X weigh it.
"""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Node, const
from ingot.ir.types import i8, u4, u8
from ingot.support.dataclass import dataclass
from ingot.transform.quantize.sites import Site

BLOCK = 32
_SHRINKS = np.linspace(0.7, 1.0, 13)
_PANEL = 32  # columns behind which the others learn of their errors
_DAMP = 0.01  # of the mean second moment, so that the inverse exists


@dataclass(frozen=True)
class Channels:
    """i8 levels of weights as the model has them; scale: by output channel."""

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
    """Levels of `bits` of a matrix as q[channel, block, place], zeros and scales [channel, block, 1]; depth: without
    what fills the last block."""

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


def by_channel(site: Site, w: np.ndarray, upper: np.ndarray | None = None) -> Channels:
    """Symmetric levels, the largest weight of each output channel at 127. upper: of a matrix, `feedback` of the moments
    of the values that meet it."""
    largest = np.abs(site.by_channel(w)).max(axis=1)
    scale = np.where(largest > 0, largest / np.float32(127), 1).astype(np.float32)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    if upper is None:
        q = np.clip(np.rint(w / site.per_channel(scale)), -127, 127)
    else:
        rows, steps = w if site.axes.out == 0 else w.T, scale[:, None, None]
        middle = np.full_like(steps, 128)
        q = np.maximum(_with_feedback(rows, steps, middle, 8, rows.shape[1], upper) - 128, -127)
        q = q if site.axes.out == 0 else q.T
    return Channels(q.astype(np.int8), scale)


def in_blocks(site: Site, w: np.ndarray, bits: int, upper: np.ndarray | None = None, block: int = BLOCK) -> Blocks:
    """Levels in blocks along the sum, asymmetric. upper: `feedback` of the moments of the values that meet them."""
    rows = w if site.axes.out == 0 else w.T
    n, depth = rows.shape
    count = -(-depth // block)
    padded = np.zeros((n, count * block), np.float32)
    padded[:, :depth] = rows
    scale, zero = _fitted(padded.reshape(n, count, block), bits)
    if upper is None:
        q = _rounded(padded.reshape(n, count, block), scale, zero, bits)
    else:
        q = _with_feedback(padded, scale, zero, bits, block, upper).reshape(n, count, block)
    return Blocks(bits, q.astype(np.uint8), zero.astype(np.uint8), scale, depth)


def _rounded(w: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int) -> np.ndarray:
    return np.clip(np.rint(w / scale) + zero, 0, (1 << bits) - 1)


def _fitted(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero of each block: its range, cut as far as the squared error falls by it."""
    top = (1 << bits) - 1
    low, high = np.minimum(blocks.min(-1, keepdims=True), 0), np.maximum(blocks.max(-1, keepdims=True), 0)
    best: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for shrink in _SHRINKS[::-1] if bits < 8 else (1.0,):
        scale = ((high - low) * np.float32(shrink / top)).astype(np.float32)
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, np.float32(1))
        zero = np.clip(np.rint(-low * np.float32(shrink) / scale), 0, top)
        error = (((_rounded(blocks, scale, zero, bits) - zero) * scale - blocks) ** 2).sum(-1, keepdims=True)
        if best is None:
            best = scale, zero, error
        else:
            better = error < best[2]
            best = tuple(np.where(better, a, b) for a, b in zip((scale, zero, error), best, strict=True))  # type: ignore[assignment]
    assert best is not None
    return best[0], best[1].astype(np.float32)


def _with_feedback(
    w: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int, block: int, upper: np.ndarray
) -> np.ndarray:
    """Levels of w[n, k], whose scales and zeros are those of blocks; what `upper` does not tell of is padding."""
    depth = len(upper)
    steps, zeros = (np.ascontiguousarray(p[:, :, 0].T) for p in (scale, zero))  # [block, n]
    left = np.array(w.T, np.float32, order="C")  # what is walked along is contiguous: [k, n]
    known = left == 0  # what was pruned stays so: others make up for it
    q = np.repeat(zeros, block, axis=0)[: len(left)]
    for start in range(0, depth, _PANEL):
        stop = min(start + _PANEL, depth)
        errors = np.empty((stop - start, len(w)), np.float32)
        for i in range(start, stop):
            s, z = steps[i // block], zeros[i // block]
            q[i] = np.where(known[i], z, _rounded(left[i], s, z, bits))
            errors[i - start] = error = (left[i] - (q[i] - z) * s) / upper[i, i]
            left[i:stop] -= upper[i, i:stop, None] * error
        left[stop:depth] -= upper[start:stop, stop:].T @ errors
    return q.T


def feedback(moments: np.ndarray) -> np.ndarray:
    """What rounding one column asks of those behind it: the upper Cholesky factor of the damped X^T X's inverse."""
    h = moments.astype(np.float64)
    at = np.arange(len(h))
    mean = float(h[at, at].mean())
    h[at, at] += _DAMP * mean if mean > 0 else 1.0
    # h = r r^T for an upper r, so that its inverse is u^T u for u = r^-1
    return _inverted(np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]).astype(np.float32)


def _inverted(upper: np.ndarray) -> np.ndarray:
    """By halves: a sixth of the products of a general inverse."""
    n = len(upper)
    if n <= 64:
        return np.linalg.inv(upper)
    a, d = _inverted(upper[: n // 2, : n // 2]), _inverted(upper[n // 2 :, n // 2 :])
    out = np.zeros_like(upper)
    out[: n // 2, : n // 2], out[n // 2 :, n // 2 :] = a, d
    out[: n // 2, n // 2 :] = -a @ upper[: n // 2, n // 2 :] @ d
    return out
