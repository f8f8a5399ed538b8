"""Scaled dot-product attention with masks, softcap and grouped heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, is_static, product
from ingot.ir.node import Cropped, Node, Op, Samples
from ingot.ir.types import Box, TensorType, boolean, dtype_of
from ingot.ops.build import broadcast_shapes
from ingot.ops.core.base import round_to
from ingot.ops.core.elementwise import IsNan
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

_INF = float("inf")


@dataclass(frozen=True)
class Attention(Op):
    """softmax(softcap(q k^T * scale) + mask) v, for q[B,Hq,Sq,D], k[B,Hk,Sk,D], v[B,Hk,Sk,Dv] -> [B,Hq,Sq,Dv].

    Query head h reads key head h // (Hq / Hk). mask broadcasts to [B,Hq,Sq,Sk]: bool (True keeps) or float (added).
    causal: "upper_left" lets query i see keys up to i, "lower_right" up to i + Sk - Sq. softcap c > 0: c tanh(s / c).
    A row with no key left gives 0 (as flash kernels and ONNX 24 do), and, if `guarded`, one whose weights are NaN.
    Computed in f32 (f64 for f64), rounded once.
    """

    name: ClassVar[str] = "attention"
    takes_epilogue: ClassVar[bool] = True
    stored_values: ClassVar[tuple[int, ...]] = (0, 1, 2)
    causal: str = "none"
    scale: float = 1.0
    softcap: float = 0.0
    guarded: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) in (3, 4), f"expected q, k, v and maybe a mask, got {len(inputs)} operands")
        choices = ("none", "upper_left", "lower_right")
        self.expect(self.causal in choices, f"causal: expected one of {' '.join(choices)}, got {self.causal}")
        self.expect(self.softcap >= 0, f"softcap: expected 0 (none) or more, got {self.softcap}")
        q, k, v = inputs[:3]
        same = q.dtype == k.dtype == v.dtype and q.dtype.is_float
        self.expect(same, f"expected q, k and v of one float dtype, got {q}, {k}, {v}")
        self.expect(q.rank == k.rank == v.rank == 4, f"expected q, k and v of rank 4, got {q}, {k}, {v}")
        batch, heads, rows, depth = q.shape
        fits = k.shape[0] == v.shape[0] == batch and k.shape[1:3] == v.shape[1:3] and k.shape[3] == depth
        self.expect(fits, f"expected k [{batch},H,S,{depth}] and v [{batch},H,S,D] for q {q}, got {k} and {v}")
        groups = is_static((heads, k.shape[1])) and k.shape[1] != 0 and heads % k.shape[1] == 0
        self.expect(heads == k.shape[1] or groups, f"expected query heads in groups of the key heads, got {q} and {k}")
        if len(inputs) == 4:
            mask, scores = inputs[3], (batch, heads, rows, k.shape[2])
            self.expect(mask.dtype == boolean or mask.dtype.is_float, f"mask: expected bool or float, got {mask}")
            fits = mask.rank <= 4 and broadcast_shapes(scores, mask.shape) == scores
            self.expect(fits, f"mask: expected one that broadcasts to {list(scores)}, got {mask}")
        return q.with_shape((batch, heads, rows, v.shape[3]))

    def flops(self, *inputs: TensorType) -> DimLike:
        """Both products in full: what a causal mask leaves out is counted."""
        q, k, v = inputs[:3]
        return product(q.shape[:3]) * k.shape[2] * (q.shape[3] + v.shape[3]) * 2

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        """Any queries without a causal mask, the first ones or the last ones with it; heads that share no keys."""
        q, k = inputs[:2]
        batch, heads, (low, high), depth = box
        rows, cols = q.shape[2], k.shape[2]
        causal = self.causal
        if causal != "none" and (low, high) != (0, rows):
            square = rows == cols
            if low == 0 and (square or causal == "upper_left"):
                causal = "upper_left"
            elif high == rows and (square or causal == "lower_right"):
                causal = "lower_right"
            else:
                return None
        if heads != (0, q.shape[1]) and k.shape[1] != q.shape[1]:
            return None
        shared = heads if k.shape[1] == q.shape[1] else (0, k.shape[1])
        keys, values = (batch, shared, (0, cols), (0, q.shape[3])), (batch, shared, (0, cols), depth)
        reads: list[Box | None] = [(batch, heads, (low, high), (0, q.shape[3])), keys, values]
        for mask in inputs[3:]:
            seen = (batch, heads, (low, high), (0, cols))[4 - mask.rank :]
            reads.append(tuple((0, 1) if d == 1 else at for d, at in zip(mask.shape, seen, strict=True)))
        return replace(self, causal=causal), tuple(reads)

    def offset(self, rows: DimLike, cols: DimLike) -> DimLike:
        """The number of keys that the first query sees besides key 0, under a causal mask."""
        return cols - rows if self.causal == "lower_right" else 0

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        q, k, v = (t.exact(x) for x in inputs[:3])
        group = q.shape[1] // k.shape[1] if k.shape[1] else 1
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        with np.errstate(all="ignore"):
            s = q @ k.swapaxes(2, 3) * self.scale
            if self.softcap:
                s = self.softcap * np.tanh(s / self.softcap)
            if len(inputs) == 4:
                mask = inputs[3]
                s = np.where(mask, s, -_INF) if mask.dtype == bool else s + t.exact(mask)
            if self.causal != "none":
                rows, cols = s.shape[2:]
                seen = np.arange(cols) <= np.arange(rows)[:, None] + self.offset(rows, cols)
                s = np.where(seen, s, -_INF)
            top = s.max(3, keepdims=True, initial=-_INF)
            e = np.exp(s - np.where(top == -_INF, 0, top))
            total = e.sum(3, keepdims=True)
            y = (e / np.where(total == 0, 1, total)) @ v
            if self.guarded:
                y = np.where(np.isnan(total), 0, y)
        return round_to(y, dtype_of(inputs[0]))

    def weights(self, q: Node, k: Node, *mask: Node) -> Node:
        """[B, Hq, Sq, Sk]: what each query takes of each value, for what has to be done to it in between."""
        e, total = self.exponentials(self.scores(q, k), mask)
        w = e / t.term(t.where(total.equals(0), 1.0, total)).restore(e.shape, (e.rank - 1,))
        return w.reshape((*q.shape[:3], k.shape[2])).cast(q.dtype).node

    def lower(self, *inputs: Node) -> Node:
        e, total = self.exponentials(self.scores(*inputs[:2]), inputs[3:])
        v, n = t.floating(inputs[2]), e.rank
        y = t.contract(e, v, [(n - 1, 2)], [(0, 0), (1, 1)])
        y = y / t.term(t.where(total.equals(0), 1.0, total)).restore(y.shape, (n - 1,))
        if self.guarded:
            y = t.term(t.where(total.map(IsNan()).restore(y.shape, (n - 1,)), 0.0, y))
        return y.reshape((*inputs[0].shape[:3], v.shape[3])).cast(inputs[0].dtype).node

    def scores(self, query: Node, key: Node) -> Term:
        """Capped, without masks: [B, Hk, G, Sq, Sk], without G where no keys are shared."""
        q, k = t.floating(query), t.floating(key)
        batch, heads, rows, depth = q.shape
        keys = k.shape[1]
        # [B,Hk,G,Sq,D]: the queries that share a key head side by side
        grouped = q if heads == keys else q.reshape((batch, keys, heads // keys, rows, depth))
        n = grouped.rank
        s = t.contract(grouped, k, [(n - 1, 3)], [(0, 0), (1, 1)]) * self.scale
        return t.tanh(s / self.softcap) * self.softcap if self.softcap else s

    def exponentials(
        self, s: Term, mask: Sequence[Node], first: Term | None = None, rows: DimLike | None = None
    ) -> tuple[Term, Term]:
        """Weights of scores and what they are still to be divided by. first, rows: where these are not all `rows`
        queries, but those from `first` on."""
        n = s.rank
        if mask:
            s = self._masked(s, Term(mask[0]))
        if self.causal != "none":
            count, cols = s.shape[-2:]
            seen = self._seen(count, cols, self.offset(count if rows is None else rows, cols), first)
            s = t.term(t.where(seen.broadcast(s.shape), s, -_INF))
        top = s.max((n - 1,), keepdims=False)
        # of a row with no key: -inf - 0 = -inf, all weights 0
        e = t.exp(s - t.term(t.where(top.equals(-_INF), 0.0, top)).restore(s.shape, (n - 1,)))
        return e, e.sum((n - 1,), keepdims=False)

    def _masked(self, s: Term, mask: Term) -> Term:
        full = mask.reshape((*(1,) * (4 - mask.rank), *mask.shape))
        if s.rank == 5:
            b, h, *rest = full.shape
            split = (1, 1) if h == 1 else s.shape[1:3]
            full = full.reshape((b, *split, *rest))
        if mask.dtype == boolean:
            return t.term(t.where(full.broadcast(s.shape), s, -_INF))
        return s + full.cast(s.dtype)

    def _seen(self, rows: DimLike, cols: DimLike, offset: DimLike, first: Term | None) -> Term:
        """[Sq,Sk]: whether the query sees the key."""
        row, col = t.iota((rows, cols), 0), t.iota((rows, cols), 1)
        row = row if first is None else row + first
        return col <= (row if offset == 0 else row + t.size(offset))

    @classmethod
    def samples(cls) -> Samples:
        q, k, v = _data(2, 4, 5, 8), _data(2, 4, 7, 8), _data(2, 4, 7, 6)
        k2, v2 = k[:, :2], v[:, :2]
        keep = np.random.default_rng(1).random((2, 1, 5, 7)) < 0.6
        keep[0, 0, 2] = False
        added = _data(4, 5, 7) * 3
        added[1, 2, 3:], added[2, 1] = -_INF, -_INF
        yield cls("none", 0.35), (q, k, v)
        yield cls("upper_left", 0.35), (q, k, v)
        yield cls("lower_right", 0.35), (q, k, v)
        yield cls("lower_right", 0.35), (k, q, _data(2, 4, 5, 3))
        yield cls("none", 0.35, 2.0), (q, k2, v2)
        yield cls("none", 0.35), (q, k2, v2, keep)
        yield cls("none", 0.35), (q, k2, v2, added)
        yield cls("upper_left", 0.35, 5.0), (q, k2, v2, added)
        yield cls("lower_right", 0.35), (q, k[:, :1], v[:, :1], keep)
        yield cls("none", 0.35), (q, k, v, np.asarray([True, False, True, True, True, False, True]))
        yield cls("none", 0.35), (q, k, v, _data(5, 1))
        yield cls("none", 0.35), (q, k[:, :, :0], v[:, :, :0])
        poisoned = np.array(added)
        poisoned[:, 0, 3], poisoned[2, 4, 0] = np.nan, _INF
        yield cls("none", 0.35, guarded=True), (q, k2, v2, poisoned)
        yield cls("upper_left", 0.35), tuple(x.astype(np.float16) for x in (q, k2, v2))
        yield cls("none", 0.35), tuple(x.astype(np.float64) for x in (q, k, v))


def _data(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
