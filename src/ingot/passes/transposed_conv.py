"""Transposed convolutions without multiplying by the zeros between their inputs.

    conv(x dilated by s, w)   ->   shuffle(conv(x, w split into s * s phases))

Output o = s * q + p reads the taps t with (o + t - low) divisible by s: for each phase p a small stride-1 convolution
over x itself. All phases are one convolution with s * s as many output channels, followed by a shuffle of channels
into space, which fusion turns into the addresses that the convolution writes to (Shi et al. 2016, "Is the deconvolution
layer the same as a convolutional layer?").
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv
from ingot.ir.node import Const, Graph, Node, const
from ingot.ir.rewrite import Rule, RuleSet, rewrite
from ingot.ir.types import static_shape


@dataclass(frozen=True)
class _Phases:
    """One spatial dimension: for every phase its first tap and the offset of the input that this tap reads."""

    stride: int
    taps: tuple[int, ...]
    offsets: tuple[int, ...]
    window: int  # taps of the common window
    first: int  # input offset of the window's first tap

    @staticmethod
    def of(stride: int, kernel: int, low: int) -> _Phases:
        taps = tuple((low - p) % stride for p in range(stride))
        offsets = tuple((p + t - low) // stride for p, t in enumerate(taps))
        counts = tuple(len(range(t, kernel, stride)) for t in taps)
        first = min(offsets)
        last = max(o + n - 1 for o, n in zip(offsets, counts, strict=True))
        return _Phases(stride, taps, offsets, max(1, last - first + 1), first)


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
    last = tuple(range(2, 2 + rank))
    letters = op.lhs_layout[2:]
    channels_last = f"N{letters}C"
    y = ops.Convolution(
        (1,) * rank, tuple(padding), (1,) * rank, (1,) * rank, channels_last, op.rhs_layout, channels_last,
        op.feature_groups, 1, op.dtype,
    )(ops.Transpose((0, *last, 1))(x), const(_weights(w.op.value, phases, op.feature_groups)), loc=n.loc)  # fmt: skip
    return _shuffle(y, n, counts, phases, op.feature_groups)


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


def _shuffle(y: Node, n: Node, counts: list[DimLike], phases: list[_Phases], groups: int) -> Node:
    """[N, q..., groups * phases * O/g] -> [N, O, q * s + p ...], cut to the result's size."""
    rank = len(phases)
    per_group = int(n.shape[1]) // groups  # type: ignore[arg-type]
    strides = [p.stride for p in phases]
    wide = ops.Reshape((y.shape[0], *counts, groups, *strides, per_group))(y)
    space = [d for i in range(rank) for d in (1 + i, 2 + rank + i)]
    moved = ops.Transpose((0, *space, 1 + rank, 2 + 2 * rank))(wide)
    full = tuple(c * s for c, s in zip(counts, strides, strict=True))
    image = ops.Reshape((y.shape[0], *full, groups * per_group))(moved)
    if full != n.shape[2:]:
        limit = (y.shape[0], *n.shape[2:], groups * per_group)
        image = ops.Slice((0,) * (rank + 2), limit, (1,) * (rank + 2))(image)
    return ops.Transpose((0, 1 + rank, *range(1, 1 + rank)))(image, loc=n.loc)
