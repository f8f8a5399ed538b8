"""Depthwise convolutions: tiles of positions and channels, tap by tap.

    for tap in window:  acc[positions, channels] += x[positions + tap, channels] * w[tap, channels]

Tile products do not apply: each channel would use one column of a tile and waste the others. Where there are enough
positions, a position of a tile is a run of neighbors along the innermost axis, whose windows overlap: each element and
each weight is loaded once for all of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product as product_of

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.node import Node
from ingot.ir.types import DType
from ingot.ops import Convolution
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.choice import Patch
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator_of
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
from ingot.schedule.gpu.contraction.columns import columns_step, copy_bytes
from ingot.schedule.gpu.contraction.reduction import has_other_users, packed_loops
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, patch_site
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step

MAX_CHANNEL_MULTIPLIER = 8  # output channels per channel of x
MAX_TILE_CHANNELS = 128  # channels of a tile
MIN_TILE_ELEMENTS, MAX_TILE_ELEMENTS = 256, 2048  # elements of a tile
WIDE_LOAD_ELEMENTS = 8  # per thread in one load
MAX_WIDE_LOAD_TAPS, MAX_LARGE_TILE_TAPS = 9, 32  # up to which threads use wide loads, and tiles are large
MIN_SMALL_TILE_ELEMENTS, NARROW_LOAD_ELEMENTS = 64, 2  # of a tile with many taps; per thread beyond MAX_WIDE_LOAD_TAPS
MAX_UNROLLED_TAPS = 9  # whose loads overlap
MIN_POSITIONS_FOR_COPY = 256  # that read the weights
MIN_LANE_UTILIZATION = 0.9  # of the channels of tiles
MAX_RUN, RUN_LOAD_ELEMENTS = 8, 4  # positions of a run; elements per thread in one load
MIN_RUN_THREADS, MAX_TILE_RUNS = 256, 512  # per multiprocessor; elements of a tile of runs


def is_depthwise(anchor: Node) -> bool:
    op = anchor.op
    if not isinstance(op, Convolution) or op.feature_groups == 1:
        return False
    w = anchor.inputs[1]
    out_channels = w.shape[op.rhs_layout.index("O")]
    has_one_input_channel = w.shape[op.rhs_layout.index("I")] == 1
    return (
        has_one_input_channel
        and isinstance(out_channels, int)
        and out_channels // op.feature_groups <= MAX_CHANNEL_MULTIPLIER
    )


def lower_depthwise(group: Group, anchor: Node, machine: Machine) -> Lowered:
    """Lower a depthwise convolution. A constant w is repacked with contiguous channels; any other w is copied into that
    order, in the type of the sums, if many positions read it."""
    body = group.body
    (a_at, a), (b_at, b) = map(group.memory, anchor.inputs)
    x, w = (group.operands.ins[at] for at in (a_at, b_at))
    memory_loops, dtype, w_offset = loops_of(anchor, a, b), accumulator_of(anchor), b.offset
    axes, loops = (*memory_loops.reduce, *memory_loops.batch, *memory_loops.cols), memory_loops
    pack = repack(axes, b_at, w_offset, w.dtype) if b_at in group.constants else None
    extra: tuple[tuple[Buffer, Arg], ...] = ()
    copies, temps = tuple[Step, ...](), tuple[DimLike, ...]()
    if pack is not None or _needs_copy(memory_loops):
        if not has_other_users(body, body.inputs[b_at], anchor):
            group = group.without(b_at)
        loops = packed_loops(memory_loops, axes)
        if pack is None:
            source, copied = (replace(x, batch=(), cols=(*x.batch, *x.cols)) for x in (memory_loops, loops))
            temps = (copy_bytes(memory_loops, dtype),)
            copies = (columns_step(source, copied, w, w_offset, (Arg("in", b_at), Arg("temp", 0)), dtype),)
        w, w_offset = Buffer("w", w.dtype if pack is not None else dtype, align=ALIGNMENT_BYTES), 0
        extra = ((w, Arg("temp", 0) if pack is None else Arg("pack", 0)),)
    channels, taps = (*loops.batch, *loops.cols), loops.reduce
    shape, width = tuple(c.extent for c in channels), product(c.extent for c in channels)
    positions = product(r.extent for r in loops.rows)
    tap_count = product(t.extent for t in taps)
    *outer_rows, line = loops.rows
    default = _default_tile(estimate(positions), estimate(width), estimate(tap_count), line.extent, machine)
    site = patch_site(body, anchor, memory_loops, default, partial(_admits, line=line.extent))
    choice = decided(site, machine, Patch)
    tile, run = (choice.rows, choice.columns), choice.run
    runs = (*outer_rows, replace(line, extent=ceildiv(line.extent, run), a=line.a * run))

    top, chunk = Block(), k.var("chunk")
    column_tiles = ceildiv(width, tile[1])
    row = top.let(k.binary("div", chunk, dim_expr(column_tiles)), "row")
    column = top.let(k.binary("rem", chunk, dim_expr(column_tiles)), "column")
    row_shape = tuple(r.extent for r in runs)
    row_at, row_live = tile_index(top, k.mul(row, integer(tile[0])), tile[0], row_shape, 0, wraps=True)
    column_at, column_live = tile_index(top, k.mul(column, integer(tile[1])), tile[1], shape, 1, wraps=True)
    x_at = ix.add(offset_of(row_at, [r.a for r in runs]), offset_of(column_at, [c.a for c in channels]))
    x_at = top.let(ix.add(x_at, dim_expr(a.offset)), "x")
    w_at = top.let(ix.add(offset_of(column_at, [c.b for c in channels]), dim_expr(w_offset)), "w")
    sums = _sums_of_taps(top, (x, x_at), (w, w_at), taps, [line.a * n for n in range(run)], dtype, tile)
    split, (*outer_at, run_at) = len(loops.batch), row_at
    for number, acc in enumerate(sums):
        em = group.emitter(() if column_live is None else (column_live,))
        bind_result(em, top, anchor, top.let(k.cast(acc, anchor.dtype), "acc"))
        line_at = ix.add(ix.mul(run_at, integer(run)), integer(number))
        output_index = loops.result(loops.full((*column_at[:split], *outer_at, line_at, *column_at[split:])))
        for root, buffer, layout in group.results:
            write(top, em, root, buffer, layout, result_index(top, root, anchor, output_index), column_live, row_live)
    chunks = ceildiv(product(row_shape), tile[0]) * column_tiles
    step = group.step("depthwise", chunk, chunks, top, *extra, warps=choice.warps)
    return Lowered((*copies, step), temps, () if pack is None else (pack,), site)


def _needs_copy(loops: Loops) -> bool:
    """Whether threads would load the weights of neighboring channels one by one, for many positions."""
    *outer, inner = merge_axes(tuple(Axis(x.extent, x.b) for x in (*loops.batch, *loops.cols)))
    sizes = (n for x in (*loops.batch, *loops.reduce, *loops.cols) for n in (x.extent, x.b))
    is_contiguous = not outer and (inner.a == 1 or inner.extent == 1)
    positions = estimate(product(x.extent for x in loops.rows))
    return not is_contiguous and all(isinstance(n, int) for n in sizes) and positions >= MIN_POSITIONS_FOR_COPY


def _sums_of_taps(
    top: Block,
    x: tuple[Buffer, Expr],
    w: tuple[Buffer, Expr],
    taps: tuple[Axis, ...],
    run: Sequence[DimLike],
    dtype: DType,
    tile: tuple[int, int],
) -> list[Expr]:
    """Return a tile of sums of x * w over the window for each position of a run. x, w: (buffer, offset of the first
    tap). run: the offsets in x of its positions."""
    sums = [register(top, "acc", constant_tile(dtype, tile)) for _ in run]
    counts = [product(t.extent for t in taps[at:]) for at in range(len(taps) + 1)]
    looped = next(at for at, n in enumerate(counts) if isinstance(n, int) and n <= MAX_UNROLLED_TAPS)
    x_strides, w_strides = [t.a for t in taps], [t.b for t in taps]

    def loads(
        block: Block, operand: tuple[Buffer, Expr], outer: Index, strides: Sequence[DimLike], inner: Sequence[DimLike]
    ) -> dict[DimLike, Expr]:
        """The elements of an operand by their offset from that of the looped taps."""
        start = ix.add(operand[1], offset_of(outer, strides[:looped]))
        offsets = dict.fromkeys(inner)
        return {at: k.cast(read_at(block, operand[0], ix.add(start, dim_expr(at)), None), dtype) for at in offsets}

    def add(block: Block, index: Index) -> None:
        if len(index) < looped:
            return block.loop("t", 0, taps[len(index)].extent, 1, lambda inner, t: add(inner, (*index, t)))
        unrolled = [*product_of(*(range(int(t.extent)) for t in taps[looped:]))]
        x_taps, w_taps = (
            [sum((n * s for n, s in zip(tap, strides[looped:], strict=True)), 0) for tap in unrolled]
            for strides in (x_strides, w_strides)
        )
        # all loads are under way before the first is used
        values = loads(block, x, index, x_strides, [tap + at for tap in x_taps for at in run])
        weights = loads(block, w, index, w_strides, w_taps)
        for x_tap, w_tap in zip(x_taps, w_taps, strict=True):
            for acc, at in zip(sums, run, strict=True):
                value, weight = (k.spread(v, tile) for v in k.broadcast(values[x_tap + at], weights[w_tap]))
                block.store(acc, ZERO, k.fma(value, weight, k.load(acc, ZERO)))
        return None

    add(top, ())
    return [k.load(acc, ZERO) for acc in sums]


def _default_tile(positions: int, channels: int, taps: int, line: DimLike, machine: Machine) -> Patch:
    """Return the default tile. Its width divides the number of channels, or is larger if few lanes then have none.
    line: the positions along the innermost axis."""
    run = default_run(positions * channels, line, machine)
    positions //= run
    elements_per_program = positions * channels // machine.target_programs
    min_size, max_size, load_elements = MIN_TILE_ELEMENTS, MAX_TILE_ELEMENTS, WIDE_LOAD_ELEMENTS
    if run > 1:
        max_size, load_elements = MAX_TILE_RUNS, RUN_LOAD_ELEMENTS
    elif taps > MAX_WIDE_LOAD_TAPS:
        load_elements = NARROW_LOAD_ELEMENTS
    if taps > MAX_LARGE_TILE_TAPS and run == 1:
        min_size, elements_per_program = MIN_SMALL_TILE_ELEMENTS, elements_per_program // 2 + 1
    size = min(max_size, max(min_size, power_of_two(elements_per_program)))
    max_width = min(MAX_TILE_CHANNELS if taps <= MAX_LARGE_TILE_TAPS else MAX_TILE_CHANNELS // 2, size)
    width = max(16, min(max_width, channels & -channels, power_of_two(channels)))
    for wider in (64, 32):
        if width == 16 and wider <= max_width and channels >= MIN_LANE_UTILIZATION * wider * -(-channels // wider):
            width = wider
    rows = max(1, min(size // width, power_of_two(positions)))
    return Patch(rows, width, min(8, max(1, rows * width // (32 * load_elements))), run)


def default_run(elements: int, line: DimLike, machine: Machine) -> int:
    """The longest run that divides a line and leaves enough threads."""
    max_run = elements // (RUN_LOAD_ELEMENTS * MIN_RUN_THREADS * machine.processors)
    runs = (n for n in range(min(MAX_RUN, max_run), 1, -1) if isinstance(line, int) and line % n == 0)
    return next(runs, 1)


def _admits(choice: Patch, line: DimLike) -> bool:
    """line: the positions along the innermost axis, which consists of whole runs."""
    are_powers_of_two = all(n > 0 and n & n - 1 == 0 for n in (choice.rows, choice.columns, choice.warps))
    if not 1 <= choice.run <= MAX_RUN or (choice.run > 1 and not (isinstance(line, int) and line % choice.run == 0)):
        return False
    return are_powers_of_two and choice.rows * choice.columns <= 2 * MAX_TILE_ELEMENTS and choice.warps <= 8


__all__ = ["default_run", "is_depthwise", "lower_depthwise"]
