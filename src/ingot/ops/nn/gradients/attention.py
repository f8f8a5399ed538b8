"""Attention backwards, without stored scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, dtype_of
from ingot.ops.core.base import round_to
from ingot.ops.core.elementwise import IsNan
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.attention import Attention
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

_INF = float("inf")
_ROWS = 16  # blocks of queries are multiples of so many: whole tiles of registers


@dataclass(frozen=True)
class AttentionGradients(Op):
    """The gradients of q, k and v from that of attention(q, k, v, mask), g[B,Hq,Sq,Dv]: operands q, k, v, g and maybe a
    mask. Attributes as in `Attention`. most: scores that are there at once, unless a row of all heads has more. A row
    that gives 0, as it has no keys or is guarded, has gradients of 0.

    Rows of scores are computed again, by blocks of queries whose rows are whole, so that nothing of them is stored
    between the passes (Dao et al. 2022, FlashAttention, algorithm 4, whose log-sum-exp whole rows need not).
    """

    name: ClassVar[str] = "attention_gradients"
    stored_values: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    causal: str = "none"
    scale: float = 1.0
    softcap: float = 0.0
    guarded: bool = False
    most: int = 1 << 20

    @property
    def forward(self) -> Attention:
        return Attention(self.causal, self.scale, self.softcap, self.guarded)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.expect(len(inputs) in (4, 5), f"expected q, k, v, g and maybe a mask, got {len(inputs)} operands")
        q, k, v, g, *mask = inputs
        result = self.forward.infer(q, k, v, *mask)
        self.expect(g == result, f"g: expected the type of the result, {result}, got {g}")
        return q, k, v

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        q, k, v, g = (t.exact(x) for x in inputs[:4])
        batch, keys, cols, _ = k.shape
        group = q.shape[1] // keys if keys else 1
        wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        with np.errstate(all="ignore"):
            s = capped = q @ wide_k.swapaxes(2, 3) * self.scale
            if self.softcap:
                s = capped = self.softcap * np.tanh(s / self.softcap)
            if len(inputs) == 5:
                s = np.where(inputs[4], s, -_INF) if inputs[4].dtype == bool else s + t.exact(inputs[4])
            if self.causal != "none":
                rows = s.shape[2]
                seen = np.arange(cols) <= np.arange(rows)[:, None] + self.forward.offset(rows, cols)
                s = np.where(seen, s, -_INF)
            top = s.max(3, keepdims=True, initial=-_INF)
            e = np.exp(s - np.where(top == -_INF, 0, top))
            total = e.sum(3, keepdims=True)
            p = e / np.where(total == 0, 1, total)
            if self.guarded:
                p = np.where(np.isnan(total), 0, p)
            inner = p * (g @ wide_v.swapaxes(2, 3))
            ds = inner - p * inner.sum(3, keepdims=True)
            if self.softcap:
                ds = ds * (1 - (capped / self.softcap) ** 2)
            ds = ds * self.scale
            found = ds @ wide_k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g
        of_k, of_v = (x.reshape(batch, keys, group, *x.shape[2:]).sum(2) for x in found[1:])
        return tuple(round_to(y, dtype_of(x)) for x, y in zip(inputs, (found[0], of_k, of_v), strict=False))

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        q, k, v, g = (t.floating(x) for x in inputs[:4])
        masks = [Term(x).reshape((*(1,) * (4 - x.type.rank), *x.shape)) for x in inputs[4:]]
        samples, rows = self._block(q.shape, k.shape[2])
        batch, count = q.shape[0], q.shape[2]
        if samples == batch and rows == count:
            found = self._gradients(q, k, v, g, masks, None, count)
        else:
            found = self._by_blocks(q, k, v, g, masks, samples, rows)
        return tuple(y.reshape(x.shape).cast(x.dtype).node for x, y in zip(inputs, found, strict=False))

    def _block(self, queries: Sequence[DimLike], cols: DimLike) -> tuple[int, DimLike]:
        """Samples and rows of a block. Samples that are no known number go one by one."""
        batch, heads, rows, _ = queries
        row = max(1, estimate(product((heads, cols))))
        sample = row * estimate(rows)
        if sample <= self.most:
            if not isinstance(batch, int):
                return 1, rows
            most = max(1, self.most // max(1, sample))
            return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= most) if batch else 0, rows
        if not isinstance(rows, int):
            return 1, rows
        blocks = -(-rows // max(_ROWS, self.most // row))
        return 1, min(rows, -(-rows // (blocks * _ROWS)) * _ROWS)

    def _by_blocks(
        self, q: Term, k: Term, v: Term, g: Term, masks: list[Term], samples: int, rows: DimLike
    ) -> list[Term]:
        batch, count = q.shape[0], q.shape[2]
        blocks = 1 if rows == count else ceildiv(count, rows)
        more = blocks * rows - count  # rows behind the last: zeros, which add nothing
        wide_q, wide_g = (x.pad(2, 0, more, 0.0) for x in (q, g))
        wide_masks = [x if x.shape[2] == 1 else x.pad(2, 0, more, 0) for x in masks]
        of_samples = [i for i, x in enumerate(masks) if x.shape[0] != 1]
        of_rows = [i for i, x in enumerate(masks) if x.shape[2] != 1]

        def turn(step: Term, of_q: Term, of_k: Term, of_v: Term, q: Term, k: Term, v: Term, g: Term, *masks: Term):
            sample = t.term(t.div_floor(step, t.size(blocks))) if blocks != 1 else step
            first = (step - sample * t.size(blocks)) * t.size(rows) if blocks != 1 else t.scalar(0, step.dtype)
            start = sample * samples

            def own(x: Term) -> Term:
                return m.cut(x, 0, start, samples)

            def part(x: Term) -> Term:
                return m.cut(own(x), 2, first, rows)

            seen = list(masks)
            for i in of_samples:
                seen[i] = own(seen[i])
            for i in of_rows:
                seen[i] = m.cut(seen[i], 2, first, rows)
            a, b, c = self._gradients(part(q), own(k), own(v), part(g), seen, first, count, bool(more))
            a = a.reshape((samples, *q.shape[1:2], rows, q.shape[3]))
            of_q = m.put(of_q, m.put(own(of_q), a, 2, first), 0, start)
            if blocks != 1:
                b, c = own(of_k) + b, own(of_v) + c
            return [of_q, m.put(of_k, b, 0, start), m.put(of_v, c, 0, start)]

        zeros = [t.full(x.shape, 0.0, x.dtype) for x in (wide_q, k, v)]
        fixed = (wide_q, k, v, wide_g, *wide_masks)
        of_q, of_k, of_v = m.repeat(ceildiv(batch, samples) * blocks, zeros, turn, fixed)
        return [of_q.slice(2, 0, count), of_k, of_v]

    def _gradients(
        self, q: Term, k: Term, v: Term, g: Term, masks: Sequence[Term], first: Term | None, rows: DimLike,
        over: bool = False,
    ) -> list[Term]:  # fmt: skip
        """Of a block of queries, whole rows of scores. over: the block may reach beyond the last of `rows`."""
        forward = self.forward
        s = forward.scores(q.node, k.node)
        e, total = forward.exponentials(s, [x.node for x in masks], first, rows)
        n = s.rank
        last, lead = (n - 1,), [(0, 0), (1, 1)]
        p = e / t.term(t.where(total.equals(0.0), 1.0, total)).restore(s.shape, last)
        if self.guarded:
            p = t.term(t.where(total.map(IsNan()).restore(s.shape, last), 0.0, p))
        q, g = (x.reshape((*s.shape[:-1], x.shape[3])) for x in (q, g))
        inner = p * t.contract(g, v, [(n - 1, 3)], lead)
        if over:
            assert first is not None
            exists = (t.iota(s.shape, n - 2) + first) < t.term(t.as_term(t.size(rows)))
            p, inner = (t.term(t.where(exists, x, 0.0)) for x in (p, inner))
        ds = inner - p * inner.sum(last)
        if self.softcap:
            ds = ds * (1.0 - (s / self.softcap) * (s / self.softcap))
        ds = ds * self.scale
        shared = [(0, 0), (1, 1)]
        summed = [(d, d) for d in range(2, n - 1)]
        of_q = t.contract(ds, k, [(n - 1, 2)], lead)
        return [of_q, t.contract(ds, q, summed, shared), t.contract(p, g, summed, shared)]

    @classmethod
    def samples(cls) -> Samples:
        for op, arrays in Attention.samples():
            assert isinstance(op, Attention)
            q, k, v, *mask = arrays
            g = np.random.default_rng(9).normal(size=(*q.shape[:3], v.shape[3])).astype(q.dtype)
            yield cls(op.causal, op.scale, op.softcap, op.guarded), (q, k, v, g, *mask)
        rng = np.random.default_rng(2)
        q, k, v, g = (
            rng.normal(size=(3, *d)).astype(np.float32) for d in ((4, 37, 8), (2, 7, 8), (2, 7, 6), (4, 37, 6))
        )
        added = rng.normal(size=(3, 1, 37, 7)).astype(np.float32)
        added[1, 0, 5] = -_INF
        # a sample at a time, and a third of its rows
        yield cls("none", 0.35, most=1100), (q, k, v, g, added)
        yield cls("lower_right", 0.35, 2.0, True, 512), (q, k, v, g, added[:1] < 0.5)
        yield cls("upper_left", 0.35, most=512), (q, k, v, g)
