"""Pointwise groups: each output element is an expression of the inputs. Loops over the output, vectors along one axis.

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
from ingot.schedule.buffers import LeafByNode, Operands, body_dims, symbol_params
from ingot.schedule.collapse_dims import collapse_dims, reshaped_first, reshaped_inputs
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
from ingot.schedule.cpu.pointwise.blocked_transpose import TransposedLeaf, Transposition, find_transpose, read_strides
from ingot.schedule.cpu.pointwise.short_lines import ShortLines
from ingot.schedule.cpu.rows.short_rows import CACHE_LINE_BYTES
from ingot.schedule.cpu.transpose import storage_type
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, store_at
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Lowered, Step
from ingot.support.dataclass import dataclass

STRIP_BYTES = 128  # of a row that a transposition writes consecutively, as memory takes cache lines in pairs
PREFETCH_BLOCKS = 2  # prefetch distance of transpositions, in blocks: each row of a block is in a different page


def lower_pointwise(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """One kernel for all outputs, which have the same shape."""
    body, outs = _without_final_reshapes(body, outs)
    body, ins, _ = reshaped_inputs(reshaped_first(body, ins), ins)
    body, ins, outs = collapse_dims(body, ins, outs) or (body, ins, outs)
    body, ins, outs = _with_last_dims_merged(body, ins, outs, machine) or (body, ins, outs)
    operands, shape, lanes = Operands.of(body), body.outputs[0].shape, lanes_for(body, machine)
    loops, chunk, top = _Loops.of(body, ins, outs, operands, machine), k.var("chunk"), Block()
    plans = (find_transpose(body, ins, outs, operands.ins, shape, side) for side in _block_sides(body, shape, machine))
    plan = next((t for t in plans if t is not None and (t.side == lanes or t.in_registers(machine.vector_bits))), None)
    short, scratch = ShortLines.of(body, ins, outs, operands.ins, lanes), 0
    if short is not None:
        chunks = loops.short_lines(top, chunk, short)
    elif plan is not None:
        chunks = loops.transposed(top, chunk, plan)
        scratch = sum(loops.strip_scratch_bytes(plan))
    else:
        chunks = loops.lines(top, chunk)
    dims = symbol_params(*body_dims(body, (*ins, *outs)), *shape)
    kernel = Kernel("pointwise", operands.params, dims, chunk, chunks, top.body, scratch)
    return Lowered((Step(kernel, operands.args),))


@dataclass(frozen=True)
class _Loops:
    """The loops over the box of a group: along its rows, across short rows, or in transposed blocks.

    stream: results exceed the caches and are stored non-temporally. lookups: the table lookups whose rows `prefetcher`
    then prefetches.
    """

    body: Graph
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    operands: Operands
    machine: Machine
    stream: bool
    leaves: LeafByNode
    lookups: Sequence[Node]
    prefetcher: Emitter

    @staticmethod
    def of(
        body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], operands: Operands, machine: Machine
    ) -> _Loops:
        stream = results_exceed_caches(body, machine)
        lookups = _table_lookups(body) if stream else []
        prefetcher = _prefetch_emitter(operands, body, ins, lookups)
        leaves = _prefetching_leaves(operands, body, ins, lookups, machine) if stream else operands.leaves(body, ins)
        return _Loops(body, ins, outs, operands, machine, stream, leaves, lookups, prefetcher)

    @property
    def shape(self) -> Shape:
        return self.body.outputs[0].shape

    @property
    def lanes(self) -> int:
        return lanes_for(self.body, self.machine)

    @property
    def size(self) -> int:
        """The number of operations of a chunk."""
        return STREAMED_CHUNK_ELEMENTS if self.stream else CHUNK_ELEMENTS

    def write(self, emitter: Emitter, block: Block, index: Index, mask: Expr | None) -> None:
        if self.stream and mask is None:
            for n in self.lookups:
                self.prefetcher.value(block, n, _later_row(n, index))
        # a result may be written over what another one reads
        values = [emitter.value(block, root, index, mask) for root in self.body.outputs]
        for value, buffer, lay in zip(values, self.operands.outs, self.outs, strict=True):
            store_at(block, buffer, ix.linear(index, lay.strides, lay.offset), value, mask, stream=self.stream)

    def lines(self, top: Block, chunk: k.Var) -> Expr:
        """Vectors along the dimension in which they are cheapest."""
        axis, _ = _vector_axis(self.body, self.operands, self.ins, self.outs, self.machine)
        order = _read_order(self.body, self.ins, self.operands, self.shape, self.lanes) if self.stream else None
        line = AlignedLine(self.outs[0], axis) if self.stream else None
        write = partial(self.write, Emitter(self.leaves))
        return chunked_loops(
            top, chunk, self.shape, axis, self.lanes, self.machine, write,
            order=order, line=line, chunk_operations=self.size, interleave=self._interleave(axis),
        )  # fmt: skip

    def _interleave(self, axis: int) -> int:
        """The number of vectors along `axis` to compute as one."""
        if not self.shape:
            return 1

        def element(b: Block, at: Mapping[int, Expr]) -> None:
            self.write(Emitter(self.leaves), b, tuple(at.values()), None)

        interleave = vectors_to_interleave(Block(), range(len(self.shape)), axis, self.lanes, self.machine, element)
        return interleave if estimate(self.shape[axis]) >= 4 * interleave * self.lanes else 1

    def short_lines(self, top: Block, chunk: k.Var, short: ShortLines) -> Expr:
        """Full vectors over groups of as many short rows as a vector has lanes; remaining rows one at a time."""
        *outer, rows = self.shape[:-1]
        lanes, machine, write = self.lanes, self.machine, partial(self.write, Emitter(self.leaves))

        def lines_at(block: Block, index: Index, mask: Expr | None) -> None:
            begin = block.let(k.mul(index[-1], integer(lanes)), "line")

            def full_group(b: Block) -> None:
                # bound in this branch, so that no load is hoisted out of it
                group_index = (*index[:-1], first := b.fresh("first"))
                b.stmts.append(Let(first, begin))
                b.multiples[first.name] = lanes
                for i, values in enumerate(short.vectors(b, group_index, lanes, self.body, self.leaves)):
                    for buffer, lay, value in zip(self.operands.outs, self.outs, values, strict=True):
                        at = ix.linear((*group_index, integer(i * lanes)), lay.strides, lay.offset)
                        store_at(b, buffer, k.ramp(at, lanes), value, stream=self.stream)

            def line(b: Block, row: Expr) -> None:
                at = (*index[:-1], row)
                vector_loop(b, ZERO, short.size, lanes, machine, lambda c, e, m: write(c, (*at, e), m))

            if isinstance(rows, int) and rows % lanes == 0:
                return full_group(block)
            is_full_group = k.binary("le", k.add(begin, integer(lanes)), dim_expr(rows))
            return block.when(is_full_group, full_group, lambda b: b.loop("r", begin, dim_expr(rows), 1, line))

        boxes, ops = (*outer, ceildiv(rows, lanes)), short.size * lanes
        return chunked_loops(top, chunk, boxes, len(outer), 1, machine, lines_at, ops, chunk_operations=self.size)

    def transposed(self, top: Block, chunk: k.Var, plan: Transposition) -> Expr:
        """Blocks transposed in registers, in strips along the rows of the results."""
        body, shape, strip = self.body, self.shape, self.strip(plan)
        blocks, prefetch = plan.blocks(shape), PREFETCH_BLOCKS if self.stream else 0
        strips = tuple(ceildiv(n, strip) if d == plan.result_dim else n for d, n in enumerate(blocks))
        plain = partial(self.write, Emitter(self.leaves))

        def block_at(block: Block, index: Index, mask: Expr | None) -> None:
            def transpose_block_at(b: Block, at: Expr) -> None:
                emitter = _transposing_emitter(self.operands, body, self.ins, self.leaves, plan, prefetch)
                transposed = partial(self.write, emitter)
                block_index = tuple(at if d == plan.result_dim else e for d, e in enumerate(index))
                _transposed_block(b, block_index, plan, shape, self.lanes, self.machine, transposed, plain)

            begin = block.let(ix.mul(index[plan.result_dim], integer(strip)), "s")
            end = block.let(k.binary("min", k.add(begin, integer(strip)), dim_expr(blocks[plan.result_dim])), "e")
            if not any(self.strip_scratch_bytes(plan)):
                return block.loop("s", begin, end, 1, transpose_block_at)
            return _if_full_block(
                block,
                index,
                {**plan.sides, plan.result_dim: strip * plan.side},
                shape,
                lambda b, start: self._full_strip(b, index, start, plan, prefetch),
                lambda b: b.loop("s", begin, end, 1, transpose_block_at),
            )

        work = plan.side * plan.height * strip
        return chunked_loops(
            top, chunk, strips, plan.operand_dim, 1, self.machine, block_at, operations=work, chunk_operations=self.size
        )

    def strip(self, plan: Transposition) -> int:
        """The number of consecutive blocks along the results' rows."""
        return max(1, STRIP_BYTES // (plan.side * min(n.dtype.nbytes for n in self.body.outputs))) if self.stream else 1

    def strip_scratch_bytes(self, plan: Transposition) -> list[int]:
        """Scratch bytes for the blocks of a strip except the last, by result. A block of narrow elements has so many
        rows that write buffers would be flushed before the next block completes their cache lines."""
        sizes = [n.dtype.nbytes for n in self.body.outputs]
        count = (self.strip(plan) - 1) * plan.side * plan.height if min(sizes) < 4 else 0
        return [count * size for size in sizes]

    def _full_strip(
        self, block: Block, index: Index, start: Mapping[int, Expr], plan: Transposition, prefetch: int
    ) -> None:
        """A full strip: its blocks except the last go to scratch, and are stored with the rows of the last one."""
        side, last, sizes = plan.side, self.strip(plan) - 1, self.strip_scratch_bytes(plan)
        offsets = itertools.accumulate(sizes, initial=0)
        scratch = [
            block.alloc("held", storage_type(n.dtype), last * side * plan.height, scratch=at)
            for n, at in zip(self.body.outputs, offsets, strict=False)
        ]

        def write(number: int, emitter: Emitter, rows: Iterator[int], b: Block, at: Index, mask: Expr | None) -> None:
            row = next(rows) * last * side
            for root, strip, buffer, lay in zip(self.body.outputs, scratch, self.operands.outs, self.outs, strict=True):
                value, flat = emitter.value(b, root, at, mask), ix.linear(at, lay.strides, lay.offset)
                if number < last:
                    bits = k.bitcast(k.splat(value, side), strip.dtype)
                    b.store(strip, integer(row + number * side), bits)
                    continue
                for i in range(last):
                    part = k.bitcast(k.load(strip, integer(row + i * side), side), root.dtype)
                    store_at(b, buffer, ix.add(flat, integer((i - last) * side)), part, stream=True)
                store_at(b, buffer, flat, value, stream=True)

        for number in range(last + 1):
            emitter = _transposing_emitter(self.operands, self.body, self.ins, self.leaves, plan, prefetch)
            position = block.let(ix.add(start[plan.result_dim], integer(number * side)), "t")
            if isinstance(position, k.Var):
                block.multiples[position.name] = side
            write_row = partial(write, number, emitter, itertools.count())
            _block_rows(block, index, {**start, plan.result_dim: position}, plan, write_row)


def _without_final_reshapes(body: Graph, outs: tuple[Layout, ...]) -> tuple[Graph, tuple[Layout, ...]]:
    """The group without its final reshapes, if strides of its results express them: vectors then do not cross rows of
    the reshaped value."""
    roots = tuple(base_of(n, (ops.Reshape,)) for n in body.outputs)
    is_computed = not any(n.is_leaf for n in roots)
    if roots == body.outputs or not is_computed or len({n.shape for n in roots}) > 1:
        return body, outs
    layouts = [pull_back(n, root, lay) for n, root, lay in zip(body.outputs, roots, outs, strict=True)]
    if any(lay is None for lay in layouts):
        return body, outs
    return body.with_outputs(roots), tuple(lay for lay in layouts if lay is not None)


def _block_sides(body: Graph, shape: Shape, machine: Machine) -> list[int]:
    """The candidate sides of blocks that are transposed in registers, longest first: up to vectors of the narrowest
    elements, so that full cache lines are read, if few elements are in partial blocks at the edges."""
    min_side = lanes_for(body, machine)
    max_side = machine.vector_bits // min((8 * n.dtype.nbytes for n in body.inputs if n.dtype != boolean), default=32)
    sides = [min_side << i for i in range(8) if min_side << i <= max_side]
    fitting_sides = [n for n in sides if sum(d % n == 0 or d >= 8 * n for d in map(estimate, shape)) > 1]
    return [*sorted({*fitting_sides, min_side}, reverse=True)]


def _transposing_emitter(
    operands: Operands, body: Graph, ins: tuple[Layout, ...], others: LeafByNode, plan: Transposition, prefetch: int
) -> Emitter:
    """An emitter for one block, whose transposed operands come from registers. prefetch: distance in blocks."""
    leaves = dict(others)
    for n, buffer, lay in zip(body.inputs, operands.ins, ins, strict=True):
        if n in plan.transposed:
            leaves[n] = Leaf(TransposedLeaf(buffer, lay, plan, *plan.transposed[n], prefetch).read)
    return Emitter(leaves)


def _transposed_block(
    block: Block,
    number: Index,
    plan: Transposition,
    shape: Shape,
    lanes: int,
    machine: Machine,
    transposed: Write,
    plain: Write,
) -> None:
    """One block of the box: a full one by `transposed`, a partial one row by row by `plain`."""

    def partial_block(b: Block) -> None:
        begin = {d: b.let(ix.mul(number[d], integer(side)), "t") for d, side in plan.sides.items()}
        ends = {d: k.binary("min", k.add(e, integer(plan.sides[d])), dim_expr(shape[d])) for d, e in begin.items()}
        end = b.let(ends[plan.result_dim], "t")

        def row(c: Block, e: Expr) -> None:
            def at(x: Block, v: Expr, m: Expr | None) -> None:
                plain(x, _with_coordinates(number, {plan.operand_dim: e, plan.result_dim: v}), m)

            vector_loop(c, begin[plan.result_dim], end, lanes, machine, at, multiple=lanes)

        b.loop("r", begin[plan.operand_dim], ends[plan.operand_dim], 1, row)

    def full_block(b: Block, start: Mapping[int, Expr]) -> None:
        _block_rows(b, number, start, plan, transposed)

    _if_full_block(block, number, plan.sides, shape, full_block, partial_block)


def _if_full_block(
    block: Block,
    number: Index,
    sides: Mapping[int, int],
    shape: Shape,
    full: Callable[[Block, Mapping[int, Expr]], None],
    partial_block: Callable[[Block], None],
) -> None:
    """full(block, its start) if the block `number` of `sides` is within the box; else partial_block(block)."""
    begin = {d: block.let(ix.mul(number[d], integer(side)), "t") for d, side in sides.items()}

    def full_branch(b: Block) -> None:
        start: dict[int, Expr] = {}
        for d, e in begin.items():
            # bound in this branch, so that no load is hoisted out of it
            origin = start[d] = b.fresh("t")
            b.stmts.append(Let(origin, e))
            b.multiples[origin.name] = sides[d]
        full(b, start)

    conditions = [
        k.binary("le", k.add(e, integer(sides[d])), dim_expr(shape[d]))
        for d, e in begin.items()
        if not isinstance(extent := shape[d], int) or extent % sides[d]
    ]
    if conditions:
        block.when(conditions[0] if len(conditions) == 1 else k.binary("and", *conditions), full_branch, partial_block)
    else:
        full_branch(block)


def _block_rows(block: Block, number: Index, start: Mapping[int, Expr], plan: Transposition, write: Write) -> None:
    """The rows of a full block, from `start` on."""
    for i in range(plan.height):
        row, columns = ix.add(start[plan.operand_dim], integer(i)), k.ramp(start[plan.result_dim], plan.side)
        write(block, _with_coordinates(number, {plan.operand_dim: row, plan.result_dim: columns}), None)


def _with_coordinates(index: Index, coordinates: Mapping[int, Expr]) -> Index:
    return tuple(coordinates.get(d, e) for d, e in enumerate(index))


def lanes_for(body: Graph, machine: Machine) -> int:
    """The lanes of a vector of the group's narrowest operand or result, counted as at least 32 bits."""
    widths = [n.dtype.bits for n in (*body.inputs, *body.outputs) if n.type.rank] or [32]
    return max(1, machine.vector_bits // max(min(widths), 32))


def _prefetching_leaves(
    operands: Operands, body: Graph, ins: tuple[Layout, ...], lookups: Sequence[Node], machine: Machine
) -> LeafByNode:
    """Leaves whose vector loads also prefetch, for operands larger than the first-level cache."""
    tables = {n.inputs[0] for n in lookups}
    leaves = operands.leaves(body, ins)
    for n, buffer, lay in zip(body.inputs, operands.ins, ins, strict=True):
        if n not in tables and estimate(n.type.nbytes) > machine.l1:
            leaves[n] = Leaf(partial(_load_and_prefetch, buffer, lay))
    return leaves


def _load_and_prefetch(buffer: Buffer, lay: Layout, block: Block, index: Index, mask: Expr | None) -> Expr:
    flat = ix.linear(index, lay.strides, lay.offset)
    if flat.lanes > 1 and ix.lane_step(flat) == 1:
        distance = integer(PREFETCH_BYTES // buffer.dtype.nbytes)
        for i in range(0, flat.lanes, CACHE_LINE_BYTES // buffer.dtype.nbytes):
            block.stmts.append(k.Prefetch(buffer, k.add(k.add(ix.first_lane(flat), distance), integer(i))))
    return load_at(block, buffer, flat, mask)


def _table_lookups(body: Graph) -> list[Node]:
    """Lookups of rows of a table, as large as the results: hardware cannot predict the addresses."""
    shape = body.outputs[0].shape
    return [n for n in body.nodes() if n.shape == shape and _is_row_lookup(n, body)]


def _is_row_lookup(node: Node, body: Graph) -> bool:
    op, last = node.op, node.type.rank - 1
    has_rows = isinstance(op, ops.Gather) and last in op.offset_dims and len(op.offset_dims) <= last
    return has_rows and node.inputs[0] in body.inputs


def _later_row(lookup: Node, index: Index) -> Index:
    """The same position in a row `PREFETCH_BYTES` later, or in the last row."""
    op = lookup.op
    assert isinstance(op, ops.Gather)
    row = max(d for d in range(len(index)) if d not in op.offset_dims)
    nbytes = lookup.dtype.nbytes * max(1, estimate(product(lookup.shape[row + 1 :])))
    later = k.binary("min", k.add(index[row], integer(-(-PREFETCH_BYTES // nbytes))), dim_expr(lookup.shape[row] - 1))
    return (*index[:row], later, *index[row + 1 :])


def _prefetch_emitter(operands: Operands, body: Graph, ins: tuple[Layout, ...], lookups: Sequence[Node]) -> Emitter:
    """An emitter that prefetches what the lookups read from their tables instead of loading it."""
    leaves = operands.leaves(body, ins)
    tables = {n.inputs[0] for n in lookups}
    for n, buffer, lay in zip(body.inputs, operands.ins, ins, strict=True):
        if n in tables:
            leaves[n] = Leaf(partial(_prefetch, n, buffer, lay), pinned=True)
    return Emitter(leaves)


def _prefetch(table: Node, buffer: Buffer, lay: Layout, block: Block, index: Index, mask: Expr | None) -> Expr:
    flat = ix.linear(index, lay.strides, lay.offset)
    if ix.lane_step(flat) is not None:
        block.stmts.append(k.Prefetch(buffer, ix.first_lane(flat)))
    zero = k.lit(0.0 if table.dtype.is_float else 0, table.dtype)
    return k.splat(zero, flat.lanes)


def _read_order(body: Graph, ins: tuple[Layout, ...], operands: Operands, shape: Shape, lanes: int) -> list[int] | None:
    """The dimensions in the memory order of the largest operand: non-temporal stores do not wait, while each read with
    a large stride waits for memory. None if its strides are not constant."""
    largest = max(body.inputs, key=lambda n: estimate(product(n.shape)), default=None)
    steps: list[int] = []
    for d in range(len(shape)):
        reads = read_strides(body, ins, operands.ins, shape, d, lanes) if largest is not None else None
        step = reads[largest] if reads is not None and largest is not None else []
        if len(step) != 1 or step[0] is None:
            return None
        steps.append(step[0])
    return sorted(range(len(shape)), key=lambda d: -steps[d])


def _with_last_dims_merged(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> tuple[Graph, tuple[Layout, ...], tuple[Layout, ...]] | None:
    """The group with its short last dimension merged into the previous one, if vectors over both are cheaper, as where
    stacked values are interleaved; else None."""
    if body.outputs[0].type.rank < 2 or not all(lay.is_contiguous for lay in outs):
        return None
    *outer, long, short = body.outputs[0].shape
    lanes, operands = lanes_for(body, machine), Operands.of(body)
    if not isinstance(short, int) or not 1 < short < lanes or ShortLines.of(body, ins, outs, operands.ins, lanes):
        return None
    flat = (*outer, long * short)
    merged = Graph(body.inputs, tuple(ops.Reshape(flat)(n) for n in body.outputs))
    layouts = tuple(Layout.contiguous(flat) for _ in outs)
    _, separate_cost = _vector_axis(body, operands, ins, outs, machine)
    axis, cost = _vector_axis(merged, operands, ins, layouts, machine)
    return (merged, ins, layouts) if axis == len(flat) - 1 and cost < separate_cost else None


def _vector_axis(
    body: Graph, operands: Operands, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> tuple[int, float]:
    """The dimension with the cheapest vectors, and the cost of one, by trial emission."""
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
        waste = -(-size // lanes) * lanes / size if machine.masks or size >= lanes else lanes
        cost = _cost(block.stmts, lanes) * waste
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
