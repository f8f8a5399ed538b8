"""Contraction groups: dot_general and convolution as one kind of loop nest, with the pointwise ops behind them.

The op's dimension numbers become strides of axes (batch, rows, columns, reduction); the layouts of the operands in
memory, views included, are in these strides, so a transposed operand or a convolution's window costs nothing here.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, rebuilt, topological
from ingot.ir.types import i8, static_shape
from ingot.ops.core.base import is_contraction
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.blocked import lower_blocked
from ingot.schedule.cpu.contraction.compressed.sparse import SparseProducts
from ingot.schedule.cpu.contraction.compressed.sparse_bytes import SparseBytes
from ingot.schedule.cpu.contraction.dot_products import Products, as_dot_products, emit_dot_products
from ingot.schedule.cpu.contraction.group import ContractionGroup
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.pack_at_run_time import worth_packing
from ingot.schedule.cpu.contraction.plan import transposed
from ingot.schedule.cpu.contraction.prologue import is_computed
from ingot.schedule.cpu.contraction.split_k import split_k, swapped_operands, swaps_operands
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.rows.lower import lower_first
from ingot.schedule.cpu.windows.depthwise import lower_depthwise
from ingot.schedule.cpu.windows.pool_epilogue import lower_apart
from ingot.schedule.cpu.winograd.plan import covered
from ingot.schedule.dimension_numbers import flat_rows, rows_as_they_lie
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulates
from ingot.schedule.lowered import Arg, Lowered, Pack

MOST_COLUMNS = 64  # of panels of tiles with several rows


def lower_contraction(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A matmul or convolution, the pointwise ops or the other contraction that make its A, its epilogue, and global
    pools of its result."""
    *inner, anchor = (n for n in body.nodes() if is_contraction(n))
    image, place = body.with_outputs(body.outputs[:1]), outs[:1]
    if any(d == 0 for n in anchor.inputs for d in n.shape):
        low = lower_pointwise(_without_terms(image, anchor), ins, place, machine)
        return lower_apart(low, body, ins, outs, machine)
    computed = is_computed(body, anchor.inputs[0])
    if ops.is_depthwise(anchor) or (not computed and _in_vectors_of_groups(body, anchor, constant, machine)):
        return lower_depthwise(body, ins, outs, constant, machine)
    form = isinstance(anchor.inputs[1].op, ops.WEIGHT_FORMS)
    parts = split_k(anchor, machine) if len(body.outputs) == 1 and not computed and not form else None
    if parts is not None:
        return _lower_parts(body, ins, outs, constant, anchor, parts, machine)
    g = ContractionGroup.of(image, ins, place, constant, anchor, machine)
    if isinstance(anchor.inputs[1].op, ops.Densify):
        kind = SparseBytes if anchor.inputs[1].dtype == i8 else SparseProducts
        return lower_apart(kind(g).lower(), body, ins, outs, machine)
    if computed or form:
        return lower_blocked(g, body, outs, inner[0] if inner else None, shape=None, apart=False)
    shape = covered(anchor, g.a_layout, g.b_layout, g.packed) if machine.winograd else None
    loops = flat_rows(rows_as_they_lie(g.loops))
    c = g.contraction(loops)
    share = 0.9 if shape is None else 0.5
    products = None
    if not worth_packing(c, machine):
        products = as_dot_products(c, loops, (g.b_at, g.b_layout.offset), machine, part=share)
    if products is not None:
        return lower_apart(_lower_dots(g, products), body, ins, outs, machine)
    if swaps_operands(anchor, c, machine):
        swapped = rebuilt(body.outputs, {anchor: swapped_operands(anchor)})
        return lower_contraction(body.with_outputs(swapped), ins, outs, constant, machine)
    return lower_blocked(g, body, outs, None, shape, apart=_transposes_panels(c, machine))


def _transposes_panels(c: Contraction, machine: Machine) -> bool:
    """Whether panels of a `transposed` B become so in the chunks that read them, and not by a kernel of their own: K
    must be known, and small, and chunks are to read a panel so seldom that it need not be laid out once for all."""
    small = transposed(c) and isinstance(c.k, int) and c.k * c.acc.nbytes * MOST_COLUMNS <= machine.l2
    return small and not worth_packing(c, machine)


def _without_terms(body: Graph, anchor: Node) -> Graph:
    """The group with its contraction, a sum of nothing, as zeros."""
    zeros = ops.BroadcastInDim(anchor.shape, ())(ops.scalar(0, anchor.dtype))
    return body.with_outputs(rebuilt(body.outputs, {anchor: zeros}))


def _in_vectors_of_groups(body: Graph, anchor: Node, constant: tuple[bool, ...], machine: Machine) -> bool:
    """Whether a convolution's groups, whose weights are repacked, are so narrow that a vector holds several of them."""
    op, (x, w) = anchor.op, anchor.inputs
    if not isinstance(op, ops.Convolution) or op.feature_groups == 1 or op.batch_groups != 1:
        return False
    if w not in body.inputs or not constant[body.inputs.index(w)]:
        return False
    reads, lanes = w.shape[op.rhs_layout.index("I")], machine.lanes(accumulates(anchor))
    makes, rest = divmod(*static_shape((w.shape[op.rhs_layout.index("O")], op.feature_groups)))
    last = op.lhs_layout[-1] == "C" and op.lhs_layout == op.out_layout and isinstance(x.shape[-1], int)
    narrow = isinstance(reads, int) and reads <= makes < lanes and lanes % makes == 0 and not rest
    return last and narrow and x.type.rank > 2


def _lower_parts(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    constant: tuple[bool, ...],
    anchor: Node,
    parts: tuple[Node, Node],
    machine: Machine,
) -> Lowered:
    """Kernels for products of parts of the reduction, for their sums, and for an epilogue that moves these."""
    partial, total = parts
    whole = body.with_outputs(rebuilt(body.outputs, {anchor: total}))
    known = dict(zip(body.inputs, constant, strict=True))
    moved = any(n.op.permutes and anchor in topological([n]) for n in body.nodes())

    def products(start: Graph, own: tuple[Layout, ...], places: tuple[Layout, ...], machine: Machine) -> Lowered:
        return lower_contraction(start, own, places, tuple(known[n] for n in start.inputs), machine)

    def sums(start: Graph, own: tuple[Layout, ...], places: tuple[Layout, ...], machine: Machine) -> Lowered:
        return lower_first(start, (partial,), own, places, machine, products)

    return lower_first(whole, (total,), ins, outs, machine, sums) if moved else sums(whole, ins, outs, machine)


def _lower_dots(g: ContractionGroup, products: Products) -> Lowered:
    packs: tuple[Pack, ...] = ()
    a, b, b_arg = g.a, g.b, Arg("in", g.b_at)
    if products.pack is not None:
        packs, b, b_arg = (products.pack,), Operand(Buffer("b", products.pack.dtype)), Arg("pack", 0)
    chunk, top, epilogue = k.var("chunk"), Block(), g.epilogue(products.loops)

    def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
        epilogue(block, place, acc, mask)

    first, second = (b, a) if products.changed else (a, b)
    chunks = emit_dot_products(top, chunk, products, first, second, g.machine, write)
    step = g.step("dots", products.c, g.params((b.buffer, b_arg)), chunk, chunks, top, scratch=0)
    return Lowered((step,), (), packs)


__all__ = ["lower_contraction"]
