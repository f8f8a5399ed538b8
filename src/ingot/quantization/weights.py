"""Weights at levels of 8 or 4 bits: per output channel, or in blocks along the sum, with or without error feedback.

GPTQ (Frantar et al., arXiv 2210.17323): weights are rounded column by column along the sum, and what rounding one
column costs is made up for by those not rounded yet, as the values' second moments X^T X weigh it.
"""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Node, const
from ingot.ir.types import i8, u4, u8
from ingot.quantization.sites import Site
from ingot.support.dataclass import dataclass

BLOCK = 32
_SHRINKS = np.linspace(0.7, 1.0, 13)
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


def by_channel(site: Site, w: np.ndarray) -> Channels:
    """Symmetric levels, the largest weight of each output channel at 127."""
    largest = np.abs(site.by_channel(w)).max(axis=1)
    scale = np.where(largest > 0, largest / np.float32(127), 1).astype(np.float32)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    q = np.clip(np.rint(w / site.per_channel(scale)), -127, 127).astype(np.int8)
    return Channels(q, scale)


def in_blocks(site: Site, w: np.ndarray, bits: int, moments: np.ndarray | None = None, block: int = BLOCK) -> Blocks:
    """Levels in blocks along the sum, asymmetric. moments: X^T X of the values that meet them, for error feedback."""
    rows = w if site.axes.out == 0 else w.T
    n, depth = rows.shape
    count = -(-depth // block)
    padded = np.zeros((n, count * block), np.float32)
    padded[:, :depth] = rows
    scale, zero = _fitted(padded.reshape(n, count, block), bits)
    if moments is None:
        q = _rounded(padded.reshape(n, count, block), scale, zero, bits)
    else:
        q = _with_feedback(padded, scale, zero, bits, block, depth, moments).reshape(n, count, block)
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
    w: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int, block: int, depth: int, moments: np.ndarray
) -> np.ndarray:
    """Levels of w[n, k]; see module."""
    upper = _inverse_factor(moments)
    left, q = w.copy(), np.broadcast_to(zero, (*zero.shape[:2], block)).reshape(w.shape).copy()
    for start in range(0, depth, 128):
        stop = min(start + 128, depth)
        errors = np.zeros((len(w), stop - start), np.float32)
        for i in range(start, stop):
            s, z = scale[:, i // block, 0], zero[:, i // block, 0]
            q[:, i] = _rounded(left[:, i], s, z, bits)
            error = (left[:, i] - (q[:, i] - z) * s) / upper[i, i]
            left[:, i:stop] -= np.outer(error, upper[i, i:stop])
            errors[:, i - start] = error
        left[:, stop:depth] -= errors @ upper[start:stop, stop:]
    return q


def _inverse_factor(moments: np.ndarray) -> np.ndarray:
    """The upper Cholesky factor of the inverse of the damped moments."""
    h = moments.astype(np.float64)
    at = np.arange(len(h))
    mean = float(h[at, at].mean())
    h[at, at] += _DAMP * mean if mean > 0 else 1.0
    inverse = np.linalg.inv(h)
    return np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
