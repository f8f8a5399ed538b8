"""The kernel that runs once a size is known at run time, and writes what depends on it into later steps' tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import MAX_INTEGER, DimLike, is_computed, symbols_of
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.types import boolean, i64
from ingot.schedule.block import Block
from ingot.schedule.buffers import symbol_params
from ingot.schedule.index import ZERO, dim_expr


def size_names(dims: Sequence[DimLike]) -> tuple[str, ...]:
    """The sizes among the symbols of `dims` that are found at run time, in the order of the kernel's operands."""
    return tuple(sorted(s for s in frozenset().union(*map(symbols_of, dims)) if is_computed(s)))


# no size is as small. The smallest integer, which NaN becomes, marks a size that was not computed, and wraps in checks.
_MIN_SIZE = -MAX_INTEGER - 1


def sizes_kernel(nonnegative: Sequence[DimLike], values: Mapping[DimLike, Sequence[int]]) -> Kernel:
    """written: values, and the places in the table that each goes to.

    Params: the sizes that these mention (`size_names`), i64 each, which are raised to `_MIN_SIZE`; the table; a byte
    that says whether all of `nonnegative` are not negative. One chunk.
    """
    dims = (*nonnegative, *values)
    names = size_names(dims)
    sizes = tuple(Buffer(f"size{i}", i64, 1, writable=True, align=8) for i in range(len(names)))
    table, is_valid = Buffer("table", i64, writable=True, align=8), Buffer("fine", boolean, 1, writable=True, align=1)
    block = Block()
    for name, buffer in zip(names, sizes, strict=True):
        block.stmts.append(k.Let(k.var(name), k.binary("max", k.load(buffer, ZERO), integer(_MIN_SIZE))))
        block.store(buffer, ZERO, k.var(name))
    valid: Expr = k.lit(True, boolean)
    for d in nonnegative:
        valid = k.binary("and", valid, k.binary("ge", dim_expr(d), ZERO))
    block.store(is_valid, ZERO, valid)
    for d, positions in values.items():
        value = block.let(dim_expr(d), "d")
        for place in positions:
            block.store(table, integer(place), value)
    kernel_dims = tuple(v for v in symbol_params(*dims) if v.name not in names)
    return Kernel("sizes", (*sizes, table, is_valid), kernel_dims, k.var("chunk"), integer(1), block.body)
