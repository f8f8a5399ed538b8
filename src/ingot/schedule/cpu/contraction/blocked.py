"""Lower contraction groups to register tiles (`macro_kernel.py`) or Winograd's algorithm, with a prologue that computes
A and global pools of the result."""

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
from ingot.schedule.choice import Direct, Winograd, decide
from ingot.schedule.cpu.contraction.compressed.block_quantized_operand import block_quantized_operand
from ingot.schedule.cpu.contraction.compressed.rounded_rows import rounded_levels, rounded_loops, rounded_rows
from ingot.schedule.cpu.contraction.cost_model import plan_of
from ingot.schedule.cpu.contraction.group import ContractionGroup, Param, has_other_readers
from ingot.schedule.cpu.contraction.macro_kernel import emit_macro_kernel
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Operand, scratch_loops
from ingot.schedule.cpu.contraction.pack import pack_panels, panel_widths
from ingot.schedule.cpu.contraction.pack_at_run_time import packing_step, should_pack
from ingot.schedule.cpu.contraction.plan import CACHE_LINE_BYTES, Plan
from ingot.schedule.cpu.contraction.prologue import InnerRows, computed_a, is_computed
from ingot.schedule.cpu.contraction.tuning_site import tuning_site
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.windows.pool_epilogue import PoolEpilogue, append_pools
from ingot.schedule.cpu.winograd.lower import lower_winograd
from ingot.schedule.cpu.winograd.plan import Shape
from ingot.schedule.dimension_numbers import (
    Loops,
    contiguous_reduction_last,
    flat_rows,
    loops_of,
    reduction_in_memory_order,
    rows_in_memory_order,
)
from ingot.schedule.emit import Index
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class _SourceB:
    """The memory that B is read from: `operand` at `arg`, after `steps` that copy it into temporaries of `temp_bytes`
    bytes."""

    operand: Operand | BlockQuantized
    arg: Arg
    steps: tuple[Step, ...] = ()
    temp_bytes: tuple[DimLike, ...] = ()

    @property
    def offset(self) -> int:
        return static_shape((self.operand.offset if isinstance(self.operand, Operand) else 0,))[0]

    @property
    def next_temp(self) -> Arg:
        return Arg("temp", len(self.temp_bytes))

    def with_copy(self, step: Step, nbytes: DimLike, dtype: DType) -> _SourceB:
        """B in one more temporary, which `step` fills."""
        return _SourceB(Operand(Buffer("b", dtype)), self.next_temp, (*self.steps, step), (*self.temp_bytes, nbytes))


def lower_blocked(
    g: ContractionGroup,
    full_body: Graph,
    full_outs: tuple[Layout, ...],
    inner_anchor: Node | None,
    winograd_shape: Shape | None,
    transposes_panels: bool,
) -> Lowered:
    """Lower a group to register tiles or to Winograd's algorithm.

    full_body, full_outs: the group with all its results, and their layouts. inner_anchor: the contraction that computes
    A. winograd_shape: of a convolution that Winograd's algorithm covers. transposes_panels: a B with strided columns is
    not copied, as its readers transpose its panels.
    """
    body, ins, machine = g.body, g.ins, g.machine
    a_node, b_node = g.anchor.inputs
    rounded = rounded_levels(a_node)
    is_a_computed = is_computed(body, a_node) and not rounded
    loops, b = g.loops, _SourceB(g.b, Arg("in", g.b_input))
    if not g.packed and not transposes_panels and loops.cols[-1].b != 1 and loops.cols[-1].extent != 1:
        copy, layout = _transpose_b(g)
        loops = loops_of(g.anchor, g.a_layout, layout)
        b = b.with_copy(copy, b_node.type.nbytes, b_node.dtype)
    is_pooled = len(full_body.outputs) > 1 and g.packed and not is_a_computed and _has_image_rows(g.anchor, loops)
    loops = _merge_rows(g.anchor, loops, is_a_computed, is_pooled)
    if not g.packed:  # gradients of kernels sum over images: each is read as a whole
        loops = reduction_in_memory_order(loops)
    inner_rows = InnerRows(inner_anchor, body, ins, g.operands, g.em, machine) if inner_anchor is not None else None
    c = g.contraction(loops, is_a_computed or bool(rounded), inner_rows.c if inner_rows is not None else None)
    if rounded:
        c = replace(c, a=i8, rounded=rounded)
        loops = rounded_loops(g.loops, c)
        c = replace(c, rows=loops.rows, reduce=loops.reduce)
    can_pack = isinstance(g.b_layout.offset, int) and winograd_shape is None and not transposes_panels
    unpacked, packs_at_run_time = c, can_pack and should_pack(c, machine)
    if packs_at_run_time:
        c = replace(c, packed=True)
    site = tuning_site(body, g.anchor, c, winograd_shape, machine)
    choice = decide(site, machine.measured)
    if isinstance(choice, Winograd):
        lowered = replace(lower_winograd(body, ins, g.outs, g.anchor, choice, machine, g.packed), site=site)
        return append_pools(lowered, full_body, ins, full_outs, machine)
    assert isinstance(choice, Direct)
    plan = plan_of(c, machine, choice)
    if packs_at_run_time:
        b = b.with_copy(*packing_step(unpacked, plan, b.offset, machine, b.arg, b.next_temp), b_node.dtype)
    b_operand, b_params, packs = _operand_b(g, c, plan, b)
    params, scratch = g.params(*b_params), plan.scratch_bytes
    if inner_rows is not None:
        a, pack, scratch = inner_rows.lower_rows(a_node, loops, plan)
        params, packs = _add_inner_weights(params, inner_rows, body, len(packs)), (*packs, pack)
    else:
        a = computed_a(body, ins, a_node, loops, machine) if is_a_computed else g.a
    if rounded:
        a = rounded_rows(c, g.a, g.loops, machine)
    line_pools = _LinePools(full_body, g.anchor, loops, plan) if is_pooled else None
    if line_pools is not None:
        params += zip(line_pools.pools.buffers, line_pools.pools.args, strict=True)
    epilogue = g.epilogue(loops)

    def write(block: Block, loop_index: Index, acc: Expr, mask: Expr | None) -> None:
        if acc.lanes > 1 and c.cols[-1].extent == 1:
            # a single column is lane 0
            loop_index, acc, mask = (*loop_index[:-1], ZERO), k.Extract(acc.dtype, 1, acc, 0), None
        index = epilogue(block, loop_index, acc, mask)
        if line_pools is not None:
            line_pools.pools.add(block, g.em, index, mask)

    chunk, top = k.var("chunk"), Block()
    chunks = emit_macro_kernel(top, chunk, c, plan, a, b_operand, write, _prefetch_residuals(g, loops), line_pools)
    step = g.step("contraction", c, params, chunk, chunks, top, scratch)
    lowered = Lowered((*b.steps, step), b.temp_bytes, packs, site)
    if line_pools is None:
        return append_pools(lowered, full_body, ins, full_outs, machine)
    steps = (*lowered.steps, *line_pools.pools.steps(ins, full_outs, machine))
    return replace(lowered, steps=steps, temps=line_pools.pools.temps)


def _merge_rows(anchor: Node, loops: Loops, is_a_computed: bool, is_pooled: bool) -> Loops:
    """Merge the row axes as far as the prologue and the pools allow."""
    a, b = anchor.inputs
    if is_pooled:
        loops = flat_rows(loops, separate_axes=1 if anchor.shape[0] != 1 else 0)
    else:
        loops = scratch_loops(loops, a) if is_a_computed else flat_rows(rows_in_memory_order(loops))
    is_dense = b.dtype in (bf16, i8) and not isinstance(b.op, ops.LEVEL_FORMS)
    return contiguous_reduction_last(loops) if is_dense else loops


def _prefetch_residuals(g: ContractionGroup, loops: Loops) -> Callable[[Block, Index, int], None] | None:
    """Return a function that prefetches the residuals of the epilogue; None if there are none."""
    residuals = _residuals(g.body, g.ins, g.anchor)

    def prefetch(block: Block, loop_index: Index, width: int) -> None:
        index = g.result_index(block, loops, loop_index)
        for position in residuals:
            buffer, layout = g.operands.ins[position], g.ins[position]
            start = block.let(ix.linear(index, layout.strides, layout.offset), "f")
            for i in range(0, width, CACHE_LINE_BYTES // buffer.dtype.nbytes):
                block.stmts.append(k.Prefetch(buffer, ix.add(start, integer(i))))

    return prefetch if residuals else None


def _operand_b(
    g: ContractionGroup, c: Contraction, plan: Plan, b: _SourceB
) -> tuple[Operand | BlockQuantized, tuple[Param, ...], tuple[Pack, ...]]:
    """Return (B, its kernel parameters, its packings). A constant B is packed in the panels of the plan."""
    if c.has_quantized_b:
        (columns,) = static_shape((c.cols[-1].extent,))
        return block_quantized_operand(g, panel_widths(columns, plan))
    if not g.packed:
        return b.operand, ((b.operand.buffer, b.arg),), ()
    buffer = Buffer("b", g.anchor.inputs[1].dtype)
    pack = pack_panels(g.b_input, c, plan, *static_shape((g.b_layout.offset,)))
    return Operand(buffer), ((buffer, Arg("pack", 0)),), (pack,)


def _add_inner_weights(params: list[Param], inner_rows: InnerRows, body: Graph, pack_position: int) -> list[Param]:
    """Add the packed weights of the inner contraction to the kernel parameters."""
    other_params = [
        (b, arg)
        for b, arg in params
        if arg != Arg("in", inner_rows.b_input) or has_other_readers(body, inner_rows.b, inner_rows.anchor)
    ]
    return [*other_params, (inner_rows.b_buffer, Arg("pack", pack_position))]


def _has_image_rows(anchor: Node, loops: Loops) -> bool:
    """Whether the rows are positions of images and the columns are channels."""
    op, columns = anchor.op, loops.cols[-1].extent
    is_image = isinstance(op, ops.Convolution) and op.out_layout[0] == "N" and op.out_layout[-1] == "C"
    has_positions = len(loops.rows) > (anchor.shape[0] != 1) and loops.rows[-1].extent != 1
    return is_image and has_positions and isinstance(columns, int) and columns != 1


class _LinePools:
    """The global pools of a result: each chunk reduces its part of a line, the last row axis, which may be a full
    image."""

    def __init__(self, body: Graph, anchor: Node, loops: Loops, plan: Plan) -> None:
        self.loops, self.plan = loops, plan
        self.has_batch = anchor.shape[0] != 1
        *line_axes, row_axis = loops.rows[self.has_batch :]
        self.has_full_lines = plan.chunk_rows == row_axis.extent
        parts = 1 if self.has_full_lines else ceildiv(row_axis.extent, plan.chunk_rows)
        self.pools = PoolEpilogue(body, (anchor.shape[0], *(x.extent for x in line_axes), parts, anchor.shape[-1]))

    def begin(self, block: Block, lanes: int) -> None:
        self.pools.begin(block, lanes)

    def end(self, block: Block, index: Index, mask: Expr | None, is_first: Expr) -> None:
        start = len(self.loops.batch)
        *line, position = index[start : start + len(self.loops.rows)]
        part = (
            ZERO
            if self.has_full_lines
            else block.let(k.binary("div", position, dim_expr(self.plan.chunk_rows)), "part")
        )
        channel = self.loops.result(self.loops.full(index))[-1]
        self.pools.end(block, (*(() if self.has_batch else (ZERO,)), *line, part, channel), mask, is_first)


def _residuals(body: Graph, ins: tuple[Layout, ...], anchor: Node) -> tuple[int, ...]:
    """The positions of inputs of the result's shape that only the epilogue reads. Without prefetching, a tile would
    wait for each of their cache lines, as its rows are too far apart for the hardware prefetcher."""
    anchor_inputs = set(topological([anchor]))
    result_sized = [i for i, n in enumerate(body.inputs) if n not in anchor_inputs and n.shape == body.outputs[0].shape]
    return tuple(i for i in result_sized if ins[i].strides and ins[i].strides[-1] == 1)


def _transpose_b(g: ContractionGroup) -> tuple[Step, Layout]:
    """Return a step that copies B with contiguous columns, and B's layout in the copy."""
    b, column_dim = g.anchor.inputs[1], _column_dim(g.anchor)
    order = (*(d for d in range(b.type.rank) if d != column_dim), column_dim)
    x = Input("b", b.type)()
    body = Graph((x,), (ops.Transpose(order)(x),))
    dense = Layout.contiguous(body.outputs[0].shape)
    copy = lower_pointwise(body, (g.b_layout,), (dense,), g.machine)
    (step,) = copy.inlined([Arg("in", g.b_input)], [Arg("temp", 0)], temps=0).steps
    inverse = tuple(order.index(d) for d in range(b.type.rank))
    return step, dense.transpose(inverse)


def _column_dim(anchor: Node) -> int:
    """The dimension of B along which vectors run."""
    op = anchor.op
    a, b = anchor.inputs
    if isinstance(op, ops.DotGeneral):
        _, free = op.free(a.type.rank, b.type.rank)
        nontrivial = [d for d in free if b.shape[d] != 1] or list(free) or [b.type.rank - 1]
        return nontrivial[-1]
    assert isinstance(op, ops.Convolution)
    return op.rhs_layout.index("O")


__all__ = ["lower_blocked"]
