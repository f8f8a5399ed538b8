"""Transposed convolutions without products of the zeros between their inputs.

    conv(x dilated by s, w)   ->   concat of shuffle(conv(x, w's taps of some phases))

Output o = s * q + p reads the taps t with (o + t - low) divisible by s: for each phase p a small stride-1 convolution
over x itself. Neighbouring phases that read the same inputs are one convolution with as many times the output channels,
followed by a shuffle of channels into space, which fusion turns into the addresses that the convolution writes to (Shi
et al. 2016, "Is the deconvolution layer the same as a convolutional layer?"). In each dimension there are at most three
such runs of phases: a kernel of 2 with stride 2 is one convolution, one of 4 four, each with 2 x 2 taps.

One convolution for all, over the window that holds those of all phases, would multiply what a phase does not read by
zeros, which makes NaN of infinities, and takes up to 2.25 times the products.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv, is_static
from ingot.ir.node import Graph, Node, const
from ingot.ir.rewrite import Rule, RuleSet, rewrite
from ingot.ir.types import static_shape
from ingot.passes.constants import value_of
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class _Run:
    """Neighboring phases of one spatial dimension that read the same inputs.

    taps: the first tap of each. offset: of the input that it reads. count: taps of each phase.
    """

    taps: tuple[int, ...]
    offset: int
    count: int

    @property
    def phases(self) -> int:
        return len(self.taps)


def _runs(stride: int, kernel: int, low: int) -> tuple[_Run, ...]:
    """All phases of a dimension, in order."""
    out: list[_Run] = []
    for p in range(stride):
        tap = (low - p) % stride
        run = _Run((tap,), (p + tap - low) // stride, len(range(tap, kernel, stride)))
        if out and (out[-1].offset, out[-1].count) == (run.offset, run.count):
            run = replace(run, taps=(*out.pop().taps, tap))
        out.append(run)
    return tuple(out)


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
    if not (plain and dilated and standard and is_static(w.shape)) or op.lhs_layout != op.out_layout:
        return None
    strides, kernel, outs, rank = op.lhs_dilation, static_shape(w.shape)[2:], n.shape[2:], len(op.strides)
    if 0 in kernel:
        return None
    runs = [_runs(s, k, lo) for s, k, (lo, _) in zip(strides, kernel, op.padding, strict=True)]
    counts: list[DimLike] = [ceildiv(o, s) for o, s in zip(outs, strides, strict=True)]
    beyond = [count - size for size, count in zip(x.shape[2:], counts, strict=True)]
    if not is_static(beyond):
        return None
    ones, last = (1,) * rank, f"N{op.lhs_layout[2:]}C"
    image = ops.Transpose((0, *range(2, 2 + rank), 1))(x)

    def join(at: tuple[_Run, ...]) -> Node:
        """[N, q0, p0, q1, p1, ..., C] of the runs `at` of the first dimensions, and all of the others."""
        if len(at) < rank:
            parts = [join((*at, run)) for run in runs[len(at)]]
            return ops.Concat(2 + 2 * len(at))(*parts) if len(parts) > 1 else parts[0]
        spread = [d for c, r in zip(counts, at, strict=True) for d in (c, r.phases)]
        if any(r.count == 0 for r in at):
            return ops.full((n.shape[0], *spread, n.shape[1]), 0, n.dtype)
        padding = tuple((-r.offset, int(d) + r.offset + r.count - 1) for r, d in zip(at, beyond, strict=True))
        dense = ops.Convolution(ones, padding, ones, ones, last, op.rhs_layout, last, op.feature_groups, 1, op.dtype)
        weights = _weights(w, at, strides, op.feature_groups)
        y = dense(image, weights if w.constant is None else const(value_of(weights)), loc=n.loc)
        return _shuffled(y, counts, at, op.feature_groups)

    return _cut(join(()), n, tuple(c * s for c, s in zip(counts, strides, strict=True)))


def _weights(w: Node, runs: Sequence[_Run], strides: Sequence[int], groups: int) -> Node:
    """[O, I, taps...] -> [groups, phases..., O / groups] output channels over the window of the runs."""
    o, i, *window = (*static_shape(w.shape)[:2], *(r.count for r in runs))
    phases: list[Node] = []
    for at in itertools.product(*(range(r.phases) for r in runs)):
        first = (0, 0, *(r.taps[a] for a, r in zip(at, runs, strict=True)))
        taps = ops.Slice(first, w.shape, (1, 1, *strides))(w)
        phases.append(ops.Reshape((1, groups, o // groups, i, *window))(taps))
    joined = phases[0] if len(phases) == 1 else ops.Concat(0)(*phases)
    grouped = ops.Transpose((1, 0, *range(2, len(joined.shape))))(joined)
    return ops.Reshape((len(phases) * o, i, *window))(grouped)


def _shuffled(y: Node, counts: Sequence[DimLike], runs: Sequence[_Run], groups: int) -> Node:
    """[N, q..., groups * phases * O/g] -> [N, q0, p0, q1, p1, ..., O]."""
    rank, phases = len(runs), tuple(r.phases for r in runs)
    channels = int(y.shape[-1]) // prod(phases)
    if prod(phases) == 1:
        groups = 1  # nothing to shuffle
    wide = ops.Reshape((y.shape[0], *counts, groups, *phases, channels // groups))(y)
    space = [d for i in range(rank) for d in (1 + i, 2 + rank + i)]
    moved = ops.Transpose((0, *space, 1 + rank, 2 + 2 * rank))(wide)
    return ops.Reshape((*moved.shape[:-2], channels))(moved)


def _cut(wide: Node, n: Node, full: tuple[DimLike, ...]) -> Node:
    """Places and phases as positions, cut to the result's, and channels in front."""
    rank = len(full)
    image = ops.Reshape((wide.shape[0], *full, n.shape[1]))(wide)
    if full != n.shape[2:]:
        image = ops.Slice((0,) * (rank + 2), (wide.shape[0], *n.shape[2:], n.shape[1]), (1,) * (rank + 2))(image)
    return ops.Transpose((0, 1 + rank, *range(1, 1 + rank)))(image, loc=n.loc)
