"""B's panels: constant operands repacked at compile time, run-time ones whose columns lie apart transposed in scratch.

    B[batch, reduce, cols]   ->   [batch][outer cols][panel][k][columns of the panel]

A panel is what one register tile reads: for each k its columns lie side by side, so B is one contiguous stream. The
last panel is as narrow as whole vectors allow; missing columns are zero (at run time: copies of the last).

Narrow weights have the k of one 32-bit lane side by side: [panel][k / 2][columns][2] for bf16, 4 instead of 2 for i8.
What is missing at the end of the innermost reduction loop is zero. Levels of weights (`block_quantized.py`) lie so too,
in words of 32 bits, signed ones moved by half of their range.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.array import by_strides
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.types import static_shape, u32
from ingot.schedule.axes import Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.transpose import transpose_block
from ingot.schedule.index import add, dim_expr, integer, mul
from ingot.schedule.lowered import Pack
from ingot.support.dataclass import dataclass
from ingot.support.files import release


def panel_widths(columns: int, plan: Plan) -> list[int]:
    """Columns of each panel, whole vectors."""
    full, rest = divmod(columns, plan.panel)
    return [plan.panel] * full + ([-(-rest // plan.lanes) * plan.lanes] if rest else [])


def panels(index: int, c: Contraction, plan: Plan, offset: int = 0) -> Pack:
    """B, the contiguous constant operand `index`, repacked in panels. Strides of the axes count its elements, from
    `offset`.
    """
    axes = (*c.batch, *c.cols[:-1], *merge_axes(c.reduce), *c.cols[-1:])
    *shape, run, columns = static_shape(tuple(x.extent for x in axes))
    outer = prod(shape[: len(c.batch) + len(c.cols) - 1])
    turns = -(-run // c.per_lane)
    lines = prod(shape) // outer * turns * (1 if c.of_levels else c.per_lane)  # elements of a column
    widths = panel_widths(columns, plan)

    def write(array: np.ndarray, out: np.ndarray) -> None:
        dense = stepped(array, offset, (*shape, run, columns), static_shape(tuple(x.b for x in axes)))
        rows = out.reshape(outer, -1)
        start = 0
        for width in widths:
            stop = min(start + width, columns)
            source = dense[..., start:stop]
            panel = rows[:, start * lines : (start + width) * lines]
            if c.of_levels:
                panel.reshape(*shape, turns, width)[..., : stop - start] = _words(source, c)
            else:
                panel = panel.reshape(*shape, turns, width, c.per_lane)
                for i in range(c.per_lane):
                    panel[..., : -(-(run - i) // c.per_lane), : stop - start, i] = source[..., i :: c.per_lane, :]
            release(source)  # of a large transposed weight, panel by panel
            start += width

    named = "/".join(",".join(f"{x.extent}:{x.b}" for x in group) for group in (c.batch, c.cols, c.reduce))
    key = f"panels {named} @{offset} {plan.panel}x{plan.lanes} {c.b} {c.per_lane}"
    return Pack(index, key, u32 if c.of_levels else c.b, outer * lines * sum(widths), write)


def product_panels(b: np.ndarray, out: np.ndarray, widths: Sequence[int]) -> None:
    """[products, k, columns] as panels of each product; `out` is zero where columns are missing."""
    products, depth, _ = b.shape
    start = 0
    for width in widths:
        panel = out.reshape(products, -1)[:, start * depth : (start + width) * depth]
        part = b[:, :, start : start + width]
        panel.reshape(products, depth, width)[:, :, : part.shape[2]] = part
        start += width


def window_stream(w: np.ndarray, out: np.ndarray, lanes: int) -> None:
    """[r, r, ci, columns] as [ci][vector of columns][r * r][lanes]; `out` is zero where columns are missing."""
    r, _, ci, count = w.shape
    windows = out.reshape(ci, -1, r * r, lanes)
    for start in range(0, count, lanes):
        part = w[..., start : start + lanes].reshape(r * r, ci, -1)
        windows[:, start // lanes, :, : part.shape[-1]] = part.swapaxes(0, 1)


def _words(levels: np.ndarray, c: Contraction) -> np.ndarray:
    """[.., k, columns] as [.., k / per_lane, columns] of u32, the levels of smaller k in lower bits."""
    each, bits = c.per_lane, c.b.bits
    plain = np.swapaxes(levels, -1, -2).view(np.uint8) & ((1 << bits) - 1)
    if c.b.kind == "i":
        plain ^= 1 << (bits - 1)
    missing = -plain.shape[-1] % each
    plain = np.pad(plain, [(0, 0)] * (plain.ndim - 1) + [(0, missing)]) if missing else plain
    plain = np.ascontiguousarray(plain[..., ::2] | plain[..., 1::2] << 4 if bits == 4 else plain)
    return np.swapaxes(plain.view("<u4"), -1, -2)


def stepped(array: np.ndarray, offset: int, extents: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """A view of `array`, or of a copy of it, with axes of these extents that step through its elements.

    offset, steps: count elements in row-major order. An array that lies in memory in another order, such as a
    transposed weight, is read where it is if each axis stays within one dimension.
    """
    strides = _within(array, offset, extents, steps) if array.size else None
    if strides is None:
        array = np.ascontiguousarray(array).reshape(-1)[offset:]
        return by_strides(array, extents, [s * array.itemsize for s in steps])
    start = array[tuple(slice(i, None) for i in np.unravel_index(offset, array.shape))]
    return by_strides(start, extents, strides)


def _within(array: np.ndarray, offset: int, extents: Sequence[int], steps: Sequence[int]) -> list[int] | None:
    """The strides in bytes of `stepped`; None where an axis goes from one dimension to another."""
    whole = [prod(array.shape[d + 1 :]) for d in range(array.ndim)]  # elements in a step of each dimension
    last = [int(i) for i in np.unravel_index(offset, array.shape)]
    strides: list[int] = []
    for extent, step in zip(extents, steps, strict=True):
        d = next((d for d, size in enumerate(whole) if step >= size and array.shape[d] > 1), None)
        if d is None or step % whole[d]:
            if extent > 1 and step:
                return None
            strides.append(0)
            continue
        last[d] += (extent - 1) * (step // whole[d])
        strides.append(step // whole[d] * array.strides[d])
    return strides if all(i < size for i, size in zip(last, array.shape, strict=True)) else None


@dataclass(frozen=True)
class Strip:
    """Columns `first`... of a B in memory: column n starts at `base` + n * stride, its k lie side by side; `columns`
    exist.
    """

    buffer: Buffer
    base: Expr
    stride: DimLike
    first: Expr
    columns: DimLike


def transpose_panel(block: Block, b: Strip, out: Buffer, rows: int, depth: DimLike, width: int, plan: Plan) -> None:
    """out[k, 0..width] = columns of the strip, by square blocks in registers. `rows`: depth in whole vectors; rows
    beyond depth are written with anything."""
    lanes = plan.lanes
    whole = static_shape((depth,))[0] // lanes * lanes

    def turn(x: Block, q: Expr, at_k: Expr, count: int) -> None:
        vectors = []
        for i in range(lanes):
            n = k.binary("min", add(b.first, add(q, integer(i))), dim_expr(b.columns - 1))
            at = add(add(b.base, mul(n, dim_expr(b.stride))), at_k)
            vectors.append(x.let(k.cast(_some(b.buffer, at, lanes, count, plan.masks), out.dtype), "r"))
        for i, vector in enumerate(transpose_block(x, vectors)):
            x.store(out, add(mul(add(at_k, integer(i)), integer(width)), q), vector)

    def across(x: Block, q: Expr) -> None:
        x.loop("k", 0, whole, lanes, lambda y, at_k: turn(y, q, at_k, lanes))
        if whole < rows:
            turn(x, q, integer(whole), static_shape((depth,))[0] - whole)

    block.loop("q", 0, width, lanes, across)


def _some(buffer: Buffer, at: Expr, lanes: int, count: int, masks: bool) -> Expr:
    """The first `count` elements at `at` as a vector."""
    if count == lanes:
        return k.load(buffer, at, lanes)
    if masks:
        return k.load(buffer, at, lanes, k.binary("lt", k.ramp(integer(0), lanes), integer(count)))
    short = k.load(buffer, at, count)
    return k.Shuffle(short.dtype, lanes, short, short, tuple(min(i, count - 1) for i in range(lanes)))
