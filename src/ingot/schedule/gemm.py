"""Contraction groups: dot_general and convolution as one kind of loop nest, with the pointwise ops behind them.

The op's dimension numbers become strides of axes (batch, rows, columns, reduction); the layouts of the operands in
memory, views included, are in these strides, so a transposed operand or a convolution's window costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, ceildiv, estimate, floordiv, mod, product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ir.types import DType, bf16, i32, i64, static_shape
from ingot.ops.views import VIEWS
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Direct, Pieces, decide
from ingot.schedule.contraction import Nest, emit_contraction
from ingot.schedule.contraction_site import contraction_site
from ingot.schedule.emit import Emitter, Index, store_at
from ingot.schedule.fold import accumulator
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.line_folds import LineFolds, lower_apart
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.schedule.machine import Machine
from ingot.schedule.operands import Computed, Operand
from ingot.schedule.pack import panels
from ingot.schedule.pointwise import Operands, body_dims, lower_pointwise, symbol_params, vector_loop
from ingot.schedule.tile import LINE, Axis, Contraction, Plan, plan_of, plan_rows
from ingot.schedule.window import (
    bind_result,
    lower_depthwise,
    operand_memory,
    result_index,
    store_results,
)
from ingot.schedule.winograd import lower_winograd
from ingot.schedule.winograd_plan import covered

CONTRACTIONS = (ops.DotGeneral, ops.Convolution)


@dataclass(frozen=True)
class Loops:
    """A contraction's axes with the strides of both operands.

    `full` turns an index of (batch, rows, columns) into one of all the op's loops but its reduction, which `result`
    turns into one of the op's result, and `source`, with a place along a single reduction axis, into one of A.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    full: Callable[[Index], Index]
    result: Callable[[Index], Index]
    source: Callable[[Index, Expr], Index]


def lower_contraction(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A matmul or convolution, the pointwise ops or the other contraction that make its A, its epilogue, and global
    pools of its result."""
    *inner, anchor = (n for n in body.nodes() if isinstance(n.op, CONTRACTIONS))
    image, whole, places = replace(body, outputs=body.outputs[:1]), body, outs
    if any(d == 0 for n in anchor.inputs for d in n.shape):
        low = lower_pointwise(_without_terms(image, anchor), ins, outs[:1], machine)
        return lower_apart(low, whole, ins, places, machine)
    if ops.is_depthwise(anchor):
        return lower_depthwise(body, ins, outs, constant, machine)
    body, outs = image, outs[:1]
    a_node, b_node = anchor.inputs
    b_at, b_layout = operand_memory(body, b_node, ins)
    operands = Operands.of(body)
    computed = _is_computed(body, a_node)
    a_at, a_layout = (-1, Layout.contiguous(a_node.shape)) if computed else operand_memory(body, a_node, ins)
    make = _dot if isinstance(anchor.op, ops.DotGeneral) else convolution_loops
    loops = make(anchor, a_layout, b_layout)
    # a B that is repeated along an axis of unknown size is read where it lies
    packed = constant[b_at] and not any(isinstance(x.extent, Dim) for x in loops.batch)
    before: tuple[Step, ...] = ()
    temps: tuple[DimLike, ...] = ()
    b_buffer, b_offset, b_arg = operands.ins[b_at], b_layout.offset, Arg("in", b_at)
    if not packed and loops.cols[-1].b != 1 and loops.cols[-1].extent != 1:
        before, b_layout = _side_by_side(anchor, b_node, b_layout, b_at, machine)
        loops = make(anchor, a_layout, b_layout)
        temps = (b_node.type.nbytes,)
        b_buffer, b_offset, b_arg = Buffer("b", b_node.dtype), 0, Arg("temp", 0)
    pooled = len(whole.outputs) > 1 and packed and not computed and _has_lines(anchor, loops)
    if pooled:
        loops = _flat_rows(loops, apart=1 if anchor.shape[0] != 1 else 0)
    else:
        loops = _computed_rows(loops, a_node) if computed else _flat_rows(_rows_as_they_lie(loops))
    if b_node.dtype == bf16:
        loops = _side_by_side_last(loops)
    em = operands.emitter(body, ins)
    made = _Inner(inner[0], body, ins, operands, em, machine) if inner else None
    c = Contraction(
        loops.batch, loops.rows, loops.cols, loops.reduce, a_node.dtype, b_node.dtype, _accumulates(anchor), packed,
        computed, made.c if made else None,
    )  # fmt: skip
    shape = covered(anchor, a_layout, b_layout) if packed and machine.winograd and not computed else None
    site = contraction_site(body, anchor, c, shape, machine)
    choice = decide(site, machine.measured)
    if isinstance(choice, Pieces):
        low = replace(lower_winograd(body, ins, outs, anchor, choice, machine), site=site)
        return lower_apart(low, whole, ins, places, machine)
    assert isinstance(choice, Direct)
    plan = plan_of(c, machine, choice)
    packs: tuple[Pack, ...] = ()
    if packed:
        offset = int(b_layout.offset) if isinstance(b_layout.offset, int) else 0
        packs = (panels(b_at, c, plan, offset),)
        b_buffer, b_offset, b_arg = Buffer("b", b_node.dtype), 0, Arg("pack", 0)
    chunk, top = k.var("chunk"), Block()
    lines = _Lines(whole, anchor, loops, plan) if pooled else None

    def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
        if acc.lanes > 1 and c.cols[-1].extent == 1:
            # a single column is lane 0
            place, acc, mask = (*place[:-1], ZERO), k.Extract(acc.dtype, 1, acc, 0), None
        value = block.let(k.cast(acc, anchor.dtype), "acc")
        bind_result(em, block, anchor, value)
        index = result_index(block, body.outputs[0], anchor, loops.result(loops.full(place)))
        store_results(em, block, body, operands.outs, outs, index, mask)
        if lines is not None:
            lines.fold.add(block, em, index, mask)

    def fetch(block: Block, place: Index, width: int) -> None:
        index = result_index(block, body.outputs[0], anchor, loops.result(loops.full(place)))
        for at in residuals:
            buffer, layout = operands.ins[at], ins[at]
            start = block.let(ix.linear(index, layout.strides, layout.offset), "f")
            for i in range(0, width, LINE // buffer.dtype.nbytes):
                block.stmts.append(k.Prefetch(buffer, ix.add(start, integer(i))))

    residuals = _residuals(body, ins, anchor)
    scratch = plan.scratch_bytes
    if made is not None:
        a, pack, scratch = made.rows(a_node, loops, plan)
        packs = (*packs, pack)
    elif computed:
        a = _pointwise_rows(em, a_node, loops, c, machine)
    else:
        a = Operand(operands.ins[a_at], a_layout.offset)
    b = Operand(b_buffer, b_offset)
    chunks = emit_contraction(top, chunk, c, plan, a, b, write, fetch if residuals else None, lines)
    # an operand that only the contraction's own B was read from has no place among the kernel's parameters
    params = [(b, arg) for b, arg in zip(operands.params, operands.args, strict=True)]
    if b_buffer not in operands.params:
        used_elsewhere = _reads(body, b_node, anchor) or a_at == b_at
        params = [(b, arg) for b, arg in params if used_elsewhere or arg != Arg("in", b_at)]
        params.append((b_buffer, b_arg))
    if made is not None:
        params = [(b, arg) for b, arg in params if arg != Arg("in", made.b_at) or _reads(body, made.b, made.anchor)]
        params.append((made.b_buffer, Arg("pack", len(packs) - 1)))
    if lines is not None:
        params += zip(lines.fold.buffers, lines.fold.args, strict=True)
    extents = tuple(x.extent for x in (*c.batch, *c.rows, *c.cols, *c.reduce))
    dims = symbol_params(*body_dims(body, (*ins, *outs)), *extents)
    kernel = Kernel("contraction", tuple(b for b, _ in params), dims, chunk, chunks, top.body, scratch)
    low = Lowered((*before, Step(kernel, tuple(arg for _, arg in params))), temps, packs, site)
    if lines is None:
        return lower_apart(low, whole, ins, places, machine)
    return replace(low, steps=(*low.steps, *lines.fold.steps(ins, places, machine)), temps=lines.fold.temps)


def _has_lines(anchor: Node, loops: Loops) -> bool:
    """Whether rows are positions of images, and columns their channels."""
    op, columns = anchor.op, loops.cols[-1].extent
    image = isinstance(op, ops.Convolution) and op.out_layout[0] == "N" and op.out_layout[-1] == "C"
    inside = len(loops.rows) > (anchor.shape[0] != 1) and loops.rows[-1].extent != 1
    return image and inside and isinstance(columns, int) and columns != 1


class _Lines:
    """What global pools fold of each chunk's part of a line: of the last row axis, which may be all of an image."""

    def __init__(self, body: Graph, anchor: Node, loops: Loops, plan: Plan) -> None:
        self.loops, self.plan = loops, plan
        self.images = anchor.shape[0] != 1
        *between, inner = loops.rows[self.images :]
        self.whole = plan.row_block == inner.extent
        parts = 1 if self.whole else ceildiv(inner.extent, plan.row_block)
        self.fold = LineFolds(body, (anchor.shape[0], *(x.extent for x in between), parts, anchor.shape[-1]))

    def begin(self, block: Block, lanes: int) -> None:
        self.fold.begin(block, lanes)

    def end(self, block: Block, place: Index, mask: Expr | None, first: Expr) -> None:
        start = len(self.loops.batch)
        *line, position = place[start : start + len(self.loops.rows)]
        part = ZERO if self.whole else block.let(k.binary("div", position, dim_expr(self.plan.row_block)), "part")
        channel = self.loops.result(self.loops.full(place))[-1]
        self.fold.end(block, (*(() if self.images else (ZERO,)), *line, part, channel), mask, first)


def _pointwise_rows(em: Emitter, node: Node, loops: Loops, c: Contraction, machine: Machine) -> Computed:
    """An A of pointwise ops: rows of it, each where the chunk's contraction reads it."""
    (axis,) = loops.rows

    def fill(block: Block, batch: Index, rows: tuple[Expr, Expr], out: Buffer) -> None:
        def row(b: Block, r: Expr) -> None:
            at = loops.full((*batch, r, *(ZERO for _ in loops.cols)))
            start = b.let(ix.mul(ix.sub(r, rows[0]), dim_expr(axis.a)), "to")

            def vector(x: Block, i: Expr, mask: Expr | None) -> None:
                store_at(x, out, ix.add(start, i), em.value(x, node, loops.source(at, i), mask), mask)

            vector_loop(b, ZERO, c.k, machine.lanes(node.dtype), machine, vector)

        block.loop("row", *rows, 1, row)

    return Computed(fill)


class _Inner:
    """A contraction of a constant whose result, after pointwise ops, another reads row by row."""

    def __init__(
        self, anchor: Node, body: Graph, ins: tuple[Layout, ...], operands: Operands, em: Emitter, machine: Machine
    ):
        a, self.b = anchor.inputs
        self.anchor, self.em, self.machine, self.a_node = anchor, em, machine, a
        at, layout = operand_memory(body, a, ins)
        self.b_at, b_layout = operand_memory(body, self.b, ins)
        make = _dot if isinstance(anchor.op, ops.DotGeneral) else convolution_loops
        self.loops = _flat_rows(make(anchor, layout, b_layout))
        self.a: Operand | None = Operand(operands.ins[at], layout.offset)
        if len(self.loops.rows) > 1:  # a halo around each image, say
            self.loops, self.a = _computed_rows(self.loops, a), None
        loops = self.loops
        self.c = Contraction(
            (), loops.rows, loops.cols, loops.reduce, a.dtype, self.b.dtype, accumulator(anchor.dtype), True, not self.a
        )
        self.b_buffer, self.b_layout = Buffer("inner_b", self.b.dtype), b_layout

    def rows(self, node: Node, outer: Loops, plan: Plan) -> tuple[Computed, Pack, int]:
        """How the rows of `node` are computed for the loops `outer` of a contraction with this plan, from which packed
        weights; the scratch of both."""
        own = plan_rows(self.c, self.machine, plan)
        pack = panels(self.b_at, self.c, own, *static_shape((self.b_layout.offset,)))
        (axis,) = outer.rows
        a = self.a or _pointwise_rows(self.em, self.a_node, self.loops, self.c, self.machine)

        def fill(block: Block, batch: Index, rows: tuple[Expr, Expr], out: Buffer) -> None:
            def write(b: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
                bind_result(self.em, b, self.anchor, b.let(k.cast(acc, self.anchor.dtype), "acc"))
                index = self.loops.result(self.loops.full(place))
                start = b.let(ix.mul(ix.sub(place[0], rows[0]), dim_expr(axis.a)), "to")
                store_at(b, out, ix.add(start, place[-1]), self.em.value(b, node, index, mask), mask)

            Nest(self.c, own, a, Operand(self.b_buffer), write).emit_rows(block, rows)

        return Computed(fill), pack, own.scratch_bytes


def _residuals(body: Graph, ins: tuple[Layout, ...], anchor: Node) -> tuple[int, ...]:
    """Positions of inputs as large as the result, which only the epilogue reads: a tile waits for each of their lines
    when its products are done, as its rows are too far apart for hardware to follow."""
    before = set(topological([anchor]))
    sized = [i for i, n in enumerate(body.inputs) if n not in before and n.shape == body.outputs[0].shape]
    return tuple(i for i in sized if ins[i].strides and ins[i].strides[-1] == 1)


def _without_terms(body: Graph, anchor: Node) -> Graph:
    """The group with its contraction, a sum of nothing, as zeros."""
    zeros = ops.BroadcastInDim(anchor.shape, ())(ops.scalar(0, anchor.dtype))
    return body.with_outputs(rebuilt(body.outputs, {anchor: zeros}))


def _is_computed(body: Graph, a: Node) -> bool:
    """Whether the group itself computes its A."""
    while isinstance(a.op, VIEWS):
        a = a.inputs[0]
    return a not in body.inputs


def _reads(body: Graph, node: Node, anchor: Node) -> bool:
    """Whether something else than `anchor` reads the value under `node`, directly or through views of it."""
    chain = {node}
    while node.inputs:
        node = node.inputs[0]
        chain.add(node)
    others = (n for n in body.nodes() if n is not anchor and n not in chain)
    return any(i in chain for n in others for i in n.inputs) or any(o in chain for o in body.outputs)


def _accumulates(anchor: Node) -> DType:
    if anchor.dtype.is_float:
        return accumulator(anchor.dtype)
    return anchor.dtype if anchor.dtype in (i32, i64) else i32


def _side_by_side(
    anchor: Node, b: Node, layout: Layout, b_at: int, machine: Machine
) -> tuple[tuple[Step, ...], Layout]:
    """A step that copies B so that its columns lie side by side, and B's layout in the copy."""
    last = _column_dim(anchor)
    order = (*(d for d in range(b.type.rank) if d != last), last)
    x = Input("b", b.type)()
    body = Graph((x,), (ops.Transpose(order)(x),))
    dense = Layout.contiguous(body.outputs[0].shape)
    copy = lower_pointwise(body, (layout,), (dense,), machine)
    (step,) = copy.steps
    back = tuple(order.index(d) for d in range(b.type.rank))
    return (Step(step.kernel, (Arg("in", b_at), Arg("temp", 0))),), dense.transpose(back)


def _column_dim(anchor: Node) -> int:
    """B's dimension that vectors run along."""
    op = anchor.op
    a, b = anchor.inputs
    if isinstance(op, ops.DotGeneral):
        _, free = op.free(a.type.rank, b.type.rank)
        sized = [d for d in free if b.shape[d] != 1] or list(free) or [b.type.rank - 1]
        return sized[-1]
    assert isinstance(op, ops.Convolution)
    return op.rhs_layout.index("O")


def _dot(anchor: Node, a: Layout, b: Layout) -> Loops:
    op = anchor.op
    assert isinstance(op, ops.DotGeneral)
    free_a, free_b = op.free(len(a.shape), len(b.shape))
    batch = tuple(Axis(a.shape[i], a.strides[i], b.strides[j]) for i, j in zip(*op.batch, strict=True))
    rows = tuple(Axis(a.shape[i], a.strides[i], 0) for i in free_a)
    cols = tuple(Axis(b.shape[j], 0, b.strides[j]) for j in free_b)
    reduce = tuple(Axis(a.shape[i], a.strides[i], b.strides[j]) for i, j in zip(*op.contract, strict=True))

    def source(full: Index, k: Expr) -> Index:
        at = {i: full[n] for n, i in enumerate((*op.batch[0], *free_a))}
        return tuple(at.get(d, k) for d in range(len(a.shape)))

    return _sized(batch, rows, cols, reduce, lambda full: full, source)


def convolution_loops(anchor: Node, a: Layout, b: Layout) -> Loops:
    """Rows: batch and output positions; reduction: window positions and input channels; groups: the batch axis."""
    op = anchor.op
    assert isinstance(op, ops.Convolution)
    spatial = op.spatial
    at = {c: i for i, c in enumerate(op.lhs_layout)}
    wt = {c: i for i, c in enumerate(op.rhs_layout)}
    out = {c: i for i, c in enumerate(op.out_layout)}
    groups = max(op.feature_groups, op.batch_groups)
    o, i = wt["O"], wt["I"]
    per_out = floordiv(b.shape[o], groups)
    images = anchor.shape[out["N"]]
    # a group reads its own channels, or its own images
    step = a.strides[at["C"]] * b.shape[i] if op.batch_groups == 1 else a.strides[at["N"]] * images
    batch = (Axis(groups, step, b.strides[o] * per_out),)
    rows = (
        Axis(images, a.strides[at["N"]]),
        *(Axis(anchor.shape[out[c]], a.strides[at[c]] * s) for c, s in zip(spatial, op.strides, strict=True)),
    )
    cols = (Axis(per_out, 0, b.strides[o]),)
    reduce = (
        *(
            Axis(b.shape[wt[c]], a.strides[at[c]] * d, b.strides[wt[c]])
            for c, d in zip(spatial, op.rhs_dilation, strict=True)
        ),
        Axis(b.shape[i], a.strides[at["C"]], b.strides[i]),
    )

    def result(full: Index) -> Index:
        group, n, *positions, channel = full
        where: list[Expr] = [ZERO] * anchor.type.rank
        where[out["N"]] = n
        for c, e in zip(spatial, positions, strict=True):
            where[out[c]] = e
        where[out["C"]] = ix.add(ix.mul(group, dim_expr(per_out)), channel)
        return tuple(where)

    def source(full: Index, k: Expr) -> Index:
        """For a window of one position."""
        group, n, *positions, _ = full
        where: list[Expr] = [ZERO] * anchor.type.rank
        where[at["N"]] = n
        for c, e, s in zip(spatial, positions, op.strides, strict=True):
            where[at[c]] = ix.mul(e, integer(s))
        where[at["C"]] = ix.add(ix.mul(group, dim_expr(b.shape[i])), k)
        return tuple(where)

    return _sized(batch, rows, cols, reduce, result, source)


def _sized(
    batch: tuple[Axis, ...],
    rows: tuple[Axis, ...],
    cols: tuple[Axis, ...],
    reduce: tuple[Axis, ...],
    result: Callable[[Index], Index],
    source: Callable[[Index, Expr], Index],
) -> Loops:
    """Loops without axes of extent 1; the full index has zeros for them."""
    full = (*batch, *rows, *cols)
    kept = [d for d, x in enumerate(full) if x.extent != 1]

    def restore(place: Index) -> Index:
        out: list[Expr] = [ZERO] * len(full)
        at = list(place)
        for count, group in ((len(batch), 0), (len(rows), 1), (len(cols), 2)):
            start = (0, len(batch), len(batch) + len(rows))[group]
            mine = [d for d in kept if start <= d < start + count]
            for d in mine or ([] if group == 0 else [start + count - 1]):
                e = at.pop(0)
                if start <= d < start + count:
                    out[d] = e
        return tuple(out)

    def sized(axes: tuple[Axis, ...], fallback: Axis | None) -> tuple[Axis, ...]:
        found = tuple(x for x in axes if x.extent != 1)
        return found or ((fallback,) if fallback else ())

    return Loops(
        sized(batch, None),
        sized(rows, Axis(1, 0, 0)),
        sized(cols, Axis(1, 0, 1)),
        sized(reduce, Axis(1, 0, 0)),
        restore,
        result,
        source,
    )


def _side_by_side_last(loops: Loops) -> Loops:
    """The reduction loop along which A's elements lie side by side innermost: pairs are loaded from there."""
    return replace(loops, reduce=tuple(sorted(loops.reduce, key=lambda x: x.a == 1)))


def _rows_as_they_lie(loops: Loops) -> Loops:
    """Row axes in the order in which A lies in memory, so that a transposed A's rows can be joined too."""
    order = sorted(range(len(loops.rows)), key=lambda d: -abs(estimate(loops.rows[d].a)))
    if order == list(range(len(order))):
        return loops
    first = len(loops.batch)

    def full(place: Index) -> Index:
        own: list[Expr] = list(place)
        for at, d in enumerate(order):
            own[first + d] = place[first + at]
        return loops.full(tuple(own))

    return replace(loops, rows=tuple(loops.rows[d] for d in order), full=full)


def _flat_rows(loops: Loops, apart: int = 0) -> Loops:
    """Join row axes that walk A as one loop: a 1x1 convolution's positions, a matmul's batch and sequence. The first
    `apart` stay as they are."""
    rows, count = loops.rows, 1
    while count < len(rows) - apart and rows[-count - 1].a == rows[-count].a * rows[-count].extent:
        count += 1
    return _joined(loops, count, rows[-1].a)


def _computed_rows(loops: Loops, a: Node) -> Loops:
    """Loops over an A in scratch: one axis of rows, an odd number of cache lines apart so that they share no sets."""
    line = max(1, LINE // a.dtype.nbytes)
    lines = ceildiv(product(x.extent for x in loops.reduce), line)
    joined = _joined(loops, len(loops.rows), (lines + (1 - mod(lines, 2))) * line)
    return replace(
        joined,
        batch=tuple(replace(x, a=0) for x in loops.batch),
        reduce=tuple(replace(x, a=1) for x in loops.reduce),
    )


def _joined(loops: Loops, count: int, stride: DimLike) -> Loops:
    """Loops whose last `count` row axes are one, with which A is walked by `stride`."""
    if count == 1 and loops.rows[-1].a == stride:
        return loops
    extents = tuple(x.extent for x in loops.rows[-count:])
    first = len(loops.batch) + len(loops.rows) - count

    def full(place: Index) -> Index:
        return loops.full((*place[:first], *ix.split(place[first], extents), *place[first + 1 :]))

    return replace(loops, rows=(*loops.rows[:-count], Axis(product(extents), stride, 0)), full=full)


__all__ = ["CONTRACTIONS", "Loops", "convolution_loops", "lower_contraction"]
