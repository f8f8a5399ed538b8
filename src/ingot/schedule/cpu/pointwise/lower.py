"""Pointwise groups: every output element is an expression of the inputs; loops over the output, vectors along one axis.

out[i, j] = f(a[i, j], b[j])   ->   for i in chunk: for j in 0..n step 16: store(out, i*n+j, f(load a, load b), 16)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, For, Gather, If, Kernel, Let, Stmt, Store
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import Shape, boolean
from ingot.ops.views import base_of, pull_back
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Leaves, Operands, body_dims, symbol_params
from ingot.schedule.collapse_dims import collapse_dims, reshaped_inputs
from ingot.schedule.cpu.caches import PREFETCH_BYTES, results_exceed_caches
from ingot.schedule.cpu.chunks import (
    CHUNK_ELEMENTS,
    STREAMED_CHUNK_ELEMENTS,
    AlignedLine,
    Write,
    chunked_loops,
    vector_loop,
)
from ingot.schedule.cpu.interleave_vectors import vectors_to_interleave
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.blocked_transpose import TransposedLeaf, Transposition, find_transpose, reads_along
from ingot.schedule.cpu.pointwise.short_lines import ShortLines
from ingot.schedule.cpu.rows.short_rows import CACHE_LINE_BYTES
from ingot.schedule.cpu.transpose import storage_type
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, store_at
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Lowered, Step
from ingot.support.dataclass import dataclass

STRIP = 128  # bytes of a row that transposing writes one after another: the memory takes lines in pairs
TURNS_AHEAD = 2  # blocks whose operands are then asked for ahead, as each of their rows is in a page of its own


def lower_pointwise(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """One kernel for all outputs, which have one shape."""
    body, outs = _before_reshapes(body, outs)
    body, ins, _ = reshaped_inputs(body, ins)
    joined = collapse_dims(body, ins, outs) or _last_joined(body, ins, outs, machine)
    if joined is not None:
        body, ins, outs = joined
    operands, shape, lanes = Operands.of(body), body.outputs[0].shape, lanes_for(body, machine)
    loops, chunk, top = _Loops.of(body, ins, outs, operands, machine), k.var("chunk"), Block()
    turns = (find_transpose(body, ins, outs, operands.ins, shape, side) for side in _block_sides(body, shape, machine))
    turn = next((t for t in turns if t is not None and (t.side == lanes or t.in_registers(machine.vector_bits))), None)
    short, scratch = ShortLines.of(body, ins, outs, operands.ins, lanes), 0
    if short is not None:
        chunks = loops.short_lines(top, chunk, short)
    elif turn is not None:
        chunks = loops.transposed(top, chunk, turn)
        scratch = sum(loops.held_bytes(turn))
    else:
        chunks = loops.lines(top, chunk)
    dims = symbol_params(*body_dims(body, (*ins, *outs)), *shape)
    kernel = Kernel("pointwise", operands.params, dims, chunk, chunks, top.body, scratch)
    return Lowered((Step(kernel, operands.args),))


@dataclass(frozen=True)
class _Loops:
    """The ways over the box of a group: along its lines, across short ones, or in blocks that are transposed.

    stream: results leave the caches; `looked_up` are then the lookups whose rows `asking` asks for ahead.
    """

    body: Graph
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    operands: Operands
    machine: Machine
    stream: bool
    leaves: Leaves
    looked_up: Sequence[Node]
    asking: Emitter

    @staticmethod
    def of(
        body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], operands: Operands, machine: Machine
    ) -> _Loops:
        stream = results_exceed_caches(body, machine)
        looked_up = _looked_up(body) if stream else []
        asking = _asking(operands, body, ins, looked_up)
        leaves = _reading(operands, body, ins, looked_up, machine) if stream else operands.leaves(body, ins)
        return _Loops(body, ins, outs, operands, machine, stream, leaves, looked_up, asking)

    @property
    def shape(self) -> Shape:
        return self.body.outputs[0].shape

    @property
    def lanes(self) -> int:
        return lanes_for(self.body, self.machine)

    @property
    def size(self) -> int:
        """Of a chunk."""
        return STREAMED_CHUNK_ELEMENTS if self.stream else CHUNK_ELEMENTS

    def write(self, emitter: Emitter, block: Block, index: Index, mask: Expr | None) -> None:
        if self.stream and mask is None:
            for n in self.looked_up:
                self.asking.value(block, n, _rows_on(n, index))
        # a result may lie over what another one reads
        values = [emitter.value(block, root, index, mask) for root in self.body.outputs]
        for value, buffer, lay in zip(values, self.operands.outs, self.outs, strict=True):
            store_at(block, buffer, ix.linear(index, lay.strides, lay.offset), value, mask, stream=self.stream)

    def lines(self, top: Block, chunk: k.Var) -> Expr:
        """Vectors along the dimension where they are cheapest."""
        axis, _ = _vector_axis(self.body, self.operands, self.ins, self.outs, self.machine)
        order = _read_order(self.body, self.ins, self.operands, self.shape, self.lanes) if self.stream else None
        line = AlignedLine(self.outs[0], axis) if self.stream else None
        write = partial(self.write, Emitter(self.leaves))
        return chunked_loops(
            top, chunk, self.shape, axis, self.lanes, self.machine, write,
            order=order, line=line, chunk_operations=self.size, interleave=self._several(axis),
        )  # fmt: skip

    def _several(self, axis: int) -> int:
        """How many vectors along `axis` to compute as one."""
        if not self.shape:
            return 1

        def element(b: Block, at: Mapping[int, Expr]) -> None:
            self.write(Emitter(self.leaves), b, tuple(at.values()), None)

        several = vectors_to_interleave(Block(), range(len(self.shape)), axis, self.lanes, self.machine, element)
        return several if estimate(self.shape[axis]) >= 4 * several * self.lanes else 1

    def short_lines(self, top: Block, chunk: k.Var, short: ShortLines) -> Expr:
        """Vectors across as many lines as they have lanes; what is left of the lines one by one."""
        *outer, rows = self.shape[:-1]
        lanes, machine, write = self.lanes, self.machine, partial(self.write, Emitter(self.leaves))

        def lines_at(block: Block, index: Index, mask: Expr | None) -> None:
            begin = block.let(k.mul(index[-1], integer(lanes)), "line")

            def whole(b: Block) -> None:
                # a name of this branch's own, so that no load moves out of it
                own = (*index[:-1], first := b.fresh("first"))
                b.stmts.append(Let(first, begin))
                b.multiples[first.name] = lanes
                for i, values in enumerate(short.vectors(b, own, lanes, self.body, self.leaves)):
                    for buffer, lay, value in zip(self.operands.outs, self.outs, values, strict=True):
                        at = ix.linear((*own, integer(i * lanes)), lay.strides, lay.offset)
                        store_at(b, buffer, k.ramp(at, lanes), value, stream=self.stream)

            def line(b: Block, row: Expr) -> None:
                at = (*index[:-1], row)
                vector_loop(b, ZERO, short.size, lanes, machine, lambda c, e, m: write(c, (*at, e), m))

            if isinstance(rows, int) and rows % lanes == 0:
                return whole(block)
            fits = k.binary("le", k.add(begin, integer(lanes)), dim_expr(rows))
            return block.when(fits, whole, lambda b: b.loop("r", begin, dim_expr(rows), 1, line))

        boxes, work = (*outer, ceildiv(rows, lanes)), short.size * lanes
        return chunked_loops(top, chunk, boxes, len(outer), 1, machine, lines_at, work=work, chunk_operations=self.size)

    def transposed(self, top: Block, chunk: k.Var, turn: Transposition) -> Expr:
        """Blocks that are transposed in registers, in strips along the results' lines."""
        body, shape, strip = self.body, self.shape, self.strip(turn)
        blocks, ahead = turn.blocks(shape), TURNS_AHEAD if self.stream else 0
        strips = tuple(ceildiv(n, strip) if d == turn.out else n for d, n in enumerate(blocks))
        plain = partial(self.write, Emitter(self.leaves))

        def block_at(block: Block, index: Index, mask: Expr | None) -> None:
            def one(b: Block, at: Expr) -> None:
                transposed = partial(self.write, _transposing(self.operands, body, self.ins, self.leaves, turn, ahead))
                own = tuple(at if d == turn.out else e for d, e in enumerate(index))
                _transposed_block(b, own, turn, shape, self.lanes, self.machine, transposed, plain)

            begin = block.let(ix.mul(index[turn.out], integer(strip)), "s")
            end = block.let(k.binary("min", k.add(begin, integer(strip)), dim_expr(blocks[turn.out])), "e")
            if not any(self.held_bytes(turn)):
                return block.loop("s", begin, end, 1, one)
            return _where_whole(
                block,
                index,
                {**turn.sides, turn.out: strip * turn.side},
                shape,
                lambda b, start: self.held(b, index, start, turn, ahead),
                lambda b: b.loop("s", begin, end, 1, one),
            )

        work = turn.side * turn.height * strip
        return chunked_loops(
            top, chunk, strips, turn.across, 1, self.machine, block_at, work=work, chunk_operations=self.size
        )

    def strip(self, turn: Transposition) -> int:
        """Blocks that are done one after another along the results' lines."""
        return max(1, STRIP // (turn.side * min(n.dtype.nbytes for n in self.body.outputs))) if self.stream else 1

    def held_bytes(self, turn: Transposition) -> list[int]:
        """Scratch for all blocks of a strip but the last, by result: narrow elements have so many lines in a block that
        the memory would get the next block's parts of them too late to take them together."""
        sizes = [n.dtype.nbytes for n in self.body.outputs]
        count = (self.strip(turn) - 1) * turn.side * turn.height if min(sizes) < 4 else 0
        return [count * size for size in sizes]

    def held(self, block: Block, index: Index, start: Mapping[int, Expr], turn: Transposition, ahead: int) -> None:
        """A whole strip: its blocks but the last go to scratch, and into each line in front of what the last adds."""
        side, last, sizes = turn.side, self.strip(turn) - 1, self.held_bytes(turn)
        places = itertools.accumulate(sizes, initial=0)
        kept = [
            block.alloc("held", storage_type(n.dtype), last * side * turn.height, scratch=at)
            for n, at in zip(self.body.outputs, places, strict=False)
        ]

        def write(number: int, emitter: Emitter, rows: Iterator[int], b: Block, at: Index, mask: Expr | None) -> None:
            row = next(rows) * last * side
            for root, own, buffer, lay in zip(self.body.outputs, kept, self.operands.outs, self.outs, strict=True):
                value, flat = emitter.value(b, root, at, mask), ix.linear(at, lay.strides, lay.offset)
                if number < last:
                    held = k.bitcast(k.splat(value, side), own.dtype)
                    b.store(own, integer(row + number * side), held)
                    continue
                for i in range(last):
                    part = k.bitcast(k.load(own, integer(row + i * side), side), root.dtype)
                    store_at(b, buffer, ix.add(flat, integer((i - last) * side)), part, stream=True)
                store_at(b, buffer, flat, value, stream=True)

        for number in range(last + 1):
            emitter = _transposing(self.operands, self.body, self.ins, self.leaves, turn, ahead)
            along = block.let(ix.add(start[turn.out], integer(number * side)), "t")
            if isinstance(along, k.Var):
                block.multiples[along.name] = side
            own = partial(write, number, emitter, itertools.count())
            _block_rows(block, index, {**start, turn.out: along}, turn, own)


def _before_reshapes(body: Graph, outs: tuple[Layout, ...]) -> tuple[Graph, tuple[Layout, ...]]:
    """The group without reshapes at its end, where they are strides of its results: a vector then does not run from
    one line of what is reshaped into the next."""
    roots = tuple(base_of(n, (ops.Reshape,)) for n in body.outputs)
    computed = not any(n.is_leaf for n in roots)
    if roots == body.outputs or not computed or len({n.shape for n in roots}) > 1:
        return body, outs
    places = [pull_back(n, root, lay) for n, root, lay in zip(body.outputs, roots, outs, strict=True)]
    if any(lay is None for lay in places):
        return body, outs
    return body.with_outputs(roots), tuple(lay for lay in places if lay is not None)


def _block_sides(body: Graph, shape: Shape, machine: Machine) -> list[int]:
    """Sides that blocks may have which are transposed in registers, longest first: vectors of the narrowest elements,
    so that whole lines are read, where few elements lie in blocks that the edges cut off; then those of other loops."""
    least = lanes_for(body, machine)
    most = machine.vector_bits // min((8 * n.dtype.nbytes for n in body.inputs if n.dtype != boolean), default=32)
    sides = [least << i for i in range(8) if least << i <= most]
    fits = [n for n in sides if sum(d % n == 0 or d >= 8 * n for d in map(estimate, shape)) > 1]
    return [*sorted({*fits, least}, reverse=True)]


def _transposing(
    operands: Operands, body: Graph, ins: tuple[Layout, ...], others: Leaves, turn: Transposition, ahead: int
) -> Emitter:
    """An emitter for one block, whose transposed operands come from registers; those `ahead` blocks on are fetched."""
    leaves = dict(others)
    for n, buffer, lay in zip(body.inputs, operands.ins, ins, strict=True):
        if n in turn.transposed:
            leaves[n] = Leaf(TransposedLeaf(buffer, lay, turn, *turn.transposed[n], ahead).read)
    return Emitter(leaves)


def _transposed_block(
    block: Block,
    number: Index,
    turn: Transposition,
    shape: Shape,
    lanes: int,
    machine: Machine,
    transposed: Write,
    plain: Write,
) -> None:
    """One block of the box: by `transposed` where it is whole, else row by row by `plain`."""

    def cut(b: Block) -> None:
        begin = {d: b.let(ix.mul(number[d], integer(side)), "t") for d, side in turn.sides.items()}
        ends = {d: k.binary("min", k.add(e, integer(turn.sides[d])), dim_expr(shape[d])) for d, e in begin.items()}
        end = b.let(ends[turn.out], "t")

        def row(c: Block, e: Expr) -> None:
            def at(x: Block, v: Expr, m: Expr | None) -> None:
                plain(x, _placed(number, {turn.across: e, turn.out: v}), m)

            vector_loop(c, begin[turn.out], end, lanes, machine, at, multiple=lanes)

        b.loop("r", begin[turn.across], ends[turn.across], 1, row)

    def whole(b: Block, start: Mapping[int, Expr]) -> None:
        _block_rows(b, number, start, turn, transposed)

    _where_whole(block, number, turn.sides, shape, whole, cut)


def _where_whole(
    block: Block,
    number: Index,
    sides: Mapping[int, int],
    shape: Shape,
    whole: Callable[[Block, Mapping[int, Expr]], None],
    cut: Callable[[Block], None],
) -> None:
    """whole(block, where it begins) where the block `number`, of so long `sides`, lies in the box; else cut(block)."""
    begin = {d: block.let(ix.mul(number[d], integer(side)), "t") for d, side in sides.items()}

    def there(b: Block) -> None:
        start: dict[int, Expr] = {}
        for d, e in begin.items():
            # names of this branch's own, so that no load moves out of it
            own = start[d] = b.fresh("t")
            b.stmts.append(Let(own, e))
            b.multiples[own.name] = sides[d]
        whole(b, start)

    fits = [
        k.binary("le", k.add(e, integer(sides[d])), dim_expr(shape[d]))
        for d, e in begin.items()
        if not isinstance(extent := shape[d], int) or extent % sides[d]
    ]
    if fits:
        block.when(fits[0] if len(fits) == 1 else k.binary("and", *fits), there, cut)
    else:
        there(block)


def _block_rows(block: Block, number: Index, start: Mapping[int, Expr], turn: Transposition, write: Write) -> None:
    """The rows of a whole block, from `start` on."""
    for i in range(turn.height):
        row, along = ix.add(start[turn.across], integer(i)), k.ramp(start[turn.out], turn.side)
        write(block, _placed(number, {turn.across: row, turn.out: along}), None)


def _placed(index: Index, own: Mapping[int, Expr]) -> Index:
    return tuple(own.get(d, e) for d, e in enumerate(index))


def lanes_for(body: Graph, machine: Machine) -> int:
    """Vector lanes: a full vector of the widest type that the group stores or reads most."""
    widths = [n.dtype.bits for n in (*body.inputs, *body.outputs) if n.type.rank] or [32]
    return max(1, machine.vector_bits // max(min(widths), 32))


def _reading(
    operands: Operands, body: Graph, ins: tuple[Layout, ...], lookups: Sequence[Node], machine: Machine
) -> Leaves:
    """Loads that ask for what is read next: from operands larger than a core's first cache, side by side."""
    tables = {n.inputs[0] for n in lookups}
    leaves = operands.leaves(body, ins)
    for n, buffer, lay in zip(body.inputs, operands.ins, ins, strict=True):
        if n not in tables and estimate(n.type.nbytes) > machine.l1:
            leaves[n] = Leaf(partial(_read_on, buffer, lay))
    return leaves


def _read_on(buffer: Buffer, lay: Layout, block: Block, index: Index, mask: Expr | None) -> Expr:
    flat = ix.linear(index, lay.strides, lay.offset)
    if flat.lanes > 1 and ix.lane_step(flat) == 1:
        far = integer(PREFETCH_BYTES // buffer.dtype.nbytes)
        for i in range(0, flat.lanes, CACHE_LINE_BYTES // buffer.dtype.nbytes):
            block.stmts.append(k.Prefetch(buffer, k.add(k.add(ix.first_lane(flat), far), integer(i))))
    return load_at(block, buffer, flat, mask)


def _looked_up(body: Graph) -> list[Node]:
    """Lookups of rows of a table, as large as the results: nothing but the indices tells which are next."""
    shape = body.outputs[0].shape
    return [n for n in body.nodes() if n.shape == shape and _rows_of_table(n, body)]


def _rows_of_table(node: Node, body: Graph) -> bool:
    op, last = node.op, node.type.rank - 1
    return isinstance(op, ops.Gather) and node.inputs[0] in body.inputs and last in op.offset_dims and last > 0


def _rows_on(lookup: Node, index: Index) -> Index:
    """The same place in a row `AHEAD` bytes on, or in the last row."""
    op = lookup.op
    assert isinstance(op, ops.Gather)
    row = max(d for d in range(len(index)) if d not in op.offset_dims)
    nbytes = lookup.dtype.nbytes * max(1, estimate(product(lookup.shape[row + 1 :])))
    on = k.binary("min", k.add(index[row], integer(-(-PREFETCH_BYTES // nbytes))), dim_expr(lookup.shape[row] - 1))
    return (*index[:row], on, *index[row + 1 :])


def _asking(operands: Operands, body: Graph, ins: tuple[Layout, ...], lookups: Sequence[Node]) -> Emitter:
    """An emitter that asks for what the lookups read from their tables instead of reading it."""
    leaves = operands.leaves(body, ins)
    tables = {n.inputs[0] for n in lookups}
    for n, buffer, lay in zip(body.inputs, operands.ins, ins, strict=True):
        if n in tables:
            leaves[n] = Leaf(partial(_ask, n, buffer, lay), pinned=True)
    return Emitter(leaves)


def _ask(table: Node, buffer: Buffer, lay: Layout, block: Block, index: Index, mask: Expr | None) -> Expr:
    flat = ix.linear(index, lay.strides, lay.offset)
    if ix.lane_step(flat) is not None:
        block.stmts.append(k.Prefetch(buffer, ix.first_lane(flat)))
    zero = k.lit(0.0 if table.dtype.is_float else 0, table.dtype)
    return k.splat(zero, flat.lanes)


def _read_order(body: Graph, ins: tuple[Layout, ...], operands: Operands, shape: Shape, lanes: int) -> list[int] | None:
    """The dimensions as the largest operand lies in memory: what is stored past the caches waits for nothing, while
    reads far apart wait for memory each. None where there is no such order."""
    largest = max(body.inputs, key=lambda n: estimate(product(n.shape)), default=None)
    steps: list[int] = []
    for d in range(len(shape)):
        reads = reads_along(body, ins, operands.ins, shape, d, lanes) if largest is not None else None
        step = reads[largest] if reads is not None and largest is not None else []
        if len(step) != 1 or step[0] is None:
            return None
        steps.append(step[0])
    return sorted(range(len(shape)), key=lambda d: -steps[d])


def _last_joined(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> tuple[Graph, tuple[Layout, ...], tuple[Layout, ...]] | None:
    """The group with a short last dimension joined to the one before, where vectors across it are cheaper: values that
    are stacked behind each other are interleaved then."""
    if body.outputs[0].type.rank < 2 or not all(lay.is_contiguous for lay in outs):
        return None
    *outer, long, short = body.outputs[0].shape
    lanes, operands = lanes_for(body, machine), Operands.of(body)
    if not isinstance(short, int) or not 1 < short < lanes or ShortLines.of(body, ins, outs, operands.ins, lanes):
        return None
    flat = (*outer, long * short)
    other = Graph(body.inputs, tuple(ops.Reshape(flat)(n) for n in body.outputs))
    places = tuple(Layout.contiguous(flat) for _ in outs)
    _, apart = _vector_axis(body, operands, ins, outs, machine)
    axis, cost = _vector_axis(other, operands, ins, places, machine)
    return (other, ins, places) if axis == len(flat) - 1 and cost < apart else None


def _vector_axis(
    body: Graph, operands: Operands, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> tuple[int, float]:
    """The dimension along which vectors read and write most cheaply, and the cost of one, by trial emission."""
    shape = body.outputs[0].shape
    if not shape:
        return 0, 0.0
    lanes = lanes_for(body, machine)
    best, best_cost = len(shape) - 1, float("inf")
    for axis in reversed(range(len(shape))):
        size = estimate(shape[axis])
        if size <= 1:
            continue
        block = Block()
        for d in range(len(shape)):
            block.multiples[f"x{d}"] = lanes
        index = tuple(k.ramp(k.var(f"x{d}"), lanes) if d == axis else k.var(f"x{d}") for d in range(len(shape)))
        em = operands.emitter(body, ins)
        for root, buffer, layout in zip(body.outputs, operands.outs, outs, strict=True):
            value = em.value(block, root, index)
            store_at(block, buffer, ix.linear(index, layout.strides, layout.offset), value)
        used = -(-size // lanes) * lanes / size if machine.masks or size >= lanes else lanes
        cost = _cost(block.stmts, lanes) * used
        if cost < best_cost * 0.99:
            best, best_cost = axis, cost
    return best, best_cost


def _cost(stmts: list[Stmt], lanes: int) -> float:
    total = 0.0
    for s in stmts:
        match s:
            case Let():
                total += lanes if isinstance(s.value, Gather) else 1
            case Store():
                total += lanes if s.index.lanes > 1 else 1
            case For():
                total += 1 + _cost(list(s.body), lanes)
            case If():
                total += 1 + (_cost(list(s.then), lanes) + _cost(list(s.orelse), lanes)) / 2  # one of the two
    return total


__all__ = ["lanes_for", "lower_pointwise"]
