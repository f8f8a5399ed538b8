"""Contractions that compute rows of their first operand: a block of rows into scratch, then its products.

pointwise:    for row: scratch = relu(x * scale + shift)
a norm:       for row: m = sum(x) / k; v = sum((x - m)^2) / k; scratch = (x - m) * rsqrt(v + eps)
contraction:  the loop nest of another contraction, all its columns, with an epilogue that writes to scratch
"""

from __future__ import annotations

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import static_shape
from ingot.ops.views import BIJECTIVE_VIEWS, base_of
from ingot.schedule import index as ix
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands
from ingot.schedule.cpu.contraction.cost_model import plan_rows
from ingot.schedule.cpu.contraction.macro_kernel import MacroKernel
from ingot.schedule.cpu.contraction.operands import ComputedA, Operand, scratch_loops
from ingot.schedule.cpu.contraction.pack import pack_panels
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.rows.passes import RowPasses, Visit
from ingot.schedule.dimension_numbers import Loops, flat_rows, loops_of
from ingot.schedule.emit import Emitter, Index, operand_index, store_at
from ingot.schedule.folds import accumulator
from ingot.schedule.group_io import bind_result, operand_memory
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Pack
from ingot.schedule.row_box import Rows


def is_computed(body: Graph, a: Node) -> bool:
    """Whether the group computes `a`, rather than reading it from an input."""
    return base_of(a) not in body.inputs


def computed_a(body: Graph, ins: tuple[Layout, ...], node: Node, loops: Loops, machine: Machine) -> ComputedA:
    """Return an A of pointwise ops and row reductions. The chunk computes each row with the passes of a row kernel."""
    # the rows of a reduction are those of its own shape, not of a view's
    base = base_of(node, BIJECTIVE_VIEWS) if _has_reductions(node) else node
    base_body, last_dim = body.with_outputs((base,)), base.type.rank - 1
    rows = Rows(base.shape, (last_dim,), last_dim)
    (axis,) = loops.rows

    def fill(block: Block, batch: Index, span: tuple[Expr, Expr], out: Buffer) -> None:
        em = Operands.of(body).emitter(body, ins)
        passes = RowPasses(base_body, em, rows, machine, caches=False)

        def emit_row(b: Block, r: Expr) -> None:
            index = loops.source(loops.full((*batch, r, *(ZERO for _ in loops.cols))), ZERO)
            passes.visits = (Visit(_base_index(b, node, base, index)[:last_dim]),)
            out_offset = b.let(ix.mul(ix.sub(r, span[0]), dim_expr(axis.a)), "to")
            passes.fold(b)

            def emit_vector(x: Block, index: Index, mask: Expr | None, _: int) -> None:
                store_at(x, out, ix.add(out_offset, index[last_dim]), em.value(x, base, index, mask), mask)

            passes.over_row(b, emit_vector, is_reread=True)

        block.loop("row", *span, 1, emit_row)

    return ComputedA(fill)


def _has_reductions(node: Node) -> bool:
    return any(isinstance(n.op, ops.Reduce) for n in topological([node]))


def _base_index(block: Block, node: Node, base: Node, index: Index) -> Index:
    """Return the index in `base` of the element of `node` at `index`. `node` is `base` behind reshapes and
    transposes."""
    while node is not base:
        index = operand_index(block, node, index)
        (node,) = node.inputs
    return index


class InnerRows:
    """A contraction with a constant B whose result, after pointwise ops, another contraction reads row by row."""

    def __init__(
        self, anchor: Node, body: Graph, ins: tuple[Layout, ...], operands: Operands, em: Emitter, machine: Machine
    ):
        a, self.b = anchor.inputs
        self.anchor, self.em, self.machine = anchor, em, machine
        self.b_input, b_layout = operand_memory(body, self.b, ins)
        a_input, a_layout = (-1, Layout.contiguous(a.shape)) if is_computed(body, a) else operand_memory(body, a, ins)
        self.loops = flat_rows(loops_of(anchor, a_layout, b_layout))
        is_a_computed = a_input < 0 or len(self.loops.rows) > 1  # a halo around each image, say
        if is_a_computed:
            self.loops = scratch_loops(self.loops, a)
            self.a: Operand | ComputedA = computed_a(body, ins, a, self.loops, machine)
        else:
            self.a = Operand(operands.ins[a_input], a_layout.offset)
        loops = self.loops
        acc = accumulator(anchor.dtype)
        self.c = Contraction(
            (), loops.rows, loops.cols, loops.reduce, a.dtype, self.b.dtype, acc, packed=True, computes_a=is_a_computed
        )
        self.b_buffer, self.b_layout = Buffer("inner_b", self.b.dtype), b_layout

    def lower_rows(self, node: Node, outer: Loops, plan: Plan) -> tuple[ComputedA, Pack, int]:
        """Lower the rows of `node` for a contraction with the loops `outer` and this plan. Return them, the packed
        weights and the scratch bytes of both contractions."""
        inner_plan = plan_rows(self.c, self.machine, plan)
        pack = pack_panels(self.b_input, self.c, inner_plan, *static_shape((self.b_layout.offset,)))
        (axis,) = outer.rows

        def fill(block: Block, batch: Index, rows: tuple[Expr, Expr], out: Buffer) -> None:
            def write(b: Block, loop_index: Index, acc: Expr, mask: Expr | None) -> None:
                bind_result(self.em, b, self.anchor, b.let(k.cast(acc, self.anchor.dtype), "acc"))
                index = self.loops.result(self.loops.full(loop_index))
                out_offset = b.let(ix.mul(ix.sub(loop_index[0], rows[0]), dim_expr(axis.a)), "to")
                store_at(b, out, ix.add(out_offset, loop_index[-1]), self.em.value(b, node, index, mask), mask)

            MacroKernel(self.c, inner_plan, self.a, Operand(self.b_buffer), write).emit_rows(block, rows)

        return ComputedA(fill), pack, inner_plan.scratch_bytes


__all__ = ["InnerRows", "computed_a", "is_computed"]
