"""The rows of a contraction's first operand that its own kernel computes: a block of them in scratch, then all columns.

pointwise:    for row: scratch = relu(x * scale + shift)
a norm:       for row: m = sum(x) / k; v = sum((x - m)^2) / k; scratch = (x - m) * rsqrt(v + eps)
contraction:  the nest of another contraction, all its columns, with an epilogue that writes to scratch
"""

from __future__ import annotations

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import static_shape
from ingot.ops.views import WHOLE_VIEWS, base_of
from ingot.schedule import index as ix
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands
from ingot.schedule.cpu.contraction.cost_model import plan_rows
from ingot.schedule.cpu.contraction.macro_kernel import MacroKernel
from ingot.schedule.cpu.contraction.operands import Computed, Operand, computed_rows
from ingot.schedule.cpu.contraction.pack import panels
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
    """Whether the group itself computes its operand `a`."""
    return base_of(a) not in body.inputs


def computed_a(body: Graph, ins: tuple[Layout, ...], node: Node, loops: Loops, machine: Machine) -> Computed:
    """An A of pointwise ops, and of reductions along its rows: each row where the chunk's contraction reads it, by the
    passes that a kernel of rows would make."""
    # reductions know their rows by their own shape, not by a view's
    base = base_of(node, WHOLE_VIEWS) if _reductions_below(node) else node
    part, last = body.with_outputs((base,)), base.type.rank - 1
    rows = Rows(base.shape, (last,), last)
    (axis,) = loops.rows

    def fill(block: Block, batch: Index, span: tuple[Expr, Expr], out: Buffer) -> None:
        em = Operands.of(body).emitter(body, ins)
        passes = RowPasses(part, em, rows, machine, caches=False)

        def row(b: Block, r: Expr) -> None:
            at = loops.source(loops.full((*batch, r, *(ZERO for _ in loops.cols))), ZERO)
            passes.visits = (Visit(_under_views(b, node, base, at)[:last]),)
            start = b.let(ix.mul(ix.sub(r, span[0]), dim_expr(axis.a)), "to")
            passes.fold(b)

            def vector(x: Block, where: Index, mask: Expr | None, _: int) -> None:
                store_at(x, out, ix.add(start, where[last]), em.value(x, base, where, mask), mask)

            passes.over_row(b, vector, again=True)

        block.loop("row", *span, 1, row)

    return Computed(fill)


def _reductions_below(node: Node) -> bool:
    return any(isinstance(n.op, ops.Reduce) for n in topological([node]))


def _under_views(block: Block, node: Node, base: Node, index: Index) -> Index:
    """Where in `base` the element of `node` at `index` lies, which is `base` behind reshapes and transposes."""
    while node is not base:
        index = operand_index(block, node, index)
        (node,) = node.inputs
    return index


class InnerRows:
    """A contraction of a constant whose result, after pointwise ops, another reads row by row."""

    def __init__(
        self, anchor: Node, body: Graph, ins: tuple[Layout, ...], operands: Operands, em: Emitter, machine: Machine
    ):
        a, self.b = anchor.inputs
        self.anchor, self.em, self.machine = anchor, em, machine
        self.b_at, b_layout = operand_memory(body, self.b, ins)
        at, layout = (-1, Layout.contiguous(a.shape)) if is_computed(body, a) else operand_memory(body, a, ins)
        self.loops = flat_rows(loops_of(anchor, layout, b_layout))
        computed = at < 0 or len(self.loops.rows) > 1  # a halo around each image, say
        if computed:
            self.loops = computed_rows(self.loops, a)
            self.a: Operand | Computed = computed_a(body, ins, a, self.loops, machine)
        else:
            self.a = Operand(operands.ins[at], layout.offset)
        loops = self.loops
        self.c = Contraction(
            (), loops.rows, loops.cols, loops.reduce, a.dtype, self.b.dtype, accumulator(anchor.dtype), True, computed
        )
        self.b_buffer, self.b_layout = Buffer("inner_b", self.b.dtype), b_layout

    def rows(self, node: Node, outer: Loops, plan: Plan) -> tuple[Computed, Pack, int]:
        """How the rows of `node` are computed for the loops `outer` of a contraction with this plan, from which packed
        weights; the scratch of both."""
        own = plan_rows(self.c, self.machine, plan)
        pack = panels(self.b_at, self.c, own, *static_shape((self.b_layout.offset,)))
        (axis,) = outer.rows

        def fill(block: Block, batch: Index, rows: tuple[Expr, Expr], out: Buffer) -> None:
            def write(b: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
                bind_result(self.em, b, self.anchor, b.let(k.cast(acc, self.anchor.dtype), "acc"))
                index = self.loops.result(self.loops.full(place))
                start = b.let(ix.mul(ix.sub(place[0], rows[0]), dim_expr(axis.a)), "to")
                store_at(b, out, ix.add(start, place[-1]), self.em.value(b, node, index, mask), mask)

            MacroKernel(self.c, own, self.a, Operand(self.b_buffer), write).emit_rows(block, rows)

        return Computed(fill), pack, own.scratch_bytes


__all__ = ["InnerRows", "computed_a", "is_computed"]
