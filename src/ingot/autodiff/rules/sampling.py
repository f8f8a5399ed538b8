"""Linear maps along one axis with indices known at compile time: reflected and repeated padding, resizing, adaptive
average pooling.

    y[o] = sum of w[o, i] x[i]   ->   dx[i] = sum of w[o, i] dy[o]

Nothing is scattered: each element gathers, by a constant table, the few results that read it. Where the map moves whole
runs of elements, slices of the cotangent are added instead:

    reflect: y = [x1 x0 x1 x2 x1]   ->   dx = [dy1, dy0 + dy2 + dy4, dy3]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.autodiff.table import reverse
from ingot.ir.dims import is_static, product
from ingot.ir.node import Node
from ingot.ir.types import f32, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

MAX_TAPS = 8  # per element; more are summed by a reduction
MAX_RUNS = 4
MAX_NESTED = 3  # axes whose pieces are joined at once: three pieces of each make 27 at most


@dataclass(frozen=True)
class Run:
    """`count` results, from number `first` on, that copy the sources low ... high - 1: in order (step 1), reversed
    (-1), or one source repeatedly (0)."""

    first: int
    count: int
    step: int
    low: int
    high: int

    def contribution(self, g: Term, axis: int, begin: int, end: int) -> Term:
        """The run's contribution to the cotangent of the elements begin ... end - 1, which include a source."""
        low, high, first = max(begin, self.low), min(end, self.high), self.first
        if self.step == 0:
            part = _sum_elements(g.slice(axis, first, first + self.count), axis, self.count)
        elif self.step == 1:
            part = g.slice(axis, first + low - self.low, first + high - self.low)
        else:
            part = g.slice(axis, first + self.high - high, first + self.high - low).map(ops.Reverse((axis,)))
        return part.pad(axis, low - begin, end - high, 0)


def _sum_elements(x: Term, axis: int, count: int) -> Term:
    """The sum of `count` elements along `axis`; few are added term by term, which fuses with other kernels."""
    if count > MAX_TAPS:
        return x.sum((axis,))
    return reduce(Term.__add__, (x.slice(axis, i, i + 1) for i in range(count)))


@dataclass(frozen=True)
class AxisTaps:
    """A map along an axis of `size` elements: result results[n] gets weights[n] times element sources[n]."""

    size: int
    results: np.ndarray
    sources: np.ndarray
    weights: np.ndarray

    def transposed(self, g: Term, axis: int) -> Term:
        """For each element, the weighted sum of the cotangents of the results that read it. g: that of all results."""
        pieces = self.pieces(g, axis)
        return pieces[0] if len(pieces) == 1 else t.concat(pieces, axis)

    def pieces(self, g: Term, axis: int) -> list[Term]:
        """The pieces along `axis` that `transposed` consists of."""
        runs = self._runs()
        return [self._sums(g, axis)] if runs is None or self.size == 0 else _sums_of_runs(g, axis, runs, self.size)

    def _sums(self, g: Term, axis: int) -> Term:
        order = np.lexsort((self.results, self.sources))
        results, weights = self.results[order], self.weights[order]
        counts = np.bincount(self.sources, minlength=self.size)
        taps = int(counts.max(initial=0))
        if taps == 0:
            return t.full((*g.shape[:axis], self.size, *g.shape[axis + 1 :]), 0, g.dtype)
        # an element of fewer taps reads its last result several times, its weight halved repeatedly, which is exact; a
        # weight of 0 would turn infinite gradients of other elements into NaN
        first_taps = np.cumsum(counts) - counts
        tap_numbers = np.arange(taps)
        last_taps = np.maximum(counts - 1, 0)[:, None]
        indices = np.minimum(first_taps[:, None] + np.minimum(tap_numbers, last_taps), len(results) - 1)
        halvings = np.where(tap_numbers >= last_taps, np.minimum(tap_numbers - last_taps + 1, taps - 1 - last_taps), 0)
        table, factors = results[indices], np.ldexp(weights[indices], -halvings)
        total = _sum_of_taps(g, axis, table, factors)
        if counts.all():
            return total
        is_read = t.as_term(counts > 0).spread(total.shape, (axis,))
        return t.term(t.where(is_read, total, 0))

    def _runs(self) -> list[Run] | None:
        """The runs of which the results consist, in order; None for a map that is not made of runs, or of more than
        `MAX_RUNS`."""
        if not np.array_equal(self.results, np.arange(len(self.results))) or (self.weights != 1).any():
            return None
        runs: list[Run] = []
        steps = np.diff(self.sources)
        start = 0
        while start < len(self.sources):
            if len(runs) == MAX_RUNS:
                return None
            step = int(steps[start]) if start < len(steps) else 1
            step = step if abs(step) <= 1 else 1
            breaks = np.flatnonzero(steps[start:] != step)
            count = int(breaks[0]) + 1 if len(breaks) else len(self.sources) - start
            ends = int(self.sources[start]), int(self.sources[start + count - 1])
            runs.append(Run(start, count, step, min(ends), max(ends) + 1))
            start += count
        return runs


def _sums_of_runs(g: Term, axis: int, runs: Sequence[Run], size: int) -> list[Term]:
    """The sum of runs of g, each at its offset along an axis of `size` elements, computed in up to three pieces: the
    longest one that is covered by the same runs, the one before it and the one after it."""
    ends = sorted({0, size, *(e for r in runs for e in (r.low, r.high))})
    longest = max(pairwise(ends), key=lambda piece: piece[1] - piece[0])
    pieces: list[Term] = []
    for begin, end in pairwise(sorted({0, *longest, size})):
        parts = [r.contribution(g, axis, begin, end) for r in runs if r.low < end and begin < r.high]
        zeros = t.full((*g.shape[:axis], end - begin, *g.shape[axis + 1 :]), 0, g.dtype)
        pieces.append(reduce(Term.__add__, parts) if parts else zeros)
    return pieces


def _pull_back(g: Term, maps: Sequence[tuple[int, AxisTaps]]) -> Term:
    """The cotangent of the operand of maps along several axes. Each piece along an axis goes through the other maps
    separately, so that the pieces of all axes are joined in one pass: concat(concat(a, slice(g), b), ...)."""
    if not maps:
        return g
    (axis, first), *others = maps
    if len(maps) > MAX_NESTED:
        return _pull_back(first.transposed(g, axis), others)
    pieces = [_pull_back(piece, others) for piece in first.pieces(g, axis)]
    return pieces[0] if len(pieces) == 1 else t.concat(pieces, axis)


def _sum_of_taps(g: Term, axis: int, table: np.ndarray, factors: np.ndarray) -> Term:
    """Element i along `axis`: the sum over k of factors[i, k] g[table[i, k]]."""
    if table.shape[1] > MAX_TAPS:
        rows = t.take(g, table.astype(np.int32), axis)
        return (rows * t.as_term(factors, g.dtype).spread(rows.shape, (axis, axis + 1))).sum(
            (axis + 1,), keepdims=False
        )
    total: Term | None = None
    for places, weights in zip(table.T, factors.T, strict=True):
        part = t.take(g, np.ascontiguousarray(places, np.int32), axis)
        if (weights != 1).any():
            part = part * t.as_term(np.ascontiguousarray(weights), g.dtype).spread(part.shape, (axis,))
        total = part if total is None else total + part
    assert total is not None
    return total


def _through_lowering(lowered: Node, x: Node, g: Node) -> list[Node | None]:
    """The cotangent of `x`, by differentiating the lowering of its op."""
    return pull_back_cotangents([(lowered, g)], [x])


@reverse(ops.PadMode)
def _pad_mode(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.PadMode)
    axes = [d for d, pads in enumerate(zip(op.low, op.high, strict=True)) if pads != (0, 0)]
    if not all(is_static((x.shape[d], node.shape[d])) for d in axes):
        return _through_lowering(op.lower(x), x, g)
    sources = {d: np.asarray(op.sources(x.shape[d], op.low[d], node.shape[d])) for d in axes}
    maps = [(d, _taps_of_reads(int(x.shape[d]), [(s, np.ones(len(s)))])) for d, s in sources.items()]
    return [_pull_back(t.widen_narrow(g), maps).cast(g.dtype).node]


@reverse(ops.Resize)
def _resize(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.Resize)
    changed = [(i, d) for i, d in enumerate(op.axes) if not op.is_identity(i, x.shape[d])]
    is_known = all(is_static((x.shape[d], op.sizes[i])) for i, d in changed)
    if not is_known or op.coordinates == "tf_crop_and_resize":
        return _through_lowering(op.lower(x), x, g)
    cotangent = t.widen_narrow(g)
    for i, d in changed:
        reads = op.reads(i, x.shape[d], f64 if x.dtype == f64 else f32)
        taps = _taps_of_reads(int(x.shape[d]), [(np.asarray(indices), np.asarray(w)) for indices, w in reads])
        cotangent = taps.transposed(cotangent, d)
    return [cotangent.cast(g.dtype).node]


@reverse(ops.AdaptiveAvgPool)
def _adaptive_mean(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.AdaptiveAvgPool)
    regular, irregular = op.split_dims(x.shape)
    if not all(is_static((x.shape[d], g.shape[d])) for d in irregular):
        return _through_lowering(op.lower(x), x, g)
    cotangent = t.widen_narrow(g)
    for d in reversed(irregular):  # the last and largest step is arithmetic on whole lines
        cotangent = _span_means(op.spans(x.shape, d)).transposed(cotangent, d)
    if regular:
        cotangent = cotangent / t.size(product(factor for _, factor in regular), cotangent.dtype)
    for d, factor in regular:
        cotangent = t.repeat(cotangent, d, factor)
    return [cotangent.cast(g.dtype).node]


def _span_means(spans: Sequence[tuple[int, int]]) -> AxisTaps:
    """The map to the mean of each span; the spans cover the axis."""
    counts = [end - begin for begin, end in spans]
    results = np.repeat(np.arange(len(spans)), counts)
    sources = np.concatenate([np.arange(*span) for span in spans]) if spans else results
    return AxisTaps(spans[-1][1] if spans else 0, results, sources, np.repeat(np.divide(1, counts), counts))


def _taps_of_reads(size: int, reads: Sequence[tuple[np.ndarray, np.ndarray]]) -> AxisTaps:
    """The map along an axis of `size` elements. reads: per tap the indices and weights, vectors over the results."""
    results = np.concatenate([np.arange(len(indices)) for indices, _ in reads])
    sources = np.concatenate([indices for indices, _ in reads]).astype(np.int64)
    weights = np.concatenate([w for _, w in reads]).astype(np.float64)
    if len(reads) > 1:  # merge taps of one result that read the same element
        pairs, pair_numbers = np.unique(sources * (results.max(initial=0) + 1) + results, return_inverse=True)
        weights = np.bincount(pair_numbers, weights, len(pairs))
        sources, results = np.divmod(pairs, results.max(initial=0) + 1)
    is_read = weights != 0
    return AxisTaps(size, results[is_read], sources[is_read], weights[is_read])
