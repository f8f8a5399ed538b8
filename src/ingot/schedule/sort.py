"""Sorting: a stable merge sort of every row by integer keys, or a heap where few of its elements are kept.

    keys: floats as integers in their order, NaN last; inverted to descend
    for width = 1, 2, 4, ...: merge neighbouring runs of `width`, taking from the left one while it is not greater
    out[i] = x[order[i]] for every operand

    first k of n:  heap[0..k] = the last of all keys;  for i < n: if key[i] < heap[0]: replace the root, sift it down
                   for j = k - 1 .. 0: order[j] = the root; the last leaf becomes the root, sift it down

A merge is one loop over its output: what is taken next is a selection, no branch. So is a step down the heap (Williams,
Floyd 1964), in which equal keys are ordered by their places. Most of a row is compared with the root and left.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, boolean, f32, f64, i32, i64, static_shape, u64
from ingot.ops import Sort
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import CHUNK, Operands, body_dims, symbol_params
from ingot.schedule.window import bind_result, operand_memory, result_index, store_results

SCRATCH = 4096  # elements of a row that is sorted in a worker's scratch
MAX_PASSES = 40  # 2^40 elements
FEW = 8  # a heap is for an eighth of a row at most
LAST = integer((1 << 63) - 1)


def lower_sort(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A Sort of any number of operands."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Sort))
    return _Sorting(anchor, body, ins, outs, machine).lower()


@dataclass(frozen=True)
class _Area:
    """Working memory for one row: `size` elements per copy from `base`."""

    buffer: Buffer
    base: Expr


class _Sorting:
    def __init__(
        self, anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
    ):
        op = anchor.op
        assert isinstance(op, Sort)
        self.op, self.anchor, self.body, self.ins, self.outs = op, anchor, body, ins, outs
        self.machine = machine
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.memory = [operand_memory(body, x, ins) for x in anchor.inputs]
        shape = anchor.inputs[0].shape
        self.length = shape[op.dimension]
        self.others = tuple(d for d in range(len(shape)) if d != op.dimension)
        self.outer = tuple(shape[d] for d in self.others)
        self.rows = product(self.outer)
        self.kept = self.length if op.keep is None else op.keep
        self.heaped = isinstance(self.kept, int) and op.num_keys == 1 and self.kept * FEW <= estimate(self.length)

    def lower(self) -> Lowered:
        chunk, top = k.var("chunk"), Block()
        n, work = self.length, max(1, estimate(self.length))
        if not self.heaped:
            work *= work.bit_length()
        run = max(1, CHUNK // work)
        if isinstance(self.rows, int):
            run = max(1, min(run, self.rows // (4 * self.machine.threads)))
        # two copies of the first keys and of the order; one of every further key
        sizes: list[DimLike] = [2 * n, 2 * n, *([n] * (self.op.num_keys - 1))]
        if self.heaped:
            # the heap's keys and places, and the order
            n, sizes = self.kept, [self.kept] * 3
        private = isinstance(n, int) and n <= SCRATCH
        temps: list[DimLike] = []
        extra: list[Buffer] = []
        buffers: list[Buffer] = []
        scratch = 0
        for i, size in enumerate(sizes):
            if private and isinstance(size, int):
                buffers.append(top.alloc("area", i64, max(size, 1), scratch=scratch))
                scratch += -(-max(size, 1) * 8 // 64) * 64
            else:
                buffers.append(Buffer(f"area{i}", i64, writable=True))
                extra.append(buffers[-1])
                temps.append(self.rows * size * 8)

        def row(block: Block, r: Expr) -> None:
            index = ix.delinearize(r, self.outer, block.multiples) if self.outer else ()
            index = tuple(block.let(e, "i") for e in index)
            areas = [
                _Area(b, ZERO if private else block.let(k.mul(r, dim_expr(size)), "base"))
                for b, size in zip(buffers, sizes, strict=True)
            ]
            (self._first_of_row if self.heaped else self._row)(block, index, areas)

        if run == 1:
            row(top, chunk)
        else:
            first = top.let(k.mul(chunk, integer(run)), "first")
            last = top.let(k.binary("min", k.add(first, integer(run)), dim_expr(self.rows)), "last")
            top.loop("r", first, last, 1, row)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        params = (*self.operands.params, *extra)
        chunks = dim_expr(ceildiv(self.rows, run))
        kernel = Kernel("sort", params, dims, chunk, chunks, top.body, scratch)
        args = (*self.operands.args, *(Arg("temp", i) for i in range(len(extra))))
        return Lowered((Step(kernel, args),), tuple(temps))

    def _full(self, index: Index, at: Expr) -> Index:
        d = self.op.dimension
        return (*index[:d], at, *index[d:])

    def _load(self, block: Block, operand: int, index: Index, at: Expr) -> Expr:
        which, layout = self.memory[operand]
        flat = ix.linear(self._full(index, at), layout.strides, layout.offset)
        return block.let(k.load(self.operands.ins[which], flat), "x")

    def _row(self, block: Block, index: Index, areas: list[_Area]) -> None:
        n = dim_expr(self.length)
        keys, order, more = areas[0], areas[1], areas[2:]

        def fill(b: Block, i: Expr) -> None:
            b.store(keys.buffer, k.add(keys.base, i), self._key(b, self._load(b, 0, index, i)))
            b.store(order.buffer, k.add(order.base, i), i)
            for operand, area in enumerate(more, 1):
                b.store(area.buffer, k.add(area.base, i), self._key(b, self._load(b, operand, index, i)))

        block.loop("i", 0, self.length, 1, fill)
        # which of the two copies holds the runs: its first element
        side = block.alloc("side", i64, 1)
        block.store(side, ZERO, ZERO)

        def merge_pass(b: Block, p: Expr) -> None:
            width = b.let(k.binary("shl", integer(1), p), "width")

            def merges(x: Block) -> None:
                source = x.let(k.load(side, ZERO), "from")
                target = x.let(k.sub(n, source), "to")
                pairs = k.binary("div", k.add(n, k.sub(k.mul(width, integer(2)), integer(1))), k.mul(width, integer(2)))
                x.loop("m", 0, x.let(pairs, "pairs"), 1, lambda y, m: self._merge(y, m, width, source, target, areas))
                x.store(side, ZERO, target)

            b.when(k.binary("lt", width, n), merges)

        passes: int = MAX_PASSES
        if isinstance(self.length, int):
            passes = max(self.length - 1, 0).bit_length()
        block.loop("p", 0, passes, 1, merge_pass)
        final = block.let(k.load(side, ZERO), "final")
        self._write(block, index, _Area(order.buffer, k.add(order.base, final)))

    def _first_of_row(self, block: Block, index: Index, areas: list[_Area]) -> None:
        """The elements that come first, by a heap whose root is the last of those kept so far."""
        keys, places, order = areas
        (kept,) = static_shape((self.kept,))
        if not kept:
            return

        def at(area: _Area, i: Expr) -> Expr:
            return k.load(area.buffer, k.add(area.base, i))

        def sift(b: Block, key: Expr, place: Expr, size: Expr) -> None:
            """Put an element in the root's place, and below all that come behind it; `size` elements, at least one."""
            hole = b.alloc("hole", i64, 1)
            b.store(hole, ZERO, ZERO)

            def down(x: Block, _: Expr) -> None:
                here = x.let(k.load(hole, ZERO), "h")
                left = x.let(k.add(k.mul(here, integer(2)), integer(1)), "l")
                right = x.let(k.binary("min", k.add(left, integer(1)), k.sub(size, integer(1))), "r")
                near = x.let(k.binary("min", left, right), "n")  # a leaf has no children: itself or another, not taken
                key_l, key_r = x.let(at(keys, near), "kl"), x.let(at(keys, right), "kr")
                place_l, place_r = x.let(at(places, near), "pl"), x.let(at(places, right), "pr")
                later = x.let(_before(key_l, place_l, key_r, place_r), "c")
                child = k.select(later, right, left)
                child_key = x.let(k.select(later, key_r, key_l), "kc")
                child_place = x.let(k.select(later, place_r, place_l), "pc")
                sinks = k.binary("and", k.binary("lt", left, size), _before(key, place, child_key, child_place))
                sinks = x.let(sinks, "s")
                x.store(keys.buffer, k.add(keys.base, here), k.select(sinks, child_key, key))
                x.store(places.buffer, k.add(places.base, here), k.select(sinks, child_place, place))
                x.store(hole, ZERO, k.select(sinks, child, here))

            b.loop("d", 0, integer(kept.bit_length()), 1, down)

        def clear(b: Block, i: Expr) -> None:
            b.store(keys.buffer, k.add(keys.base, i), LAST)
            b.store(places.buffer, k.add(places.base, i), LAST)

        def take(b: Block, i: Expr) -> None:
            key = self._key(b, self._load(b, 0, index, i))
            wanted = _before(key, i, b.let(at(keys, ZERO), "k"), b.let(at(places, ZERO), "p"))
            b.when(wanted, lambda x: sift(x, key, i, integer(kept)))

        def pop(b: Block, j: Expr) -> None:
            last = b.let(k.sub(integer(kept - 1), j), "last")
            b.store(order.buffer, k.add(order.base, last), at(places, ZERO))
            key, place = b.let(at(keys, last), "k"), b.let(at(places, last), "p")
            b.when(k.binary("gt", last, ZERO), lambda x: sift(x, key, place, last))

        def take_some(b: Block, i: Expr) -> None:
            """A vector of elements, most of which come behind the root."""
            which, layout = self.memory[0]
            flat = ix.linear(self._full(index, i), layout.strides, layout.offset)
            near = self._key(b, b.let(k.load(self.operands.ins[which], flat, lanes), "x"))
            better = k.reduce("or", k.binary("lt", near, at(keys, ZERO)))
            unfilled = k.binary("eq", at(places, ZERO), LAST)
            end = k.add(i, integer(lanes))
            b.when(k.binary("or", better, unfilled), lambda x: x.loop("l", i, end, 1, take))

        lanes, done = self.machine.lanes(i64), ZERO
        block.loop("i", 0, kept, 1, clear)
        if self.memory[0][1].strides[self.op.dimension] == 1 and lanes > 1:
            done = block.let(k.mul(k.binary("div", dim_expr(self.length), integer(lanes)), integer(lanes)), "whole")
            block.loop("i", 0, done, lanes, take_some)
        block.loop("i", done, self.length, 1, take)
        block.loop("j", 0, kept, 1, pop)
        self._write(block, index, order)

    def _write(self, block: Block, index: Index, order: _Area) -> None:
        def write(b: Block, i: Expr) -> None:
            at = b.let(k.load(order.buffer, k.add(order.base, i)), "at")
            place = self._full(index, i)
            values = [self._load(b, operand, index, at) for operand in range(len(self.memory))]
            if len(values) == 1:
                bind_result(self.em, b, self.anchor, values[0])
                place = result_index(b, self.body.outputs[0], self.anchor, place)
                store_results(self.em, b, self.body, self.operands.outs, self.outs, place, None)
                return
            for value, buffer, lay in zip(values, self.operands.outs, self.outs, strict=True):
                b.store(buffer, ix.linear(place, lay.strides, lay.offset), value)

        block.loop("i", 0, self.kept, 1, write)

    def _merge(self, block: Block, m: Expr, width: Expr, source: Expr, target: Expr, areas: list[_Area]) -> None:
        """Merge the runs [low, middle) and [middle, high)."""
        n = dim_expr(self.length)
        keys, order, more = areas[0], areas[1], areas[2:]
        low = block.let(k.mul(m, k.mul(width, integer(2))), "low")
        middle = block.let(k.binary("min", k.add(low, width), n), "mid")
        high = block.let(k.binary("min", k.add(middle, width), n), "high")
        state = block.alloc("at", i64, 2)
        left, right = ZERO, integer(1)
        block.store(state, left, low)
        block.store(state, right, middle)

        def take(b: Block, i: Expr) -> None:
            x, y = b.let(k.load(state, left), "l"), b.let(k.load(state, right), "r")
            # an index past its run reads the run's last element, which is not used
            near_x = b.let(k.add(source, k.binary("min", x, k.sub(middle, integer(1)))), "l")
            near_y = b.let(k.add(source, k.binary("min", y, k.sub(high, integer(1)))), "r")
            key_x = b.let(k.load(keys.buffer, k.add(keys.base, near_x)), "kl")
            key_y = b.let(k.load(keys.buffer, k.add(keys.base, near_y)), "kr")
            own_x = b.let(k.load(order.buffer, k.add(order.base, near_x)), "ol")
            own_y = b.let(k.load(order.buffer, k.add(order.base, near_y)), "or")
            less = k.binary("lt", key_y, key_x)
            tied = k.binary("eq", key_y, key_x)
            for area in more:
                more_x = b.let(k.load(area.buffer, k.add(area.base, own_x)), "kl")
                more_y = b.let(k.load(area.buffer, k.add(area.base, own_y)), "kr")
                less = b.let(k.binary("or", less, k.binary("and", tied, k.binary("lt", more_y, more_x))), "less")
                tied = b.let(k.binary("and", tied, k.binary("eq", more_y, more_x)), "tied")
            some_y = k.binary("lt", y, high)
            spent = k.binary("ge", x, middle)
            second = b.let(k.binary("or", spent, k.binary("and", some_y, less)), "second")
            to = k.add(target, i)
            b.store(keys.buffer, k.add(keys.base, to), k.select(second, key_y, key_x))
            b.store(order.buffer, k.add(order.base, to), k.select(second, own_y, own_x))
            one = integer(1)
            b.store(state, left, k.select(second, x, k.add(x, one)))
            b.store(state, right, k.select(second, k.add(y, one), y))

        block.loop("i", low, high, 1, take)

    def _key(self, block: Block, x: Expr) -> Expr:
        """An i64 in the order of x; NaN after everything, both zeros alike."""
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
    if not dtype.is_float:
        return k.cast(x, i64)
    wide: DType = f64 if dtype == f64 else f32
    value = block.let(k.cast(x, wide), "x")
    value = block.let(k.add(value, k.lit(0.0, wide)), "x")  # -0 + 0 = +0
    whole = i64 if wide == f64 else i32
    bits = block.let(k.cast(k.bitcast(value, whole), i64), "bits")
    _, most = whole.range
    # below zero a larger magnitude is less: the bits but for the sign are inverted
    ordered = k.select(k.binary("lt", bits, ZERO), k.binary("xor", bits, integer(most)), bits)
    return k.select(k.binary("ne", value, value), integer(most), ordered)


__all__ = ["lower_sort"]
