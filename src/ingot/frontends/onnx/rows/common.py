"""Helpers that several families of rows share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from ingot import ops
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.wishes import element_symbols
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import DimLike, bounds, dim_max, is_static
from ingot.ir.node import Node
from ingot.ir.types import DType


def in_dtype(dtype: DType, fn: Callable[..., Node], *xs: Node) -> Node:
    """`fn` computed in `dtype`, its result in the first operand's dtype."""
    return ops.cast(fn(*(ops.cast(x, dtype) for x in xs)), xs[0].dtype)


def channel_vector(v: Node, rank: int, axis: int = 1) -> Node:
    """A vector shaped to broadcast along `axis` of a tensor of `rank`."""
    return ops.reshape(v, tuple(-1 if i == axis else 1 for i in range(rank))) if rank > 1 else v


def checked_size(c: Call, d: DimLike) -> DimLike:
    """The size; if data determines it, calls check that it is not negative."""
    lowest = bounds(d)[0]
    if not element_symbols(d) or (lowest is not None and lowest >= 0):
        return d
    c.importer.require(d, f"a size of {d}")
    return dim_max(d, 0)


def parts_of(c: Call, x: Node, axis: int, sizes: Sequence[DimLike]) -> tuple[Node, ...]:
    """Parts of these sizes, whose sum must be the axis's size; calls check that where it is not known at import."""
    sizes, size = [checked_size(c, d) for d in sizes], x.shape[axis]
    ends = list(itertools.accumulate(sizes))
    if ends[-1] != size:
        c.importer.require_equal(ends[-1], size, f"a split of {size} into {', '.join(map(str, sizes))}")
    return tuple(cut(x, axis, end - part, end) for end, part in zip(ends, sizes, strict=True))


def ints_of(dims: Sequence[DimLike], what: str) -> tuple[int, ...]:
    """Static sizes. Raises Unsupported where one is symbolic."""
    if not is_static(dims):
        raise Unsupported(f"{what} must be static, got [{', '.join(map(str, dims))}]")
    return tuple(int(d) for d in dims)


_MAX_TABLE_ELEMENTS = 1 << 28


def check_table(*sizes: float) -> None:
    """Raise Unsupported where a table of these sizes, which a model requests, is too large to build at import."""
    if min(sizes) < 0 or not math.prod(sizes) <= _MAX_TABLE_ELEMENTS:
        raise Unsupported(f"a table of {' x '.join(f'{size:g}' for size in sizes)} numbers made at import")
