"""Contraction groups: dot_general and convolution as one kind of loop nest, with the pointwise ops behind them.

The op's dimension numbers become strides of axes (batch, rows, columns, reduction); the layouts of the operands in
memory, views included, are in these strides, so a transposed operand or a convolution's window costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, ceildiv
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ir.types import DType, bf16, i32, i64, static_shape
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Direct, Pieces, decide
from ingot.schedule.contraction import emit_contraction
from ingot.schedule.contraction_site import contraction_site
from ingot.schedule.dots import Products, as_dots, emit_dots
from ingot.schedule.emit import Emitter, Index
from ingot.schedule.fold import accumulator
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.line_folds import LineFolds, lower_apart
from ingot.schedule.loops import Loops, computed_rows, flat_rows, loops_of, pairs_last, rows_as_they_lie
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.schedule.machine import Machine
from ingot.schedule.operands import Operand
from ingot.schedule.pack import panels
from ingot.schedule.pointwise import Operands, body_dims, lower_pointwise, symbol_params
from ingot.schedule.prologue import InnerRows, computed_a, is_computed
from ingot.schedule.recast import changed_round, changes_round, in_parts
from ingot.schedule.reduction import lower_first
from ingot.schedule.tile import LINE, Contraction, Plan, plan_of, turns_panels
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
    computed = is_computed(body, anchor.inputs[0])
    if ops.is_depthwise(anchor) or (not computed and _in_vectors_of_groups(body, anchor, constant, machine)):
        return lower_depthwise(body, ins, outs, constant, machine)
    parts = in_parts(anchor, machine) if len(body.outputs) == 1 and not computed else None
    if parts is not None:
        return _lower_parts(body, ins, outs, constant, anchor, parts, machine)
    body, outs = image, outs[:1]
    a_node, b_node = anchor.inputs
    b_at, b_layout = operand_memory(body, b_node, ins)
    operands = Operands.of(body)
    a_at, a_layout = (-1, Layout.contiguous(a_node.shape)) if computed else operand_memory(body, a_node, ins)
    loops = loops_of(anchor, a_layout, b_layout)
    # a B that is repeated along an axis of unknown size is read where it lies
    packed = constant[b_at] and not any(isinstance(x.extent, Dim) for x in loops.batch)
    shape = covered(anchor, a_layout, b_layout) if packed and machine.winograd and not computed else None
    turned = False
    if not computed:
        flat = flat_rows(rows_as_they_lie(loops))
        c = Contraction(
            flat.batch, flat.rows, flat.cols, flat.reduce, a_node.dtype, b_node.dtype, _accumulates(anchor), packed
        )
        products = as_dots(c, flat, (b_at, b_layout.offset), machine, 0.9 if shape is None else 0.5)
        if products is not None:
            low = _lower_dots(body, ins, outs, anchor, products, (a_at, a_layout), (b_at, b_layout), machine)
            return lower_apart(low, whole, ins, places, machine)
        if changes_round(anchor, c, machine):
            turn = rebuilt(whole.outputs, {anchor: changed_round(anchor)})
            return lower_contraction(whole.with_outputs(turn), ins, places, constant, machine)
        turned = turns_panels(c, machine)
    before: tuple[Step, ...] = ()
    temps: tuple[DimLike, ...] = ()
    b_buffer, b_offset, b_arg = operands.ins[b_at], b_layout.offset, Arg("in", b_at)
    if not packed and loops.cols[-1].b != 1 and loops.cols[-1].extent != 1 and not turned:
        before, b_layout = _side_by_side(anchor, b_node, b_layout, b_at, machine)
        loops = loops_of(anchor, a_layout, b_layout)
        temps = (b_node.type.nbytes,)
        b_buffer, b_offset, b_arg = Buffer("b", b_node.dtype), 0, Arg("temp", 0)
    pooled = len(whole.outputs) > 1 and packed and not computed and _has_lines(anchor, loops)
    if pooled:
        loops = flat_rows(loops, apart=1 if anchor.shape[0] != 1 else 0)
    else:
        loops = computed_rows(loops, a_node) if computed else flat_rows(rows_as_they_lie(loops))
    if b_node.dtype == bf16:
        loops = pairs_last(loops)
    em = operands.emitter(body, ins)
    made = InnerRows(inner[0], body, ins, operands, em, machine) if inner else None
    c = Contraction(
        loops.batch, loops.rows, loops.cols, loops.reduce, a_node.dtype, b_node.dtype, _accumulates(anchor), packed,
        computed, made.c if made else None,
    )  # fmt: skip
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
    epilogue = _epilogue(body, anchor, loops, em, operands, outs)
    lines = _Lines(whole, anchor, loops, plan) if pooled else None

    def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
        if acc.lanes > 1 and c.cols[-1].extent == 1:
            # a single column is lane 0
            place, acc, mask = (*place[:-1], ZERO), k.Extract(acc.dtype, 1, acc, 0), None
        index = epilogue(block, place, acc, mask)
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
        a = computed_a(body, ins, a_node, loops, machine)
    else:
        a = Operand(operands.ins[a_at], a_layout.offset)
    b = Operand(b_buffer, b_offset)
    chunks = emit_contraction(top, chunk, c, plan, a, b, write, fetch if residuals else None, lines)
    params = _params(body, anchor, operands, a_at, b_at, (b_buffer, b_arg))
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


def _in_vectors_of_groups(body: Graph, anchor: Node, constant: tuple[bool, ...], machine: Machine) -> bool:
    """Whether a convolution's groups, whose weights are repacked, are so narrow that a vector holds several of them."""
    op, (x, w) = anchor.op, anchor.inputs
    if not isinstance(op, ops.Convolution) or op.feature_groups == 1 or op.batch_groups != 1:
        return False
    if w not in body.inputs or not constant[body.inputs.index(w)]:
        return False
    reads, lanes = w.shape[op.rhs_layout.index("I")], machine.lanes(_accumulates(anchor))
    makes, rest = divmod(*static_shape((w.shape[op.rhs_layout.index("O")], op.feature_groups)))
    last = op.lhs_layout[-1] == "C" and op.lhs_layout == op.out_layout and isinstance(x.shape[-1], int)
    narrow = isinstance(reads, int) and reads <= makes < lanes and lanes % makes == 0 and not rest
    return last and narrow and x.type.rank > 2


def _lower_parts(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], anchor: Node,
    parts: tuple[Node, Node], machine: Machine,
) -> Lowered:
    """Kernels for products of parts of the reduction, for their sums, and for an epilogue that moves these."""
    partial, total = parts
    whole = body.with_outputs(rebuilt(body.outputs, {anchor: total}))
    known = dict(zip(body.inputs, constant, strict=True))
    moved = any(isinstance(n.op, ops.Reshape | ops.Transpose) and anchor in topological([n]) for n in body.nodes())

    def products(start: Graph, own: tuple[Layout, ...], places: tuple[Layout, ...], machine: Machine) -> Lowered:
        return lower_contraction(start, own, places, tuple(known[n] for n in start.inputs), machine)

    def sums(start: Graph, own: tuple[Layout, ...], places: tuple[Layout, ...], machine: Machine) -> Lowered:
        return lower_first(start, (partial,), own, places, machine, products)

    return lower_first(whole, (total,), ins, outs, machine, sums) if moved else sums(whole, ins, outs, machine)


def _lower_dots(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], anchor: Node, products: Products,
    a: tuple[int, Layout], b: tuple[int, Layout], machine: Machine,
) -> Lowered:
    """The kernel of dot products; a, b: the inputs that the operands are, and their layouts."""
    operands = Operands.of(body)
    em = operands.emitter(body, ins)
    (a_at, a_layout), (b_at, b_layout) = a, b
    packs: tuple[Pack, ...] = ()
    second, b_arg = Operand(operands.ins[b_at], b_layout.offset), Arg("in", b_at)
    if products.pack is not None:
        packs, second, b_arg = (products.pack,), Operand(Buffer("b", products.pack.dtype)), Arg("pack", 0)
    b_buffer, first = second.buffer, Operand(operands.ins[a_at], a_layout.offset)
    if products.changed:
        first, second = second, first
    chunk, top = k.var("chunk"), Block()
    epilogue = _epilogue(body, anchor, products.loops, em, operands, outs)

    def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
        epilogue(block, place, acc, mask)

    chunks = emit_dots(top, chunk, products, first, second, machine, write)
    params = _params(body, anchor, operands, a_at, b_at, (b_buffer, b_arg))
    extents = tuple(x.extent for x in (*products.c.batch, *products.c.rows, *products.c.cols, *products.c.reduce))
    dims = symbol_params(*body_dims(body, (*ins, *outs)), *extents)
    kernel = Kernel("dots", tuple(b for b, _ in params), dims, chunk, chunks, top.body)
    return Lowered((Step(kernel, tuple(arg for _, arg in params)),), (), packs)


def _epilogue(
    body: Graph, anchor: Node, loops: Loops, em: Emitter, operands: Operands, outs: tuple[Layout, ...]
) -> Callable[[Block, Index, Expr, Expr | None], Index]:
    """What stores the group's results for sums at a place of the loops, and tells where in the first result."""

    def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> Index:
        bind_result(em, block, anchor, block.let(k.cast(acc, anchor.dtype), "acc"))
        index = result_index(block, body.outputs[0], anchor, loops.result(loops.full(place)))
        store_results(em, block, body, operands.outs, outs, index, mask)
        return index

    return write


def _params(
    body: Graph, anchor: Node, operands: Operands, a_at: int, b_at: int, b: tuple[Buffer, Arg]
) -> list[tuple[Buffer, Arg]]:
    """A kernel's parameters. An operand that only the contraction's own B was read from has no place among them where B
    is another buffer."""
    params = list(zip(operands.params, operands.args, strict=True))
    if b[0] in operands.params:
        return params
    used_elsewhere = _reads(body, anchor.inputs[1], anchor) or a_at == b_at
    return [*((x, arg) for x, arg in params if used_elsewhere or arg != Arg("in", b_at)), b]


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


__all__ = ["CONTRACTIONS", "lower_contraction"]
