"""Products of an open number of rows, likely some: one kernel has tiles for the likely number, another for many. The
number of rows of a call decides which of them has programs.

    programs of the first: tiles * (rows <= MAX_ROWS)      of the second: tiles * (rows > MAX_ROWS)

Where rows are likely few they are of a batch, and the bits of each must not depend on how many there are: one kernel
computes any number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, dim_max, estimate, likely_sizes, sign_bit, symbol, symbols_of
from ingot.schedule.buffers import symbol_params
from ingot.schedule.gpu.contraction.tiling import MAX_OPEN_ROWS
from ingot.schedule.index import dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step

MAX_ROWS = 256  # of the first kernel
MANY_ROWS = 512  # likely rows of the second


def lower_open_rows(rows: DimLike, lower: Callable[[], Lowered]) -> Lowered:
    """A product of `rows` rows. lower: lowers it for their likely number (`likely_sizes`)."""
    low, names = lower(), [*symbols_of(rows)]
    if len(names) != 1 or not MAX_OPEN_ROWS < estimate(rows) <= MAX_ROWS:
        return low
    size = -(-MANY_ROWS // estimate(rows)) * estimate(symbol(names[0]))
    with likely_sizes({names[0]: size}):
        other = lower()
    if [s.kernel for s in low.steps] == [s.kernel for s in other.steps]:
        return low
    is_many = sign_bit(MAX_ROWS - rows)
    first = (_enabled(s, 1 - is_many) for s in low.steps)
    second = (_enabled(_behind(s, low), is_many) for s in other.steps)
    temps = (*(n * (1 - is_many) for n in low.temps), *(n * is_many for n in other.temps))
    return Lowered((*first, *second), temps, (*low.packs, *other.packs), low.site, dim_max(low.zeros, other.zeros))


def _enabled(step: Step, bit: DimLike) -> Step:
    """`step` with no programs where `bit` is 0."""
    kernel = step.kernel
    dims = dict.fromkeys((*kernel.dims, *symbol_params(bit)))
    return replace(step, kernel=replace(kernel, dims=tuple(dims), chunks=k.mul(kernel.chunks, dim_expr(bit))))


def _behind(step: Step, other: Lowered) -> Step:
    """`step` with its temporaries and packs behind those of `other`."""
    starts = {"temp": len(other.temps), "pack": len(other.packs)}
    return replace(step, args=tuple(Arg(a.kind, a.index + starts.get(a.kind, 0)) for a in step.args))


__all__ = ["lower_open_rows"]
