"""B's panels: constant operands are packed at compile time, run-time ones with strided columns transposed in scratch.

    B[batch, reduce, cols]   ->   [batch][outer cols][panel][k][columns of the panel]

A register tile reads one panel. The columns of each k are contiguous, so B is one contiguous stream. The last panel is
as narrow as full vectors allow; its missing columns are zero (copies of the last column, if packed at run time).

In panels of narrow weights the k of one 32-bit lane are contiguous: [panel][k / 2][columns][2] for bf16, 4 instead of 2
for i8. The end of the innermost reduction loop is padded with zeros. Quantized levels have packs of their own
(`compressed/block_quantized_operand.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.array import view_by_strides
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.types import static_shape
from ingot.schedule.axes import Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.transpose import transpose_block
from ingot.schedule.index import add, dim_expr, integer, mul
from ingot.schedule.lowered import Pack
from ingot.support.dataclass import dataclass
from ingot.support.files import release


def panel_widths(columns: int, plan: Plan) -> list[int]:
    """Return the columns of each panel, rounded up to full vectors."""
    full, rest = divmod(columns, plan.panel_columns)
    return [plan.panel_columns] * full + ([-(-rest // plan.lanes) * plan.lanes] if rest else [])


def pack_panels(index: int, c: Contraction, plan: Plan, offset: int = 0) -> Pack:
    """Return the packing of B, the contiguous constant operand `index`, into panels. The strides of the axes count its
    elements from `offset`."""
    axes = (*c.batch, *c.cols[:-1], *merge_axes(c.reduce), *c.cols[-1:])
    *shape, run, columns = static_shape(tuple(x.extent for x in axes))
    outer = prod(shape[: len(c.batch) + len(c.cols) - 1])
    steps = -(-run // c.k_per_lane)
    column_elements = prod(shape) // outer * steps * c.k_per_lane  # elements of a column
    widths = panel_widths(columns, plan)

    def write(array: np.ndarray, out: np.ndarray) -> None:
        dense = strided_view(array, offset, (*shape, run, columns), static_shape(tuple(x.b for x in axes)))
        rows = out.reshape(outer, -1)
        start = 0
        for width in widths:
            stop = min(start + width, columns)
            source = dense[..., start:stop]
            panel = rows[:, start * column_elements : (start + width) * column_elements]
            panel = panel.reshape(*shape, steps, width, c.k_per_lane)
            for i in range(c.k_per_lane):
                panel[..., : -(-(run - i) // c.k_per_lane), : stop - start, i] = source[..., i :: c.k_per_lane, :]
            release(source)  # of a large transposed weight, panel by panel
            start += width

    # of a reduction that A alone divides, the panels are the same
    reduce = merge_axes(tuple(replace(x, a=x.b) for x in c.reduce)) if c.k_per_lane == 1 else c.reduce
    axes_key = "/".join(",".join(f"{x.extent}:{x.b}" for x in group) for group in (c.batch, c.cols, reduce))
    key = f"panels {axes_key} @{offset} {plan.panel_columns}x{plan.lanes} {c.b} {c.k_per_lane}"
    return Pack(index, key, c.b, outer * column_elements * sum(widths), write, plan.panel_columns)


def pack_product_panels(b: np.ndarray, out: np.ndarray, widths: Sequence[int]) -> None:
    """Pack [products, k, columns] into panels per product. `out` must be zero where columns are missing."""
    products, depth, _ = b.shape
    start = 0
    for width in widths:
        panel = out.reshape(products, -1)[:, start * depth : (start + width) * depth]
        part = b[:, :, start : start + width]
        panel.reshape(products, depth, width)[:, :, : part.shape[2]] = part
        start += width


def pack_window_stream(w: np.ndarray, out: np.ndarray, lanes: int) -> None:
    """Pack [r, r, ci, columns] as [ci][vector of columns][r * r][lanes]. `out` must be zero where columns are
    missing."""
    r, _, ci, count = w.shape
    windows = out.reshape(ci, -1, r * r, lanes)
    for start in range(0, count, lanes):
        part = w[..., start : start + lanes].reshape(r * r, ci, -1)
        windows[:, start // lanes, :, : part.shape[-1]] = part.swapaxes(0, 1)


def strided_view(array: np.ndarray, offset: int, extents: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """Return a view of `array`, or of a copy of it, with these extents and steps.

    offset, steps: in elements, in row-major order. An array with another memory order, such as a transposed weight, is
    not copied if each axis stays within one dimension.
    """
    strides = _byte_strides(array, offset, extents, steps) if array.size else None
    if strides is None:
        array = np.ascontiguousarray(array).reshape(-1)[offset:]
        return view_by_strides(array, extents, [s * array.itemsize for s in steps])
    view = array[tuple(slice(i, None) for i in np.unravel_index(offset, array.shape))]
    return view_by_strides(view, extents, strides)


def _byte_strides(array: np.ndarray, offset: int, extents: Sequence[int], steps: Sequence[int]) -> list[int] | None:
    """The strides of `strided_view` in bytes; None if an axis crosses dimensions."""
    dim_steps = [prod(array.shape[d + 1 :]) for d in range(array.ndim)]  # elements in a step of each dimension
    last = [int(i) for i in np.unravel_index(offset, array.shape)]
    strides: list[int] = []
    for extent, step in zip(extents, steps, strict=True):
        d = next((d for d, size in enumerate(dim_steps) if step >= size and array.shape[d] > 1), None)
        if d is None or step % dim_steps[d]:
            if extent > 1 and step:
                return None
            strides.append(0)
            continue
        last[d] += (extent - 1) * (step // dim_steps[d])
        strides.append(step // dim_steps[d] * array.strides[d])
    return strides if all(i < size for i, size in zip(last, array.shape, strict=True)) else None


@dataclass(frozen=True)
class Strip:
    """The columns of a B in memory from `first_column`. Column n starts at `base` + n * stride and is contiguous in k.
    columns: the number of valid columns."""

    buffer: Buffer
    base: Expr
    stride: DimLike
    first_column: Expr
    columns: DimLike


def transpose_panel(block: Block, b: Strip, out: Buffer, rows: int, depth: DimLike, width: int, plan: Plan) -> None:
    """out[k, 0..width] = columns of the strip, transposed in square register blocks. rows: depth rounded up to full
    vectors; rows beyond `depth` get arbitrary values."""
    lanes = plan.lanes
    full_rows = static_shape((depth,))[0] // lanes * lanes

    def emit_block(x: Block, column: Expr, row: Expr, count: int) -> None:
        vectors = []
        for i in range(lanes):
            n = k.binary("min", add(b.first_column, add(column, integer(i))), dim_expr(b.columns - 1))
            offset = add(add(b.base, mul(n, dim_expr(b.stride))), row)
            vectors.append(x.let(k.cast(_load_partial(b.buffer, offset, lanes, count, plan.has_masks), out.dtype), "r"))
        for i, vector in enumerate(transpose_block(x, vectors)):
            x.store(out, add(mul(add(row, integer(i)), integer(width)), column), vector)

    def emit_columns(x: Block, column: Expr) -> None:
        x.loop("k", 0, full_rows, lanes, lambda y, at_k: emit_block(y, column, at_k, lanes))
        if full_rows < rows:
            emit_block(x, column, integer(full_rows), static_shape((depth,))[0] - full_rows)

    block.loop("q", 0, width, lanes, emit_columns)


def _load_partial(buffer: Buffer, offset: Expr, lanes: int, count: int, has_masks: bool) -> Expr:
    """Load the first `count` elements at `at` into a vector."""
    if count == lanes:
        return k.load(buffer, offset, lanes)
    if has_masks:
        return k.load(buffer, offset, lanes, k.binary("lt", k.ramp(integer(0), lanes), integer(count)))
    partial = k.load(buffer, offset, count)
    return k.Shuffle(partial.dtype, lanes, partial, partial, tuple(min(i, count - 1) for i in range(lanes)))
