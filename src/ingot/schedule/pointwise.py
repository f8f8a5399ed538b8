"""Pointwise groups: every output element is an expression of the inputs; loops over the output, vectors along one axis.

out[i, j] = f(a[i, j], b[j])   ->   for i in chunk: for j in 0..n step 16: store(out, i*n+j, f(load a, load b), 16)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, ceildiv, estimate, product, symbols_of
from ingot.ir.kernel import Buffer, Expr, For, Gather, If, Kernel, Let, Stmt, Store
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Graph, Input, Node
from ingot.ir.types import Shape, boolean
from ingot.ops.views import base_of, pull_back
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, load_leaf, store_at
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.joined import join_dims
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.machine import Machine
from ingot.schedule.short_lines import ShortLines
from ingot.schedule.turned import Turn, TurnedLeaf, find_turn, reads_along

CHUNK = 8192  # elements a chunk should have: some 10 us of streaming work
STREAMED = 16 * CHUNK  # where stores go past the caches: a chunk ends by waiting for them
AHEAD = 4096  # bytes, past the caches: with arithmetic between them too few loads are in flight by themselves
LONG = 8  # vectors from which on a line is worth a cut one in front, so that the others lie where memory has whole ones
STRIP = 128  # bytes of a row that transposing writes one after another: the memory takes lines in pairs
TURNS_AHEAD = 2  # blocks whose operands are then asked for ahead, as each of their rows is in a page of its own

Leaves = dict[Node, Leaf]


@dataclass(frozen=True)
class Operands:
    """A group's inputs and outputs as kernel buffers."""

    ins: tuple[Buffer, ...]
    outs: tuple[Buffer, ...]

    @staticmethod
    def of(body: Graph) -> Operands:
        # users' arrays are aligned to their elements only
        ins = tuple(Buffer(f"in{i}", n.dtype, align=n.dtype.nbytes) for i, n in enumerate(body.inputs))
        outs = tuple(
            Buffer(f"out{i}", n.dtype, writable=True, align=n.dtype.nbytes) for i, n in enumerate(body.outputs)
        )
        return Operands(ins, outs)

    @property
    def params(self) -> tuple[Buffer, ...]:
        return (*self.ins, *self.outs)

    @property
    def args(self) -> tuple[Arg, ...]:
        return (*(Arg("in", i) for i in range(len(self.ins))), *(Arg("out", i) for i in range(len(self.outs))))

    def leaves(self, body: Graph, layouts: tuple[Layout, ...]) -> Leaves:
        return {n: load_leaf(b, lay) for n, b, lay in zip(body.inputs, self.ins, layouts, strict=True)}

    def emitter(self, body: Graph, layouts: tuple[Layout, ...]) -> Emitter:
        return Emitter(self.leaves(body, layouts))


def symbol_params(*dims: DimLike) -> tuple[k.Var, ...]:
    """The kernel's dim parameters: one per symbol that `dims` mention, sorted by name."""
    names = sorted(set().union(*(symbols_of(d) for d in dims)) if dims else set())
    return tuple(k.var(n) for n in names)


def body_dims(body: Graph, layouts: tuple[Layout, ...]) -> tuple[DimLike, ...]:
    """Every dimension that the code of a group may mention."""
    dims: list[DimLike] = []
    for n in body.nodes():
        for t in n.types:
            dims += t.shape
        dims += [d for v in n.op.attributes().values() for d in _dims_in(v)]
    for lay in layouts:
        dims += [*lay.shape, *lay.strides, lay.offset]
    return tuple(dims)


def _dims_in(value: object) -> list[DimLike]:
    if isinstance(value, Dim):
        return [value]
    return [d for v in value for d in _dims_in(v)] if isinstance(value, tuple) else []


def lower_pointwise(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """One kernel for all outputs, which have one shape."""
    body, outs = _before_reshapes(body, outs)
    operands = Operands.of(body)
    shape = body.outputs[0].shape
    joined = join_dims(body, ins, outs) or _last_joined(body, ins, outs, machine)
    if joined is not None:
        body, ins, outs = joined
        shape = body.outputs[0].shape
    chunk, top, lanes = k.var("chunk"), Block(), lanes_for(body, machine)
    stream = leaves_caches(body, machine)
    size = STREAMED if stream else CHUNK

    looked_up = _looked_up(body) if stream else []
    asking = _asking(operands, body, ins, looked_up)
    leaves = _reading(operands, body, ins, looked_up, machine) if stream else operands.leaves(body, ins)

    def write(emitter: Emitter, block: Block, index: Index, mask: Expr | None) -> None:
        if stream and mask is None:
            for n in looked_up:
                asking.value(block, n, _rows_on(n, index))
        for root, buffer, layout in zip(body.outputs, operands.outs, outs, strict=True):
            value = emitter.value(block, root, index, mask)
            store_at(block, buffer, ix.linear(index, layout.strides, layout.offset), value, mask, stream=stream)

    turns = (find_turn(body, ins, outs, operands.ins, shape, side) for side in _block_sides(body, shape, machine))
    turn = next((t for t in turns if t is not None and (t.side == lanes or t.in_registers(machine.vector_bits))), None)
    emitter, short = Emitter(leaves), ShortLines.of(body, ins, outs, operands.ins, lanes)
    if short is not None:
        *outer, rows = shape[:-1]

        def lines_at(block: Block, index: Index, mask: Expr | None) -> None:
            begin = block.let(k.mul(index[-1], integer(lanes)), "line")

            def whole(b: Block) -> None:
                # a name of this branch's own, so that no load moves out of it
                own = (*index[:-1], first := b.fresh("first"))
                b.stmts.append(Let(first, begin))
                b.multiples[first.name] = lanes
                for i, values in enumerate(short.vectors(b, own, lanes, body, leaves)):
                    for buffer, lay, value in zip(operands.outs, outs, values, strict=True):
                        at = ix.linear((*own, integer(i * lanes)), lay.strides, lay.offset)
                        store_at(b, buffer, k.ramp(at, lanes), value, stream=stream)

            def line(b: Block, row: Expr) -> None:
                at = (*index[:-1], row)
                vector_loop(b, ZERO, short.size, lanes, machine, lambda c, e, m: write(emitter, c, (*at, e), m))

            if isinstance(rows, int) and rows % lanes == 0:
                return whole(block)
            fits = k.binary("le", k.add(begin, integer(lanes)), dim_expr(rows))
            return block.when(fits, whole, lambda b: b.loop("r", begin, dim_expr(rows), 1, line))

        boxes, work = (*outer, ceildiv(rows, lanes)), short.size * lanes
        chunks = chunked_loops(top, chunk, boxes, len(outer), 1, machine, lines_at, work=work, size=size)
    elif turn is None:
        axis, _ = _vector_axis(body, operands, ins, outs, machine)
        order = _read_order(body, ins, operands, shape, lanes) if stream else None
        line = Line(outs[0], axis) if stream else None
        chunks = chunked_loops(
            top, chunk, shape, axis, lanes, machine, partial(write, emitter), order=order, line=line, size=size
        )
    else:
        side = turn.side
        strip = max(1, STRIP // (side * min(n.dtype.nbytes for n in body.outputs))) if stream else 1
        blocks = turn.blocks(shape)
        strips = tuple(ceildiv(n, strip) if d == turn.out else n for d, n in enumerate(blocks))

        def block_at(block: Block, index: Index, mask: Expr | None) -> None:
            def one(b: Block, at: Expr) -> None:
                turned = partial(write, _turning(operands, body, ins, leaves, turn, TURNS_AHEAD if stream else 0))
                own = tuple(at if d == turn.out else e for d, e in enumerate(index))
                _turned_block(b, own, turn, shape, lanes, machine, turned, partial(write, emitter))

            begin = block.let(ix.mul(index[turn.out], integer(strip)), "s")
            end = block.let(k.binary("min", k.add(begin, integer(strip)), dim_expr(blocks[turn.out])), "e")
            block.loop("s", begin, end, 1, one)

        work = side * turn.height * strip
        chunks = chunked_loops(top, chunk, strips, turn.across, 1, machine, block_at, work=work, size=size)
    dims = symbol_params(*body_dims(body, (*ins, *outs)), *shape)
    kernel = Kernel("pointwise", operands.params, dims, chunk, chunks, top.body)
    return Lowered((Step(kernel, operands.args),))


def _before_reshapes(body: Graph, outs: tuple[Layout, ...]) -> tuple[Graph, tuple[Layout, ...]]:
    """The group without reshapes at its end, where they are strides of its results: a vector then does not run from
    one line of what is reshaped into the next."""
    roots = tuple(base_of(n, (ops.Reshape,)) for n in body.outputs)
    computed = not any(isinstance(n.op, Input | Const) for n in roots)
    if roots == body.outputs or not computed or len({n.shape for n in roots}) > 1:
        return body, outs
    places = [pull_back(n, root, lay) for n, root, lay in zip(body.outputs, roots, outs, strict=True)]
    if any(lay is None for lay in places):
        return body, outs
    return body.with_outputs(roots), tuple(lay for lay in places if lay is not None)


Write = Callable[[Block, Index, Expr | None], None]


def _block_sides(body: Graph, shape: Shape, machine: Machine) -> list[int]:
    """Sides that blocks may have which are transposed in registers, longest first: vectors of the narrowest elements,
    so that whole lines are read, where few elements lie in blocks that the edges cut off; then those of other loops."""
    least = lanes_for(body, machine)
    most = machine.vector_bits // min((8 * n.dtype.nbytes for n in body.inputs if n.dtype != boolean), default=32)
    sides = [least << i for i in range(8) if least << i <= most]
    fits = [n for n in sides if sum(d % n == 0 or d >= 8 * n for d in map(estimate, shape)) > 1]
    return [*sorted({*fits, least}, reverse=True)]


def _turning(
    operands: Operands, body: Graph, ins: tuple[Layout, ...], others: Leaves, turn: Turn, ahead: int
) -> Emitter:
    """An emitter for one block, whose turned operands come out of registers; those `ahead` blocks on are asked for."""
    leaves = dict(others)
    for n, buffer, lay in zip(body.inputs, operands.ins, ins, strict=True):
        if n in turn.turned:
            leaves[n] = Leaf(TurnedLeaf(buffer, lay, turn.turned[n], turn, ahead).read)
    return Emitter(leaves)


def _turned_block(
    block: Block, number: Index, turn: Turn, shape: Shape, lanes: int, machine: Machine, turned: Write, plain: Write
) -> None:
    """One block of the box: by `turned` where it is whole, else row by row by `plain`."""
    sides = {turn.out: turn.side, turn.across: turn.height}
    begin = {d: block.let(ix.mul(number[d], integer(side)), "t") for d, side in sides.items()}

    def at(row: Expr, along: Expr) -> Index:
        own = {turn.across: row, turn.out: along}
        return tuple(own.get(d, e) for d, e in enumerate(number))

    def whole(b: Block) -> None:
        start: dict[int, Expr] = {}
        for d, e in begin.items():
            # names of this branch's own, so that no load moves out of it
            own = start[d] = b.fresh("t")
            b.stmts.append(Let(own, e))
            b.multiples[own.name] = sides[d]
        for i in range(turn.height):
            turned(b, at(ix.add(start[turn.across], integer(i)), k.ramp(start[turn.out], turn.side)), None)

    def cut(b: Block) -> None:
        ends = {d: k.binary("min", k.add(e, integer(sides[d])), dim_expr(shape[d])) for d, e in begin.items()}
        end = b.let(ends[turn.out], "t")

        def row(c: Block, e: Expr) -> None:
            vector_loop(c, begin[turn.out], end, lanes, machine, lambda x, v, m: plain(x, at(e, v), m), multiple=lanes)

        b.loop("r", begin[turn.across], ends[turn.across], 1, row)

    fits = [
        k.binary("le", k.add(e, integer(sides[d])), dim_expr(shape[d]))
        for d, e in begin.items()
        if not isinstance(extent := shape[d], int) or extent % sides[d]
    ]
    if fits:
        block.when(fits[0] if len(fits) == 1 else k.binary("and", *fits), whole, cut)
    else:
        whole(block)


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
        far = integer(AHEAD // buffer.dtype.nbytes)
        block.stmts.append(k.Prefetch(buffer, k.add(ix.first_lane(flat), far)))
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
    on = k.binary("min", k.add(index[row], integer(-(-AHEAD // nbytes))), dim_expr(lookup.shape[row] - 1))
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


def leaves_caches(body: Graph, machine: Machine) -> bool:
    """Whether a group's results are gone from all caches before anybody can read them: stores past the caches then
    save reading the lines that they fill."""
    written, read = (sum(estimate(n.type.nbytes) for n in nodes) for nodes in (body.outputs, body.inputs))
    return written > machine.l3 and written + read > 2 * machine.l3


def comes_from_memory(body: Graph, machine: Machine) -> bool:
    """Whether what a group reads is too large for any cache to hold it since it was written."""
    return sum(estimate(n.type.nbytes) for n in body.inputs) > machine.l3


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


def chunked_loops(
    top: Block,
    chunk: k.Var,
    shape: Shape,
    axis: int,
    lanes: int,
    machine: Machine,
    write: Callable[[Block, Index, Expr | None], None],
    work: int = 1,
    order: Sequence[int] | None = None,
    line: Line | None = None,
    size: int = CHUNK,
) -> Expr:
    """Loops over a box of `shape`, vectorized along `axis`, cut into chunks; returns the number of chunks.

    The outermost dimensions are flattened until they give enough chunks; a chunk takes a run of them. Where they are
    few and the vector dimension is long, that is cut too. `work`: operations an element costs. `order`: the dimensions,
    outermost first. `line`: what should be written in whole vectors. `size`: operations of a chunk.
    """
    if not shape:
        write(top, (), None)
        return integer(1)
    # an index of size 1 is not followed, so it cannot carry the vector
    lanes = 1 if shape[axis] == 1 else lanes
    order = [d for d in order or range(len(shape)) if d != axis]
    goal = max(size // work, 4 * lanes)
    long = estimate(shape[axis])
    prefix: list[int] = []
    for d in order:
        inner = long
        for e in order[len(prefix) :]:
            inner *= estimate(shape[e])
        if inner <= goal:
            break
        prefix.append(d)
    rest = [d for d in order if d not in prefix]
    inner = long
    for d in rest:
        inner *= estimate(shape[d])
    run = max(1, goal // max(inner, 1))
    block_size = shape[axis]
    vector_blocks: DimLike = 1
    if not rest and inner > 2 * goal:
        length = -(-goal // lanes) * lanes
        if isinstance(shape[axis], int):
            length = -(-inner // -(-inner // goal))
            length = -(-length // (4 * lanes)) * 4 * lanes
        block_size, vector_blocks = length, ceildiv(shape[axis], length)
    rows = product(shape[d] for d in prefix)
    row_chunks = ceildiv(rows, run)
    total = dim_expr(row_chunks * vector_blocks)

    def over_rows(block: Block, row: Expr) -> None:
        coordinates = ix.delinearize(row, tuple(shape[d] for d in prefix), block.multiples) if prefix else ()
        index: list[Expr] = [ZERO] * len(shape)
        for d, e in zip(prefix, coordinates, strict=True):
            index[d] = block.let(e, "i")
        nest(block, index, list(rest))

    def nest(block: Block, index: list[Expr], left: list[int]) -> None:
        if not left:
            along(block, index)
            return

        def step(inner_block: Block, v: Expr) -> None:
            nest(inner_block, [v if d == left[0] else e for d, e in enumerate(index)], left[1:])

        block.loop("i", 0, shape[left[0]], 1, step)

    def along(block: Block, index: list[Expr]) -> None:
        def at(e: Expr) -> Index:
            return tuple(e if d == axis else x for d, x in enumerate(index))

        if vector_blocks == 1:
            start = line.begin(block, tuple(index), lanes) if line is not None else None
            vector_loop(block, ZERO, shape[axis], lanes, machine, lambda b, e, m: write(b, at(e), m), whole=start)
            return
        low = top_low
        high = top.let(k.binary("min", k.add(low, dim_expr(block_size)), dim_expr(shape[axis])), "hi")
        start = line.begin(block, tuple(index), lanes) if line is not None else None
        start = start if start is None else block.let(k.binary("min", k.add(low, start), high), "whole")
        vector_loop(block, low, high, lanes, machine, lambda b, e, m: write(b, at(e), m), multiple=lanes, whole=start)

    which, part = chunk, ZERO
    if vector_blocks != 1:
        which = top.let(k.binary("div", chunk, dim_expr(vector_blocks)), "row")
        part = k.binary("rem", chunk, dim_expr(vector_blocks))
    top_low = top.let(k.mul(part, dim_expr(block_size)), "lo") if vector_blocks != 1 else ZERO
    if isinstance(rows, int) and rows <= 1:
        over_rows(top, ZERO)
        return total
    first = top.let(k.mul(which, integer(run)), "first")
    if run == 1:
        over_rows(top, first)
        return total
    last = top.let(k.binary("min", k.add(first, integer(run)), dim_expr(rows)), "last")
    top.loop("r", first, last, 1, over_rows)
    return total


def vector_loop(
    block: Block,
    low: Expr,
    high: DimLike | Expr,
    lanes: int,
    machine: Machine,
    body: Callable[[Block, Expr, Expr | None], None],
    multiple: int | None = None,
    reverse: bool = False,
    whole: Expr | None = None,
) -> None:
    """for i in low..high by `lanes`: body(block, ramp(i), None), then the tail: masked, or one by one without masks.
    reverse: several lanes from the end, the tail first; without masks there may be none. whole: the first position of
    a whole vector (none in reverse); what lies before it is done as the tail is."""
    end = high if isinstance(high, Expr) else dim_expr(high)
    if lanes == 1:
        block.loop("j", low, end, 1, lambda b, e: body(b, e, None))
        return
    if whole is not None:
        _cut_vector(block, low, whole, lanes, machine, body)
        low, multiple = whole, 1
    span = k.binary("div", k.sub(end, low), integer(lanes))
    main = block.let(k.add(low, k.mul(span, integer(lanes))), "m")
    known = multiple or (lanes if isinstance(low, k.Lit) and int(low.value) % lanes == 0 else 1)

    def vector(b: Block, e: Expr) -> None:
        at = b.let(k.sub(k.add(low, k.sub(main, integer(lanes))), e), "j") if reverse else e
        body(b, k.ramp(at, lanes), None)

    if reverse:
        _cut_vector(block, main, end, lanes, machine, body)
    block.loop("j", low, main, lanes, vector, multiple=known)
    if not reverse:
        _cut_vector(block, main, end, lanes, machine, body)


def _cut_vector(
    block: Block,
    low: Expr,
    end: Expr,
    lanes: int,
    machine: Machine,
    body: Callable[[Block, Expr, Expr | None], None],
) -> None:
    """Fewer than `lanes` positions low..end: masked, or one by one without masks."""
    known = isinstance(low, k.Lit) and isinstance(end, k.Lit)
    if low == end:
        return
    if not machine.masks:
        block.loop("j", low, end, 1, lambda b, e: body(b, e, None))
        return

    def masked(b: Block) -> None:
        mask = b.let(k.binary("lt", k.ramp(low, lanes), end), "tail")
        body(b, k.ramp(low, lanes), mask)

    if known:
        masked(block)
    else:
        block.when(k.binary("lt", low, end), masked)


@dataclass(frozen=True)
class Line:
    """Elements along the dimension `axis` of a result that is stored past the caches: only whole vectors of memory are.
    A result that starts off a vector, which none of the runtime's does, is stored like any other."""

    layout: Layout
    axis: int
    long: int = LONG

    def begin(self, block: Block, index: Index, lanes: int) -> Expr | None:
        """The first position along the line at which a vector of memory starts; None where that is the line's start, or
        the line too short to matter."""
        extent, rest = self.layout.shape[self.axis], tuple(e for d, e in enumerate(index) if d != self.axis)
        strides = tuple(s for d, s in enumerate(self.layout.strides) if d != self.axis)
        start = ix.linear(rest, strides, self.layout.offset)
        aligned = ix.multiple_of(start, block.multiples) % lanes == 0
        if self.layout.strides[self.axis] != 1 or aligned or estimate(extent) < self.long * lanes:
            return None
        past = k.binary("rem", start, integer(lanes))
        begin = k.binary("rem", k.sub(integer(lanes), past), integer(lanes))
        return block.let(begin if isinstance(extent, int) else k.binary("min", begin, dim_expr(extent)), "whole")


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
                total += 1 + _cost([*s.then, *s.orelse], lanes)
    return total


__all__ = [
    "STREAMED", "Line", "Operands", "body_dims", "chunked_loops", "comes_from_memory", "lanes_for", "leaves_caches",
    "lower_pointwise", "symbol_params", "vector_loop",
]  # fmt: skip
