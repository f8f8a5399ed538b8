"""Linear maps along one axis whose reads are known when a model is compiled: padding with a value's own elements,
resizing, means of adaptive windows.

    y[o] = sum of w[o, i] x[i]   ->   dx[i] = sum of w[o, i] dy[o]

Nothing is scattered: each element reads the few results that it is in, by a table; or slices of the result are added,
where the map moves whole runs of elements:

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

MAX_TAPS = 8  # of an element, beyond which they are summed by a loop
MAX_RUNS = 4


@dataclass(frozen=True)
class AxisMap:
    """A map along an axis of `size` elements: result results[n] gets weights[n] times element sources[n]."""

    size: int
    results: np.ndarray
    sources: np.ndarray
    weights: np.ndarray

    def transposed(self, g: Term, axis: int) -> Term:
        """The sums, for each element, of the weighted results that it is in. g: one slice along `axis` a result."""
        runs = self._runs()
        if runs is not None:
            return _moved_runs(g, axis, runs, self.size)
        order = np.lexsort((self.results, self.sources))
        results, weights = self.results[order], self.weights[order]
        counts = np.bincount(self.sources, minlength=self.size)
        taps = int(counts.max(initial=0))
        if taps == 0 or g.shape[axis] == 0:
            return t.full((*g.shape[:axis], self.size, *g.shape[axis + 1 :]), 0, g.dtype)
        # an element of fewer taps reads its last result again, by halves of its weight: exact for every number, while
        # a weight of 0 would turn infinite gradients of others into NaN
        first = np.cumsum(counts) - counts
        number = np.arange(taps)
        last = np.maximum(counts - 1, 0)[:, None]
        at = np.minimum(first[:, None] + np.minimum(number, last), len(results) - 1)
        halvings = np.where(number >= last, np.minimum(number - last + 1, taps - 1 - last), 0)
        table, factors = results[at], np.ldexp(weights[at], -halvings)
        out = _sum_of_taps(g, axis, table, factors)
        if counts.all():
            return out
        is_read = t.as_term(counts > 0).spread(out.shape, (axis,))
        return t.term(t.where(is_read, out, 0))

    def _runs(self) -> list[tuple[int, int, int, int]] | None:
        """(first result, first source, step, count) of the runs in which the results, in order, are sources as they
        are, side by side, backwards or repeated; None for other maps and for more than `MAX_RUNS`."""
        if not np.array_equal(self.results, np.arange(len(self.results))) or (self.weights != 1).any():
            return None
        runs: list[tuple[int, int, int, int]] = []
        steps = np.diff(self.sources)
        start = 0
        while start < len(self.sources):
            if len(runs) == MAX_RUNS:
                return None
            step = int(steps[start]) if start < len(steps) else 1
            step = step if abs(step) <= 1 else 1
            other = np.flatnonzero(steps[start:] != step)
            count = int(other[0]) + 1 if len(other) else len(self.sources) - start
            runs.append((start, int(self.sources[start]), step, count))
            start += count
        return runs


def _moved_runs(g: Term, axis: int, runs: Sequence[tuple[int, int, int, int]], size: int) -> Term:
    """The sum of runs of g, each at its place along an axis of `size` elements, piece by piece between their ends."""
    spans = [(min(s, s + step * (n - 1)), max(s, s + step * (n - 1)) + 1) for _, s, step, n in runs]
    ends = sorted({0, size, *(e for span in spans for e in span)})
    pieces: list[Term] = []
    for low, high in pairwise(ends):
        parts: list[Term] = []
        for (first, source, step, count), span in zip(runs, spans, strict=True):
            if not span[0] <= low < span[1]:
                continue
            if step == 0:
                parts.append(g.slice(axis, first, first + count).sum((axis,)))
            elif step == 1:
                parts.append(g.slice(axis, first + low - source, first + high - source))
            else:
                backwards = g.slice(axis, first + source - high + 1, first + source - low + 1)
                parts.append(backwards.map(ops.Reverse((axis,))))
        none = (*g.shape[:axis], high - low, *g.shape[axis + 1 :])
        pieces.append(reduce(Term.__add__, parts) if parts else t.full(none, 0, g.dtype))
    return t.concat(pieces, axis)


def _sum_of_taps(g: Term, axis: int, table: np.ndarray, factors: np.ndarray) -> Term:
    """The sum over k of g at table[i, k] along `axis`, times factors[i, k]."""
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


def _through(node: Node, g: Node) -> list[Node | None]:
    """The cotangent through what the op is lowered to."""
    lowered = node.op.lower(*node.inputs)  # type: ignore[attr-defined]
    return pull_back_cotangents([(lowered, g)], [node.inputs[0]])


@reverse(ops.PadMode)
def _pad_mode(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.PadMode)
    axes = [d for d, pads in enumerate(zip(op.low, op.high, strict=True)) if pads != (0, 0)]
    if not all(is_static((x.shape[d], node.shape[d])) for d in axes):
        return _through(node, g)
    total = t.widen_narrow(g)
    for d in axes:
        sources = np.asarray(op.sources(x.shape[d], op.low[d], node.shape[d]))
        total = _axis_map(x.shape[d], [(sources, np.ones(len(sources)))]).transposed(total, d)
    return [total.cast(g.dtype).node]


@reverse(ops.Resize)
def _resize(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.Resize)
    changed = [(i, d) for i, d in enumerate(op.axes) if not op.is_identity(i, x.shape[d])]
    is_known = all(is_static((x.shape[d], op.sizes[i])) for i, d in changed)
    if not is_known or op.coordinates == "tf_crop_and_resize":
        return _through(node, g)
    total = t.widen_narrow(g)
    for i, d in changed:
        reads = op.reads(i, x.shape[d], f64 if x.dtype == f64 else f32)
        total = _axis_map(x.shape[d], [(np.asarray(at), np.asarray(w)) for at, w in reads]).transposed(total, d)
    return [total.cast(g.dtype).node]


@reverse(ops.AdaptiveAvgPool)
def _adaptive_mean(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.AdaptiveAvgPool)
    regular, irregular = op.split_dims(x.shape)
    if not all(is_static((x.shape[d], g.shape[d])) for d in irregular):
        return _through(node, g)
    total = t.widen_narrow(g)
    for d in irregular:
        total = _means_of(op.spans(x.shape, d)).transposed(total, d)
    if regular:
        total = total / t.size(product(factor for _, factor in regular), total.dtype)
    for d, factor in regular:
        total = t.repeat(total, d, factor)
    return [total.cast(g.dtype).node]


def _means_of(spans: Sequence[tuple[int, int]]) -> AxisMap:
    """The mean of each span of an axis that they cover."""
    counts = [end - begin for begin, end in spans]
    results = np.repeat(np.arange(len(spans)), counts)
    sources = np.concatenate([np.arange(*span) for span in spans]) if spans else results
    return AxisMap(spans[-1][1] if spans else 0, results, sources, np.repeat(np.divide(1, counts), counts))


def _axis_map(size: int, reads: Sequence[tuple[np.ndarray, np.ndarray]]) -> AxisMap:
    """The map along an axis of `size` elements from (index, weight) of each tap, vectors over the results."""
    results = np.concatenate([np.arange(len(at)) for at, _ in reads])
    sources = np.concatenate([at for at, _ in reads]).astype(np.int64)
    weights = np.concatenate([w for _, w in reads]).astype(np.float64)
    if len(reads) > 1:  # taps of one element are one
        pairs, first = np.unique(sources * (results.max(initial=0) + 1) + results, return_inverse=True)
        weights = np.bincount(first, weights, len(pairs))
        sources, results = np.divmod(pairs, results.max(initial=0) + 1)
    read = weights != 0
    return AxisMap(size, results[read], sources[read], weights[read])
