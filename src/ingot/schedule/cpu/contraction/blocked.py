"""Contraction groups in register tiles (`macro_kernel.py`) or by Winograd's algorithm, with what makes their A in front
and global pools of their result behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, topological
from ingot.ir.types import DType, bf16, i8, static_shape
from ingot.schedule import index as ix
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.choice import Direct, Pieces, decide
from ingot.schedule.cpu.contraction.compressed.block_quantized_operand import block_quantized_operand
from ingot.schedule.cpu.contraction.cost_model import plan_of
from ingot.schedule.cpu.contraction.group import ContractionGroup, Param, reads
from ingot.schedule.cpu.contraction.macro_kernel import emit_macro_kernel
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Operand, computed_rows
from ingot.schedule.cpu.contraction.pack import panels
from ingot.schedule.cpu.contraction.pack_at_run_time import panels_step, worth_packing
from ingot.schedule.cpu.contraction.plan import LINE, Plan
from ingot.schedule.cpu.contraction.prologue import InnerRows, computed_a, is_computed
from ingot.schedule.cpu.contraction.tuning_site import tuning_site
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.windows.pool_epilogue import PoolEpilogue, lower_apart
from ingot.schedule.cpu.winograd.lower import lower_winograd
from ingot.schedule.cpu.winograd.plan import Shape
from ingot.schedule.dimension_numbers import (
    Loops,
    contiguous_last,
    flat_rows,
    loops_of,
    rows_as_they_lie,
)
from ingot.schedule.emit import Index
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class _Source:
    """Where B is read: as `operand` at `arg`, behind steps that copy it into temporaries of `temps` bytes."""

    operand: Operand | BlockQuantized
    arg: Arg
    before: tuple[Step, ...] = ()
    temps: tuple[DimLike, ...] = ()

    @property
    def start(self) -> int:
        return static_shape((self.operand.offset if isinstance(self.operand, Operand) else 0,))[0]

    @property
    def next_temp(self) -> Arg:
        return Arg("temp", len(self.temps))

    def copied(self, step: Step, nbytes: DimLike, dtype: DType) -> _Source:
        """In a further temporary, which `step` fills."""
        return _Source(Operand(Buffer("b", dtype)), self.next_temp, (*self.before, step), (*self.temps, nbytes))


def lower_blocked(
    g: ContractionGroup, whole: Graph, places: tuple[Layout, ...], inner: Node | None, shape: Shape | None, apart: bool
) -> Lowered:
    """whole, places: the group with all its results, and where these lie. inner: the contraction that computes A.
    shape: of a convolution that Winograd's algorithm covers. apart: a B whose columns lie apart stays so, as its
    readers transpose it."""
    body, ins, machine = g.body, g.ins, g.machine
    a_node, b_node = g.anchor.inputs
    computed = is_computed(body, a_node)
    loops, b = g.loops, _Source(g.b, Arg("in", g.b_at))
    if not g.packed and not apart and loops.cols[-1].b != 1 and loops.cols[-1].extent != 1:
        copy, layout = _side_by_side(g)
        loops = loops_of(g.anchor, g.a_layout, layout)
        b = b.copied(copy, b_node.type.nbytes, b_node.dtype)
    pooled = len(whole.outputs) > 1 and g.packed and not computed and _has_lines(g.anchor, loops)
    loops = _merged(g.anchor, loops, computed, pooled)
    made = InnerRows(inner, body, ins, g.operands, g.em, machine) if inner is not None else None
    c = g.contraction(loops, computed, made.c if made is not None else None)
    known = isinstance(g.b_layout.offset, int) and shape is None and not apart
    lies, copied = c, known and worth_packing(c, machine)
    if copied:
        c = replace(c, packed=True)
    site = tuning_site(body, g.anchor, c, shape, machine)
    choice = decide(site, machine.measured)
    if isinstance(choice, Pieces):
        low = replace(lower_winograd(body, ins, g.outs, g.anchor, choice, machine, g.packed), site=site)
        return lower_apart(low, whole, ins, places, machine)
    assert isinstance(choice, Direct)
    plan = plan_of(c, machine, choice)
    if copied:
        b = b.copied(*panels_step(lies, plan, b.start, machine, b.arg, b.next_temp), b_node.dtype)
    columns, own, packs = _operand_b(g, c, plan, b)
    params, scratch = g.params(*own), plan.scratch_bytes
    if made is not None:
        a, pack, scratch = made.rows(a_node, loops, plan)
        params, packs = _with_inner(params, made, body, len(packs)), (*packs, pack)
    else:
        a = computed_a(body, ins, a_node, loops, machine) if computed else g.a
    lines = _Lines(whole, g.anchor, loops, plan) if pooled else None
    if lines is not None:
        params += zip(lines.fold.buffers, lines.fold.args, strict=True)
    epilogue = g.epilogue(loops)

    def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
        if acc.lanes > 1 and c.cols[-1].extent == 1:
            # a single column is lane 0
            place, acc, mask = (*place[:-1], ZERO), k.Extract(acc.dtype, 1, acc, 0), None
        index = epilogue(block, place, acc, mask)
        if lines is not None:
            lines.fold.add(block, g.em, index, mask)

    chunk, top = k.var("chunk"), Block()
    chunks = emit_macro_kernel(top, chunk, c, plan, a, columns, write, _fetch(g, loops), lines)
    step = g.step("contraction", c, params, chunk, chunks, top, scratch)
    low = Lowered((*b.before, step), b.temps, packs, site)
    if lines is None:
        return lower_apart(low, whole, ins, places, machine)
    return replace(low, steps=(*low.steps, *lines.fold.steps(ins, places, machine)), temps=lines.fold.temps)


def _merged(anchor: Node, loops: Loops, computed: bool, pooled: bool) -> Loops:
    """Rows as few loops, as far as what computes A, or pools the result, lets them be."""
    a, b = anchor.inputs
    if pooled:
        loops = flat_rows(loops, apart=1 if anchor.shape[0] != 1 else 0)
    else:
        loops = computed_rows(loops, a) if computed else flat_rows(rows_as_they_lie(loops))
    return contiguous_last(loops) if b.dtype in (bf16, i8) else loops


def _fetch(g: ContractionGroup, loops: Loops) -> Callable[[Block, Index, int], None] | None:
    """What asks for the lines of residuals before they are read, if there are any."""
    residuals = _residuals(g.body, g.ins, g.anchor)

    def fetch(block: Block, place: Index, width: int) -> None:
        index = g.result_index(block, loops, place)
        for at in residuals:
            buffer, layout = g.operands.ins[at], g.ins[at]
            start = block.let(ix.linear(index, layout.strides, layout.offset), "f")
            for i in range(0, width, LINE // buffer.dtype.nbytes):
                block.stmts.append(k.Prefetch(buffer, ix.add(start, integer(i))))

    return fetch if residuals else None


def _operand_b(
    g: ContractionGroup, c: Contraction, plan: Plan, b: _Source
) -> tuple[Operand | BlockQuantized, tuple[Param, ...], tuple[Pack, ...]]:
    """(B, its parameters, what of it is packed): as it is, or a constant in the panels of the plan."""
    if c.of_levels:
        return block_quantized_operand(g, c, plan)
    if not g.packed:
        return b.operand, ((b.operand.buffer, b.arg),), ()
    buffer = Buffer("b", g.anchor.inputs[1].dtype)
    pack = panels(g.b_at, c, plan, *static_shape((g.b_layout.offset,)))
    return Operand(buffer), ((buffer, Arg("pack", 0)),), (pack,)


def _with_inner(params: list[Param], made: InnerRows, body: Graph, packs: int) -> list[Param]:
    """The parameters with the packed weights of the contraction that computes A."""
    kept = [(b, arg) for b, arg in params if arg != Arg("in", made.b_at) or reads(body, made.b, made.anchor)]
    return [*kept, (made.b_buffer, Arg("pack", packs))]


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
        self.fold = PoolEpilogue(body, (anchor.shape[0], *(x.extent for x in between), parts, anchor.shape[-1]))

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


def _side_by_side(g: ContractionGroup) -> tuple[Step, Layout]:
    """A step that copies B so that its columns lie side by side, and B's layout in the copy."""
    b, last = g.anchor.inputs[1], _column_dim(g.anchor)
    order = (*(d for d in range(b.type.rank) if d != last), last)
    x = Input("b", b.type)()
    body = Graph((x,), (ops.Transpose(order)(x),))
    dense = Layout.contiguous(body.outputs[0].shape)
    copy = lower_pointwise(body, (g.b_layout,), (dense,), g.machine)
    (step,) = copy.within([Arg("in", g.b_at)], [Arg("temp", 0)], temps=0).steps
    back = tuple(order.index(d) for d in range(b.type.rank))
    return step, dense.transpose(back)


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


__all__ = ["lower_blocked"]
