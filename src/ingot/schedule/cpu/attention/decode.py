"""Attention for a few queries, as in generating a token: K and V are read once, with vectors along the head.

    chunk (batch, key head, rows, split):
        for block of keys:  s[row][key] = q[row] . K[key]     16 keys at a time, their 16 sums folded together
                            p = exp(s - m'), a = exp(m - m')
                            o[row] = a o[row] + sum of p[row][key] V[key]
        out = o / l, or (o, m, l) to memory where several chunks share the keys of a row; then
    chunk (batch, head, query):  combine the splits

Query heads that share a key head are rows of one chunk. Splitting the keys: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.types import boolean
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import symbol_params
from ingot.schedule.cpu.attention.group import AttentionGroup, Scratch, Tensor
from ingot.schedule.cpu.transpose import fold_lanes
from ingot.schedule.emit import load_at
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step

QUERIES = 8  # more of them fill vectors: the other kernel is faster
BLOCK = 64  # keys
AHEAD = 16  # keys that are fetched in advance
SPLIT = 256  # keys of a chunk, at least
ROWS = 8  # of a chunk


class Decode:
    """The kernels for few queries (see module)."""

    @staticmethod
    def suits(low: AttentionGroup) -> bool:
        lanes = low.machine.lanes(low.dtype)
        along = low.k.last == 1 and low.v.last == 1 and low.q.last == 1
        whole = low.machine.masks or (low.depth % lanes == 0 and low.cols % lanes == 0)
        few = isinstance(low.rows, int) and 0 < low.rows <= QUERIES
        return few and along and whole and lanes > 1 and low.depth > 0 and low.cols > 0

    def __init__(self, low: AttentionGroup):
        self.low, self.dtype = low, low.dtype
        assert isinstance(low.rows, int)
        self.queries = low.rows
        self.group = 1
        if low.shared != low.heads:
            assert isinstance(low.heads, int) and isinstance(low.shared, int)
            self.group = low.heads // low.shared
        self.lanes = lanes = low.machine.lanes(low.dtype)
        total = self.group * self.queries
        self.rows = next(n for n in range(min(ROWS, total), 0, -1) if total % n == 0)
        self.row_blocks = total // self.rows
        self.depth, self.cols = -(-low.depth // lanes), -(-low.cols // lanes)  # in vectors
        # rows whose results are in registers at once
        self.together = next(n for n in range(max(1, min(self.rows, 20 // self.cols)), 0, -1) if self.rows % n == 0)
        self.split, self.splits = self._split()
        self.top = Block()
        scratch = Scratch(self.top)
        self.q = scratch.alloc("q", self.dtype, self.rows * self.depth * lanes)
        self.s = scratch.alloc("s", self.dtype, self.rows * BLOCK)
        self.o = scratch.alloc("o", self.dtype, self.rows * self.cols * lanes)
        self.most = scratch.alloc("most", self.dtype, self.rows)
        self.sum = scratch.alloc("sum", self.dtype, self.rows)
        self.scale = scratch.alloc("scale", self.dtype, self.rows)
        self.scratch = scratch
        # a split's results of one row: the weighted values, the maximum, the sum
        self.record = self.cols * lanes + lanes
        self.part = Buffer("part", self.dtype, writable=True)
        self.b: Expr = ZERO
        self.head: Expr = ZERO
        self.first: Expr = ZERO

    def _split(self) -> tuple[int, DimLike]:
        """(keys of a chunk, number of splits): enough chunks for all threads."""
        low = self.low
        chunks = estimate(low.batch) * estimate(low.shared) * self.row_blocks
        wanted = -(-4 * low.machine.threads // max(chunks, 1))
        keys = estimate(low.keys)
        if wanted <= 1 or keys < 2 * SPLIT or low.machine.threads == 1:
            return 0, 1
        per = max(SPLIT, -(-keys // wanted // BLOCK) * BLOCK)
        return per, ceildiv(low.keys, per)

    def lower(self) -> Lowered:
        low, top, chunk = self.low, self.top, k.var("chunk")
        counts = (low.batch, low.shared, self.row_blocks, self.splits)
        self.b, head, rows, part = (top.let(e, "c") for e in ix.delinearize(chunk, counts, {}))
        self.first = top.let(k.mul(rows, integer(self.rows)), "r0")
        self.head = head
        k_base = top.let(low.k.at(self.b, head, ZERO, ZERO), "kb")
        v_base = top.let(low.v.at(self.b, head, ZERO, ZERO), "vb")
        self._load_queries()
        begin, end = ZERO, dim_expr(low.keys)
        if self.split:
            begin = top.let(k.mul(part, integer(self.split)), "begin")
            end = top.let(k.binary("min", k.add(begin, integer(self.split)), end), "end")
        if low.op.causal != "none":
            last = low.op.offset(low.rows, low.keys) + self.queries
            end = top.let(k.binary("min", end, dim_expr(last)), "end")

        def block(b: Block, j: Expr) -> None:
            stop = b.let(k.binary("min", k.add(j, integer(BLOCK)), end), "stop")
            self._scores(b, j, stop, k_base)
            self._weights(b)
            self._values(b, j, stop, v_base)

        top.loop("j", begin, end, BLOCK, block)
        if not self.split:
            self._each_row(top, self._write)
            return low.kernel("attention_decode", chunk, product(counts), top, self.scratch.nbytes)
        low.extra.append((self.part, Arg("temp", len(low.temps))))
        total = low.batch * low.heads * self.queries * self.splits
        low.temps.append(total * self.record * self.dtype.nbytes)
        self._each_row(top, lambda b, r: self._save(b, r, part))
        partial = low.kernel("attention_split", chunk, product(counts), top, self.scratch.nbytes)
        return Lowered((*partial.steps, self._combine()), partial.temps)

    # --- rows

    def _each_row(self, block: Block, body: Callable[[Block, Expr], None]) -> None:
        block.loop("r", 0, self.rows, 1, body)

    def _place(self, block: Block, row: Expr) -> tuple[Expr, Expr]:
        """(query head, query) of a chunk's row."""
        at = block.let(k.add(self.first, row), "at")
        head = k.binary("div", at, integer(self.queries))
        own = k.add(k.mul(self.head, integer(self.group)), head)
        return block.let(own, "h"), block.let(k.binary("rem", at, integer(self.queries)), "q")

    def _vectors(self, block: Block, count: int, size: int, body: Callable[[Block, Expr, Expr | None], None]) -> None:
        """body(block, first element, mask) for the vectors of a head of `size` elements."""
        whole = size // self.lanes * self.lanes
        block.loop("d", 0, whole, self.lanes, lambda b, d: body(b, d, None))
        if whole < count * self.lanes:
            body(block, integer(whole), k.binary("lt", k.ramp(ZERO, self.lanes), integer(size - whole)))

    def _load_queries(self) -> None:
        low, lanes = self.low, self.lanes
        factor, zero = k.lit(low.op.scale, self.dtype, lanes), k.lit(0.0, self.dtype, lanes)

        def row(block: Block, r: Expr) -> None:
            head, query = self._place(block, r)
            base = block.let(low.q.at(self.b, head, query, ZERO), "q")
            own = block.let(k.mul(r, integer(self.depth * lanes)), "own")

            def put(b: Block, d: Expr, mask: Expr | None) -> None:
                x = k.cast(k.load(low.q.buffer, k.add(base, d), lanes, mask), self.dtype)
                b.store(self.q, k.add(own, d), k.mul(x, factor))

            self._vectors(block, self.depth, low.depth, put)
            start = block.let(k.mul(r, integer(self.cols * lanes)), "own")
            block.loop("c", 0, self.cols * lanes, lanes, lambda b, c: b.store(self.o, k.add(start, c), zero))
            block.store(self.most, r, k.lit(-inf, self.dtype))
            block.store(self.sum, r, k.lit(0.0, self.dtype))

        self._each_row(self.top, row)

    # --- one block of keys

    def _scores(self, block: Block, first: Expr, stop: Expr, base: Expr) -> None:
        low, lanes = self.low, self.lanes
        stride = dim_expr(low.k.layout.strides[2])
        # one row reads the keys once, as fast as they come: keys far apart in memory escape the hardware's prefetcher
        ahead = k.mul(stride, integer(AHEAD)) if self.rows == 1 else None

        def group(b: Block, i: Expr) -> None:
            key = b.let(k.add(first, i), "key")
            lines = [
                b.let(k.add(base, k.mul(k.binary("min", k.add(key, integer(n)), k.sub(stop, integer(1))), stride)), "k")
                for n in range(lanes)
            ]

            def row(x: Block, r: Expr) -> None:
                acc = x.alloc("acc", self.dtype, lanes, lanes=lanes)
                zero = k.lit(0.0, self.dtype, lanes)
                own = x.let(k.mul(r, integer(self.depth * lanes)), "own")
                for n in range(lanes):
                    x.store(acc, integer(n), zero)

                def step(y: Block, d: Expr, mask: Expr | None) -> None:
                    q = y.let(k.load(self.q, k.add(own, d), lanes), "q")
                    for n, line in enumerate(lines):
                        value = k.cast(k.load(low.k.buffer, k.add(line, d), lanes, mask), self.dtype)
                        if ahead is not None:
                            y.stmts.append(k.Prefetch(low.k.buffer, k.add(k.add(line, d), ahead)))
                        y.store(acc, integer(n), k.fma(value, q, k.load(acc, integer(n))))

                self._vectors(x, self.depth, low.depth, step)
                value = x.let(low.capped(fold_lanes(x, [k.load(acc, integer(n)) for n in range(lanes)])), "s")
                head, query = self._place(x, r)
                live = x.let(k.binary("lt", k.ramp(key, lanes), stop), "live")
                least = k.lit(-inf, self.dtype, lanes)
                if low.mask is not None:
                    value = self._masked(x, value, low.mask, (self.b, head, query, k.ramp(key, lanes)), live)
                if low.op.causal != "none":
                    last = k.add(query, dim_expr(low.op.offset(low.rows, low.keys)))
                    live = k.binary("and", live, k.binary("le", k.ramp(key, lanes), last))
                x.store(self.s, k.add(k.mul(r, integer(BLOCK)), i), k.select(live, value, least))

            self._each_row(b, row)

        def fill(b: Block, i: Expr) -> None:
            self._each_row(
                b,
                lambda x, r: x.store(self.s, k.add(k.mul(r, integer(BLOCK)), i), k.lit(-inf, self.dtype, lanes)),
            )

        count = block.let(k.sub(stop, first), "n")
        rounded = k.mul(k.binary("div", k.add(count, integer(lanes - 1)), integer(lanes)), integer(lanes))
        done = block.let(rounded, "n")
        block.loop("i", 0, done, lanes, group)
        block.loop("i", done, BLOCK, lanes, fill, multiple=lanes)

    def _masked(self, block: Block, value: Expr, mask: Tensor, index: tuple[Expr, ...], live: Expr) -> Expr:
        lanes = self.lanes
        own = load_at(block, mask.buffer, mask.at(*index), live if self.low.machine.masks else None)
        if not self.low.machine.masks:
            # the last keys of a block may not exist: read the last one again
            near = block.let(k.binary("min", index[-1], dim_expr(self.low.keys - 1)), "near")
            own = load_at(block, mask.buffer, mask.at(*index[:-1], near))
        if mask.buffer.dtype == boolean:
            return k.select(k.splat(own, lanes), value, k.lit(-inf, self.dtype, lanes))
        return block.let(k.add(value, k.splat(block.let(k.cast(own, self.dtype), "m"), lanes)), "s")

    def _weights(self, block: Block) -> None:
        """p = exp(s - m) in place; the factor for what was summed before."""
        lanes, dtype = self.lanes, self.dtype
        vectors = BLOCK // lanes

        def row(b: Block, r: Expr) -> None:
            base = b.let(k.mul(r, integer(BLOCK)), "s")
            values = [b.let(k.load(self.s, k.add(base, integer(i * lanes)), lanes), "s") for i in range(vectors)]
            top = values[0]
            for v in values[1:]:
                top = b.let(k.binary("max", top, v), "m")
            old = b.let(k.load(self.most, r), "o")
            most = b.let(k.binary("max", old, k.reduce("max", top)), "m")
            none = k.binary("eq", most, k.lit(-inf, dtype))
            safe = b.let(k.select(none, k.lit(0.0, dtype), most), "m")
            factor = b.let(k.call("exp_decay", k.sub(old, safe)), "a")
            total: Expr | None = None
            wide = k.splat(safe, lanes)
            for i, v in enumerate(values):
                p = b.let(k.call("exp_decay", k.sub(v, wide)), "p")
                b.store(self.s, k.add(base, integer(i * lanes)), p)
                total = p if total is None else b.let(k.add(total, p), "l")
            assert total is not None
            b.store(self.most, r, most)
            b.store(self.scale, r, factor)
            b.store(self.sum, r, k.add(k.mul(factor, k.load(self.sum, r)), k.reduce("add", total)))

        self._each_row(block, row)

    def _values(self, block: Block, first: Expr, stop: Expr, base: Expr) -> None:
        low, lanes, cols = self.low, self.lanes, self.cols
        stride = dim_expr(low.v.layout.strides[2])
        tail = low.cols % lanes
        ahead = k.mul(stride, integer(AHEAD))

        def rows(b: Block, r: Expr) -> None:
            acc = b.alloc("acc", self.dtype, self.together * cols, lanes=lanes)
            own = b.let(k.mul(r, integer(cols * lanes)), "own")
            for i in range(self.together):
                factor = k.splat(b.let(k.load(self.scale, k.add(r, integer(i))), "a"), lanes)
                for c in range(cols):
                    old = k.load(self.o, k.add(own, integer((i * cols + c) * lanes)), lanes)
                    b.store(acc, integer(i * cols + c), k.mul(factor, old))

            def key(x: Block, j: Expr) -> None:
                line = x.let(k.add(base, k.mul(j, stride)), "v")
                weights = []
                for i in range(self.together):
                    at = k.add(k.mul(k.add(r, integer(i)), integer(BLOCK)), k.sub(j, first))
                    weights.append(k.splat(x.let(k.load(self.s, at), "p"), lanes))
                for c in range(cols):
                    mask = None
                    if self.rows == 1:
                        x.stmts.append(k.Prefetch(low.v.buffer, k.add(k.add(line, integer(c * lanes)), ahead)))
                    if tail and c == cols - 1:
                        mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
                    value = k.load(low.v.buffer, k.add(line, integer(c * lanes)), lanes, mask)
                    value = x.let(k.cast(value, self.dtype), "v")
                    for i, weight in enumerate(weights):
                        slot = integer(i * cols + c)
                        x.store(acc, slot, k.fma(weight, value, k.load(acc, slot)))

            b.loop("j", first, stop, 1, key)
            for i in range(self.together * cols):
                b.store(self.o, k.add(own, integer(i * lanes)), k.load(acc, integer(i)))

        block.loop("r", 0, self.rows, self.together, rows)

    # --- results

    def _write(self, block: Block, r: Expr) -> None:
        normalized = self.low.normalizer(block, block.let(k.load(self.sum, r), "l"), self.lanes)
        head, query = self._place(block, r)
        own = block.let(k.mul(r, integer(self.cols * self.lanes)), "own")

        def put(b: Block, c: Expr, mask: Expr | None) -> None:
            value = normalized(k.load(self.o, k.add(own, c), self.lanes))
            self.low.store(b, (self.b, head, query, k.ramp(c, self.lanes)), value, mask)

        self._vectors(block, self.cols, self.low.cols, put)

    def _record(self, b: Expr, head: Expr, query: Expr, part: Expr) -> Expr:
        row = k.add(k.mul(k.add(k.mul(b, dim_expr(self.low.heads)), head), integer(self.queries)), query)
        return k.mul(k.add(k.mul(row, dim_expr(self.splits)), part), integer(self.record))

    def _save(self, block: Block, r: Expr, part: Expr) -> None:
        head, query = self._place(block, r)
        at = block.let(self._record(self.b, head, query, part), "at")
        own = block.let(k.mul(r, integer(self.cols * self.lanes)), "own")

        def put(b: Block, c: Expr) -> None:
            b.store(self.part, k.add(at, c), k.load(self.o, k.add(own, c), self.lanes))

        size = self.cols * self.lanes
        block.loop("c", 0, size, self.lanes, put)
        block.store(self.part, k.add(at, integer(size)), k.load(self.most, r))
        block.store(self.part, k.add(at, integer(size + 1)), k.load(self.sum, r))

    def _combine(self) -> Step:
        """out = sum of exp(m_i - m) o_i / sum of exp(m_i - m) l_i over the splits i, m the greatest m_i."""
        low, lanes, dtype, size = self.low, self.lanes, self.dtype, self.cols * self.lanes
        top, chunk = Block(), k.var("chunk")
        b, head, query = (top.let(e, "c") for e in ix.delinearize(chunk, (low.batch, low.heads, self.queries), {}))
        part = Buffer("part", dtype)
        at = top.let(self._record(b, head, query, ZERO), "at")
        acc = top.alloc("acc", dtype, self.cols, lanes=lanes)
        state = top.alloc("state", dtype, 2)
        most, total = ZERO, integer(1)
        for c in range(self.cols):
            top.store(acc, integer(c), k.lit(0.0, dtype, lanes))
        top.store(state, most, k.lit(-inf, dtype))
        top.store(state, total, k.lit(0.0, dtype))

        def record(i: Expr) -> Expr:
            return k.add(at, k.mul(i, integer(self.record)))

        def greatest(x: Block, i: Expr) -> None:
            own = k.load(part, k.add(record(i), integer(size)))
            x.store(state, most, k.binary("max", k.load(state, most), own))

        top.loop("i", 0, self.splits, 1, greatest)
        found = top.let(k.load(state, most), "m")
        safe = top.let(k.select(k.binary("eq", found, k.lit(-inf, dtype)), k.lit(0.0, dtype), found), "m")

        def add(x: Block, i: Expr) -> None:
            own = x.let(record(i), "own")
            factor = x.let(k.call("exp_decay", k.sub(k.load(part, k.add(own, integer(size))), safe)), "a")
            x.store(state, total, k.fma(factor, k.load(part, k.add(own, integer(size + 1))), k.load(state, total)))
            for c in range(self.cols):
                value = k.load(part, k.add(own, integer(c * lanes)), lanes)
                x.store(acc, integer(c), k.fma(k.splat(factor, lanes), value, k.load(acc, integer(c))))

        top.loop("i", 0, self.splits, 1, add)
        normalized = low.normalizer(top, top.let(k.load(state, total), "l"), lanes)
        tail = low.cols % lanes
        for c in range(self.cols):
            mask = None
            if tail and c == self.cols - 1:
                mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
            value = normalized(k.load(acc, integer(c)))
            low.store(top, (b, head, query, k.ramp(integer(c * lanes), lanes)), value, mask)
        dims = symbol_params(*low.dims)
        chunks = dim_expr(low.batch * low.heads * self.queries)
        kernel = Kernel("attention_combine", (*low.operands.params, part), dims, chunk, chunks, top.body)
        temp = next(arg for buffer, arg in low.extra if buffer is self.part)
        return Step(kernel, (*low.operands.args, temp))


__all__ = ["Decode"]
