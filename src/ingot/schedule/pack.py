"""B's panels: constant operands repacked at compile time, run-time ones whose columns lie apart transposed in scratch.

    B[batch, reduce, cols]   ->   [batch][outer cols][panel][k][columns of the panel]

A panel is what one register tile reads: for each k its columns lie side by side, so B is one contiguous stream. The
last panel is as narrow as whole vectors allow; missing columns are zero (at run time: copies of the last).

bf16 weights have pairs of k side by side: [panel][k / 2][columns][2], what lies in one 32-bit lane. An odd number of k
in the innermost reduction loop is filled with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.types import static_shape
from ingot.schedule.block import Block
from ingot.schedule.index import add, dim_expr, integer, mul
from ingot.schedule.tile import Contraction, Plan, merge_axes
from ingot.schedule.transpose import transpose_block


def panel_widths(columns: int, plan: Plan) -> list[int]:
    """Columns of each panel, whole vectors."""
    full, rest = divmod(columns, plan.panel)
    return [plan.panel] * full + ([-(-rest // plan.lanes) * plan.lanes] if rest else [])


def pack_key(c: Contraction, plan: Plan, offset: int = 0) -> str:
    """Names the transformation: equal keys repack equal arrays equally."""
    axes = "/".join(",".join(f"{x.extent}:{x.b}" for x in group) for group in (c.batch, c.cols, c.reduce))
    return f"panels {axes} @{offset} {plan.panel}x{plan.lanes} {c.b} {c.pair}"


def pack_panels(array: np.ndarray, c: Contraction, plan: Plan, offset: int = 0) -> np.ndarray:
    """B, a contiguous array, as one flat array of panels. Strides of the axes count elements of `array`, from
    `offset`.
    """
    flat = np.ascontiguousarray(array).reshape(-1)[offset:]
    axes = (*c.batch, *c.cols[:-1], *c.reduce, *c.cols[-1:])
    view = as_strided(
        flat,
        static_shape(tuple(x.extent for x in axes)),
        tuple(int(x.b) * flat.itemsize for x in axes),  # type: ignore[arg-type]
        writeable=False,
    )
    lead = len(c.batch) + len(c.cols) - 1
    outer = int(np.prod(view.shape[:lead], dtype=np.int64))
    columns = view.shape[-1]
    run = static_shape((merge_axes(c.reduce)[-1].extent,))[0]
    dense = view.reshape(outer, -1, run, columns)
    turns = -(-run // c.pair)
    parts = []
    start = 0
    for width in panel_widths(columns, plan):
        part = np.zeros((outer, dense.shape[1], turns, width, c.pair), array.dtype)
        stop = min(start + width, columns)
        for i in range(c.pair):
            part[:, :, : -(-(run - i) // c.pair), : stop - start, i] = dense[:, :, i :: c.pair, start:stop]
        parts.append(part.reshape(outer, -1))
        start = stop
    return np.ascontiguousarray(np.concatenate(parts, axis=1)).reshape(-1)


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


def turn_panel(block: Block, b: Strip, out: Buffer, rows: int, depth: DimLike, width: int, plan: Plan) -> None:
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
