"""Attention without a matrix of scores: a running maximum and a running sum over blocks of keys.

    chunk (batch, head, 48 queries):  Qt = transpose(q * scale)                 [D][48]
        for block of keys:            St = K Qt;  m' = max(m, max St)           [keys][48]
                                      Pt = exp(St - m');  a = exp(m - m');  l = a l + sum Pt
                                      Ot = a Ot + V^T Pt                        [Dv][48]
        out = transpose(Ot / l)

Lanes are queries, so the softmax needs no operation across lanes. Keys and values are read in place, one broadcast
element for each multiply-add of three vectors, and only the small blocks Q and O are transposed.

Online softmax: Milakov and Gimelshein 2018; tiling: FlashAttention, Dao et al. 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.types import boolean
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.attention.group import AttentionGroup, Scratch
from ingot.schedule.cpu.attention.tiling import tiling
from ingot.schedule.cpu.transpose import transpose_block
from ingot.schedule.emit import load_at
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Lowered


class Flash:
    """The kernel for many queries (see module)."""

    def __init__(self, group: AttentionGroup):
        self.group, self.machine, self.dtype = group, group.machine, group.dtype
        self.t = tiling(group.rows, group.keys, group.cols, group.dtype, group.machine)
        self.k, self.v = group.converted(1, group.k), group.converted(2, group.v)
        self.top = Block()
        scratch = Scratch(self.top)
        t, dtype = self.t, group.dtype
        self.qt = scratch.alloc("qt", dtype, group.depth * t.width)
        self.st = scratch.alloc("st", dtype, t.block_keys * t.width)
        self.ot = scratch.alloc("ot", dtype, group.cols * t.width)
        self.row_max = scratch.alloc("most", dtype, t.width)
        self.row_sum = scratch.alloc("sum", dtype, t.width)
        self.row_scale = scratch.alloc("scale", dtype, t.width)
        mask = group.mask
        self.has_query_mask = mask is not None and mask.layout.strides[2] != 0
        self.mask_block = scratch.alloc("added", dtype, t.block_keys * t.width) if self.has_query_mask else None
        self.scratch = scratch
        # the chunk's position, and the offsets of its keys and values
        self.batch_head: tuple[Expr, Expr] = (ZERO, ZERO)
        self.first_query: Expr = ZERO
        self.k_offset: Expr = ZERO
        self.v_offset: Expr = ZERO

    def lower(self) -> Lowered:
        group, t, top, chunk = self.group, self.t, self.top, k.var("chunk")
        blocks = ceildiv(group.rows, t.width)
        batch_head = top.let(k.binary("div", chunk, dim_expr(blocks)), "bh")
        query_block = top.let(k.binary("rem", chunk, dim_expr(blocks)), "part")
        if group.op.causal != "none":
            # the queries with the most keys first
            query_block = top.let(k.sub(dim_expr(blocks - 1), query_block), "part")
        batch = top.let(k.binary("div", batch_head, dim_expr(group.heads)), "b")
        head = top.let(k.binary("rem", batch_head, dim_expr(group.heads)), "h")
        self.batch_head = batch, head
        self.first_query = top.let(k.mul(query_block, integer(t.width)), "row")
        key_head = group.key_head_of(top, head)
        self.k_offset = top.let(self.k.offset(batch, key_head, ZERO, ZERO), "kb")
        self.v_offset = top.let(self.v.offset(batch, key_head, ZERO, ZERO), "vb")
        self._load_queries()
        self._clear_state()
        self._key_blocks()
        self._write_result()
        return group.kernel("attention", chunk, group.batch * group.heads * blocks, top, self.scratch.nbytes)

    # --- queries

    def _clamp_query(self, block: Block, row: Expr) -> Expr:
        """Return `row`, clamped to the last query. Results of queries beyond the end are not stored."""
        if isinstance(self.group.rows, int) and self.group.rows % self.t.width == 0:
            return row
        return block.let(k.binary("min", row, dim_expr(self.group.rows - 1)), "r")

    def _load_queries(self) -> None:
        """Qt[d][query] = q * scale."""
        group, t, lanes = self.group, self.t, self.t.lanes
        factor = k.lit(group.op.scale, self.dtype, lanes)
        tail = group.depth % lanes
        full_depth = group.depth - tail if group.q.last_stride == 1 and lanes > 1 else 0

        def store(block: Block, d: Expr, vector: Expr, value: Expr) -> None:
            offset = ix.add(ix.mul(d, integer(t.width)), ix.mul(vector, integer(lanes)))
            block.store(self.qt, offset, k.mul(k.cast(value, self.dtype), factor))

        def load_vector(block: Block, v: Expr) -> None:
            first = block.let(k.add(self.first_query, k.mul(v, integer(lanes))), "q")

            def transpose_square(b: Block, d: Expr, mask: Expr | None, count: int) -> None:
                rows = [b.let(k.load(group.q.buffer, ix.add(base, d), lanes, mask), "q") for base in row_offsets]
                for j, column in enumerate(transpose_block(b, rows)[:count]):
                    store(b, ix.add(d, integer(j)), v, column)

            if group.q.last_stride == 1 and lanes > 1:
                queries = (self._clamp_query(block, k.add(first, integer(i))) for i in range(lanes))
                row_offsets = [block.let(group.q.offset(*self.batch_head, q, ZERO), "qr") for q in queries]
                block.loop("d", 0, full_depth, lanes, lambda b, d: transpose_square(b, d, None, lanes))
                if tail and self.machine.masks:
                    mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
                    transpose_square(block, integer(full_depth), mask, tail)
                    return

            def load_element(b: Block, d: Expr) -> None:
                index = k.ramp(first, lanes)
                if not (isinstance(group.rows, int) and group.rows % t.width == 0):
                    index = b.let(k.binary("min", index, dim_expr(group.rows - 1)), "r")
                value = load_at(b, group.q.buffer, group.q.offset(*self.batch_head, index, d))
                store(b, d, v, k.splat(value, lanes))

            block.loop("d", full_depth, group.depth, 1, load_element)

        self.top.loop("v", 0, t.vectors, 1, load_vector)

    def _clear_state(self) -> None:
        lanes = self.t.lanes
        zero, minus_inf = k.lit(0.0, self.dtype, lanes), k.lit(-inf, self.dtype, lanes)

        def state(b: Block, i: Expr) -> None:
            b.store(self.row_max, i, minus_inf)
            b.store(self.row_sum, i, zero)

        self.top.loop("i", 0, self.t.width, lanes, state)
        size = self.group.cols * self.t.width
        self.top.loop("i", 0, size, lanes, lambda b, i: b.store(self.ot, i, zero))

    # --- blocks of keys

    def _key_blocks(self) -> None:
        group, t, top = self.group, self.t, self.top
        end = dim_expr(group.keys)
        first_hidden: Expr | None = None
        if group.op.causal != "none":
            # query `row` attends to keys below row + offset + 1
            offset = group.op.offset(group.rows, group.keys) + 1
            first_hidden = top.let(ix.add(self.first_query, dim_expr(offset)), "seen")
            end = top.let(k.binary("min", end, ix.add(first_hidden, integer(t.width - 1))), "end")

        def emit_block(b: Block, first: Expr) -> None:
            if isinstance(end, Lit) and int(end.value) % t.block_keys == 0:
                stop: Expr = ix.add(first, integer(t.block_keys))
            else:
                stop = b.let(k.binary("min", ix.add(first, integer(t.block_keys)), end), "stop")
            self._key_block(b, first, stop, first_hidden)

        top.loop("j", 0, end, t.block_keys, emit_block)

    def _key_block(self, b: Block, first: Expr, stop: Expr, first_hidden: Expr | None) -> None:
        """A block of keys, unless the mask hides all of it, as outside of a sliding window: it is off or -inf there."""
        if self.mask_block is None or self.group.mask is None:
            self._visible_block(b, first, stop, first_hidden)
            return
        self._transpose_mask(b, first, stop)
        mask_block, lanes = self.mask_block, self.t.lanes
        visible, hidden = (k.lit(c, self.dtype, lanes) for c in (1.0, 0.0))
        visibility = b.alloc("visibility", self.dtype, 1, lanes=lanes)
        b.store(visibility, ZERO, hidden)
        size = ix.mul(k.sub(stop, first), integer(self.t.width))

        def fold(x: Block, i: Expr) -> None:
            is_hidden = k.binary("eq", k.load(mask_block, i, lanes), k.lit(-inf, self.dtype, lanes))  # not of NaN
            x.store(visibility, ZERO, k.select(is_hidden, k.load(visibility, ZERO), visible))

        b.loop("i", ZERO, b.let(size, "n"), lanes, fold, multiple=lanes)
        is_visible = k.binary("eq", k.reduce("max", k.load(visibility, ZERO)), k.lit(1.0, self.dtype))
        b.when(is_visible, lambda x: self._visible_block(x, first, stop, first_hidden))

    def _visible_block(self, b: Block, first: Expr, stop: Expr, first_hidden: Expr | None) -> None:
        t, lanes = self.t, self.t.lanes
        row_max = b.alloc("m", self.dtype, t.vectors, lanes=lanes)
        b.loop(
            "v", 0, t.vectors, 1,
            lambda x, v: x.store(row_max, v, k.load(self.row_max, k.mul(v, integer(lanes)), lanes)), unroll=True,
        )  # fmt: skip

        def emit_scores(x: Block, is_masked: bool) -> None:
            def emit_tile(y: Block, j: Expr, rows: int) -> None:
                self._scores(y, first, j, rows, row_max, is_masked)

            self._tiles(x, first, stop, t.key_rows, self.group.keys, emit_tile)

        if first_hidden is None:
            emit_scores(b, False)
        else:
            b.when(k.binary("gt", stop, first_hidden), lambda x: emit_scores(x, True), lambda x: emit_scores(x, False))
        self._update_softmax(b, first, stop, row_max)
        count = b.let(k.sub(stop, first), "n")
        v_offset = b.let(ix.add(self.v_offset, ix.mul(first, dim_expr(self.v.layout.strides[2]))), "vj")
        cols, tail_columns = self.group.cols, self.group.cols % t.value_rows
        rows, full = t.value_rows, cols - tail_columns
        b.loop("c", 0, full, rows, lambda x, c: self._values(x, c, rows, v_offset, count))
        if tail_columns:
            self._values(b, integer(full), tail_columns, v_offset, count)

    def _tiles(
        self,
        block: Block,
        first: Expr,
        stop: Expr,
        size: int,
        extent: DimLike,
        emit_tile: Callable[[Block, Expr, int], None],
    ) -> None:
        """Emit tiles of `size` keys from `first` to `stop`: emit_tile(block, first key, keys). The tail is one tile if
        its size is static, otherwise tiles of powers of two."""
        count = k.binary("div", k.sub(stop, first), integer(size))
        full_end = block.let(ix.add(first, k.mul(count, integer(size))), "w")
        block.loop("j", first, full_end, size, lambda b, j: emit_tile(b, j, size))
        is_causal = self.group.op.causal != "none"
        if isinstance(extent, int) and not is_causal:
            # all blocks but the last consist of full tiles
            tail = extent % size
            if tail:
                block.when(k.binary("lt", full_end, stop), lambda b: emit_tile(b, full_end, tail))
            return
        power = 1 << (size - 1).bit_length() - 1 if size > 1 else 0
        while power:
            start, rows = full_end, power
            is_small = k.binary("le", ix.add(start, integer(rows)), stop)
            block.when(is_small, lambda b, start=start, rows=rows: emit_tile(b, start, rows))
            full_end = block.let(k.select(is_small, ix.add(start, integer(rows)), start), "w")
            power //= 2

    def _scores(self, block: Block, first: Expr, j: Expr, rows: int, row_max: Buffer, is_masked: bool) -> None:
        """Emit St for `rows` keys from `j`: products, softcap, mask, and the running maximum."""
        t, lanes, group = self.t, self.t.lanes, self.group
        acc = self._product(
            block, rows, group.depth, integer(group.depth), self.qt, ZERO, self.k.buffer,
            ix.add(self.k_offset, ix.mul(j, dim_expr(self.k.layout.strides[2]))),
            self.k.layout.strides[2], self.k.layout.strides[3],
        )  # fmt: skip
        tile_offset = block.let(k.mul(k.sub(j, first), integer(t.width)), "s")
        for r in range(rows):
            key = ix.add(j, integer(r))
            for v in range(t.vectors):
                slot = ix.add(tile_offset, integer(r * t.width + v * lanes))
                value = block.let(group.softcap(k.load(acc, integer(r * t.vectors + v))), "s")
                value = self._masked(block, value, key, slot)
                if is_masked:
                    row = k.ramp(ix.add(self.first_query, integer(v * lanes)), lanes)
                    last = ix.add(row, dim_expr(group.op.offset(group.rows, group.keys)))
                    value = k.select(k.binary("ge", last, key), value, k.lit(-inf, self.dtype, lanes))
                value = block.let(value, "s")
                block.store(self.st, slot, value)
                vector = integer(v)
                block.store(row_max, vector, k.binary("maxnum", value, k.load(row_max, vector)))

    def _product(
        self,
        block: Block,
        rows: int,
        steps: int,
        end: Expr,
        b: Buffer,
        b_offset: Expr,
        a: Buffer,
        a_offset: Expr,
        row_stride: DimLike,
        step_stride: DimLike,
        init: Callable[[Block, Buffer], None] | None = None,
    ) -> Buffer:
        """acc[rows][vectors] = sum of a[row, i] * b[i][vectors] for i < end. steps: the value of `end` if static, else
        0. init(block, acc): emits the initial values; None: zeros."""
        t, lanes = self.t, self.t.lanes
        acc = block.alloc("acc", self.dtype, rows * t.vectors, lanes=lanes)
        if init is None:
            zero = k.lit(0.0, self.dtype, lanes)
            block.loop("i", 0, rows * t.vectors, 1, lambda x, i: x.store(acc, i, zero), unroll=True)
        else:
            init(block, acc)
        a_offset = block.let(a_offset, "a")

        def emit_step(x: Block, i: Expr) -> None:
            offset = ix.add(a_offset, ix.mul(i, dim_expr(step_stride)))
            b_row = ix.add(b_offset, ix.mul(i, integer(t.width)))
            columns = [x.let(k.load(b, ix.add(b_row, integer(v * lanes)), lanes), "b") for v in range(t.vectors)]
            for r in range(rows):
                value = x.let(k.load(a, ix.add(offset, ix.mul(integer(r), dim_expr(row_stride)))), "x")
                wide = x.let(k.splat(value, lanes), "x")
                for v, column in enumerate(columns):
                    slot = integer(r * t.vectors + v)
                    x.store(acc, slot, k.fma(wide, column, k.load(acc, slot)))

        unroll = 4 if not steps else next(u for u in (4, 3, 2, 1) if steps % u == 0)

        def emit_steps(x: Block, i: Expr) -> None:
            for u in range(unroll):
                emit_step(x, ix.add(i, integer(u)))

        if steps:
            block.loop("d", ZERO, end, unroll, emit_steps)
            return acc
        full_end = block.let(k.mul(k.binary("div", end, integer(unroll)), integer(unroll)), "w")
        block.loop("d", ZERO, full_end, unroll, emit_steps)
        block.loop("d", full_end, end, 1, emit_step)
        return acc

    def _masked(self, block: Block, value: Expr, key: Expr, slot: Expr) -> Expr:
        """A score with its mask. A bool mask that is off wins over any score, NaN included."""
        mask, lanes = self.group.mask, self.t.lanes
        if mask is None:
            return value
        least = k.lit(-inf, self.dtype, lanes)
        if self.mask_block is not None:
            added = block.let(k.load(self.mask_block, slot, lanes), "a")
            if mask.buffer.dtype == boolean:
                return k.select(k.binary("eq", added, k.lit(0.0, self.dtype, lanes)), value, least)
            return k.add(value, added)
        at = mask.offset(*self.batch_head, ZERO, key)
        one = block.let(k.load(mask.buffer, at), "a")
        if mask.buffer.dtype == boolean:
            return k.select(k.splat(one, lanes), value, least)
        return k.add(value, k.splat(block.let(k.cast(one, self.dtype), "a"), lanes))

    def _transpose_mask(self, block: Block, first: Expr, stop: Expr) -> None:
        """mask_block[key][query] for the block's keys: the mask, or 0 and -inf for a bool mask."""
        mask, mask_block, t, lanes = self.group.mask, self.mask_block, self.t, self.t.lanes
        assert mask is not None and mask_block is not None

        def to_scores(b: Block, x: Expr) -> Expr:
            if mask.buffer.dtype == boolean:
                return k.select(x, k.lit(0.0, self.dtype, x.lanes), k.lit(-inf, self.dtype, x.lanes))
            return k.cast(x, self.dtype)

        can_transpose = mask.last_stride == 1 and lanes > 1

        def emit_vector(x: Block, v: Expr) -> None:
            row = x.let(k.add(self.first_query, k.mul(v, integer(lanes))), "q")
            column = x.let(k.sub(k.mul(v, integer(lanes)), k.mul(first, integer(t.width))), "q")
            start = first

            def store(y: Block, key: Expr, value: Expr) -> None:
                y.store(mask_block, ix.add(column, ix.mul(key, integer(t.width))), value)

            if can_transpose:
                queries = (self._clamp_query(x, k.add(row, integer(i))) for i in range(lanes))
                row_offsets = [x.let(mask.offset(*self.batch_head, q, ZERO), "mr") for q in queries]

                def transpose_square(y: Block, key: Expr) -> None:
                    rows = [
                        y.let(to_scores(y, y.let(k.load(mask.buffer, ix.add(base, key), lanes), "a")), "a")
                        for base in row_offsets
                    ]
                    for j, value in enumerate(transpose_block(y, rows)):
                        store(y, ix.add(key, integer(j)), value)

                full_rows = k.mul(k.binary("div", k.sub(stop, first), integer(lanes)), integer(lanes))
                start = x.let(k.add(first, full_rows), "w")
                x.loop("j", first, start, lanes, transpose_square)

            def load_element(y: Block, key: Expr) -> None:
                index = y.let(k.binary("min", k.ramp(row, lanes), dim_expr(self.group.rows - 1)), "r")
                value = k.splat(load_at(y, mask.buffer, mask.offset(*self.batch_head, index, key)), lanes)
                store(y, key, to_scores(y, value))

            x.loop("j", start, stop, 1, load_element)

        block.loop("v", 0, t.vectors, 1, emit_vector)

    def _update_softmax(self, block: Block, first: Expr, stop: Expr, block_max: Buffer) -> None:
        """Pt = exp(St - m) in place. Rescale the running sum for the new maximum, and save the result's factor."""
        t, lanes = self.t, self.t.lanes
        sums = block.alloc("l", self.dtype, t.vectors, lanes=lanes)
        maxima: list[Expr] = []
        for v in range(t.vectors):
            new_max = block.let(k.load(block_max, integer(v)), "m")
            is_empty = k.binary("eq", new_max, k.lit(-inf, self.dtype, lanes))
            # a query without keys so far: exp(-inf - 0) = 0, but -inf - -inf would be NaN
            finite_max = block.let(k.select(is_empty, k.lit(0.0, self.dtype, lanes), new_max), "m")
            maxima.append(finite_max)
            offset = integer(v * lanes)
            old_max = block.let(k.load(self.row_max, offset, lanes), "o")
            factor = block.let(k.call("exp_decay", k.sub(old_max, finite_max)), "a")
            block.store(self.row_max, offset, new_max)
            block.store(self.row_scale, offset, factor)
            block.store(sums, integer(v), k.mul(factor, k.load(self.row_sum, offset, lanes)))

        def emit_row(x: Block, i: Expr) -> None:
            for v in range(t.vectors):
                offset = ix.add(i, integer(v * lanes))
                weight = x.let(k.call("exp_decay", k.sub(k.load(self.st, offset, lanes), maxima[v])), "p")
                x.store(self.st, offset, weight)
                x.store(sums, integer(v), k.add(k.load(sums, integer(v)), weight))

        size = block.let(k.mul(k.sub(stop, first), integer(t.width)), "n")
        block.loop("i", ZERO, size, t.width, emit_row)
        for v in range(t.vectors):
            block.store(self.row_sum, integer(v * lanes), k.load(sums, integer(v)))

    def _values(self, block: Block, col: Expr, rows: int, v_offset: Expr, count: Expr) -> None:
        """Ot = scale * Ot + V^T Pt for `rows` columns of V."""
        t, lanes = self.t, self.t.lanes
        tile_offset = block.let(k.mul(col, integer(t.width)), "ot")

        def load_result(x: Block, acc: Buffer) -> None:
            factors = [x.let(k.load(self.row_scale, integer(v * lanes), lanes), "a") for v in range(t.vectors)]
            for r in range(rows):
                for v in range(t.vectors):
                    offset = ix.add(tile_offset, integer(r * t.width + v * lanes))
                    x.store(acc, integer(r * t.vectors + v), k.mul(factors[v], k.load(self.ot, offset, lanes)))

        strides = self.v.layout.strides
        acc = self._product(
            block, rows, 0, count, self.st, ZERO, self.v.buffer, ix.add(v_offset, ix.mul(col, dim_expr(strides[3]))),
            strides[3], strides[2], load_result,
        )  # fmt: skip
        for r in range(rows):
            for v in range(t.vectors):
                offset = ix.add(tile_offset, integer(r * t.width + v * lanes))
                block.store(self.ot, offset, k.load(acc, integer(r * t.vectors + v)))

    # --- the result

    def _write_result(self) -> None:
        group, t, lanes = self.group, self.t, self.t.lanes
        tail = group.cols % lanes
        transposed_columns = group.cols if self.machine.masks else group.cols - tail
        if lanes == 1:
            transposed_columns = 0
        is_exact = isinstance(group.rows, int) and group.rows % t.width == 0

        def emit_vector(block: Block, v: Expr) -> None:
            first = block.let(k.add(self.first_query, k.mul(v, integer(lanes))), "q")
            total = block.let(k.load(self.row_sum, k.mul(v, integer(lanes)), lanes), "l")
            normalized = group.normalizer(block, total, lanes)

            def value(b: Block, c: Expr) -> Expr:
                offset = ix.add(ix.mul(c, integer(t.width)), ix.mul(v, integer(lanes)))
                return b.let(normalized(k.load(self.ot, offset, lanes)), "o")

            def store_square(b: Block, c: Expr, count: int) -> None:
                columns = [value(b, ix.add(c, integer(min(j, count - 1)))) for j in range(lanes)]
                mask = None if count == lanes else k.binary("lt", k.ramp(ZERO, lanes), integer(count))
                for i, row in enumerate(transpose_block(b, columns)):
                    q = ix.add(first, integer(i))

                    def store(x: Block, row: Expr = row, q: Expr = q) -> None:
                        group.store(x, (*self.batch_head, q, k.ramp(c, lanes)), row, mask)

                    if is_exact:
                        store(b)
                    else:
                        b.when(k.binary("lt", q, dim_expr(group.rows)), store)

            def store_column(b: Block, c: Expr) -> None:
                live = None if is_exact else b.let(k.binary("lt", k.ramp(first, lanes), dim_expr(group.rows)), "live")
                index = k.ramp(first, lanes) if lanes > 1 else first
                group.store(b, (*self.batch_head, index, c), value(b, c), live)

            full_end = transposed_columns - transposed_columns % lanes
            block.loop("c", 0, full_end, lanes, lambda b, c: store_square(b, c, lanes))
            if transposed_columns > full_end:
                store_square(block, integer(full_end), transposed_columns - full_end)
            block.loop("c", transposed_columns, group.cols, 1, store_column)

        self.top.loop("v", 0, t.vectors, 1, emit_vector)


__all__ = ["Flash"]
