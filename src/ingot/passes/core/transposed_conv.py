"""Transposed convolutions without multiplying by the zeros between their inputs.

    conv(x dilated by s, w)   ->   shuffle(conv(x, w split into s * s phases))
                              or   concat of conv(x, each phase's own taps)      where that is less work

Output o = s * q + p reads the taps t with (o + t - low) divisible by s: for each phase p a small stride-1 convolution
over x itself. All phases are one convolution with s * s as many output channels, followed by a shuffle of channels
into space, which fusion turns into the addresses that the convolution writes to (Shi et al. 2016, "Is the deconvolution
layer the same as a convolutional layer?").

Its window holds the windows of all phases, which may lie differently: a kernel of 4 with stride 2 has 2 taps in each
phase and 3 in the common window, more than twice the products in two dimensions. Convolutions of their own write every
other place each; what follows them then runs apart.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.node import Const, Graph, Node, const
from ingot.ir.rewrite import Rule, RuleSet, rewrite
from ingot.ir.types import static_shape
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class _Phases:
    """One spatial dimension: for every phase its first tap and the offset of the input that this tap reads."""

    stride: int
    taps: tuple[int, ...]
    offsets: tuple[int, ...]
    counts: tuple[int, ...]  # taps of each
    window: int  # taps of the common window
    first: int  # input offset of the window's first tap

    @staticmethod
    def of(stride: int, kernel: int, low: int) -> _Phases:
        taps = tuple((low - p) % stride for p in range(stride))
        offsets = tuple((p + t - low) // stride for p, t in enumerate(taps))
        counts = tuple(len(range(t, kernel, stride)) for t in taps)
        first = min(offsets)
        last = max(o + n - 1 for o, n in zip(offsets, counts, strict=True))
        return _Phases(stride, taps, offsets, counts, max(1, last - first + 1), first)


def split_transposed(graph: Graph) -> Graph:
    """A convolution of a dilated input -> a convolution of the input and a shuffle (see module)"""
    return rewrite(graph, RuleSet((Rule("transposed-conv", ops.Convolution, _split),)))


def _split(n: Node) -> Node | None:
    op = n.op
    assert isinstance(op, ops.Convolution)
    x, w = n.inputs
    plain = all(s == 1 for s in op.strides) and all(d == 1 for d in op.rhs_dilation) and op.batch_groups == 1
    dilated = any(d != 1 for d in op.lhs_dilation)
    standard = op.lhs_layout[:2] == op.out_layout[:2] == "NC" and op.rhs_layout[:2] == "OI"
    if not (plain and dilated and standard and isinstance(w.op, Const)) or op.lhs_layout != op.out_layout:
        return None
    rank = len(op.strides)
    kernel = static_shape(w.shape)[2:]
    phases = [_Phases.of(s, k, lo) for s, k, (lo, _) in zip(op.lhs_dilation, kernel, op.padding, strict=True)]
    outs = n.shape[2:]
    counts: list[DimLike] = [ceildiv(o, p.stride) for o, p in zip(outs, phases, strict=True)]
    padding: list[tuple[int, int]] = []
    for size, count, p in zip(x.shape[2:], counts, phases, strict=True):
        high = count - 1 + p.first + p.window - 1 - (size - 1)
        if not isinstance(high, int):
            return None
        padding.append((-p.first, high))
    image = ops.Transpose((0, *range(2, 2 + rank), 1))(x)
    ones, last = (1,) * rank, f"N{op.lhs_layout[2:]}C"
    dense = ops.Convolution(
        ones, tuple(padding), ones, ones, last, op.rhs_layout, last, op.feature_groups, 1, op.dtype
    )
    if _is_less_apart(n, counts, padding, phases):
        wide = _apart(image, dense, w.op.value, counts, phases, n.loc)
    else:
        y = dense(image, const(_weights(w.op.value, phases, op.feature_groups)), loc=n.loc)
        wide = _shuffled(y, n, counts, phases, op.feature_groups)
    return _cut(wide, n, tuple(c * p.stride for c, p in zip(counts, phases, strict=True)))


# Multiply-adds in whose time what follows the phases passes over an element of the result by itself.
_PASS = 48
# How many fewer products Winograd's algorithm takes for a common window of 3x3 or 5x5, transforms included; and the
# positions from which on it does: for fewer its larger weights weigh more.
_QUICK, _POSITIONS = 3, 64
_MOST = 16  # kernels


def _is_less_apart(n: Node, counts: list[DimLike], padding: list[tuple[int, int]], phases: list[_Phases]) -> bool:
    """Whether a convolution for each phase is less work than one for all."""
    empty, cropped = any(0 in p.counts for p in phases), any(v < 0 for pair in padding for v in pair)
    if empty or cropped or prod(p.stride for p in phases) > _MOST:
        return False
    common = prod(p.stride * p.window for p in phases)
    apart = prod(sum(p.counts) for p in phases)
    quick = len(phases) == 2 and all(p.window in (3, 5) for p in phases) and phases[0].window == phases[1].window
    if quick and estimate(product((n.shape[0], *counts))) >= _POSITIONS:
        common //= _QUICK
    each = int(n.inputs[1].shape[1]) * (common - apart) / prod(p.stride for p in phases)
    return each > _PASS


def _apart(
    image: Node, dense: ops.Convolution, w: np.ndarray, counts: list[DimLike], phases: list[_Phases], loc: str
) -> Node:
    """[N, q..., C] for each phase, as [N, q0, p0, q1, p1, ..., C]."""
    rank = len(phases)
    lows, highs = ((0, *(pair[i] for pair in dense.padding), 0) for i in (0, 1))
    op = replace(dense, padding=((0, 0),) * rank)
    padded = ops.Pad(lows, highs, (0,) * (rank + 2))(image, ops.scalar(0, image.dtype))

    def join(at: tuple[int, ...]) -> Node:
        if len(at) < rank:
            joined = [join((*at, p)) for p in range(phases[len(at)].stride)]
            return ops.Concat(2 + 2 * len(at))(*joined)
        own = list(zip(phases, at, strict=True))
        start = (0, *(p.offsets[a] - p.first for p, a in own), 0)
        sizes = [c + p.counts[a] - 1 for c, (p, a) in zip(counts, own, strict=True)]
        limit = (image.shape[0], *(a + b for a, b in zip(start[1:-1], sizes, strict=True)), image.shape[-1])
        taps = w[(slice(None), slice(None), *(slice(p.taps[a], None, p.stride) for p, a in own))]
        y = op(ops.Slice(start, limit, (1,) * (rank + 2))(padded), const(np.ascontiguousarray(taps)), loc=loc)
        return ops.Reshape((y.shape[0], *(d for c in counts for d in (c, 1)), y.shape[-1]))(y)

    return join(())


def _weights(w: np.ndarray, phases: list[_Phases], groups: int) -> np.ndarray:
    """[O, I, taps...] -> [groups, phases..., O / groups] output channels over the common window."""
    o, i = w.shape[:2]
    strides = tuple(p.stride for p in phases)
    out = np.zeros((*strides, o, i, *(p.window for p in phases)), w.dtype)
    for at in itertools.product(*map(range, strides)):
        source = tuple(slice(p.taps[a], None, p.stride) for p, a in zip(phases, at, strict=True))
        part = w[(slice(None), slice(None), *source)]
        starts = tuple(p.offsets[a] - p.first for p, a in zip(phases, at, strict=True))
        target = tuple(slice(s, s + size) for s, size in zip(starts, part.shape[2:], strict=True))
        out[(*at, slice(None), slice(None), *target)] = part
    rank = len(strides)
    grouped = out.reshape(*strides, groups, o // groups, i, *out.shape[rank + 2 :])
    grouped = np.moveaxis(grouped, rank, 0)
    return np.ascontiguousarray(grouped.reshape(-1, i, *out.shape[rank + 2 :]))


def _shuffled(y: Node, n: Node, counts: list[DimLike], phases: list[_Phases], groups: int) -> Node:
    """[N, q..., groups * phases * O/g] -> [N, q0, p0, q1, p1, ..., groups, O/g]."""
    rank = len(phases)
    per_group = int(n.shape[1]) // groups
    wide = ops.Reshape((y.shape[0], *counts, groups, *(p.stride for p in phases), per_group))(y)
    space = [d for i in range(rank) for d in (1 + i, 2 + rank + i)]
    return ops.Transpose((0, *space, 1 + rank, 2 + 2 * rank))(wide)


def _cut(wide: Node, n: Node, full: tuple[DimLike, ...]) -> Node:
    """Places and phases as positions, cut to the result's, and channels in front."""
    rank = len(full)
    image = ops.Reshape((wide.shape[0], *full, n.shape[1]))(wide)
    if full != n.shape[2:]:
        image = ops.Slice((0,) * (rank + 2), (wide.shape[0], *n.shape[2:], n.shape[1]), (1,) * (rank + 2))(image)
    return ops.Transpose((0, 1 + rank, *range(1, 1 + rank)))(image, loc=n.loc)
