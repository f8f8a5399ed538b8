"""Attention for few queries, as in generating a token: K and V are read once, with vectors along the head.

    chunk (batch, key head, rows, split):
        for block of keys:  s[row][key] = q[row] . K[key]     16 keys at a time, their 16 sums folded together
                            p = exp(s - m'), a = exp(m - m')
                            o[row] = a o[row] + sum of p[row][key] V[key]
        out = o / l, or (o, m, l) to memory if several chunks share the keys of a row; then
    chunk (batch, head, query):  combine the splits

Query heads that share a key head are rows of one chunk. Splitting the keys: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.types import boolean, i64
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import symbol_params
from ingot.schedule.cpu.attention.group import CACHE_LINE_BYTES, AttentionGroup, Scratch, Tensor
from ingot.schedule.cpu.transpose import fold_lanes
from ingot.schedule.emit import load_at
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step

MAX_QUERIES = 8  # with more, `Flash` is faster: they fill vectors
MAX_HEAD_SIZE = 2048  # the vectors of a head are unrolled
BLOCK_KEYS = 64
PREFETCH_KEYS = 16  # between a load and its prefetch; BLOCK_KEYS where a table says where keys are
MIN_SPLIT_KEYS = 256  # of a chunk
MAX_CHUNK_ROWS = 8


class Decode:
    """The kernels for few queries (see module)."""

    @staticmethod
    def supports(group: AttentionGroup) -> bool:
        lanes = group.machine.lanes(group.dtype)
        has_contiguous_heads = group.k.last_stride == 1 and group.v.last_stride == 1 and group.q.last_stride == 1
        can_load_heads = group.machine.masks or (group.depth % lanes == 0 and group.cols % lanes == 0)
        has_few_queries = isinstance(group.rows, int) and 0 < group.rows <= MAX_QUERIES
        return (
            has_few_queries
            and has_contiguous_heads
            and can_load_heads
            and lanes > 1
            and 0 < group.depth <= MAX_HEAD_SIZE
            and 0 < group.cols <= MAX_HEAD_SIZE
        )

    def __init__(self, group: AttentionGroup):
        self.group, self.dtype = group, group.dtype
        assert isinstance(group.rows, int)
        self.queries = group.rows
        self.group_size = 1
        if group.key_heads != group.heads:
            assert isinstance(group.heads, int) and isinstance(group.key_heads, int)
            self.group_size = group.heads // group.key_heads
        self.lanes = lanes = group.machine.lanes(group.dtype)
        total = self.group_size * self.queries
        self.rows = next(n for n in range(min(MAX_CHUNK_ROWS, total), 0, -1) if total % n == 0)
        self.row_blocks = total // self.rows
        self.depth_vectors, self.column_vectors = -(-group.depth // lanes), -(-group.cols // lanes)  # in vectors
        # rows whose results are in registers together
        self.tile_rows = next(
            n for n in range(max(1, min(self.rows, 20 // self.column_vectors)), 0, -1) if self.rows % n == 0
        )
        self.split_keys, self.splits = self._split()
        self.top = Block()
        scratch = Scratch(self.top)
        self.q = scratch.alloc("q", self.dtype, self.rows * self.depth_vectors * lanes)
        self.s = scratch.alloc("s", self.dtype, self.rows * BLOCK_KEYS)
        self.o = scratch.alloc("o", self.dtype, self.rows * self.column_vectors * lanes)
        self.row_max = scratch.alloc("most", self.dtype, self.rows)
        self.row_sum = scratch.alloc("sum", self.dtype, self.rows)
        self.row_scale = scratch.alloc("scale", self.dtype, self.rows)
        # where the keys of a block are stored, and those that are prefetched with them
        self.at = None if group.positions is None else scratch.alloc("at", i64, 2 * BLOCK_KEYS)
        self.scratch = scratch
        # a split's results of one row: the weighted values, the maximum, the sum
        self.record_size = self.column_vectors * lanes + lanes
        self.part = Buffer("part", self.dtype, writable=True)
        self.batch_index: Expr = ZERO
        self.head: Expr = ZERO
        self.first_row: Expr = ZERO

    def _split(self) -> tuple[int, DimLike]:
        """(keys of a chunk, number of splits), so that there are chunks for all threads. No splits: (0, 1)."""
        group = self.group
        chunks = estimate(group.batch) * estimate(group.key_heads) * self.row_blocks
        target_splits = -(-4 * group.machine.threads // max(chunks, 1))
        keys = estimate(group.keys)
        if target_splits <= 1 or keys < 2 * MIN_SPLIT_KEYS or group.machine.threads == 1:
            return 0, 1
        split_keys = max(MIN_SPLIT_KEYS, -(-keys // target_splits // BLOCK_KEYS) * BLOCK_KEYS)
        return split_keys, ceildiv(group.keys, split_keys)

    def lower(self) -> Lowered:
        group, top, chunk = self.group, self.top, k.var("chunk")
        counts = (group.batch, group.key_heads, self.row_blocks, self.splits)
        self.batch_index, head, rows, part = (top.let(e, "c") for e in ix.delinearize(chunk, counts, {}))
        self.first_row = top.let(k.mul(rows, integer(self.rows)), "r0")
        self.head = head
        k_base = top.let(group.k.offset(self.batch_index, head, ZERO, ZERO), "kb")
        v_base = top.let(group.v.offset(self.batch_index, head, ZERO, ZERO), "vb")
        self._load_queries()
        begin, end = ZERO, dim_expr(group.keys)
        if self.split_keys:
            begin = top.let(k.mul(part, integer(self.split_keys)), "begin")
            end = top.let(k.binary("min", k.add(begin, integer(self.split_keys)), end), "end")
        if group.op.causal != "none":
            last = group.op.offset(group.rows, group.keys) + self.queries
            end = top.let(k.binary("min", end, dim_expr(last)), "end")

        def emit_block(b: Block, j: Expr) -> None:
            stop = b.let(k.binary("min", k.add(j, integer(BLOCK_KEYS)), end), "stop")
            self._load_positions(b, j)
            self._scores(b, j, stop, k_base)
            self._update_softmax(b)
            self._values(b, j, stop, v_base)

        top.loop("j", begin, end, BLOCK_KEYS, emit_block)
        if not self.split_keys:
            self._each_row(top, self._write)
            return group.kernel("attention_decode", chunk, product(counts), top, self.scratch.nbytes)
        group.extra_params.append((self.part, Arg("temp", len(group.temps))))
        total = group.batch * group.heads * self.queries * self.splits
        group.temps.append(total * self.record_size * self.dtype.nbytes)
        self._each_row(top, lambda b, r: self._save_split(b, r, part))
        partial = group.kernel("attention_split", chunk, product(counts), top, self.scratch.nbytes)
        return Lowered((*partial.steps, self._combine()), partial.temps)

    # --- rows

    def _each_row(self, block: Block, body: Callable[[Block, Expr], None]) -> None:
        block.loop("r", 0, self.rows, 1, body)

    def _head_and_query(self, block: Block, row: Expr) -> tuple[Expr, Expr]:
        """Return (query head, query) of a chunk's row."""
        index = block.let(k.add(self.first_row, row), "at")
        head = k.binary("div", index, integer(self.queries))
        query_head = k.add(k.mul(self.head, integer(self.group_size)), head)
        return block.let(query_head, "h"), block.let(k.binary("rem", index, integer(self.queries)), "q")

    def _vectors(self, block: Block, count: int, size: int, body: Callable[[Block, Expr, Expr | None], None]) -> None:
        """Emit body(block, first element, mask) for each vector of a head of `size` elements."""
        full_size = size // self.lanes * self.lanes
        block.loop("d", 0, full_size, self.lanes, lambda b, d: body(b, d, None))
        if full_size < count * self.lanes:
            body(block, integer(full_size), k.binary("lt", k.ramp(ZERO, self.lanes), integer(size - full_size)))

    def _load_queries(self) -> None:
        group, lanes = self.group, self.lanes
        factor, zero = k.lit(group.op.scale, self.dtype, lanes), k.lit(0.0, self.dtype, lanes)

        def load_row(block: Block, r: Expr) -> None:
            head, query = self._head_and_query(block, r)
            base = block.let(group.q.offset(self.batch_index, head, query, ZERO), "q")
            q_offset = block.let(k.mul(r, integer(self.depth_vectors * lanes)), "own")

            def store(b: Block, d: Expr, mask: Expr | None) -> None:
                x = k.cast(k.load(group.q.buffer, k.add(base, d), lanes, mask), self.dtype)
                b.store(self.q, k.add(q_offset, d), k.mul(x, factor))

            self._vectors(block, self.depth_vectors, group.depth, store)
            o_offset = block.let(k.mul(r, integer(self.column_vectors * lanes)), "own")
            block.loop(
                "c", 0, self.column_vectors * lanes, lanes, lambda b, c: b.store(self.o, k.add(o_offset, c), zero)
            )
            block.store(self.row_max, r, k.lit(-inf, self.dtype))
            block.store(self.row_sum, r, k.lit(0.0, self.dtype))

        self._each_row(self.top, load_row)

    # --- one block of keys

    def _load_positions(self, block: Block, first: Expr) -> None:
        """at[i] = the position of key first + i, clamped to those that are stored; that of any one beyond the end."""
        positions, at = self.group.positions, self.at
        if positions is None or at is None:
            return
        last = dim_expr(self.group.stored_keys - 1)

        def load(b: Block, i: Expr) -> None:
            keys = k.ramp(b.let(k.add(first, i), "key"), self.lanes)
            live = b.let(k.binary("lt", keys, dim_expr(self.group.keys)), "live")
            position = self._at_keys(b, positions, (keys,), 0, live)
            b.store(at, i, k.binary("max", k.binary("min", position, last), ZERO))

        def prefetch(b: Block, i: Expr) -> None:
            position = b.let(k.load(at, i), "at")
            for scale in self.group.scales:
                b.stmts.append(k.Prefetch(scale.buffer, scale.offset(self.batch_index, self.head, position, ZERO)))

        block.loop("i", 0, 2 * BLOCK_KEYS, self.lanes, load)
        if self.group.scales:
            block.loop("i", BLOCK_KEYS, 2 * BLOCK_KEYS, self.lanes, prefetch)

    def _ahead(self, line: Expr, base: Expr, stride: Expr, i: Expr) -> Callable[[Expr], Expr]:
        """The offset of element d of the key or value to prefetch with that of key i of a block, which is at `line`."""
        if self.at is None:
            return lambda d: k.add(k.add(line, d), k.mul(stride, integer(PREFETCH_KEYS)))
        later = k.add(base, k.mul(k.load(self.at, k.add(i, integer(BLOCK_KEYS))), stride))
        return lambda d: k.add(later, d)

    def _scores(self, block: Block, first: Expr, stop: Expr, base: Expr) -> None:
        group, lanes = self.group, self.lanes
        stride = dim_expr(group.k.layout.strides[2])

        def emit_keys(b: Block, i: Expr) -> None:
            key = b.let(k.add(first, i), "key")
            key_offsets: list[Expr] = []
            for n in range(lanes):
                if self.at is None:
                    position = k.binary("min", k.add(key, integer(n)), k.sub(stop, integer(1)))
                else:
                    position = k.load(self.at, k.add(i, integer(n)))
                key_offsets.append(b.let(k.add(base, k.mul(position, stride)), "k"))
            # a single row reads keys at the speed of memory; the hardware prefetcher does not follow their stride
            lines = enumerate(key_offsets if self.rows == 1 else [])
            ahead = [self._ahead(line, base, stride, k.add(i, integer(n))) for n, line in lines]
            # several rows once for all of them, where no hardware prefetcher knows the next page
            for n, line in enumerate(key_offsets if self.rows > 1 and self.at is not None else []):
                later = self._ahead(line, base, stride, k.add(i, integer(n)))
                step_elements = CACHE_LINE_BYTES // group.k.buffer.dtype.nbytes
                b.stmts += [k.Prefetch(group.k.buffer, later(integer(d))) for d in range(0, group.depth, step_elements)]

            def emit_row(x: Block, r: Expr) -> None:
                acc = x.alloc("acc", self.dtype, lanes, lanes=lanes)
                zero = k.lit(0.0, self.dtype, lanes)
                q_offset = x.let(k.mul(r, integer(self.depth_vectors * lanes)), "own")
                for n in range(lanes):
                    x.store(acc, integer(n), zero)

                def step(y: Block, d: Expr, mask: Expr | None) -> None:
                    q = y.let(k.load(self.q, k.add(q_offset, d), lanes), "q")
                    for n, line in enumerate(key_offsets):
                        value = k.cast(k.load(group.k.buffer, k.add(line, d), lanes, mask), self.dtype)
                        for later in ahead[n : n + 1]:
                            y.stmts.append(k.Prefetch(group.k.buffer, later(d)))
                        y.store(acc, integer(n), k.fma(value, q, k.load(acc, integer(n))))

                self._vectors(x, self.depth_vectors, group.depth, step)
                live = x.let(k.binary("lt", k.ramp(key, lanes), stop), "live")
                value = fold_lanes(x, [k.load(acc, integer(n)) for n in range(lanes)])
                if group.scales:
                    value = k.mul(value, self._key_scales(x, group.scales[0], key, i, live))
                value = x.let(group.softcap(value), "s")
                head, query = self._head_and_query(x, r)
                minus_inf = k.lit(-inf, self.dtype, lanes)
                if group.mask is not None:
                    value = self._masked(
                        x, value, group.mask, (self.batch_index, head, query, k.ramp(key, lanes)), live
                    )
                if group.op.causal != "none":
                    last = k.add(query, dim_expr(group.op.offset(group.rows, group.keys)))
                    live = k.binary("and", live, k.binary("le", k.ramp(key, lanes), last))
                x.store(self.s, k.add(k.mul(r, integer(BLOCK_KEYS)), i), k.select(live, value, minus_inf))

            self._each_row(b, emit_row)

        def fill(b: Block, i: Expr) -> None:
            self._each_row(
                b,
                lambda x, r: x.store(self.s, k.add(k.mul(r, integer(BLOCK_KEYS)), i), k.lit(-inf, self.dtype, lanes)),
            )

        count = block.let(k.sub(stop, first), "n")
        rounded = k.mul(k.binary("div", k.add(count, integer(lanes - 1)), integer(lanes)), integer(lanes))
        full_end = block.let(rounded, "n")
        block.loop("i", 0, full_end, lanes, emit_keys)
        block.loop("i", full_end, BLOCK_KEYS, lanes, fill, multiple=lanes)

    def _masked(self, block: Block, value: Expr, mask: Tensor, index: tuple[Expr, ...], live: Expr) -> Expr:
        lanes = self.lanes
        mask_value = self._at_keys(block, mask, index, 3, live)
        if mask.buffer.dtype == boolean:
            return k.select(k.splat(mask_value, lanes), value, k.lit(-inf, self.dtype, lanes))
        return block.let(k.add(value, k.splat(block.let(k.cast(mask_value, self.dtype), "m"), lanes)), "s")

    def _key_scales(self, block: Block, scales: Tensor, key: Expr, i: Expr, live: Expr) -> Expr:
        """The scales of a vector of keys, from key i of a block on."""
        if self.at is None:
            return self._at_keys(block, scales, (self.batch_index, self.head, k.ramp(key, self.lanes), ZERO), 2, live)
        position = block.let(k.load(self.at, i, self.lanes), "at")
        return load_at(block, scales.buffer, scales.offset(self.batch_index, self.head, position, ZERO))

    def _at_keys(self, block: Block, x: Tensor, index: tuple[Expr, ...], axis: int, live: Expr) -> Expr:
        """The elements of `x` for a vector of keys, which `axis` of its index is."""
        if self.group.machine.masks:
            return load_at(block, x.buffer, x.offset(*index), live)
        # keys of the block may be beyond the end: read the last key again
        last_key = block.let(k.binary("min", index[axis], dim_expr(self.group.keys - 1)), "near")
        return load_at(block, x.buffer, x.offset(*index[:axis], last_key, *index[axis + 1 :]))

    def _update_softmax(self, block: Block) -> None:
        """p = exp(s - m) in place. Rescale the running sum, and save the factor for the result."""
        lanes, dtype = self.lanes, self.dtype
        vectors = BLOCK_KEYS // lanes

        def emit_row(b: Block, r: Expr) -> None:
            base = b.let(k.mul(r, integer(BLOCK_KEYS)), "s")
            values = [b.let(k.load(self.s, k.add(base, integer(i * lanes)), lanes), "s") for i in range(vectors)]
            lane_max = values[0]
            for v in values[1:]:
                lane_max = b.let(k.binary("max", lane_max, v), "m")
            old_max = b.let(k.load(self.row_max, r), "o")
            new_max = b.let(k.binary("max", old_max, k.reduce("max", lane_max)), "m")
            is_empty = k.binary("eq", new_max, k.lit(-inf, dtype))
            finite_max = b.let(k.select(is_empty, k.lit(0.0, dtype), new_max), "m")
            factor = b.let(k.call("exp_decay", k.sub(old_max, finite_max)), "a")
            total: Expr | None = None
            wide = k.splat(finite_max, lanes)
            for i, v in enumerate(values):
                p = b.let(k.call("exp_decay", k.sub(v, wide)), "p")
                b.store(self.s, k.add(base, integer(i * lanes)), p)
                total = p if total is None else b.let(k.add(total, p), "l")
            assert total is not None
            b.store(self.row_max, r, new_max)
            b.store(self.row_scale, r, factor)
            b.store(self.row_sum, r, k.add(k.mul(factor, k.load(self.row_sum, r)), k.reduce("add", total)))

        self._each_row(block, emit_row)

    def _values(self, block: Block, first: Expr, stop: Expr, base: Expr) -> None:
        group, lanes, cols = self.group, self.lanes, self.column_vectors
        stride = dim_expr(group.v.layout.strides[2])
        tail = group.cols % lanes

        def emit_rows(b: Block, r: Expr) -> None:
            acc = b.alloc("acc", self.dtype, self.tile_rows * cols, lanes=lanes)
            o_offset = b.let(k.mul(r, integer(cols * lanes)), "own")
            for i in range(self.tile_rows):
                factor = k.splat(b.let(k.load(self.row_scale, k.add(r, integer(i))), "a"), lanes)
                for c in range(cols):
                    old = k.load(self.o, k.add(o_offset, integer((i * cols + c) * lanes)), lanes)
                    b.store(acc, integer(i * cols + c), k.mul(factor, old))

            def emit_key(x: Block, j: Expr) -> None:
                position = j if self.at is None else x.let(k.load(self.at, k.sub(j, first)), "at")
                v_offset = x.let(k.add(base, k.mul(position, stride)), "v")
                ahead = self._ahead(v_offset, base, stride, k.sub(j, first))
                weights: list[Expr] = []
                for i in range(self.tile_rows):
                    p_offset = k.add(k.mul(k.add(r, integer(i)), integer(BLOCK_KEYS)), k.sub(j, first))
                    weight = k.load(self.s, p_offset)
                    for scale in group.scales[1:]:
                        weight = k.mul(
                            weight, k.load(scale.buffer, scale.offset(self.batch_index, self.head, position, ZERO))
                        )
                    weights.append(k.splat(x.let(weight, "p"), lanes))
                for c in range(cols):
                    mask = None
                    if self.rows == 1 or self.at is not None:
                        x.stmts.append(k.Prefetch(group.v.buffer, ahead(integer(c * lanes))))
                    if tail and c == cols - 1:
                        mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
                    value = k.load(group.v.buffer, k.add(v_offset, integer(c * lanes)), lanes, mask)
                    value = x.let(k.cast(value, self.dtype), "v")
                    for i, weight in enumerate(weights):
                        slot = integer(i * cols + c)
                        x.store(acc, slot, k.fma(weight, value, k.load(acc, slot)))

            b.loop("j", first, stop, 1, emit_key)
            for i in range(self.tile_rows * cols):
                b.store(self.o, k.add(o_offset, integer(i * lanes)), k.load(acc, integer(i)))

        block.loop("r", 0, self.rows, self.tile_rows, emit_rows)

    # --- results

    def _write(self, block: Block, r: Expr) -> None:
        normalized = self.group.normalizer(block, block.let(k.load(self.row_sum, r), "l"), self.lanes)
        head, query = self._head_and_query(block, r)
        o_offset = block.let(k.mul(r, integer(self.column_vectors * self.lanes)), "own")

        def store(b: Block, c: Expr, mask: Expr | None) -> None:
            value = normalized(k.load(self.o, k.add(o_offset, c), self.lanes))
            self.group.store(b, (self.batch_index, head, query, k.ramp(c, self.lanes)), value, mask)

        self._vectors(block, self.column_vectors, self.group.cols, store)

    def _record_offset(self, b: Expr, head: Expr, query: Expr, part: Expr) -> Expr:
        row = k.add(k.mul(k.add(k.mul(b, dim_expr(self.group.heads)), head), integer(self.queries)), query)
        return k.mul(k.add(k.mul(row, dim_expr(self.splits)), part), integer(self.record_size))

    def _save_split(self, block: Block, r: Expr, part: Expr) -> None:
        head, query = self._head_and_query(block, r)
        offset = block.let(self._record_offset(self.batch_index, head, query, part), "at")
        o_offset = block.let(k.mul(r, integer(self.column_vectors * self.lanes)), "own")

        def store(b: Block, c: Expr) -> None:
            b.store(self.part, k.add(offset, c), k.load(self.o, k.add(o_offset, c), self.lanes))

        size = self.column_vectors * self.lanes
        block.loop("c", 0, size, self.lanes, store)
        block.store(self.part, k.add(offset, integer(size)), k.load(self.row_max, r))
        block.store(self.part, k.add(offset, integer(size + 1)), k.load(self.row_sum, r))

    def _combine(self) -> Step:
        """out = sum of exp(m_i - m) o_i / sum of exp(m_i - m) l_i over the splits i, m the greatest m_i."""
        group, lanes, dtype, size = self.group, self.lanes, self.dtype, self.column_vectors * self.lanes
        top, chunk = Block(), k.var("chunk")
        b, head, query = (top.let(e, "c") for e in ix.delinearize(chunk, (group.batch, group.heads, self.queries), {}))
        part = Buffer("part", dtype)
        offset = top.let(self._record_offset(b, head, query, ZERO), "at")
        acc = top.alloc("acc", dtype, self.column_vectors, lanes=lanes)
        state = top.alloc("state", dtype, 2)
        max_slot, sum_slot = ZERO, integer(1)
        for c in range(self.column_vectors):
            top.store(acc, integer(c), k.lit(0.0, dtype, lanes))
        top.store(state, max_slot, k.lit(-inf, dtype))
        top.store(state, sum_slot, k.lit(0.0, dtype))

        def record_offset(i: Expr) -> Expr:
            return k.add(offset, k.mul(i, integer(self.record_size)))

        def update_max(x: Block, i: Expr) -> None:
            split_max = k.load(part, k.add(record_offset(i), integer(size)))
            x.store(state, max_slot, k.binary("max", k.load(state, max_slot), split_max))

        top.loop("i", 0, self.splits, 1, update_max)
        max_value = top.let(k.load(state, max_slot), "m")
        finite_max = top.let(k.select(k.binary("eq", max_value, k.lit(-inf, dtype)), k.lit(0.0, dtype), max_value), "m")

        def add_split(x: Block, i: Expr) -> None:
            offset_i = x.let(record_offset(i), "own")
            factor = x.let(k.call("exp_decay", k.sub(k.load(part, k.add(offset_i, integer(size))), finite_max)), "a")
            x.store(
                state,
                sum_slot,
                k.fma(factor, k.load(part, k.add(offset_i, integer(size + 1))), k.load(state, sum_slot)),
            )
            for c in range(self.column_vectors):
                value = k.load(part, k.add(offset_i, integer(c * lanes)), lanes)
                x.store(acc, integer(c), k.fma(k.splat(factor, lanes), value, k.load(acc, integer(c))))

        top.loop("i", 0, self.splits, 1, add_split)
        normalized = group.normalizer(top, top.let(k.load(state, sum_slot), "l"), lanes)
        tail = group.cols % lanes
        for c in range(self.column_vectors):
            mask = None
            if tail and c == self.column_vectors - 1:
                mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
            value = normalized(k.load(acc, integer(c)))
            group.store(top, (b, head, query, k.ramp(integer(c * lanes), lanes)), value, mask)
        dims = symbol_params(*group.dims)
        chunks = dim_expr(group.batch * group.heads * self.queries)
        kernel = Kernel("attention_combine", (*group.operands.params, part), dims, chunk, chunks, top.body)
        temp = next(arg for buffer, arg in group.extra_params if buffer is self.part)
        return Step(kernel, (*group.operands.args, temp))


__all__ = ["Decode"]
