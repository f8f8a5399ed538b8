"""Attention of single queries to keys and values in pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import DimLike, is_static, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, dtype_of, f8e4m3fn, f8e5m2, f32, i8, i64
from ingot.ops.core.base import round_to
from ingot.ops.nn import terms as t
from ingot.ops.nn.attention import Attention
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

T = TypeVar("T")
_NARROW = (f8e4m3fn, f8e5m2)


@dataclass(frozen=True)
class PagedAttention(Op):
    """Attention of rows of sequences whose keys and values lie in pages, by lengths in memory (Kwon et al., "Efficient
    Memory Management for Large Language Model Serving with PagedAttention", 2023).

    Operands: q[B,Hq,1,D], k[P,Hk,page,D], v[P,Hk,page,Dv], tables i64[B,T], ends i64[B] -> [B,Hq,1,Dv]. Key j of row b
    is k[tables[b, j // page], :, j % page], and row b attends to the keys j < ends[b], with a window > 0 to the last
    `window` of them; at most T * page. A row without keys gives 0. Pages are clamped as `Gather` does. k and v are of
    one dtype: that of q, a narrower float, or of 16 bits as q. scaled: they are i8, and two operands before the tables,
    f32[P,Hk,page,1], are what each is multiplied with. softcap: as in `Attention`.
    """

    name: ClassVar[str] = "paged_attention"
    takes_epilogue: ClassVar[bool] = True
    stored_values: ClassVar[tuple[int, ...]] = (0,)
    scale: float = 1.0
    softcap: float = 0.0
    window: int = 0
    scaled: bool = False

    @property
    def forward(self) -> Attention:
        """Attention to keys in order, which a mask restricts."""
        return Attention("none", self.scale, self.softcap, scaled=self.scaled)

    def scales(self, inputs: Sequence[T]) -> Sequence[T]:
        """The scales of keys and of values among the operands, or nothing."""
        return inputs[3:-2]

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(
            len(inputs) == 5 + 2 * self.scaled, f"expected q, k, v, tables and ends, got {len(inputs)} operands"
        )
        self.expect(self.softcap >= 0 and self.window >= 0, "softcap, window: expected 0 (none) or more")
        q, k, v = inputs[:3]
        tables, ends = inputs[-2:]
        is_narrow = k.dtype.is_float and (k.dtype in _NARROW or 16 <= k.dtype.bits <= q.dtype.bits)
        is_known = q.dtype.is_float and k.dtype == v.dtype and (k.dtype == i8 if self.scaled else is_narrow)
        self.expect(is_known, f"expected floats q, k and v, k and v of one dtype that is no wider, got {q}, {k}, {v}")
        self.expect(q.rank == k.rank == v.rank == 4, f"expected q, k and v of rank 4, got {q}, {k}, {v}")
        batch, heads, rows, depth = q.shape
        self.expect(rows == 1, f"expected one query of each row, got {q}")
        self.expect(k.shape[:3] == v.shape[:3] and k.shape[3] == depth, f"expected k and v of like pages, got {k}, {v}")
        divides = is_static((heads, k.shape[1])) and k.shape[1] != 0 and heads % k.shape[1] == 0
        self.expect(heads == k.shape[1] or divides, f"expected query heads in groups of the key heads, got {q} and {k}")
        is_table = tables.rank == 2 and tables.shape[0] == batch and tables.dtype == i64
        self.expect(
            is_table and ends == TensorType(i64, (batch,)), f"expected i64 tables and ends, got {tables}, {ends}"
        )
        for scale in self.scales(inputs):
            self.expect(scale == TensorType(f32, (*k.shape[:3], 1)), f"expected a scale for each of {k}, got {scale}")
        self.expect_constraints(*inputs)
        return q.with_shape((batch, heads, 1, v.shape[3]))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        yield inputs[1].shape[0] - 1, "pages: one or more"

    def key_count(self, inputs: Sequence[TensorType]) -> DimLike:
        """The most keys of a row."""
        return inputs[-2].shape[1] * inputs[1].shape[2]

    def flops(self, *inputs: TensorType) -> DimLike:
        """The operations of both products with all keys that there may be."""
        q, v = inputs[0], inputs[2]
        return product(q.shape[:3]) * self.key_count(inputs) * (q.shape[3] + v.shape[3]) * 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        q, k, v = inputs[:3]
        tables, ends = inputs[-2:]
        keys, values = t.as_f64(k), t.as_f64(v)
        if self.scaled:
            keys, values = (x * s for x, s in zip((keys, values), self.scales(inputs), strict=True))
        result = np.zeros((*q.shape[:3], v.shape[3]))
        for row, (table, end) in enumerate(zip(tables, ends, strict=True)):
            pages = np.clip(table, 0, len(k) - 1)
            last = min(int(end), len(table) * k.shape[2])
            first = max(0, int(end) - self.window) if self.window else 0
            # [T,Hk,page,D] -> [Hk,T*page,D]
            own = (x[pages].swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[3])[:, first:last] for x in (keys, values))
            floats = Attention("none", self.scale, self.softcap)
            result[row] = floats.reference(t.as_f64(q[row : row + 1]), *(x[None] for x in own))[0]
        return round_to(result, dtype_of(q))

    def lower(self, *inputs: Node) -> Node:
        q, *stored = (Term(x) for x in inputs[:-2])
        tables, ends = map(Term, inputs[-2:])
        batch, count = tables.shape

        def in_order(x: Term) -> Node:
            _, heads, page, width = x.shape
            pages = t.take(x, tables.reshape((batch * count,)), 0).reshape((batch, count, heads, page, width))
            return pages.transpose((0, 2, 1, 3, 4)).reshape((batch, heads, count * page, width)).node

        keys, values, *scales = map(in_order, stored)
        if not self.scaled:
            keys, values = (Term(x).cast(q.dtype).node for x in (keys, values))
        column = ends.reshape((batch, 1, 1, 1))
        shape = (batch, 1, 1, keys.shape[2])
        at = t.iota(shape, 3)
        is_seen = at < column.broadcast(shape)
        if self.window:
            is_seen = is_seen & (column.broadcast(shape) <= at + self.window)
        column_shape = (batch, 1, keys.shape[2], 1)
        values = t.term(t.where(is_seen.reshape(column_shape).broadcast(values.shape), Term(values), 0)).node
        return self.forward(q.node, keys, values, is_seen.node, *scales)

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        q, k, v = (rng.normal(size=s).astype(np.float32) for s in ((3, 4, 1, 8), (7, 2, 4, 8), (7, 2, 4, 6)))
        tables = rng.integers(0, 7, (3, 5))
        tables[0, 1], tables[1, 0] = 99, -3  # clamped
        ends = np.array([17, 1, 20])
        yield cls(0.35), (q, k, v, tables, ends)
        yield cls(0.35, 2.0, 6), (q, k, v, tables, np.array([0, 9, 99]))
        yield cls(0.35), (q[:, :2], k, v, tables[:, :1], ends)
        for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
            yield cls(0.35), (q, *(x.astype(getattr(ml_dtypes, name, np.float16)) for x in (k, v)), tables, ends)
        yield cls(0.35), (*(x.astype(np.float16) for x in (q, k, v)), tables, ends)
        half = q.astype(ml_dtypes.bfloat16)
        yield cls(0.35, window=5), (half, *(x.astype(ml_dtypes.float8_e4m3fn) for x in (k, v)), tables, ends)
        levels = tuple((x * 40).astype(np.int8) for x in (k, v))
        scales = tuple(np.abs(x[..., :1]) / 40 for x in (k, v))
        yield cls(0.35, scaled=True), (q, *levels, *scales, tables, ends)
        yield cls(0.35, 2.0, 3, scaled=True), (q, *levels, *scales, tables, ends)
        many = rng.integers(0, 7, (3, 90))
        yield cls(0.35), (q, k, v, many, np.array([360, 100, 222]))


__all__ = ["PagedAttention"]
