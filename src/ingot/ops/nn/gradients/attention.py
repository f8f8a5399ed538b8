"""The backward pass of attention, without stored scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np

from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.node import Node, Samples
from ingot.ir.types import TensorType, dtype_of
from ingot.ops.core.base import round_to
from ingot.ops.core.elementwise import IsNan
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.attention import Attention, AttentionWithSums, Trained
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

T = TypeVar("T")
_INF = float("inf")
_ROW_MULTIPLE = 16  # blocks of queries are multiples of it, so that register tiles are full


@dataclass(frozen=True)
class _Backward(Trained):
    """An op of the backward pass. Operands: q, k, v, g[, y, sums][, mask][, seed]."""

    @property
    def forward_with_sums(self) -> AttentionWithSums:
        """The forward pass that also gives what kernels read."""
        return AttentionWithSums(self.causal, self.scale, self.softcap, self.guarded, dropout=self.dropout)

    def has_sums(self, inputs: Sequence[object]) -> bool:
        """Whether the operands have y and sums."""
        return len(inputs) - bool(self.dropout) > 5

    def mask(self, inputs: Sequence[T]) -> Sequence[T]:
        """The mask among the operands, if there is one."""
        return inputs[6 if self.has_sums(inputs) else 4 : len(inputs) - bool(self.dropout)]

    def check_operands(self, inputs: Sequence[TensorType]) -> None:
        count = len(inputs) - bool(self.dropout)
        self.expect(4 <= count <= 7, f"expected q, k, v, g, maybe y and sums, maybe a mask, got {count} operands")
        q, k, v, g, *_ = inputs
        result, sums = self.forward_with_sums.infer(q, k, v, *self.mask(inputs), *self.seed(inputs))
        self.expect(g == result, f"g: expected the type of the result, {result}, got {g}")
        saved = inputs[4:6] if self.has_sums(inputs) else (result, sums)
        self.expect(saved == (result, sums), f"y and sums: expected {result} and {sums}, got {saved}")

    def score_arrays(self, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The capped scores, the weights, and the gradients of masked scores, [B,Hq,Sq,Sk] in f64."""
        q, k, v, g = (t.as_f64(x) for x in inputs[:4])
        masks = self.mask(inputs)
        keys, cols = k.shape[1:3]
        group = q.shape[1] // keys if keys else 1
        wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        with np.errstate(all="ignore"):
            s = capped = q @ wide_k.swapaxes(2, 3) * self.scale
            if self.softcap:
                s = capped = self.softcap * np.tanh(s / self.softcap)
            for mask in masks:
                s = np.where(mask, s, -_INF) if mask.dtype == bool else s + t.as_f64(mask)
            if self.causal != "none":
                rows = s.shape[2]
                visible = np.arange(cols) <= np.arange(rows)[:, None] + self.forward.offset(rows, cols)
                s = np.where(visible, s, -_INF)
            row_max = s.max(3, keepdims=True, initial=-_INF)
            e = np.exp(s - np.where(row_max == -_INF, 0, row_max))
            total = e.sum(3, keepdims=True)
            p = e / np.where(total == 0, 1, total)
            if self.guarded:
                p = np.where(np.isnan(total), 0, p)
            p_dp = p * self.dropped_array(g @ wide_v.swapaxes(2, 3), inputs)
        return capped, p, p_dp - p * p_dp.sum(3, keepdims=True)

    def products(
        self, q: Term, k: Term, v: Term, g: Term, masks: Sequence[Term], seed: Sequence[Term],
        first_sample: Term | None, first_row: Term | None, rows: DimLike,
    ) -> tuple[Term, Term, Term, Callable[[Term], Term]]:  # fmt: skip
        """Of a block: the scores before masking, the weights, the weights times their gradients, and what drops."""
        forward = self.forward
        s = forward.scores(q.node, k.node)
        e, total, _ = forward.exponentials(s, [x.node for x in masks], first_row, rows)
        n = s.rank
        p = e / t.term(t.where(total.equals(0.0), 1.0, total)).restore(s.shape, (n - 1,))
        if self.guarded:
            p = t.term(t.where(total.map(IsNan()).restore(s.shape, (n - 1,)), 0.0, p))
        dropped = partial(self.dropped, heads=q.shape[1], seed=seed, first_sample=first_sample, first_row=first_row)
        g = g.reshape((*s.shape[:-1], g.shape[3]))
        dp = t.contract(g, v, [(n - 1, 3)], [(0, 0), (1, 1)], t.sums_dtype(q.dtype))
        return s, p, p * dropped(dp), dropped


@dataclass(frozen=True)
class AttentionGradients(_Backward):
    """The gradients (dq, dk, dv) of attention(q, k, v[, mask]) for the gradient g[B,Hq,Sq,Dv] of its result.

    Operands: q, k, v, g[, y, sums][, mask][, seed]; y and sums are what `AttentionWithSums` gives of the others.
    Attributes are those of `AttentionWithSums`, and max_scores: the maximum number of scores in memory, unless one row
    of all heads has more. by_row: the results have the heads behind queries or keys, [B,Sq,Hq,D], as projections in
    front of attention read them. Rows that give 0 (no visible key, or guarded) have gradients of 0.

    Scores are recomputed by blocks of queries, so that none are stored between the passes (FlashAttention, Dao et al.
    2022, algorithm 4). The lowering has blocks of complete rows, which need neither y nor sums; kernels read both. The
    weights and gradients of scores of 16-bit operands are rounded to 16 bits before they are multiplied, as there.
    """

    name: ClassVar[str] = "attention_gradients"
    max_scores: int = 1 << 20

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.check_operands(inputs)
        q, k, v, *_ = inputs
        if not self.by_row:
            return q, k, v
        return tuple(x.with_shape(tuple(x.shape[d] for d in (0, 2, 1, 3))) for x in (q, k, v))

    def flops(self, *inputs: TensorType) -> DimLike:
        """The operations of the five products: scores, gradients of weights, dq, dk and dv."""
        q, k, v = inputs[:3]
        return product(q.shape[:3]) * k.shape[2] * (3 * q.shape[3] + 2 * v.shape[3]) * 2

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        q, k, _, g = (t.as_f64(x) for x in inputs[:4])
        batch, keys = k.shape[:2]
        group = q.shape[1] // keys if keys else 1
        with np.errstate(all="ignore"):
            capped, p, ds = self.score_arrays(*inputs)
            if self.softcap:
                ds = ds * (1 - (capped / self.softcap) ** 2)
            ds = ds * self.scale
            gradients = (
                ds @ np.repeat(k, group, 1),
                ds.swapaxes(2, 3) @ q,
                self.dropped_array(p, inputs).swapaxes(2, 3) @ g,
            )
        dk, dv = (x.reshape(batch, keys, group, *x.shape[2:]).sum(2) for x in gradients[1:])
        results = gradients[0], dk, dv
        if self.by_row:
            results = tuple(x.swapaxes(1, 2) for x in results)
        return tuple(round_to(y, dtype_of(x)) for x, y in zip(inputs, results, strict=False))

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        q, k, v, g = (t.operand(x) for x in inputs[:4])
        masks = [Term(x).reshape((*(1,) * (4 - x.type.rank), *x.shape)) for x in self.mask(inputs)]
        seed = [Term(x) for x in self.seed(inputs)]
        samples, rows = self._block(q.shape, k.shape[2])
        batch, count = q.shape[0], q.shape[2]
        if samples == batch and rows == count:
            gradients = self._gradients(q, k, v, g, masks, seed, None, None, count)
        else:
            gradients = self._by_blocks(q, k, v, g, masks, seed, samples, rows)
        results = (y.reshape(x.shape).cast(x.dtype) for x, y in zip(inputs, gradients, strict=False))
        return tuple((y.transpose((0, 2, 1, 3)) if self.by_row else y).node for y in results)

    def _block(self, queries: Sequence[DimLike], cols: DimLike) -> tuple[int, DimLike]:
        """The number of samples and of rows in a block; one sample if the batch size is symbolic."""
        batch, heads, rows, _ = queries
        row_scores = max(1, estimate(product((heads, cols))))
        sample_scores = row_scores * estimate(rows)
        if sample_scores <= self.max_scores:
            if not isinstance(batch, int):
                return 1, rows
            max_samples = max(1, self.max_scores // max(1, sample_scores))
            return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= max_samples) if batch else 0, rows
        if not isinstance(rows, int):
            return 1, rows
        blocks = -(-rows // max(_ROW_MULTIPLE, self.max_scores // row_scores))
        return 1, min(rows, -(-rows // (blocks * _ROW_MULTIPLE)) * _ROW_MULTIPLE)

    def _by_blocks(
        self, q: Term, k: Term, v: Term, g: Term, masks: list[Term], seed: list[Term], samples: int, rows: DimLike
    ) -> list[Term]:
        batch, count = q.shape[0], q.shape[2]
        blocks = 1 if rows == count else ceildiv(count, rows)
        padding_rows = blocks * rows - count  # zero rows after the last one do not contribute
        wide_q, wide_g = (x.pad(2, 0, padding_rows, 0.0) for x in (q, g))
        wide_masks = [x if x.shape[2] == 1 else x.pad(2, 0, padding_rows, 0) for x in masks]
        masks_by_sample = [i for i, x in enumerate(masks) if x.shape[0] != 1]
        masks_by_row = [i for i, x in enumerate(masks) if x.shape[2] != 1]

        def add_block(step: Term, dq: Term, dk: Term, dv: Term, q: Term, k: Term, v: Term, g: Term, *others: Term):
            sample = t.term(t.div_floor(step, t.size(blocks))) if blocks != 1 else step
            first_row = (step - sample * t.size(blocks)) * t.size(rows) if blocks != 1 else t.scalar(0, step.dtype)
            first_sample = sample * samples

            def of_sample(x: Term) -> Term:
                return m.dynamic_slice(x, 0, first_sample, samples)

            def of_block(x: Term) -> Term:
                return m.dynamic_slice(of_sample(x), 2, first_row, rows)

            block_masks, seed = list(others[: len(masks)]), others[len(masks) :]
            for i in masks_by_sample:
                block_masks[i] = of_sample(block_masks[i])
            for i in masks_by_row:
                block_masks[i] = m.dynamic_slice(block_masks[i], 2, first_row, rows)
            a, b, c = self._gradients(
                of_block(q), of_sample(k), of_sample(v), of_block(g), block_masks, seed, first_sample, first_row, count,
                bool(padding_rows),
            )  # fmt: skip
            a = a.reshape((samples, *q.shape[1:2], rows, q.shape[3]))
            dq = m.dynamic_update(dq, m.dynamic_update(of_sample(dq), a, 2, first_row), 0, first_sample)
            if blocks != 1:
                b, c = of_sample(dk) + b, of_sample(dv) + c
            return [dq, m.dynamic_update(dk, b, 0, first_sample), m.dynamic_update(dv, c, 0, first_sample)]

        zeros = [t.full(x.shape, 0.0, t.sums_dtype(x.dtype)) for x in (wide_q, k, v)]
        invariants = (wide_q, k, v, wide_g, *wide_masks, *seed)
        dq, dk, dv = m.for_loop(ceildiv(batch, samples) * blocks, zeros, add_block, invariants)
        return [dq.slice(2, 0, count), dk, dv]

    def _gradients(
        self, q: Term, k: Term, v: Term, g: Term, masks: Sequence[Term], seed: Sequence[Term],
        first_sample: Term | None, first_row: Term | None, rows: DimLike, is_padded: bool = False,
    ) -> list[Term]:  # fmt: skip
        """[dq, dk, dv] of a block of samples and queries from the first ones on. is_padded: the block may extend past
        `rows`."""
        s, p, p_dp, dropped = self.products(q, k, v, g, masks, seed, first_sample, first_row, rows)
        n = s.rank
        row_axis, batch_dims = (n - 1,), [(0, 0), (1, 1)]
        q, g = (x.reshape((*s.shape[:-1], x.shape[3])) for x in (q, g))
        sums = t.sums_dtype(q.dtype)
        if is_padded:
            assert first_row is not None
            is_row = (t.iota(s.shape, n - 2) + first_row) < t.term(t.as_term(t.size(rows)))
            p, p_dp = (t.term(t.where(is_row, x, 0.0)) for x in (p, p_dp))
        ds = p_dp - p * p_dp.sum(row_axis)
        if self.softcap:
            ds = ds * (1.0 - (s / self.softcap) * (s / self.softcap))
        ds = ds * self.scale
        shared = [(0, 0), (1, 1)]
        summed = [(d, d) for d in range(2, n - 1)]
        ds, p = ds.cast(q.dtype), dropped(p).cast(q.dtype)
        dq = t.contract(ds, k, [(n - 1, 2)], batch_dims, sums)
        return [dq, t.contract(ds, q, summed, shared, sums), t.contract(p, g, summed, shared, sums)]

    @classmethod
    def samples(cls) -> Samples:
        seed = np.asarray(0x123456789ABCDEF, np.int64)
        for op, arrays in Attention.samples():
            assert isinstance(op, Attention)
            q, k, v, *mask = arrays
            if op.indexed or len({q.dtype, k.dtype, v.dtype}) > 1:  # caches are not trained
                continue
            g = np.random.default_rng(9).normal(size=(*q.shape[:3], v.shape[3])).astype(q.dtype)
            yield cls(op.causal, op.scale, op.softcap, op.guarded), (q, k, v, g, *mask)
            yield cls(op.causal, op.scale, op.softcap, op.guarded, dropout=0.3), (q, k, v, g, *mask, seed)
        rng = np.random.default_rng(2)
        q, k, v, g = (
            rng.normal(size=(3, *d)).astype(np.float32) for d in ((4, 37, 8), (2, 7, 8), (2, 7, 6), (4, 37, 6))
        )
        bias = rng.normal(size=(3, 1, 37, 7)).astype(np.float32)
        bias[1, 0, 5] = -_INF
        # blocks of one sample and a third of its rows
        yield cls("none", 0.35, max_scores=1100), (q, k, v, g, bias)
        yield cls("lower_right", 0.35, 2.0, True, max_scores=512), (q, k, v, g, bias[:1] < 0.5)
        yield cls("upper_left", 0.35, max_scores=512), (q, k, v, g)
        yield cls("none", 0.35, max_scores=1100, dropout=0.5), (q, k, v, g, bias, seed)
        for by_row, op, masks in (
            (False, Attention("lower_right", 0.35), ()),
            (True, Attention("none", 0.35, 2.0), (bias,)),
            (True, Attention("none", 0.35, guarded=True), (bias[:1] < 0.5,)),
        ):
            y, sums = op.result_and_sums(q, k, v, *masks)
            yield cls(op.causal, op.scale, op.softcap, op.guarded, by_row=by_row), (q, k, v, g, y, sums, *masks)
            dropping = cls(op.causal, op.scale, op.softcap, op.guarded, by_row=by_row, dropout=0.1)
            y, sums = dropping.forward_with_sums.reference(q, k, v, *masks, seed)
            yield dropping, (q, k, v, g, y, sums, *masks, seed)


@dataclass(frozen=True)
class AttentionMaskGradient(_Backward):
    """The gradient of a mask that is added to attention's scores, summed to its shape and in its type.

    Operands: q, k, v, g, y, sums, mask[, seed], and attributes, are those of `AttentionGradients`.
    """

    name: ClassVar[str] = "attention_mask_gradient"

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 7 + bool(self.dropout), f"expected all operands, got {len(inputs)}")
        self.check_operands(inputs)
        (mask,) = self.mask(inputs)
        self.expect(mask.dtype.is_float, f"mask: expected one that is added, got {mask}")
        return mask

    def flops(self, *inputs: TensorType) -> DimLike:
        """The operations of two products: scores and gradients of weights."""
        q, k, v = inputs[:3]
        return product(q.shape[:3]) * k.shape[2] * (q.shape[3] + v.shape[3]) * 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (mask,) = self.mask(inputs)
        with np.errstate(all="ignore"):
            _, _, ds = self.score_arrays(*inputs)
            axes = self._summed_axes(mask.shape, ds.shape)
            return round_to(ds.sum(axes, keepdims=True).reshape(mask.shape), dtype_of(mask))

    @staticmethod
    def _summed_axes(mask: Sequence[DimLike], scores: Sequence[DimLike]) -> tuple[int, ...]:
        shape = (*(1,) * (4 - len(mask)), *mask)
        return tuple(d for d, (n, size) in enumerate(zip(shape, scores, strict=True)) if n != size)

    def lower(self, *inputs: Node) -> Node:
        (mask,) = self.mask(inputs)
        q, k, v, g = (t.operand(x) for x in inputs[:4])
        seed = [Term(x) for x in self.seed(inputs)]
        wide = Term(mask).reshape((*(1,) * (4 - mask.type.rank), *mask.shape))
        _, p, p_dp, _ = self.products(q, k, v, g, [wide], seed, None, None, q.shape[2])
        ds = (p_dp - p * p_dp.sum((p.rank - 1,))).reshape((*q.shape[:3], k.shape[2]))
        return ds.sum(self._summed_axes(mask.shape, ds.shape)).reshape(mask.shape).cast(mask.dtype).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(3)
        seed = np.asarray(0x123456789ABCDEF, np.int64)
        shapes = ((4, 2, 33, 7), (1, 4, 33, 7), (33, 7), (4, 1, 7), (7,), (4, 4, 33, 7))
        for i, shape in enumerate(shapes):
            batch = max(shape[0], 2) if len(shape) == 4 else 2
            heads = shape[1] if len(shape) == 4 else 4
            q, k, v, g = (
                rng.normal(size=(batch, *d)).astype(np.float32)
                for d in ((heads, 33, 8), (2, 7, 8), (2, 7, 6), (heads, 33, 6))
            )
            mask = rng.normal(size=shape).astype(np.float32)
            mask[..., 2:3] = -_INF if mask.shape[-1] > 1 else 0
            op = cls(("none", "lower_right")[i % 2], 0.35, 2.0 * (i == 2), i == 3, dropout=0.2 * (i % 3))
            saved = op.forward_with_sums.reference(q, k, v, mask, *((seed,) if op.dropout else ()))
            yield op, (q, k, v, g, *saved, mask, *((seed,) if op.dropout else ()))
