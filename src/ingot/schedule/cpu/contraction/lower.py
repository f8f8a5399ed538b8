"""Lower contraction groups: a dot_general or a convolution, followed by pointwise ops.

Both ops become the same loop nest. Their dimension numbers become axes (batch, rows, columns, reduction) with a stride
in each operand. The strides include the operands' layouts and views, so a transposed operand or a convolution's window
costs nothing.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, rebuild, topological
from ingot.ir.types import i8, static_shape
from ingot.ops.core.base import is_contraction
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.blocked import lower_blocked
from ingot.schedule.cpu.contraction.compressed.sparse import SparseProducts
from ingot.schedule.cpu.contraction.compressed.sparse_bytes import SparseBytes
from ingot.schedule.cpu.contraction.dot_products import DotProducts, as_dot_products, emit_dot_products
from ingot.schedule.cpu.contraction.group import ContractionGroup, is_of_signs
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.pack_at_run_time import should_pack
from ingot.schedule.cpu.contraction.plan import needs_transpose
from ingot.schedule.cpu.contraction.prologue import is_computed
from ingot.schedule.cpu.contraction.split_k import should_swap_operands, split_k, swap_operands
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.rows.lower import lower_first
from ingot.schedule.cpu.windows.depthwise import lower_depthwise
from ingot.schedule.cpu.windows.pool_epilogue import append_pools
from ingot.schedule.cpu.winograd.plan import winograd_shape_of
from ingot.schedule.dimension_numbers import flat_rows, rows_in_memory_order
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator_of
from ingot.schedule.lowered import Arg, Lowered, Pack

MAX_PANEL_COLUMNS = 64  # the widest panel of a register tile with several rows


def lower_contraction(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """Lower a matmul or convolution with its prologue (pointwise ops or another contraction that compute A), its
    epilogue, and global pools of its result."""
    *inner, anchor = (n for n in body.nodes() if is_contraction(n))
    first_result, first_out = body.with_outputs(body.outputs[:1]), outs[:1]
    if any(d == 0 for n in anchor.inputs for d in n.shape):
        lowered = lower_pointwise(_zero_contraction(first_result, anchor), ins, first_out, machine)
        return append_pools(lowered, body, ins, outs, machine)
    is_a_computed = is_computed(body, anchor.inputs[0])
    if ops.is_depthwise(anchor) or (not is_a_computed and _has_narrow_groups(body, anchor, machine)):
        return lower_depthwise(body, ins, outs, constant, machine)
    has_weight_form = isinstance(anchor.inputs[1].op, ops.WEIGHT_FORMS)
    is_shared = any(x.panel for x in ins)
    of_signs = is_of_signs(anchor)
    can_split = len(body.outputs) == 1 and not is_a_computed and not has_weight_form and not is_shared and not of_signs
    split = split_k(anchor, machine) if can_split else None
    if split is not None:
        return _lower_split_k(body, ins, outs, constant, anchor, split, machine)
    g = ContractionGroup.of(first_result, ins, first_out, constant, anchor, machine)
    if isinstance(anchor.inputs[1].op, ops.Densify):
        lowering = SparseBytes if anchor.inputs[1].dtype == i8 else SparseProducts
        return append_pools(lowering(g).lower(), body, ins, outs, machine)
    if is_a_computed or has_weight_form or of_signs:
        return lower_blocked(g, body, outs, inner[0] if inner else None, winograd_shape=None, transposes_panels=False)
    winograd_shape = winograd_shape_of(anchor, g.a_layout, g.b_layout, g.packed) if machine.winograd else None
    loops = flat_rows(rows_in_memory_order(g.loops))
    c = g.contraction(loops)
    max_cycle_ratio = 0.9 if winograd_shape is None else 0.5
    dots = None
    if not should_pack(c, machine):
        dots = as_dot_products(c, loops, (g.b_input, g.b_layout.offset), machine, max_cycle_ratio=max_cycle_ratio)
    if dots is not None:
        return append_pools(_lower_dots(g, dots), body, ins, outs, machine)
    if should_swap_operands(anchor, c, machine):
        swapped = rebuild(body.outputs, {anchor: swap_operands(anchor)})
        return lower_contraction(body.with_outputs(swapped), ins, outs, constant, machine)
    return lower_blocked(g, body, outs, None, winograd_shape, transposes_panels=_transposes_panels(c, machine))


def _transposes_panels(c: Contraction, machine: Machine) -> bool:
    """Whether the chunks that read B transpose its panels, rather than a separate kernel. K must be static and small,
    and each panel must be read too few times to be worth packing."""
    is_small = needs_transpose(c) and isinstance(c.k, int) and c.k * c.acc.nbytes * MAX_PANEL_COLUMNS <= machine.l2
    return is_small and not should_pack(c, machine)


def _zero_contraction(body: Graph, anchor: Node) -> Graph:
    """The group with its contraction, a sum of no terms, replaced by zeros."""
    zeros = ops.BroadcastInDim(anchor.shape, ())(ops.scalar(0, anchor.dtype))
    return body.with_outputs(rebuild(body.outputs, {anchor: zeros}))


def _has_narrow_groups(body: Graph, anchor: Node, machine: Machine) -> bool:
    """Whether a convolution has a static kernel and groups so narrow that a vector holds several of them."""
    op, (x, w) = anchor.op, anchor.inputs
    if not isinstance(op, ops.Convolution) or op.feature_groups == 1 or op.batch_groups != 1:
        return False
    if w not in body.inputs or not w.type.is_static:
        return False
    sizes = dict(zip(op.rhs_layout, static_shape(w.shape), strict=True))
    lanes, (out_channels, remainder) = machine.lanes(accumulator_of(anchor)), divmod(sizes["O"], op.feature_groups)
    is_channels_last = op.lhs_layout[-1] == "C" and op.lhs_layout == op.out_layout and isinstance(x.shape[-1], int)
    is_narrow = sizes["I"] <= out_channels < lanes and lanes % out_channels == 0 and not remainder
    return is_channels_last and is_narrow and x.type.rank > 2


def _lower_split_k(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    constant: tuple[bool, ...],
    anchor: Node,
    split: tuple[Node, Node],
    machine: Machine,
) -> Lowered:
    """Lower a split reduction: a kernel for the partial products, one for their sums and, if the epilogue permutes
    dimensions, one for the epilogue."""
    partial, total = split
    split_body = body.with_outputs(rebuild(body.outputs, {anchor: total}))
    is_constant = dict(zip(body.inputs, constant, strict=True))
    has_moved_result = any(n.op.permutes and anchor in topological([n]) for n in body.nodes())

    def products(part: Graph, part_ins: tuple[Layout, ...], part_outs: tuple[Layout, ...], machine: Machine) -> Lowered:
        return lower_contraction(part, part_ins, part_outs, tuple(is_constant[n] for n in part.inputs), machine)

    def sums(part: Graph, part_ins: tuple[Layout, ...], part_outs: tuple[Layout, ...], machine: Machine) -> Lowered:
        return lower_first(part, (partial,), part_ins, part_outs, machine, products)

    return (
        lower_first(split_body, (total,), ins, outs, machine, sums)
        if has_moved_result
        else sums(split_body, ins, outs, machine)
    )


def _lower_dots(g: ContractionGroup, products: DotProducts) -> Lowered:
    packs: tuple[Pack, ...] = ()
    a, b, b_arg = g.a, g.b, Arg("in", g.b_input)
    if products.pack is not None:
        packs, b, b_arg = (products.pack,), Operand(Buffer("b", products.pack.dtype)), Arg("pack", 0)
    chunk, top, epilogue = k.var("chunk"), Block(), g.epilogue(products.loops)

    def write(block: Block, index: Index, acc: Expr, mask: Expr | None) -> None:
        epilogue(block, index, acc, mask)

    lhs, rhs = (b, a) if products.is_swapped else (a, b)
    chunks = emit_dot_products(top, chunk, products, lhs, rhs, g.machine, write)
    step = g.step("dots", products.c, g.params((b.buffer, b_arg)), chunk, chunks, top, scratch=0)
    return Lowered((step,), (), packs)


__all__ = ["lower_contraction"]
