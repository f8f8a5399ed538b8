"""Transposed convolutions without multiplications by the zeros between their inputs.

    conv(x dilated by s, w)   ->   concat of shuffle(conv(x, w's taps of some phases))

Output o = s * q + p reads the taps t with (o + t - low) divisible by s: for each phase p a small stride-1 convolution
over x itself. Neighbouring phases that read the same inputs are one convolution with as many times the output channels,
followed by a shuffle of channels into space, which fusion turns into the addresses that the convolution writes to (Shi
et al. 2016, "Is the deconvolution layer the same as a convolutional layer?"). In each dimension there are at most three
such runs of phases: a kernel of 2 with stride 2 is one convolution, one of 4 four, each with 2 x 2 taps.

A single convolution over a window that covers all phases would multiply the inputs that a phase does not read by zeros:
this turns infinities into NaN, and takes up to 2.25 times as many products.
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
class TapRun:
    """Neighboring phases of one spatial dimension that read the same inputs.

    taps: the first tap of each phase. offset: that of the input that it reads. count: the number of taps of each phase.
    """

    taps: tuple[int, ...]
    offset: int
    count: int

    @property
    def phases(self) -> int:
        return len(self.taps)


def runs_of_phases(stride: int, kernel: int, low: int) -> tuple[TapRun, ...]:
    """The runs of all phases of a dimension, in order."""
    runs: list[TapRun] = []
    for p in range(stride):
        tap = (low - p) % stride
        run = TapRun((tap,), (p + tap - low) // stride, len(range(tap, kernel, stride)))
        if runs and (runs[-1].offset, runs[-1].count) == (run.offset, run.count):
            run = replace(run, taps=(*runs.pop().taps, tap))
        runs.append(run)
    return tuple(runs)


def split_transposed(graph: Graph) -> Graph:
    """A convolution of a dilated input -> a convolution of the input and a shuffle (see module)"""
    return rewrite(graph, RuleSet((Rule("transposed-conv", ops.Convolution, _split_convolution),)))


def _split_convolution(n: Node) -> Node | None:
    op = n.op
    assert isinstance(op, ops.Convolution)
    x, w = n.inputs
    is_plain = all(s == 1 for s in op.strides) and all(d == 1 for d in op.rhs_dilation) and op.batch_groups == 1
    is_dilated = any(d != 1 for d in op.lhs_dilation)
    has_standard_layout = op.lhs_layout[:2] == op.out_layout[:2] == "NC" and op.rhs_layout[:2] == "OI"
    if not (is_plain and is_dilated and has_standard_layout and is_static(w.shape)) or op.lhs_layout != op.out_layout:
        return None
    strides, kernel, outs, rank = op.lhs_dilation, static_shape(w.shape)[2:], n.shape[2:], len(op.strides)
    if 0 in kernel:
        return None
    runs_by_dim = [runs_of_phases(s, k, lo) for s, k, (lo, _) in zip(strides, kernel, op.padding, strict=True)]
    counts: list[DimLike] = [ceildiv(o, s) for o, s in zip(outs, strides, strict=True)]
    output_excess = [count - size for size, count in zip(x.shape[2:], counts, strict=True)]
    if not is_static(output_excess):
        return None
    ones, channels_last = (1,) * rank, f"N{op.lhs_layout[2:]}C"
    image = ops.Transpose((0, *range(2, 2 + rank), 1))(x)

    def join(at: tuple[TapRun, ...]) -> Node:
        """[N, q0, p0, q1, p1, ..., C] of the runs `at` of the first dimensions, and all of the others."""
        if len(at) < rank:
            parts = [join((*at, run)) for run in runs_by_dim[len(at)]]
            return ops.Concat(2 + 2 * len(at))(*parts) if len(parts) > 1 else parts[0]
        interleaved_sizes = [d for c, r in zip(counts, at, strict=True) for d in (c, r.phases)]
        if any(r.count == 0 for r in at):
            return ops.full((n.shape[0], *interleaved_sizes, n.shape[1]), 0, n.dtype)
        padding = tuple((-r.offset, int(d) + r.offset + r.count - 1) for r, d in zip(at, output_excess, strict=True))
        dense = ops.Convolution(
            ones, padding, ones, ones, channels_last, op.rhs_layout, channels_last, op.feature_groups, 1, op.dtype,
            tf32=op.tf32,
        )  # fmt: skip
        weights = _weights(w, at, strides, op.feature_groups)
        y = dense(image, weights if w.constant is None else const(value_of(weights)), loc=n.loc)
        return _channels_to_space(y, counts, at, op.feature_groups)

    return _cut(join(()), n, tuple(c * s for c, s in zip(counts, strides, strict=True)))


def _weights(w: Node, runs: Sequence[TapRun], strides: Sequence[int], groups: int) -> Node:
    """[O, I, taps...] -> [groups, phases..., O / groups] output channels over the window of the runs."""
    o, i, *window = (*static_shape(w.shape)[:2], *(r.count for r in runs))
    phases: list[Node] = []
    for at in itertools.product(*(range(r.phases) for r in runs)):
        first = (0, 0, *(r.taps[a] for a, r in zip(at, runs, strict=True)))
        taps = ops.Slice(first, w.shape, (1, 1, *strides))(w)
        phases.append(ops.Reshape((1, groups, o // groups, i, *window))(taps))
    stacked = phases[0] if len(phases) == 1 else ops.Concat(0)(*phases)
    grouped = ops.Transpose((1, 0, *range(2, len(stacked.shape))))(stacked)
    return ops.Reshape((len(phases) * o, i, *window))(grouped)


def _channels_to_space(y: Node, counts: Sequence[DimLike], runs: Sequence[TapRun], groups: int) -> Node:
    """[N, q..., groups * phases * O/g] -> [N, q0, p0, q1, p1, ..., O]."""
    rank, phases = len(runs), tuple(r.phases for r in runs)
    channels = int(y.shape[-1]) // prod(phases)
    if prod(phases) == 1:
        groups = 1  # nothing to shuffle
    wide = ops.Reshape((y.shape[0], *counts, groups, *phases, channels // groups))(y)
    space = [d for i in range(rank) for d in (1 + i, 2 + rank + i)]
    interleaved = ops.Transpose((0, *space, 1 + rank, 2 + 2 * rank))(wide)
    return ops.Reshape((*interleaved.shape[:-2], channels))(interleaved)


def _cut(wide: Node, n: Node, full: tuple[DimLike, ...]) -> Node:
    """Merge places and phases into positions, cut these to the result's size, and move channels to the front."""
    rank = len(full)
    image = ops.Reshape((wide.shape[0], *full, n.shape[1]))(wide)
    if full != n.shape[2:]:
        image = ops.Slice((0,) * (rank + 2), (wide.shape[0], *n.shape[2:], n.shape[1]), (1,) * (rank + 2))(image)
    return ops.Transpose((0, 1 + rank, *range(1, 1 + rank)))(image, loc=n.loc)


__all__ = ["TapRun", "runs_of_phases", "split_transposed"]
