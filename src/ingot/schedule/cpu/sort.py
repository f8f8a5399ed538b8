"""Sorting: each row is sorted as words of a key and a position, by a network or by radix; a heap selects few elements.

    digits: 32 bits of a key each, the last of the last key first; floats as integers in their order, NaN last
    for digit in digits:  word[i] = digit of x[order[i]] << 32 | i;  sort the words;  order[i] = order[word[i] mod 2^32]
    out[i] = x[order[i]] for every operand

    short rows, one in each lane: merge exchange of whole vectors (Batcher 1968; Knuth, TAOCP 3, 5.2.2, algorithm M)
    longer ones: for each byte of the digit, words go to the places that counts of that byte give (Seward 1954)

    first k of n:  heap[0..k] = the last of all keys;  for i < n: if key[i] < heap[0]: replace the root, sift it down
                   for j = k - 1 .. 0: order[j] = the root; the last leaf becomes the root, sift it down

No two words are equal, so the algorithms need not be stable. A row has fewer than 2^32 elements (its words would take
64 GB). The heap (Williams, Floyd 1964) orders equal keys by position; a step down is a select, not a branch. Most
elements of a row are only compared with the root, and with the k-th of the first keys of 2k lanes or more.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, boolean, f32, f64, i32, i64, static_shape, u32, u64
from ingot.ops import Sort
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.chunks import CHUNK_ELEMENTS
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.emit import Index
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass

SCRATCH_ELEMENTS = 8192  # elements of an area that is a worker's scratch
MAX_NETWORK_ROW_PER_LANE = 64  # elements, per row that a vector has a lane for, up to which a network is faster
BYTES, VALUES = 4, 256  # of a digit, of a byte
PLACE = integer((1 << 32) - 1)  # a word's bits that are a place
MIN_ROW_PER_HEAP = 16  # a heap is for a sixteenth of a row at most
MAX_HEAP_WITH_BOUND = 32  # elements; twice as many lanes bound the keys that a heap takes
LAST_KEY = integer((1 << 63) - 1)


def lower_sort(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """Lower a Sort with any number of operands."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Sort))
    return _Sorting(anchor, body, ins, outs, machine).lower()


@dataclass(frozen=True)
class _Area:
    """Working memory: elements from `base`, `step` apart."""

    buffer: Buffer
    base: Expr
    step: int = 1

    def load(self, i: Expr, lanes: int = 1) -> Expr:
        return k.load(self.buffer, self._at(i), lanes)

    def store(self, block: Block, i: Expr, value: Expr) -> None:
        block.store(self.buffer, self._at(i), value)

    def _at(self, i: Expr) -> Expr:
        return k.add(self.base, k.mul(i, integer(self.step)))

    def past(self, elements: Expr) -> _Area:
        return _Area(self.buffer, k.add(self.base, elements), self.step)


@dataclass(frozen=True)
class _Digit:
    """32 bits of an operand's keys: the whole key of a narrow type, or its low or high half."""

    operand: int
    half: str

    def word(self, key: Expr, place: Expr) -> Expr:
        if self.half == "high":
            return k.binary("or", k.binary("and", key, integer(-1 << 32)), place)
        if self.half == "low":
            key = k.binary("xor", key, integer(1 << 31))  # words are compared with their signs, and this bit is none
        return k.binary("or", k.binary("shl", key, integer(32)), place)


@dataclass(frozen=True)
class _Heap:
    """A heap of `size` >= 1 elements, as keys and positions. The root is the element that comes last in the order."""

    keys: _Area
    places: _Area
    size: int

    def clear(self, block: Block, i: Expr) -> None:
        """Set the i-th element to one that comes after all possible elements."""
        self.keys.store(block, i, LAST_KEY)
        self.places.store(block, i, LAST_KEY)

    def at(self, block: Block, i: Expr) -> tuple[Expr, Expr]:
        return block.let(self.keys.load(i), "k"), block.let(self.places.load(i), "p")

    def sift(self, block: Block, key: Expr, place: Expr, size: Expr) -> None:
        """Replace the root by an element and move it down below all that come after it. size: of the heap, >= 1."""
        hole = block.alloc("hole", i64, 1)
        block.store(hole, ZERO, ZERO)

        def down(b: Block, _: Expr) -> None:
            position = b.let(k.load(hole, ZERO), "h")
            left = b.let(k.add(k.mul(position, integer(2)), integer(1)), "l")
            right = b.let(k.binary("min", k.add(left, integer(1)), k.sub(size, integer(1))), "r")
            near = b.let(k.binary("min", left, right), "n")  # a leaf has no children: itself or another, not taken
            key_l, key_r = b.let(self.keys.load(near), "kl"), b.let(self.keys.load(right), "kr")
            place_l, place_r = b.let(self.places.load(near), "pl"), b.let(self.places.load(right), "pr")
            later = b.let(_before(key_l, place_l, key_r, place_r), "c")
            child = k.select(later, right, left)
            child_key = b.let(k.select(later, key_r, key_l), "kc")
            child_place = b.let(k.select(later, place_r, place_l), "pc")
            sinks = k.binary("and", k.binary("lt", left, size), _before(key, place, child_key, child_place))
            sinks = b.let(sinks, "s")
            self.keys.store(b, position, k.select(sinks, child_key, key))
            self.places.store(b, position, k.select(sinks, child_place, place))
            b.store(hole, ZERO, k.select(sinks, child, position))

        block.loop("d", 0, integer(self.size.bit_length()), 1, down)

    def pop(self, block: Block, j: Expr, order: _Area) -> None:
        """Move the root, the last of the remaining elements after `j` pops, to its position in `order`."""
        last = block.let(k.sub(integer(self.size - 1), j), "last")
        order.store(block, last, self.places.load(ZERO))
        key, place = self.at(block, last)
        block.when(k.binary("gt", last, ZERO), lambda b: self.sift(b, key, place, last))


class _Sorting:
    def __init__(self, anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine):
        op = anchor.op
        assert isinstance(op, Sort)
        self.op, self.anchor, self.body, self.ins, self.outs = op, anchor, body, ins, outs
        self.machine = machine
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.memory = [operand_memory(body, x, ins) for x in anchor.inputs]
        shape = anchor.inputs[0].shape
        self.length = shape[op.dimension]
        self.outer_dims = tuple(d for d in range(len(shape)) if d != op.dimension)
        self.outer = tuple(shape[d] for d in self.outer_dims)
        self.rows = product(self.outer)
        self.top_k = self.length if op.count is None else op.count
        is_small = isinstance(self.top_k, int) and self.top_k * MIN_ROW_PER_HEAP <= estimate(self.length)
        self.uses_heap = is_small and op.num_keys == 1

        self.digits = [
            _Digit(operand, half)
            for operand in reversed(range(op.num_keys))
            for half in (("low", "high") if anchor.inputs[operand].dtype.bits > 32 else ("all",))
        ]
        lanes = machine.lanes(i64)
        short = MAX_NETWORK_ROW_PER_LANE * min(lanes, max(1, estimate(self.rows)))
        self.network = not self.uses_heap and isinstance(self.length, int) and self.length <= short
        self.rows_at_once = lanes if self.network else 1  # rows
        strides = self.memory[0][1].strides
        # rows that lie side by side are gone through together
        nearest = min((estimate(strides[d]) for d in self.outer_dims if shape[d] != 1), default=1)
        self.has_rows_in_lanes = self.rows_at_once > 1 and nearest < estimate(strides[op.dimension])

    def lower(self) -> Lowered:
        chunk, top = k.var("chunk"), Block()
        n, rows_at_once = self.length, self.rows_at_once
        work = max(1, estimate(n)) * rows_at_once
        if not self.uses_heap:
            work *= max(1, estimate(n)).bit_length()
        run = max(1, CHUNK_ELEMENTS // work)
        if isinstance(self.rows, int):
            run = max(1, min(run, self.rows // (4 * rows_at_once * self.machine.threads)))
        temps: list[DimLike] = []
        extra: list[Buffer] = []
        buffers: list[Buffer] = []
        scratch = 0
        sizes = self._areas()
        for i, size in enumerate(sizes):
            if isinstance(size, int) and size <= SCRATCH_ELEMENTS:
                buffers.append(top.alloc("area", i64, max(size, 1), scratch=scratch))
                scratch += -(-max(size, 1) * 8 // 64) * 64
            else:
                buffers.append(Buffer(f"temp{i}", i64, writable=True))
                extra.append(buffers[-1])
                temps.append(self.rows * size * 8)

        def rows(block: Block, r: Expr) -> None:
            areas = [
                _Area(b, block.let(k.mul(r, dim_expr(size)), "base") if b in extra else ZERO, rows_at_once)
                for b, size in zip(buffers, sizes, strict=True)
            ]
            if self.uses_heap:
                self._first_of_row(block, self._row(block, r), areas)
            else:
                self._sort(block, r, areas)

        step = run * rows_at_once
        first = top.let(k.mul(chunk, integer(step)), "first")
        if run == 1:
            rows(top, first)
        else:
            last = top.let(k.binary("min", k.add(first, integer(step)), dim_expr(self.rows)), "last")
            top.loop("r", first, last, rows_at_once, rows)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        params = (*self.operands.params, *extra)
        chunks = dim_expr(ceildiv(self.rows, step))
        kernel = Kernel("sort", params, dims, chunk, chunks, top.body, scratch)
        args = (*self.operands.args, *(Arg("temp", i) for i in range(len(extra))))
        return Lowered((Step(kernel, args),), tuple(temps))

    def _areas(self) -> list[DimLike]:
        """The sizes of the working memory for the rows that are sorted at once: keys and positions of the heap, and the
        order; or the words, the order that further digits start from, and the counts."""
        if self.uses_heap:
            return [self.top_k] * 3
        orders = [self.length * self.rows_at_once] if len(self.digits) > 1 else []
        if self.network:
            return [self.length * self.rows_at_once, *orders]
        return [2 * self.length, *orders, BYTES * VALUES]  # words are moved from one half to the other

    def _row(self, block: Block, r: Expr) -> Index:
        """The indices of row `r` in the dimensions that are not sorted."""
        index = ix.delinearize(r, self.outer, block.multiples) if self.outer else ()
        return tuple(block.let(e, "i") for e in index)

    def _full(self, index: Index, at: Expr) -> Index:
        d = self.op.dimension
        return (*index[:d], at, *index[d:])

    def _load(self, block: Block, operand: int, index: Index, at: Expr) -> Expr:
        which, layout = self.memory[operand]
        flat = ix.linear(self._full(index, at), layout.strides, layout.offset)
        return block.let(k.load(self.operands.ins[which], flat), "x")

    def _sort(self, block: Block, r: Expr, areas: list[_Area]) -> None:
        """Sort row `r`, or one row per lane from `r` on."""
        words = areas[0]
        order = areas[1] if len(self.digits) > 1 else None
        rows: Expr = integer(1)
        if self.rows_at_once > 1:
            rows = block.let(k.binary("min", integer(self.rows_at_once), k.sub(dim_expr(self.rows), r)), "rows")

        def for_each(count: DimLike, body: Callable[[Block, Index, Expr, Expr], None]) -> None:
            """body(block, index of a row, its lane, i) for all rows and the i below `count`, in the order of memory."""

            def row(b: Block, lane: Expr) -> None:
                index = self._row(b, k.add(r, lane))
                b.loop("i", 0, count, 1, lambda c, i: body(c, index, lane, i))

            def column(b: Block, i: Expr) -> None:
                b.loop("lane", ZERO, rows, 1, lambda c, lane: body(c, self._row(c, k.add(r, lane)), lane, i))

            if self.has_rows_in_lanes:
                block.loop("i", 0, count, 1, column)
            else:
                block.loop("lane", ZERO, rows, 1, row)

        def place(b: Block, lane: Expr, i: Expr) -> Expr:
            """The position in the word at `i`."""
            return b.let(k.binary("and", words.past(lane).load(i), PLACE), "at")

        for number, digit in enumerate(self.digits):
            before = order if number else None

            def fill(
                b: Block, index: Index, lane: Expr, i: Expr, digit: _Digit = digit, before: _Area | None = before
            ) -> None:
                at = b.let(before.past(lane).load(i), "at") if before else i
                key = self._key(b, self._load(b, digit.operand, index, at))
                words.past(lane).store(b, i, digit.word(key, i))

            def follow(b: Block, _: Index, lane: Expr, i: Expr, before: _Area | None = before) -> None:
                at = place(b, lane, i)
                words.past(lane).store(b, i, before.past(lane).load(at) if before else at)

            for_each(self.length, fill)
            if self.network:
                self._exchange(block, words)
            else:
                self._distribute(block, words, areas[-1])
            if order is None:
                for_each(self.top_k, lambda b, index, lane, i: self._write(b, index, i, place(b, lane, i)))
                return
            for_each(self.length, follow)
            for_each(self.length, lambda b, _, lane, i: order.past(lane).store(b, i, words.past(lane).load(i)))
        assert order is not None
        for_each(self.top_k, lambda b, index, lane, i: self._write(b, index, i, b.let(order.past(lane).load(i), "at")))

    def _exchange(self, block: Block, words: _Area) -> None:
        """Sort the rows in the lanes of `words` by compare-exchange of elements at distance `far`."""
        (n,) = static_shape((self.length,))
        levels = max(n - 1, 0).bit_length()
        one = integer(1)

        def level(b: Block, step: Expr) -> None:
            e = b.let(k.sub(integer(levels - 1), step), "e")
            p = b.let(k.binary("shl", one, e), "p")

            def turn(x: Block, u: Expr) -> None:
                head = k.binary("eq", u, ZERO)
                q = k.binary("shl", one, k.sub(integer(levels), u))
                far = x.let(k.select(head, p, k.sub(q, p)), "far")
                start = x.let(k.select(head, ZERO, p), "start")
                # i from `start` on, `p` of every 2p, as long as i + far < n
                span = x.let(k.sub(integer(n), k.add(far, start)), "span")
                full_blocks = k.binary("shl", k.binary("ashr", span, k.add(e, one)), e)
                part = k.binary("min", k.binary("and", span, k.sub(k.mul(p, integer(2)), one)), p)
                count = x.let(k.add(full_blocks, part), "count")

                def exchange(y: Block, c: Expr) -> None:
                    i = y.let(k.add(k.add(c, k.binary("and", c, k.sub(ZERO, p))), start), "i")
                    j = y.let(k.add(i, far), "j")
                    near, other = (y.let(words.load(at, self.rows_at_once), "w") for at in (i, j))
                    words.store(y, i, k.binary("min", near, other))
                    words.store(y, j, k.binary("max", near, other))

                x.loop("c", ZERO, count, 1, exchange)

            b.loop("u", ZERO, k.add(step, one), 1, turn)

        block.loop("step", 0, levels, 1, level)

    def _distribute(self, block: Block, words: _Area, counts: _Area) -> None:
        """Sort the row in the first half of `words`; the other half is working memory."""
        n = dim_expr(self.length)
        zeros = k.lit(0, i64, self.machine.lanes(i64))
        block.loop("v", 0, BYTES * VALUES, zeros.lanes, lambda b, v: counts.store(b, v, zeros))

        def slot(b: Block, word: Expr, byte: Expr) -> Expr:
            unsigned = k.binary("xor", word, integer(-1 << 63))
            value = k.binary("lshr", unsigned, k.add(k.mul(byte, integer(8)), integer(32)))
            return b.let(k.add(k.binary("and", value, integer(VALUES - 1)), k.mul(byte, integer(VALUES))), "slot")

        def count(b: Block, i: Expr) -> None:
            word = b.let(words.load(i), "w")
            for byte in range(BYTES):
                at = slot(b, word, integer(byte))
                counts.store(b, at, k.add(counts.load(at), integer(1)))

        block.loop("i", 0, self.length, 1, count)
        # which of the two copies holds the words: its first element
        side = block.alloc("side", i64, 1)
        block.store(side, ZERO, ZERO)

        def by(b: Block, byte: Expr) -> None:
            source = b.let(k.load(side, ZERO), "from")
            target = b.let(k.sub(n, source), "to")

            def move(x: Block) -> None:
                total = x.alloc("total", i64, 1)
                x.store(total, ZERO, ZERO)

                def begin(y: Block, v: Expr) -> None:
                    at = y.let(k.add(k.mul(byte, integer(VALUES)), v), "at")
                    start, size = y.let(k.load(total, ZERO), "start"), y.let(counts.load(at), "size")
                    counts.store(y, at, start)
                    y.store(total, ZERO, k.add(start, size))

                def put(y: Block, i: Expr) -> None:
                    word = y.let(words.past(source).load(i), "w")
                    at = slot(y, word, byte)
                    to = y.let(counts.load(at), "place")
                    words.past(target).store(y, to, word)
                    counts.store(y, at, k.add(to, integer(1)))

                x.loop("v", 0, VALUES, 1, begin)
                x.loop("i", 0, self.length, 1, put)
                x.store(side, ZERO, target)

            # a byte that all words share leaves them where they are
            some = counts.load(slot(b, b.let(words.past(source).load(ZERO), "w"), byte))
            b.when(k.binary("lt", some, n), move)

        def sort(b: Block) -> None:
            b.loop("byte", 0, BYTES, 1, by)
            at = b.let(k.load(side, ZERO), "at")
            other = words.past(at)
            is_swapped = k.binary("gt", at, ZERO)
            b.when(is_swapped, lambda x: x.loop("i", 0, self.length, 1, lambda y, i: words.store(y, i, other.load(i))))

        block.when(k.binary("gt", n, ZERO), sort)

    def _first_of_row(self, block: Block, index: Index, areas: list[_Area]) -> None:
        """Select the first elements of the order with a heap whose root is the last of those selected so far."""
        (heap_size,) = static_shape((self.top_k,))
        if not heap_size:
            return
        keys, places, order = areas
        heap = _Heap(keys, places, heap_size)
        which, layout = self.memory[0]
        limit: Expr = LAST_KEY

        def take(b: Block, i: Expr) -> None:
            key = self._key(b, self._load(b, 0, index, i))
            is_smaller = k.binary("and", k.binary("le", key, limit), _before(key, i, *heap.at(b, ZERO)))
            b.when(is_smaller, lambda x: heap.sift(x, key, i, integer(heap_size)))

        def vector_keys(b: Block, i: Expr) -> Expr:
            """The keys of a vector of elements."""
            flat = ix.linear(self._full(index, i), layout.strides, layout.offset)
            return self._key(b, b.let(k.load(self.operands.ins[which], flat, lanes), "x"))

        def take_some(b: Block, i: Expr) -> None:
            """Test a vector of elements, most of which come after the root."""
            near = vector_keys(b, i)
            better = k.reduce("or", k.binary("lt", near, heap.keys.load(ZERO)))
            unfilled = k.binary("eq", heap.places.load(ZERO), LAST_KEY)
            within = k.reduce("or", k.binary("le", near, limit))
            better = k.binary("and", within, k.binary("or", better, unfilled))
            b.when(better, lambda x: x.loop("l", i, k.add(i, integer(lanes)), 1, take))

        def take_first(b: Block, key: Expr) -> None:
            is_smaller = k.binary("lt", key, heap.keys.load(ZERO))
            b.when(is_smaller, lambda x: heap.sift(x, key, ZERO, integer(heap_size)))

        def key_bound(b: Block) -> Expr:
            """The last key that the first of the row may have: at least as many lanes have a key up to it."""
            count = -(-2 * heap_size // lanes)
            step, vectors = lanes * count, b.alloc("least", i64, count, lanes=lanes)
            for j in range(count):
                b.store(vectors, integer(j), k.splat(LAST_KEY, lanes))

            def least(x: Block, i: Expr) -> None:
                for j in map(integer, range(count)):
                    keys = vector_keys(x, k.add(i, k.mul(j, integer(lanes))))
                    x.store(vectors, j, k.binary("min", keys, k.load(vectors, j, lanes)))

            full_end = b.let(k.mul(k.binary("div", dim_expr(self.length), integer(step)), integer(step)), "whole")
            b.loop("i", 0, full_end, step, least)
            firsts = b.alloc("firsts", i64, step, stack=True)
            for j in range(count):
                b.store(firsts, integer(j * lanes), k.load(vectors, integer(j), lanes))
            b.loop("l", 0, step, 1, lambda x, lane: take_first(x, x.let(k.load(firsts, lane), "key")))
            return b.let(heap.keys.load(ZERO), "limit")

        lanes, done = self.machine.lanes(i64), ZERO
        block.loop("i", 0, heap_size, 1, heap.clear)
        if layout.strides[self.op.dimension] == 1 and lanes > 1:
            if heap_size <= MAX_HEAP_WITH_BOUND:
                limit = key_bound(block)
                block.loop("i", 0, heap_size, 1, heap.clear)
            done = block.let(k.mul(k.binary("div", dim_expr(self.length), integer(lanes)), integer(lanes)), "whole")
            block.loop("i", 0, done, lanes, take_some)
        block.loop("i", done, self.length, 1, take)
        block.loop("j", 0, heap_size, 1, lambda b, j: heap.pop(b, j, order))
        block.loop("i", 0, self.top_k, 1, lambda b, i: self._write(b, index, i, b.let(order.load(i), "at")))

    def _write(self, block: Block, index: Index, i: Expr, at: Expr) -> None:
        """Store the element at position `at` of a row as the i-th of the result."""
        to = self._full(index, i)
        values = [self._load(block, operand, index, at) for operand in range(len(self.memory))]
        if len(values) == 1:
            bind_result(self.em, block, self.anchor, values[0])
            to = result_index(block, self.body.outputs[0], self.anchor, to)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, to, None)
            return
        for value, buffer, lay in zip(values, self.operands.outs, self.outs, strict=True):
            block.store(buffer, ix.linear(to, lay.strides, lay.offset), value)

    def _key(self, block: Block, x: Expr) -> Expr:
        """An i64 that sorts like x, within 32 bits for narrow types; NaN sorts last, and both zeros are equal."""
        key = block.let(_ascending(block, x), "key")
        return block.let(k.unary("not", key), "key") if self.op.descending else key


def _before(key: Expr, place: Expr, other_key: Expr, other_place: Expr) -> Expr:
    tied = k.binary("and", k.binary("eq", key, other_key), k.binary("lt", place, other_place))
    return k.binary("or", k.binary("lt", key, other_key), tied)


def _ascending(block: Block, x: Expr) -> Expr:
    dtype = x.dtype
    if dtype == boolean:
        return k.select(x, integer(1), ZERO)
    if dtype == u64:
        return k.binary("xor", k.bitcast(x, i64), integer(-(1 << 63)))
    if dtype == u32:
        return k.sub(k.cast(x, i64), integer(1 << 31))
    if not dtype.is_float:
        return k.cast(x, i64)
    wide: DType = f64 if dtype == f64 else f32
    value = block.let(k.cast(x, wide), "x")
    value = block.let(k.add(value, k.lit(0.0, wide)), "x")  # -0 + 0 = +0
    word = i64 if wide == f64 else i32
    bits = block.let(k.cast(k.bitcast(value, word), i64), "bits")
    _, magnitude_mask = word.range
    # below zero a larger magnitude is less: the bits but for the sign are inverted
    ordered = k.binary("xor", bits, k.binary("and", k.binary("ashr", bits, integer(63)), integer(magnitude_mask)))
    return k.select(k.binary("ne", value, value), integer(magnitude_mask), ordered)


__all__ = ["lower_sort"]
