"""Attention without a matrix of scores: a running maximum and sum over blocks of keys.

    chunk (batch, head, 48 queries):  Qt = transpose(q * scale)                 [D][48]
        for block of keys:            St = K Qt;  m' = max(m, max St)           [keys][48]
                                      Pt = exp(St - m');  a = exp(m - m');  l = a l + sum Pt
                                      Ot = a Ot + V^T Pt                        [Dv][48]
        out = transpose(Ot / l)

Lanes are queries. So the softmax has no operation across lanes, keys and values are read where they lie, one broadcast
element for every multiply-add of three vectors, and only the small blocks Q and O are transposed.

Online softmax: Milakov and Gimelshein 2018; tiling: FlashAttention, Dao et al. 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.types import DType, boolean
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.attention.group import AttentionGroup, Scratch
from ingot.schedule.cpu.contraction.cost_model import fits
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.transpose import transpose_block
from ingot.schedule.emit import load_at
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Lowered
from ingot.support.dataclass import dataclass

SCORES = 16 << 10  # bytes of a block of scores: it shares the first-level cache with the queries and the result


@dataclass(frozen=True)
class _Tiling:
    """lanes of a vector; vectors: of queries in a chunk; keys, values: rows of the register tiles of both products;
    block: keys of a block."""

    lanes: int
    vectors: int
    keys: int
    values: int
    block: int

    @property
    def width(self) -> int:
        """Queries of a chunk."""
        return self.lanes * self.vectors


def _tiling(rows: DimLike, keys: DimLike, depth: int, cols: int, dtype: DType, machine: Machine) -> _Tiling:
    lanes = machine.lanes(dtype)
    needed = -(-estimate(rows) // lanes)

    def cost(vectors: int) -> float:
        # lanes without a query are wasted; one vector reads a broadcast element for every multiply-add
        return -(-needed // vectors) * vectors * (1.1 if vectors == 1 else 1.0)

    vectors = min((v for v in (2, 3, 4, 1) if fits(4, v, machine)), key=cost)
    wanted = min(24 // vectors, 16 if vectors == 1 else 10)
    most = next(m for m in range(wanted, 0, -1) if fits(m, vectors, machine))
    tile = -(-cols // -(-cols // most))
    block = max(1, SCORES // (lanes * vectors * dtype.nbytes * most)) * most
    if isinstance(keys, int) and keys < 2 * block:
        # one block, or two of equal size
        count = -(-keys // (block + block // 3)) or 1
        block = -(-keys // count // most) * most or most
    return _Tiling(lanes, vectors, most, tile, block)


class Flash:
    """The kernel for many queries (see module)."""

    def __init__(self, low: AttentionGroup):
        self.low, self.machine, self.dtype = low, low.machine, low.dtype
        self.t = _tiling(low.rows, low.keys, low.depth, low.cols, low.dtype, low.machine)
        self.k, self.v = low.widened(1, low.k), low.widened(2, low.v)
        self.top = Block()
        scratch = Scratch(self.top)
        t, dtype = self.t, low.dtype
        self.qt = scratch.alloc("qt", dtype, low.depth * t.width)
        self.st = scratch.alloc("st", dtype, t.block * t.width)
        self.ot = scratch.alloc("ot", dtype, low.cols * t.width)
        self.most = scratch.alloc("most", dtype, t.width)
        self.sum = scratch.alloc("sum", dtype, t.width)
        self.scale = scratch.alloc("scale", dtype, t.width)
        mask = low.mask
        self.varied = mask is not None and mask.layout.strides[2] != 0
        self.added = scratch.alloc("added", dtype, t.block * t.width) if self.varied else None
        self.scratch = scratch
        # operands of the chunk
        self.b: Expr = ZERO
        self.h: Expr = ZERO
        self.row: Expr = ZERO
        self.k_base: Expr = ZERO
        self.v_base: Expr = ZERO

    def lower(self) -> Lowered:
        low, t, top, chunk = self.low, self.t, self.top, k.var("chunk")
        blocks = ceildiv(low.rows, t.width)
        outer = top.let(k.binary("div", chunk, dim_expr(blocks)), "bh")
        part = top.let(k.binary("rem", chunk, dim_expr(blocks)), "part")
        if low.op.causal != "none":
            # the longest rows first
            part = top.let(k.sub(dim_expr(blocks - 1), part), "part")
        self.b = top.let(k.binary("div", outer, dim_expr(low.heads)), "b")
        self.h = top.let(k.binary("rem", outer, dim_expr(low.heads)), "h")
        self.row = top.let(k.mul(part, integer(t.width)), "row")
        shared = low.key_head(top, self.h)
        self.k_base = top.let(self.k.at(self.b, shared, ZERO, ZERO), "kb")
        self.v_base = top.let(self.v.at(self.b, shared, ZERO, ZERO), "vb")
        self._load_queries()
        self._clear()
        self._key_blocks()
        self._write()
        return low.kernel("attention", chunk, low.batch * low.heads * blocks, top, self.scratch.nbytes)

    # --- queries

    def _query_row(self, block: Block, row: Expr) -> Expr:
        """A row that exists: rows beyond the end compute what the last one does, and are not stored."""
        if isinstance(self.low.rows, int) and self.low.rows % self.t.width == 0:
            return row
        return block.let(k.binary("min", row, dim_expr(self.low.rows - 1)), "r")

    def _load_queries(self) -> None:
        """Qt[d][query] = q * scale."""
        low, t, lanes = self.low, self.t, self.t.lanes
        factor = k.lit(low.op.scale, self.dtype, lanes)
        tail = low.depth % lanes
        whole = low.depth - tail if low.q.last == 1 and lanes > 1 else 0

        def put(block: Block, d: Expr, vector: Expr, value: Expr) -> None:
            at = ix.add(ix.mul(d, integer(t.width)), ix.mul(vector, integer(lanes)))
            block.store(self.qt, at, k.mul(k.cast(value, self.dtype), factor))

        def vector(block: Block, v: Expr) -> None:
            first = block.let(k.add(self.row, k.mul(v, integer(lanes))), "q")

            def square(b: Block, d: Expr, mask: Expr | None, count: int) -> None:
                rows = [b.let(k.load(low.q.buffer, ix.add(base, d), lanes, mask), "q") for base in bases]
                for j, column in enumerate(transpose_block(b, rows)[:count]):
                    put(b, ix.add(d, integer(j)), v, column)

            if low.q.last == 1 and lanes > 1:
                bases = [
                    block.let(low.q.at(self.b, self.h, self._query_row(block, k.add(first, integer(i))), ZERO), "qr")
                    for i in range(lanes)
                ]
                block.loop("d", 0, whole, lanes, lambda b, d: square(b, d, None, lanes))
                if tail and self.machine.masks:
                    mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
                    square(block, integer(whole), mask, tail)
                    return

            def one(b: Block, d: Expr) -> None:
                index = k.ramp(first, lanes)
                if not (isinstance(low.rows, int) and low.rows % t.width == 0):
                    index = b.let(k.binary("min", index, dim_expr(low.rows - 1)), "r")
                put(b, d, v, k.splat(load_at(b, low.q.buffer, low.q.at(self.b, self.h, index, d)), lanes))

            block.loop("d", whole, low.depth, 1, one)

        self.top.loop("v", 0, t.vectors, 1, vector)

    def _clear(self) -> None:
        lanes = self.t.lanes
        zero, least = k.lit(0.0, self.dtype, lanes), k.lit(-inf, self.dtype, lanes)

        def state(b: Block, i: Expr) -> None:
            b.store(self.most, i, least)
            b.store(self.sum, i, zero)

        self.top.loop("i", 0, self.t.width, lanes, state)
        size = self.low.cols * self.t.width
        self.top.loop("i", 0, size, lanes, lambda b, i: b.store(self.ot, i, zero))

    # --- blocks of keys

    def _key_blocks(self) -> None:
        low, t, top = self.low, self.t, self.top
        end = dim_expr(low.keys)
        first_seen: Expr | None = None
        if low.op.causal != "none":
            # query `row` sees keys below row + offset + 1
            first_seen = top.let(ix.add(self.row, dim_expr(low.op.offset(low.rows, low.keys) + 1)), "seen")
            end = top.let(k.binary("min", end, ix.add(first_seen, integer(t.width - 1))), "end")

        def block(b: Block, first: Expr) -> None:
            if isinstance(end, Lit) and int(end.value) % t.block == 0:
                stop: Expr = ix.add(first, integer(t.block))
            else:
                stop = b.let(k.binary("min", ix.add(first, integer(t.block)), end), "stop")
            self._one_block(b, first, stop, first_seen)

        top.loop("j", 0, end, t.block, block)

    def _one_block(self, b: Block, first: Expr, stop: Expr, seen: Expr | None) -> None:
        t, lanes = self.t, self.t.lanes
        if self.added is not None:
            self._transpose_mask(b, first, stop)
        most = b.alloc("m", self.dtype, t.vectors, lanes=lanes)
        b.loop(
            "v", 0, t.vectors, 1,
            lambda x, v: x.store(most, v, k.load(self.most, k.mul(v, integer(lanes)), lanes)), unroll=True,
        )  # fmt: skip

        def scores(x: Block, hidden: bool) -> None:
            def tile(y: Block, j: Expr, rows: int) -> None:
                self._scores(y, first, j, rows, most, hidden)

            self._tiles(x, first, stop, t.keys, self.low.keys, tile)

        if seen is None:
            scores(b, False)
        else:
            b.when(k.binary("gt", stop, seen), lambda x: scores(x, True), lambda x: scores(x, False))
        self._weights(b, first, stop, most)
        count = b.let(k.sub(stop, first), "n")
        v_at = b.let(ix.add(self.v_base, ix.mul(first, dim_expr(self.v.layout.strides[2]))), "vj")
        cols, rest = self.low.cols, self.low.cols % t.values
        b.loop("c", 0, cols - rest, t.values, lambda x, c: self._values(x, c, t.values, v_at, count))
        if rest:
            self._values(b, integer(cols - rest), rest, v_at, count)

    def _tiles(
        self,
        block: Block,
        first: Expr,
        stop: Expr,
        size: int,
        extent: DimLike,
        tile: Callable[[Block, Expr, int], None],
    ) -> None:
        """tile(block, j, n) for n = `size` rows at a time from `first`; what is left in one piece where its size is
        known, else in powers of two."""
        count = k.binary("div", k.sub(stop, first), integer(size))
        whole = block.let(ix.add(first, k.mul(count, integer(size))), "w")
        block.loop("j", first, whole, size, lambda b, j: tile(b, j, size))
        causal = self.low.op.causal != "none"
        if isinstance(extent, int) and not causal:
            # blocks are whole tiles, but for the last
            rest = extent % size
            if rest:
                block.when(k.binary("lt", whole, stop), lambda b: tile(b, whole, rest))
            return
        power = 1 << (size - 1).bit_length() - 1 if size > 1 else 0
        while power:
            here, rows = whole, power
            has = k.binary("le", ix.add(here, integer(rows)), stop)
            block.when(has, lambda b, here=here, rows=rows: tile(b, here, rows))
            whole = block.let(k.select(has, ix.add(here, integer(rows)), here), "w")
            power //= 2

    def _scores(self, block: Block, first: Expr, j: Expr, rows: int, most: Buffer, hidden: bool) -> None:
        """St for `rows` keys from j: products, softcap, mask, and the running maximum."""
        t, lanes, low = self.t, self.t.lanes, self.low
        acc = self._product(
            block, rows, low.depth, integer(low.depth), self.qt, ZERO, self.k.buffer,
            ix.add(self.k_base, ix.mul(j, dim_expr(self.k.layout.strides[2]))),
            self.k.layout.strides[2], self.k.layout.strides[3],
        )  # fmt: skip
        place = block.let(k.mul(k.sub(j, first), integer(t.width)), "s")
        for r in range(rows):
            key = ix.add(j, integer(r))
            for v in range(t.vectors):
                slot = ix.add(place, integer(r * t.width + v * lanes))
                value = block.let(low.capped(k.load(acc, integer(r * t.vectors + v))), "s")
                value = self._masked(block, value, key, slot)
                if hidden:
                    row = k.ramp(ix.add(self.row, integer(v * lanes)), lanes)
                    last = ix.add(row, dim_expr(low.op.offset(low.rows, low.keys)))
                    value = k.select(k.binary("ge", last, key), value, k.lit(-inf, self.dtype, lanes))
                value = block.let(value, "s")
                block.store(self.st, slot, value)
                at = integer(v)
                block.store(most, at, k.binary("maxnum", value, k.load(most, at)))

    def _product(
        self,
        block: Block,
        rows: int,
        turns: int,
        end: Expr,
        b: Buffer,
        b_at: Expr,
        a: Buffer,
        a_at: Expr,
        row_stride: DimLike,
        turn_stride: DimLike,
        start: Callable[[Block, Buffer], None] | None = None,
    ) -> Buffer:
        """acc[rows][vectors] += a[row, turn] * b[turn][vectors] over `end` turns; `turns`: that number, if known."""
        t, lanes = self.t, self.t.lanes
        acc = block.alloc("acc", self.dtype, rows * t.vectors, lanes=lanes)
        if start is None:
            zero = k.lit(0.0, self.dtype, lanes)
            block.loop("i", 0, rows * t.vectors, 1, lambda x, i: x.store(acc, i, zero), unroll=True)
        else:
            start(block, acc)
        a_at = block.let(a_at, "a")

        def turn(x: Block, i: Expr) -> None:
            at = ix.add(a_at, ix.mul(i, dim_expr(turn_stride)))
            line = ix.add(b_at, ix.mul(i, integer(t.width)))
            columns = [x.let(k.load(b, ix.add(line, integer(v * lanes)), lanes), "b") for v in range(t.vectors)]
            for r in range(rows):
                value = x.let(k.load(a, ix.add(at, ix.mul(integer(r), dim_expr(row_stride)))), "x")
                wide = x.let(k.splat(value, lanes), "x")
                for v, column in enumerate(columns):
                    slot = integer(r * t.vectors + v)
                    x.store(acc, slot, k.fma(wide, column, k.load(acc, slot)))

        unroll = 4 if not turns else next(u for u in (4, 3, 2, 1) if turns % u == 0)

        def several(x: Block, i: Expr) -> None:
            for u in range(unroll):
                turn(x, ix.add(i, integer(u)))

        if turns:
            block.loop("d", ZERO, end, unroll, several)
            return acc
        whole = block.let(k.mul(k.binary("div", end, integer(unroll)), integer(unroll)), "w")
        block.loop("d", ZERO, whole, unroll, several)
        block.loop("d", whole, end, 1, turn)
        return acc

    def _masked(self, block: Block, value: Expr, key: Expr, slot: Expr) -> Expr:
        """A score with its mask. A bool mask that is off wins over any score, NaN included."""
        mask, lanes = self.low.mask, self.t.lanes
        if mask is None:
            return value
        least = k.lit(-inf, self.dtype, lanes)
        if self.added is not None:
            added = block.let(k.load(self.added, slot, lanes), "a")
            if mask.buffer.dtype == boolean:
                return k.select(k.binary("eq", added, k.lit(0.0, self.dtype, lanes)), value, least)
            return k.add(value, added)
        at = mask.at(self.b, self.h, ZERO, key)
        one = block.let(k.load(mask.buffer, at), "a")
        if mask.buffer.dtype == boolean:
            return k.select(k.splat(one, lanes), value, least)
        return k.add(value, k.splat(block.let(k.cast(one, self.dtype), "a"), lanes))

    def _transpose_mask(self, block: Block, first: Expr, stop: Expr) -> None:
        """added[key][query] for the block's keys: the mask, or 0 and -inf for a bool one."""
        mask, added, t, lanes = self.low.mask, self.added, self.t, self.t.lanes
        assert mask is not None and added is not None

        def number(b: Block, x: Expr) -> Expr:
            if mask.buffer.dtype == boolean:
                return k.select(x, k.lit(0.0, self.dtype, x.lanes), k.lit(-inf, self.dtype, x.lanes))
            return k.cast(x, self.dtype)

        square = mask.last == 1 and lanes > 1

        def vector(x: Block, v: Expr) -> None:
            row = x.let(k.add(self.row, k.mul(v, integer(lanes))), "q")
            column = x.let(k.sub(k.mul(v, integer(lanes)), k.mul(first, integer(t.width))), "q")
            start = first

            def put(y: Block, key: Expr, value: Expr) -> None:
                y.store(added, ix.add(column, ix.mul(key, integer(t.width))), value)

            if square:
                bases = [
                    x.let(mask.at(self.b, self.h, self._query_row(x, k.add(row, integer(i))), ZERO), "mr")
                    for i in range(lanes)
                ]

                def squares(y: Block, key: Expr) -> None:
                    rows = [
                        y.let(number(y, y.let(k.load(mask.buffer, ix.add(base, key), lanes), "a")), "a")
                        for base in bases
                    ]
                    for j, value in enumerate(transpose_block(y, rows)):
                        put(y, ix.add(key, integer(j)), value)

                whole = k.mul(k.binary("div", k.sub(stop, first), integer(lanes)), integer(lanes))
                start = x.let(k.add(first, whole), "w")
                x.loop("j", first, start, lanes, squares)

            def one(y: Block, key: Expr) -> None:
                index = y.let(k.binary("min", k.ramp(row, lanes), dim_expr(self.low.rows - 1)), "r")
                value = k.splat(load_at(y, mask.buffer, mask.at(self.b, self.h, index, key)), lanes)
                put(y, key, number(y, value))

            x.loop("j", start, stop, 1, one)

        block.loop("v", 0, t.vectors, 1, vector)

    def _weights(self, block: Block, first: Expr, stop: Expr, most: Buffer) -> None:
        """Pt = exp(St - m) in place, and what the new maximum makes of the sum and of the result so far."""
        t, lanes = self.t, self.t.lanes
        sums = block.alloc("l", self.dtype, t.vectors, lanes=lanes)
        tops: list[Expr] = []
        for v in range(t.vectors):
            top = block.let(k.load(most, integer(v)), "m")
            none = k.binary("eq", top, k.lit(-inf, self.dtype, lanes))
            # of a query with no key so far: exp(-inf - 0) = 0, where -inf - -inf would be NaN
            safe = block.let(k.select(none, k.lit(0.0, self.dtype, lanes), top), "m")
            tops.append(safe)
            at = integer(v * lanes)
            old = block.let(k.load(self.most, at, lanes), "o")
            factor = block.let(k.call("exp_decay", k.sub(old, safe)), "a")
            block.store(self.most, at, top)
            block.store(self.scale, at, factor)
            block.store(sums, integer(v), k.mul(factor, k.load(self.sum, at, lanes)))

        def one(x: Block, i: Expr) -> None:
            for v in range(t.vectors):
                at = ix.add(i, integer(v * lanes))
                weight = x.let(k.call("exp_decay", k.sub(k.load(self.st, at, lanes), tops[v])), "p")
                x.store(self.st, at, weight)
                x.store(sums, integer(v), k.add(k.load(sums, integer(v)), weight))

        size = block.let(k.mul(k.sub(stop, first), integer(t.width)), "n")
        block.loop("i", ZERO, size, t.width, one)
        for v in range(t.vectors):
            block.store(self.sum, integer(v * lanes), k.load(sums, integer(v)))

    def _values(self, block: Block, col: Expr, rows: int, v_at: Expr, count: Expr) -> None:
        """Ot = scale * Ot + V^T Pt for `rows` columns of V."""
        t, lanes = self.t, self.t.lanes
        place = block.let(k.mul(col, integer(t.width)), "ot")

        def resume(x: Block, acc: Buffer) -> None:
            factors = [x.let(k.load(self.scale, integer(v * lanes), lanes), "a") for v in range(t.vectors)]
            for r in range(rows):
                for v in range(t.vectors):
                    at = ix.add(place, integer(r * t.width + v * lanes))
                    x.store(acc, integer(r * t.vectors + v), k.mul(factors[v], k.load(self.ot, at, lanes)))

        strides = self.v.layout.strides
        acc = self._product(
            block, rows, 0, count, self.st, ZERO, self.v.buffer, ix.add(v_at, ix.mul(col, dim_expr(strides[3]))),
            strides[3], strides[2], resume,
        )  # fmt: skip
        for r in range(rows):
            for v in range(t.vectors):
                at = ix.add(place, integer(r * t.width + v * lanes))
                block.store(self.ot, at, k.load(acc, integer(r * t.vectors + v)))

    # --- the result

    def _write(self) -> None:
        low, t, lanes = self.low, self.t, self.t.lanes
        tail = low.cols % lanes
        squares = low.cols if self.machine.masks else low.cols - tail
        if lanes == 1:
            squares = 0
        exact = isinstance(low.rows, int) and low.rows % t.width == 0

        def vector(block: Block, v: Expr) -> None:
            first = block.let(k.add(self.row, k.mul(v, integer(lanes))), "q")
            total = block.let(k.load(self.sum, k.mul(v, integer(lanes)), lanes), "l")
            normalized = low.normalizer(block, total, lanes)

            def value(b: Block, c: Expr) -> Expr:
                at = ix.add(ix.mul(c, integer(t.width)), ix.mul(v, integer(lanes)))
                return b.let(normalized(k.load(self.ot, at, lanes)), "o")

            def square(b: Block, c: Expr, count: int) -> None:
                columns = [value(b, ix.add(c, integer(min(j, count - 1)))) for j in range(lanes)]
                mask = None if count == lanes else k.binary("lt", k.ramp(ZERO, lanes), integer(count))
                for i, row in enumerate(transpose_block(b, columns)):
                    q = ix.add(first, integer(i))

                    def store(x: Block, row: Expr = row, q: Expr = q) -> None:
                        low.store(x, (self.b, self.h, q, k.ramp(c, lanes)), row, mask)

                    if exact:
                        store(b)
                    else:
                        b.when(k.binary("lt", q, dim_expr(low.rows)), store)

            def line(b: Block, c: Expr) -> None:
                live = None if exact else b.let(k.binary("lt", k.ramp(first, lanes), dim_expr(low.rows)), "live")
                index = k.ramp(first, lanes) if lanes > 1 else first
                low.store(b, (self.b, self.h, index, c), value(b, c), live)

            whole = squares - squares % lanes
            block.loop("c", 0, whole, lanes, lambda b, c: square(b, c, lanes))
            if squares > whole:
                square(block, integer(whole), squares - whole)
            block.loop("c", squares, low.cols, 1, line)

        self.top.loop("v", 0, t.vectors, 1, vector)


__all__ = ["Flash"]
