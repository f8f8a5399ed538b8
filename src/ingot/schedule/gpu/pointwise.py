"""Pointwise groups: a program computes contiguous elements of the results, or a tile of rows and columns.

out[i, j] = f(a[i, j], b[j])   ->   at = chunk * 1024 + range(1, 1024);  out[at] = f(a[at], b[at % n])
                               ->   out[rows, columns] = f(a[rows, columns], b[columns])

In a tile, what depends on the column alone (the scale of a channel) is computed once for all of a thread's rows, and
positions are split into coordinates once for each row.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Tile
from ingot.ops import Reshape, Transpose
from ingot.schedule.block import Block
from ingot.schedule.collapse_dims import collapse_dims
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Elements, Group, Span, all_of, memory_order, power_of_two, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import dim_expr, integer
from ingot.schedule.lowered import Lowered

MIN_ELEMENTS, MAX_ELEMENTS = 128, 1024  # of a program without rows
MAX_TILE_ELEMENTS = 1024  # of a tile of rows
MAX_COLUMNS, MIN_COLUMNS = 128, 16  # of a tile
MIN_LANE_UTILIZATION = 0.8  # of the columns of all tiles
ELEMENTS_PER_WARP = 256  # 8 per thread


def lower_pointwise(group: Group, machine: Machine) -> Lowered:
    """Lower to one kernel; all results have the same shape."""
    collapsed = collapse_dims(group.body, group.ins, group.outs)
    group = group if collapsed is None else Group.of(*collapsed)
    result = group.body.outputs[0]
    tile = _tile(group, machine)
    if tile is not None:
        return _lower_tiles(group, tile)
    work = Elements.of(group, result, machine, MIN_ELEMENTS, MAX_ELEMENTS)
    for root, buffer, layout in work.group.results:
        write(work.top, work.em, root, buffer, layout, work.index, work.span.in_bounds)
    chunks = ceildiv(product(result.shape), work.tile[1])
    return Lowered((work.group.step("pointwise", work.chunk, chunks, work.top),))


def _tile(group: Group, machine: Machine) -> Tile | None:
    """The tile of a program along the rows and the innermost dimension; None where that is short, where elements of a
    row are not contiguous in memory, or where rows start at addresses from which a thread cannot load several
    elements."""
    shape = group.body.outputs[0].shape
    if len(shape) < 2 or not isinstance(shape[-1], int) or _moves_columns(group) or not _has_aligned_rows(group):
        return None
    size = power_of_two(max(1, estimate(product(shape)) // machine.target_programs))
    size = min(MAX_TILE_ELEMENTS, max(MIN_ELEMENTS, size))
    width = min(MAX_COLUMNS, power_of_two(shape[-1]))
    splits = (n for n in group.body.nodes() if isinstance(n.op, Reshape) and n.shape[-1:] != n.inputs[0].shape[-1:])
    if shape[-1] % MIN_COLUMNS == 0 and any(splits):  # elements at parts of a remainder would be loaded one by one
        width = min(width, shape[-1] & -shape[-1])
    while width >= MIN_COLUMNS and shape[-1] < MIN_LANE_UTILIZATION * width * -(-shape[-1] // width):
        width //= 2
    return (size // width, width) if width >= MIN_COLUMNS else None


def _moves_columns(group: Group) -> bool:
    """Whether the rows of an operand or a result are not contiguous."""
    nodes = group.body.nodes()
    is_transposed = any(isinstance(n.op, Transpose) and n.op.permutation[-1] != n.type.rank - 1 for n in nodes)
    in_order = memory_order(group, group.body.outputs[0]) == tuple(range(len(group.body.outputs[0].shape)))
    strides = [lay.strides[-1] for lay in (*group.ins, *group.outs) if lay.shape and lay.shape[-1] != 1]
    return is_transposed or not in_order or any(s not in (0, 1) for s in strides)


def _has_aligned_rows(group: Group) -> bool:
    results = zip(group.body.outputs, group.outs, strict=True)
    for n, layout in (*zip(group.body.inputs, group.ins, strict=True), *results):
        unit = max(1, ALIGNMENT_BYTES // n.dtype.nbytes)
        if any(d != 1 and estimate(s) % unit for d, s in zip(layout.shape[:-1], layout.strides[:-1], strict=True)):
            return False
    return True


def _lower_tiles(group: Group, tile: Tile) -> Lowered:
    """A kernel whose programs compute tiles of rows; neighboring programs compute the columns of the same rows."""
    (height, width), shape = tile, group.body.outputs[0].shape
    top, chunk = Block(), k.var("chunk")
    row_count, column_tiles = product(shape[:-1]), ceildiv(shape[-1], width)
    row = top.let(k.binary("div", chunk, dim_expr(column_tiles)), "row")
    column = top.let(k.binary("rem", chunk, dim_expr(column_tiles)), "column")
    rows = Span.of(top, k.mul(row, integer(height)), height, row_count, 0, wraps=True)
    columns = Span.of(top, k.mul(column, integer(width)), width, shape[-1], 1, wraps=True)
    index = (*rows.index(top, shape[:-1]), columns.position)
    em = group.emitter()
    for root, buffer, layout in group.results:
        write(top, em, root, buffer, layout, index, None, all_of(rows.in_bounds, columns.in_bounds))
    warps = min(4, max(1, height * width // ELEMENTS_PER_WARP))
    return Lowered((group.step("pointwise", chunk, ceildiv(row_count, height) * column_tiles, top, warps=warps),))


__all__ = ["lower_pointwise"]
