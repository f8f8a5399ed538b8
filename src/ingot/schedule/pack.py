"""Constant operands of contractions, repacked at compile time.

    B[batch, reduce, cols]   ->   [batch][outer cols][panel][k][columns of the panel]

A panel is what one register tile reads: for each k its columns lie side by side, so B is one contiguous stream. The
last panel is as narrow as whole vectors allow; missing columns are zero.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ingot.ir.types import static_shape
from ingot.schedule.tile import Contraction, Plan


def panel_widths(columns: int, plan: Plan) -> list[int]:
    """Columns of each panel, whole vectors."""
    full, rest = divmod(columns, plan.panel)
    return [plan.panel] * full + ([-(-rest // plan.lanes) * plan.lanes] if rest else [])


def pack_key(c: Contraction, plan: Plan, offset: int = 0) -> str:
    """Names the transformation: equal keys repack equal arrays equally."""
    axes = "/".join(",".join(f"{x.extent}:{x.b}" for x in group) for group in (c.batch, c.cols, c.reduce))
    return f"panels {axes} @{offset} {plan.panel}x{plan.lanes} {c.b}"


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
    dense = view.reshape(outer, -1, columns)
    k = dense.shape[1]
    parts = []
    start = 0
    for width in panel_widths(columns, plan):
        part = np.zeros((outer, k, width), array.dtype)
        stop = min(start + width, columns)
        part[:, :, : stop - start] = dense[:, :, start:stop]
        parts.append(part.reshape(outer, -1))
        start = stop
    return np.ascontiguousarray(np.concatenate(parts, axis=1)).reshape(-1)
