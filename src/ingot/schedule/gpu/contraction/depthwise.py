"""Convolutions in which each channel has an image of its own: tiles of positions and channels, tap by tap.

    for tap in window:  acc[positions, channels] += x[positions + tap, channels] * w[tap, channels]

There is nothing to multiply as tiles: a product of one column would load the others for nothing.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType
from ingot.ops import Convolution
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.choice import Patch
from ingot.schedule.dimension_numbers import loops_of
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulates
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    constant_tile,
    offset_of,
    power_of_two,
    read_at,
    register,
    repack,
    tile_index,
    write,
)
from ingot.schedule.gpu.contraction.reduction import has_other_users, packed_loops
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, patch_site
from ingot.schedule.group_io import bind_result, operand_memory, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered

MOST = 8  # results that share a channel of x
WIDEST = 128  # channels of a tile
LEAST, LARGEST = 256, 2048  # elements of a tile
THREAD = 8  # of them, which it loads at once
SOME, MANY = 9, 32  # taps, beyond which threads are more than wide loads, and tiles smaller
FEW, ALONE = 64, 2  # elements of a tile of many taps, at least, and of a thread of some
TOGETHER = 9  # taps whose loads are under way together


def is_depthwise(anchor: Node) -> bool:
    op = anchor.op
    if not isinstance(op, Convolution) or op.feature_groups == 1:
        return False
    w = anchor.inputs[1]
    shared = w.shape[op.rhs_layout.index("O")]
    own = w.shape[op.rhs_layout.index("I")] == 1
    return own and isinstance(shared, int) and shared // op.feature_groups <= MOST


def lower_depthwise(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    constant: tuple[bool, ...],
    anchor: Node,
    machine: Machine,
) -> Lowered:
    """A constant w is laid out with its channels side by side."""
    group = Group.of(body, ins, outs)
    (a_at, a), (b_at, b) = (operand_memory(body, x, ins) for x in anchor.inputs)
    x, w = (group.operands.ins[at] for at in (a_at, b_at))
    lying, dtype, start = loops_of(anchor, a, b), accumulates(anchor), b.offset
    axes, loops = (*lying.reduce, *lying.batch, *lying.cols), lying
    pack = repack(axes, b_at, start, w.dtype) if constant[b_at] else None
    extra: tuple[tuple[Buffer, Arg], ...] = ()
    if pack is not None:
        if not has_other_users(body, body.inputs[b_at], anchor):
            group = group.without(b_at)
        w, start = Buffer("w", w.dtype, align=ALIGNMENT_BYTES), 0
        extra = ((w, Arg("pack", 0)),)
        loops = packed_loops(lying, axes)
    channels, taps = (*loops.batch, *loops.cols), loops.reduce
    shape, width = tuple(c.extent for c in channels), product(c.extent for c in channels)
    positions = product(r.extent for r in loops.rows)
    many = product(t.extent for t in taps)
    first = _tile(estimate(positions), estimate(width), estimate(many), machine)
    site = patch_site(body, anchor, lying, first, _admits)
    choice = decided(site, machine, Patch)
    tile = choice.rows, choice.columns

    top, chunk = Block(), k.var("chunk")
    across = ceildiv(width, tile[1])
    row = top.let(k.binary("div", chunk, dim_expr(across)), "row")
    column = top.let(k.binary("rem", chunk, dim_expr(across)), "column")
    row_shape = tuple(r.extent for r in loops.rows)
    row_at, row_live = tile_index(top, k.mul(row, integer(tile[0])), tile[0], row_shape, 0, wraps=True)
    column_at, column_live = tile_index(top, k.mul(column, integer(tile[1])), tile[1], shape, 1)
    x_at = ix.add(offset_of(row_at, [r.a for r in loops.rows]), offset_of(column_at, [c.a for c in channels]))
    x_at = top.let(ix.add(x_at, dim_expr(a.offset)), "x")
    w_at = top.let(ix.add(offset_of(column_at, [c.b for c in channels]), dim_expr(start)), "w")
    acc = _sum_of_taps(top, (x, x_at), (w, w_at), taps, dtype, tile, column_live)
    em = group.emitter(() if column_live is None else (column_live,))
    bind_result(em, top, anchor, top.let(k.cast(acc, anchor.dtype), "acc"))
    split = len(loops.batch)
    place = loops.result(loops.full((*column_at[:split], *row_at, *column_at[split:])))
    for root, buffer, layout in group.results:
        write(top, em, root, buffer, layout, result_index(top, root, anchor, place), column_live, row_live)
    chunks = ceildiv(positions, tile[0]) * across
    step = group.step("depthwise", chunk, chunks, top, *extra, warps=choice.warps)
    return Lowered((step,), packs=() if pack is None else (pack,), site=site)


def _sum_of_taps(
    top: Block,
    x: tuple[Buffer, Expr],
    w: tuple[Buffer, Expr],
    taps: tuple[Axis, ...],
    dtype: DType,
    tile: tuple[int, int],
    live: Expr | None,
) -> Expr:
    """A tile of sums over the window of x * w, each given by its buffer and where the first tap reads it."""
    acc = register(top, "acc", constant_tile(dtype, tile))

    def tap(block: Block, at: Index) -> None:
        if len(at) < len(taps):
            extent = taps[len(at)].extent
            whole = product(t.extent for t in taps[len(at) :])
            several = isinstance(whole, int) and whole <= TOGETHER
            return block.loop("t", 0, extent, 1, lambda inner, t: tap(inner, (*at, t)), unroll=several)
        value = read_at(block, x[0], ix.add(x[1], offset_of(at, [r.a for r in taps])), live)
        weight = read_at(block, w[0], ix.add(w[1], offset_of(at, [r.b for r in taps])), live)
        value, weight = k.alike(k.cast(value, dtype), k.cast(weight, dtype))
        return block.store(acc, ZERO, k.fma(k.spread(value, tile), k.spread(weight, tile), k.load(acc, ZERO)))

    tap(top, ())
    return k.load(acc, ZERO)


def _tile(positions: int, channels: int, taps: int, machine: Machine) -> Patch:
    """As many channels side by side as there are without a rest."""
    share = positions * channels // machine.programs
    size = max(LEAST, power_of_two(share)) if taps <= MANY else max(FEW, power_of_two(share // 2 + 1))
    size, own = min(LARGEST, size), THREAD if taps <= SOME else ALONE
    width = max(16, min(WIDEST if taps <= MANY else WIDEST // 2, size, channels & -channels, power_of_two(channels)))
    rows = max(1, min(size // width, power_of_two(positions)))
    return Patch(rows, width, min(8, max(1, rows * width // (32 * own))))


def _admits(choice: Patch) -> bool:
    powers = all(n > 0 and n & n - 1 == 0 for n in (choice.rows, choice.columns, choice.warps))
    return powers and choice.rows * choice.columns <= 2 * LARGEST and choice.warps <= 8


__all__ = ["is_depthwise", "lower_depthwise"]
