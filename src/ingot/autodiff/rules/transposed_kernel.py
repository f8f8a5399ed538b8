"""Gradients of transposed convolutions' kernels, without products with the zeros between the image's positions.

Each run of phases (see passes/core/transposed_conv) reads taps of its own: its part of the kernel's gradient is that of
a convolution over the image itself, which has the phases of the run among its output channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv, product
from ingot.ir.node import Node
from ingot.ir.types import DType, static_shape
from ingot.passes.core.transposed_conv import TapRun, runs_of_phases
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class _Run:
    """Phases of one dimension, from `first` on, that read the same positions of the image, `positions` each."""

    first: int
    taps: TapRun
    positions: int

    def span(self, dilation: int) -> tuple[int, int]:
        """The part of the image that it reads, which may begin or end outside."""
        return self.taps.offset, self.taps.offset + self.positions + (self.taps.count - 1) * dilation


def _runs(stride: int, kernel: int, low: int, size: int) -> list[_Run]:
    """The runs of a dimension of the result, of `size`, in order."""
    runs, first, full = list[_Run](), 0, size % stride or stride
    for run in runs_of_phases(stride, kernel, low):
        end = first + run.phases
        for begin, limit in ((first, min(end, full)), (max(first, full), end)):  # those behind have a position less
            if begin < limit:
                taps = TapRun(run.taps[begin - first : limit - first], run.offset, run.count)
                runs.append(_Run(begin, taps, max(0, int(ceildiv(size - begin, stride)))))
        first = end
    return runs


def summed_products(g: Node, x: Node, dtype: DType, tf32: bool | None) -> Node:
    """g[..., O], x[..., I] -> [O, I], summed over all positions: one contraction, which schedules tile for caches."""
    rows = [ops.Reshape((product(v.shape[:-1]), v.shape[-1]))(v) for v in (g, x)]
    return ops.DotGeneral(((), ()), ((0,), (0,)), dtype, tf32=tf32)(*rows)


def transposed_kernel_cotangent(op: ops.Convolution, x: Node, g: Node, kernel: Node) -> Node:
    """x[N,*S,I], g[N,*P,O] -> [O,I,*window]. The convolution has strides of 1, and dilates either x or the kernel in
    each dimension; the sizes of both but N are static."""
    rank, strides = len(op.padding), op.lhs_dilation
    window, sizes, outs = static_shape(kernel.shape[2:]), static_shape(x.shape[1:-1]), static_shape(g.shape[1:-1])
    runs = [_runs(*v) for v in zip(strides, window, (int(lo) for lo, _ in op.padding), outs, strict=True)]
    spans = [[run.span(d) for run in v if run.taps.count] for v, d in zip(runs, op.rhs_dilation, strict=True)]
    low = [max([0, *(-begin for begin, _ in v)]) for v in spans]
    high = [max([0, *(end - size for _, end in v)]) for v, size in zip(spans, sizes, strict=True)]
    image = ops.pad(x, (0, *low, 0), (0, *high, 0))
    groups = [int(ceildiv(out, s)) for out, s in zip(outs, strides, strict=True)]  # of a position for each phase
    whole = ops.pad(
        g, (0,) * (rank + 2), (0, *(n * s - out for n, s, out in zip(groups, strides, outs, strict=True)), 0)
    )
    phases = ops.Reshape((g.shape[0], *_interleaved(groups, strides), g.shape[-1]))(whole)
    turns = [int(ceildiv(k, s)) for k, s in zip(window, strides, strict=True)]  # taps of a phase, at most

    def join(at: tuple[_Run, ...]) -> Node:
        """[O, I, turns, phases, ...] of the runs `at` of the first dimensions, and all of the others."""
        if len(at) == rank:
            return of_runs(at)
        parts = [join((*at, run)) for run in sorted(runs[len(at)], key=lambda run: run.taps.taps[-1])]
        return ops.Concat(3 + 2 * len(at))(*parts) if len(parts) > 1 else parts[0]

    def of_runs(at: tuple[_Run, ...]) -> Node:
        counts, widths = tuple(r.taps.count for r in at), tuple(r.taps.phases for r in at)
        if 0 in counts or any(r.positions == 0 for r in at):
            return ops.full((*kernel.shape[:2], *_interleaved(turns, widths)), 0, kernel.dtype)
        begin, end = zip(*(r.span(d) for r, d in zip(at, op.rhs_dilation, strict=True)), strict=True)
        start, limit = ([p + q for p, q in zip(v, low, strict=True)] for v in (begin, end))
        read = _slice(image, (0, *start, 0), (image.shape[0], *limit, image.shape[-1]))
        start = _interleaved((0,) * rank, [r.first for r in at])
        limit = _interleaved([r.positions for r in at], [r.first + r.taps.phases for r in at])
        written = _slice(phases, (0, *start, 0), (phases.shape[0], *limit, phases.shape[-1]))
        order = (0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2), 2 * rank + 1)
        channels = prod(widths) * int(g.shape[-1])
        written = ops.Reshape((g.shape[0], *(r.positions for r in at), channels))(ops.Transpose(order)(written))
        if prod(counts) == 1:
            part = summed_products(written, read, kernel.dtype, op.tf32)
        else:
            gradient = ops.KernelGradient(counts, (1,) * rank, op.rhs_dilation, dtype=kernel.dtype, tf32=op.tf32)
            part = gradient(read, written)
        part = ops.Reshape((*widths, *kernel.shape[:2], *counts))(part)
        part = ops.flip(part, tuple(range(rank)))  # the taps of a run's phases descend
        part = ops.Transpose((rank, rank + 1, *_interleaved(range(rank + 2, 2 * rank + 2), range(rank))))(part)
        missing = _interleaved([n - c for n, c in zip(turns, counts, strict=True)], (0,) * rank)
        return ops.pad(part, (0,) * len(part.shape), (0, 0, *missing))

    joined = ops.Reshape((*kernel.shape[:2], *(n * s for n, s in zip(turns, strides, strict=True))))(join(()))
    return _slice(joined, (0,) * len(kernel.shape), kernel.shape)


def _interleaved(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [n for pair in zip(a, b, strict=True) for n in pair]


def _slice(x: Node, start: Sequence[int], limit: Sequence[DimLike]) -> Node:
    if tuple(limit) == x.shape and not any(start):
        return x
    return ops.Slice(tuple(start), tuple(limit), (1,) * len(x.shape))(x)


__all__ = ["summed_products", "transposed_kernel_cotangent"]
