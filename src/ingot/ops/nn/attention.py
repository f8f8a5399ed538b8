"""Scaled dot-product attention with masks, softcap and grouped heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import DimLike, is_static, product
from ingot.ir.node import Cropped, Node, Op, Samples
from ingot.ir.types import Box, TensorType, boolean, dtype_of, f8e4m3fn, f8e5m2, f32, i8, i64, u32, u64
from ingot.ops.build import broadcast_shapes
from ingot.ops.core.base import round_to
from ingot.ops.core.elementwise import IsNan
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.ops.random import kept_scores, score_keys, without_bit_3
from ingot.support.dataclass import dataclass

T = TypeVar("T")
_INF = float("inf")
_STORED = (f8e4m3fn, f8e5m2)
ABSORBING_SCORE = -(2.0**100)  # added to a score in f32, it or a lower number leaves nothing of it


@dataclass(frozen=True)
class Attention(Op):
    """softmax(softcap(q k^T * scale) + mask) v, for q[B,Hq,Sq,D], k[B,Hk,Sk,D], v[B,Hk,Sk,Dv] -> [B,Hq,Sq,Dv].

    Operands: q, k, v and optionally mask, which broadcasts to [B,Hq,Sq,Sk]: bool (True: visible) or float (added). q, k
    and v are floats, k and v of one dtype, that of q or a narrower one; the op is computed in f32 (f64 for f64) and
    rounded once. scaled: k and v are i8, and two more operands, f32[B,Hk,Sk,1], are what each key and each value is
    multiplied with. indexed: k, v and their scales have any number of positions, and the last operand, i64[Sk], is the
    position of each key, clamped as `Gather` does. Query head h attends to key head h // (Hq / Hk).

    causal: "none", "upper_left" (query i attends to keys j <= i) or "lower_right" (j <= i + Sk - Sq). softcap: c > 0
    for c tanh(s / c), 0 for none. guarded: rows whose weights are NaN give 0. Rows without any visible key always give
    0 (as in flash attention and ONNX 24).
    """

    name: ClassVar[str] = "attention"
    takes_epilogue: ClassVar[bool] = True
    stored_values: ClassVar[tuple[int, ...]] = (0, 1, 2)
    causal: str = "none"
    scale: float = 1.0
    softcap: float = 0.0
    guarded: bool = False
    scaled: bool = False
    indexed: bool = False

    def mask(self, inputs: Sequence[T]) -> Sequence[T]:
        """The mask among the operands, or nothing."""
        return inputs[3 : len(inputs) - 2 * self.scaled - self.indexed]

    def scales(self, inputs: Sequence[T]) -> Sequence[T]:
        """The scales of keys and of values among the operands, or nothing."""
        end = len(inputs) - self.indexed
        return inputs[end - 2 * self.scaled : end]

    def key_count(self, inputs: Sequence[TensorType]) -> DimLike:
        """The number of keys, Sk."""
        return inputs[-1].shape[0] if self.indexed else inputs[1].shape[2]

    def infer(self, *inputs: TensorType) -> TensorType:
        count, mask = len(inputs) - 2 * self.scaled - self.indexed, self.mask(inputs)
        self.expect(count in (3, 4), f"expected q, k, v and maybe a mask, got {count} operands")
        choices = ("none", "upper_left", "lower_right")
        self.expect(self.causal in choices, f"causal: expected one of {' '.join(choices)}, got {self.causal}")
        self.expect(self.softcap >= 0, f"softcap: expected 0 (none) or more, got {self.softcap}")
        q, k, v = inputs[:3]
        is_narrow = (
            k.dtype == i8
            if self.scaled
            else k.dtype.is_float and k.dtype.bits < q.dtype.bits and (k.dtype.bits >= 16 or k.dtype in _STORED)
        )
        is_known = q.dtype.is_float and k.dtype == v.dtype and (is_narrow or (k.dtype == q.dtype and not self.scaled))
        self.expect(is_known, f"expected q, k and v of one float dtype, or k and v narrower, got {q}, {k}, {v}")
        self.expect(q.rank == k.rank == v.rank == 4, f"expected q, k and v of rank 4, got {q}, {k}, {v}")
        batch, heads, rows, depth = q.shape
        is_matching = k.shape[0] == v.shape[0] == batch and k.shape[1:3] == v.shape[1:3] and k.shape[3] == depth
        self.expect(is_matching, f"expected k [{batch},H,S,{depth}] and v [{batch},H,S,D] for q {q}, got {k} and {v}")
        divides = is_static((heads, k.shape[1])) and k.shape[1] != 0 and heads % k.shape[1] == 0
        self.expect(heads == k.shape[1] or divides, f"expected query heads in groups of the key heads, got {q} and {k}")
        if self.indexed:
            at = inputs[-1]
            self.expect(at.dtype == i64 and at.rank == 1, f"positions: expected i64[Sk], got {at}")
            self.expect_constraints(*inputs)
        for scale in self.scales(inputs):
            self.expect(scale == TensorType(f32, (*k.shape[:3], 1)), f"expected a scale for each of {k}, got {scale}")
        for mask in self.mask(inputs):
            scores = (batch, heads, rows, self.key_count(inputs))
            self.expect(mask.dtype == boolean or mask.dtype.is_float, f"mask: expected bool or float, got {mask}")
            is_matching = mask.rank <= 4 and broadcast_shapes(scores, mask.shape) == scores
            self.expect(is_matching, f"mask: expected one that broadcasts to {list(scores)}, got {mask}")
        return q.with_shape((batch, heads, rows, v.shape[3]))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        if self.indexed:
            yield inputs[1].shape[2] - 1, "positions of keys: one or more"

    def flops(self, *inputs: TensorType) -> DimLike:
        """The operations of both products, including scores that a causal mask hides."""
        q, v = inputs[0], inputs[2]
        return product(q.shape[:3]) * self.key_count(inputs) * (q.shape[3] + v.shape[3]) * 2

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        """Crops any range of queries without a causal mask, a prefix or suffix with one; heads unless keys are
        shared."""
        q, k = inputs[:2]
        batch, heads, (low, high), depth = box
        rows, cols, positions = q.shape[2], self.key_count(inputs), k.shape[2]
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
        key_heads = heads if k.shape[1] == q.shape[1] else (0, k.shape[1])
        keys, values = (batch, key_heads, (0, positions), (0, q.shape[3])), (batch, key_heads, (0, positions), depth)
        boxes: list[Box | None] = [(batch, heads, (low, high), (0, q.shape[3])), keys, values]
        for mask in self.mask(inputs):
            mask_box = (batch, heads, (low, high), (0, cols))[4 - mask.rank :]
            boxes.append(
                tuple((0, 1) if d == 1 else axis_range for d, axis_range in zip(mask.shape, mask_box, strict=True))
            )
        boxes += [(batch, key_heads, (0, positions), (0, 1))] * (2 * self.scaled) + [((0, cols),)] * self.indexed
        return replace(self, causal=causal), tuple(boxes)

    def offset(self, rows: DimLike, cols: DimLike) -> DimLike:
        """Under a causal mask, query i attends to keys j <= i + offset."""
        return cols - rows if self.causal == "lower_right" else 0

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return self.result_and_sums(*inputs)[0]

    def result_and_sums(
        self, *inputs: np.ndarray, dropped: Callable[[np.ndarray], np.ndarray] = lambda weights: weights
    ) -> tuple[np.ndarray, np.ndarray]:
        """The result and the logarithms of the sums of exponentials, as `AttentionWithSums` has them. dropped: what
        processes the weights [B,Hq,Sq,Sk]."""
        q, k, v = (t.as_f64(x) for x in inputs[:3])
        if self.scaled:
            k, v = (x * t.as_f64(scale) for x, scale in zip((k, v), self.scales(inputs), strict=True))
        if self.indexed:
            at = np.clip(inputs[-1], 0, k.shape[2] - 1)
            k, v = k[:, :, at], v[:, :, at]
        group = q.shape[1] // k.shape[1] if k.shape[1] else 1
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        with np.errstate(all="ignore"):
            s = q @ k.swapaxes(2, 3) * self.scale
            if self.softcap:
                s = self.softcap * np.tanh(s / self.softcap)
            for mask in self.mask(inputs):
                s = np.where(mask, s, -_INF) if mask.dtype == bool else s + t.as_f64(mask)
            if self.causal != "none":
                rows, cols = s.shape[2:]
                visible = np.arange(cols) <= np.arange(rows)[:, None] + self.offset(rows, cols)
                s = np.where(visible, s, -_INF)
            row_max = s.max(3, keepdims=True, initial=-_INF)
            level = np.where(row_max == -_INF, 0, row_max)
            e = np.exp(s - level)
            total = e.sum(3, keepdims=True)
            y = dropped(e / np.where(total == 0, 1, total)) @ v
            is_zero = total == 0
            if self.guarded:
                is_zero |= np.isnan(total)
                y = np.where(np.isnan(total), 0, y)
            sums = np.where(is_zero, _INF, level + np.log(total))[..., 0]
        dtype = dtype_of(inputs[0])
        return round_to(y, dtype), round_to(sums, t.sums_dtype(dtype))

    def weights(self, q: Node, k: Node, *mask: Node) -> Node:
        """The attention weights [B, Hq, Sq, Sk] of each query, for models that process them before the product with
        v."""
        e, total, _ = self.exponentials(self.scores(q, k), mask)
        w = e / t.term(t.where(total.equals(0), 1.0, total)).restore(e.shape, (e.rank - 1,))
        return w.reshape((*q.shape[:3], k.shape[2])).cast(q.dtype).node

    def lower(self, *inputs: Node) -> Node:
        if self.indexed:
            q, *stored = inputs[:3] + tuple(self.scales(inputs))
            at = Term(inputs[-1])
            keys, values, *scales = (t.take(Term(x), at, 2).node for x in stored)
            return replace(self, indexed=False)(q, keys, values, *self.mask(inputs), *scales)
        q, *wide = inputs[0], *(Term(x).cast(inputs[0].dtype) for x in inputs[1:3])
        if self.scaled:
            wide = [x * Term(scale) for x, scale in zip(wide, self.scales(inputs), strict=True)]
        e, total, _ = self.exponentials(self.scores(q, wide[0].node), self.mask(inputs))
        return self.weighted(e, total, wide[1].node, inputs[0]).node

    def weighted(self, e: Term, total: Term, value: Node, query: Node) -> Term:
        """The result for the exponentials of scores and what they are divided by."""
        v, n = t.widen_narrow(value), e.rank
        y = t.contract(e, v, [(n - 1, 2)], [(0, 0), (1, 1)])
        y = y / t.term(t.where(total.equals(0), 1.0, total)).restore(y.shape, (n - 1,))
        if self.guarded:
            y = t.term(t.where(total.map(IsNan()).restore(y.shape, (n - 1,)), 0.0, y))
        return y.reshape((*query.shape[:3], v.shape[3])).cast(query.dtype)

    def scores(self, query: Node, key: Node) -> Term:
        """The scaled and capped scores without masks, [B, Hk, G, Sq, Sk]; without G if no keys are shared."""
        q, k = t.operand(query), t.operand(key)
        batch, heads, rows, depth = q.shape
        keys = k.shape[1]
        # [B,Hk,G,Sq,D]: the G query heads that share a key head
        grouped = q if heads == keys else q.reshape((batch, keys, heads // keys, rows, depth))
        n = grouped.rank
        s = t.contract(grouped, k, [(n - 1, 3)], [(0, 0), (1, 1)], t.sums_dtype(q.dtype)) * self.scale
        return t.tanh(s / self.softcap) * self.softcap if self.softcap else s

    def exponentials(
        self, s: Term, mask: Sequence[Node], first_row: Term | None = None, rows: DimLike | None = None
    ) -> tuple[Term, Term, Term]:
        """The exponentials of scores `s` after masking, relative to a level of each row; their sums, by which they have
        yet to be divided; the levels.

        first_row, rows: if `s` is a block of the `rows` queries, the index of its first one.
        """
        n = s.rank
        if mask:
            s = self._apply_mask(s, Term(mask[0]))
        if self.causal != "none":
            count, cols = s.shape[-2:]
            visible = self.causal_mask(count, cols, self.offset(count if rows is None else rows, cols), first_row)
            s = t.term(t.where(visible.broadcast(s.shape), s, -_INF))
        row_max = s.max((n - 1,), keepdims=False)
        # for a row without visible keys: -inf - 0 = -inf, all weights 0
        level = t.term(t.where(row_max.equals(-_INF), 0.0, row_max))
        e = t.exp(s - level.restore(s.shape, (n - 1,)))
        return e, e.sum((n - 1,), keepdims=False), level

    def _apply_mask(self, s: Term, mask: Term) -> Term:
        full = self.mask_of_scores(s, mask)
        return t.term(t.where(full.broadcast(s.shape), s, -_INF)) if mask.dtype == boolean else s + full

    def mask_of_scores(self, s: Term, mask: Term) -> Term:
        """The mask with the scores' axes, some of size 1; in their type if it is added."""
        full = mask.reshape((*(1,) * (4 - mask.rank), *mask.shape))
        if s.rank == 5:
            b, h, *sizes = full.shape
            split = (1, 1) if h == 1 else s.shape[1:3]
            full = full.reshape((b, *split, *sizes))
        return full if mask.dtype == boolean else full.cast(s.dtype)

    def causal_mask(self, rows: DimLike, cols: DimLike, offset: DimLike, first_row: Term | None = None) -> Term:
        """[Sq,Sk]: whether the query attends to the key."""
        row, col = t.iota((rows, cols), 0), t.iota((rows, cols), 1)
        row = row if first_row is None else row + first_row
        return col <= (row if offset == 0 else row + t.size(offset))

    @classmethod
    def samples(cls) -> Samples:
        q, k, v = _data(2, 4, 5, 8), _data(2, 4, 7, 8), _data(2, 4, 7, 6)
        k2, v2 = k[:, :2], v[:, :2]
        keep = np.random.default_rng(1).random((2, 1, 5, 7)) < 0.6
        keep[0, 0, 2] = False
        bias = _data(4, 5, 7) * 3
        bias[1, 2, 3:], bias[2, 1] = -_INF, -_INF
        yield cls("none", 0.35), (q, k, v)
        yield cls("upper_left", 0.35), (q, k, v)
        yield cls("lower_right", 0.35), (q, k, v)
        yield cls("lower_right", 0.35), (k, q, _data(2, 4, 5, 3))
        yield cls("none", 0.35, 2.0), (q, k2, v2)
        yield cls("none", 0.35), (q, k2, v2, keep)
        yield cls("none", 0.35), (q, k2, v2, bias)
        yield cls("upper_left", 0.35, 5.0), (q, k2, v2, bias)
        yield cls("lower_right", 0.35), (q, k[:, :1], v[:, :1], keep)
        yield cls("none", 0.35), (q, k, v, np.asarray([True, False, True, True, True, False, True]))
        yield cls("none", 0.35), (q, k, v, _data(5, 1))
        yield cls("none", 0.35), (q, k[:, :, :0], v[:, :, :0])
        bias_with_nan = np.array(bias)
        bias_with_nan[:, 0, 3], bias_with_nan[2, 4, 0] = np.nan, _INF
        yield cls("none", 0.35, guarded=True), (q, k2, v2, bias_with_nan)
        yield cls("upper_left", 0.35), tuple(x.astype(np.float16) for x in (q, k2, v2))
        yield cls("none", 0.35), tuple(x.astype(np.float64) for x in (q, k, v))
        yield cls("lower_right", 0.35), (q, k2.astype(np.float16), v2.astype(np.float16))
        for name in ("float8_e4m3fn", "float8_e5m2"):
            yield cls("none", 0.35), (q[:, :, :1], *(x.astype(getattr(ml_dtypes, name)) for x in (k2, v2)))
        levels = tuple((x * 40).astype(np.int8) for x in (k2, v2))
        scales = tuple(np.abs(x[..., :1]) / 40 for x in (k2, v2))
        yield cls("lower_right", 0.35, scaled=True), (q, *levels, *scales)
        yield cls("none", 0.35, 2.0, scaled=True), (q[:, :, :1], *levels, bias[:, :1], *scales)
        at = np.asarray([5, 0, 99, 2, 2, -7, 4, 1, 6])  # two are clamped
        bias, many = _data(4, 1, 9), np.concatenate([at] * 9)
        yield cls("lower_right", 0.35, indexed=True), (q, k2, v2, at)
        yield (
            cls("none", 0.35, 2.0, indexed=True),
            (q[:, :, :1], k2.astype(np.float16), v2.astype(np.float16), bias, at),
        )
        yield cls("none", 0.35, scaled=True, indexed=True), (q[:, :, :2], *levels, *scales, many)


@dataclass(frozen=True)
class Trained(Op):
    """What attention and its gradients have in common: the attributes of `Attention`, and dropout of weights.

    dropout: the probability that a weight is set to 0, the others being divided by 1 - dropout; a multiple of 2^-16. If
    it is not 0, the last operand is its seed, an integer of 64 bits: see `ingot.ops.random.kept_scores`.
    """

    causal: str = "none"
    scale: float = 1.0
    softcap: float = 0.0
    guarded: bool = False
    by_row: bool = False
    dropout: float = 0.0

    @property
    def forward(self) -> Attention:
        """The attention without dropout."""
        return Attention(self.causal, self.scale, self.softcap, self.guarded)

    @property
    def share(self) -> float:
        """What the weights that dropout keeps are multiplied with."""
        return 1 / (1 - self.dropout) if self.dropout < 1 else 0.0

    def mask(self, inputs: Sequence[T]) -> Sequence[T]:
        """The mask among the operands, or nothing."""
        return inputs[3 : len(inputs) - bool(self.dropout)]

    def seed(self, inputs: Sequence[T]) -> Sequence[T]:
        """The seed of dropout among the operands, or nothing."""
        return inputs[len(inputs) - bool(self.dropout) :]

    def check_dropout(self, inputs: Sequence[TensorType]) -> None:
        self.expect(0 <= self.dropout <= 1, f"dropout: expected a probability, got {self.dropout}")
        for seed in self.seed(inputs):
            self.expect(seed in (TensorType(i64, ()), TensorType(u64, ())), f"seed: expected i64[], got {seed}")

    def dropped_array(self, x: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """`x`[B,Hq,Sq,Sk] after dropout."""
        if not self.dropout:
            return x
        batch, heads, rows, columns = x.shape
        head, row, column = (
            np.arange(n, dtype=np.uint32).reshape(-1, *(1,) * i)
            for n, i in ((batch * heads, 2), (rows, 1), (columns, 0))
        )
        keys = score_keys(self.seed(inputs)[0].reshape(1), head)
        kept = kept_scores(keys, without_bit_3(row), without_bit_3(column), self.dropout)
        return np.where(kept.reshape(x.shape), x * self.share, 0.0)

    def dropped(
        self, x: Term, heads: DimLike, seed: Sequence[Term], first_sample: Term | None = None,
        first_row: Term | None = None,
    ) -> Term:  # fmt: skip
        """`x`, which has the axes of scores, after dropout. first_sample, first_row: of a block of scores."""
        if not seed:
            return x
        rows, columns = x.shape[-2:]
        sample, head, row, column = (
            t.iota((n,), 0, u32).reshape((n, *(1,) * i))
            for n, i in ((x.shape[0], 3), (heads, 2), (rows, 1), (columns, 0))
        )
        if first_sample is not None:
            sample = sample + first_sample.cast(u32)
        if first_row is not None:
            row = row + first_row.cast(u32)
        keys = score_keys(seed[0], sample * t.size(heads, u32) + head)
        kept = kept_scores(keys, without_bit_3(row), without_bit_3(column), self.dropout)
        return t.term(t.where(kept.reshape(x.shape), x * self.share, 0.0))


@dataclass(frozen=True)
class AttentionWithSums(Trained):
    """Attention in training: (y, sums[B,Hq,Sq]), the second being what its gradients read.

    Operands and attributes are those of `Attention`, whose result y is but for dropout. sums: the logarithm of each
    query's sum of exponentials of scores, +inf for queries that give 0; in the type of sums, f32 (f64 for f64). by_row:
    y is [B,Sq,Hq,Dv], as the projection behind it reads it. dropout: see `Trained`.
    """

    name: ClassVar[str] = "attention_with_sums"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.check_dropout(inputs)
        y = self.forward.infer(*inputs[:3], *self.mask(inputs))
        batch, heads, rows, width = y.shape
        sums = TensorType(t.sums_dtype(y.dtype), (batch, heads, rows))
        return y.with_shape((batch, rows, heads, width)) if self.by_row else y, sums

    def flops(self, *inputs: TensorType) -> DimLike:
        return self.forward.flops(*inputs[:3])

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        operands = *inputs[:3], *self.mask(inputs)
        y, sums = self.forward.result_and_sums(*operands, dropped=lambda w: self.dropped_array(w, inputs))
        return y.swapaxes(1, 2) if self.by_row else y, sums

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        e, total, level = self.forward.exponentials(self.forward.scores(*inputs[:2]), self.mask(inputs))
        if self.dropout:
            seed = [Term(x) for x in self.seed(inputs)]
            y = self.forward.weighted(self.dropped(e, inputs[0].shape[1], seed), total, inputs[2], inputs[0])
        else:
            y = Term(self.forward(*inputs))
        is_zero = total.equals(0.0)
        if self.guarded:
            is_zero = is_zero | total.map(IsNan())
        sums = t.term(t.where(is_zero, _INF, t.log(total) + level)).reshape(inputs[0].shape[:3])
        return (y.transpose((0, 2, 1, 3)) if self.by_row else y).node, sums.node

    @classmethod
    def samples(cls) -> Samples:
        for i, (op, arrays) in enumerate(Attention.samples()):
            assert isinstance(op, Attention)
            if op.indexed or len({x.dtype for x in arrays[:3]}) > 1:  # caches are not trained
                continue
            yield cls(op.causal, op.scale, op.softcap, op.guarded, arrays[0].shape[1] == 4), arrays
            rate, seed = (0.1, 0.5, 0.9, 1.0, 1e-9)[i % 5], np.asarray(i * 0x123456789ABCDEF, np.int64)
            yield cls(op.causal, op.scale, op.softcap, op.guarded, dropout=rate), (*arrays, seed)


def _data(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
