"""The kernel behind a size that the run finds: what follows from it goes into the tables of the steps behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, is_found, symbols_of
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.types import boolean, i64
from ingot.schedule.block import Block
from ingot.schedule.buffers import symbol_params
from ingot.schedule.index import ZERO, dim_expr


def size_names(dims: Sequence[DimLike]) -> tuple[str, ...]:
    """The sizes among the symbols of `dims` that the run finds: the operands of their kernel, in order."""
    return tuple(sorted(s for s in frozenset().union(*map(symbols_of, dims)) if is_found(s)))


def sizes_kernel(nonnegative: Sequence[DimLike], written: Mapping[DimLike, Sequence[int]]) -> Kernel:
    """written: values, and the places in the table that each goes to.

    Params: the sizes that these mention, i64 each (`size_names`); the table; a byte that says whether all of
    `nonnegative` are not negative. One chunk.
    """
    dims = (*nonnegative, *written)
    found = size_names(dims)
    sizes = tuple(Buffer(f"size{i}", i64, 1, align=8) for i in range(len(found)))
    table, fine = Buffer("table", i64, writable=True, align=8), Buffer("fine", boolean, 1, writable=True, align=1)
    block = Block()
    for name, buffer in zip(found, sizes, strict=True):
        block.stmts.append(k.Let(k.var(name), k.load(buffer, ZERO)))
    right: Expr = k.lit(True, boolean)
    for d in nonnegative:
        right = k.binary("and", right, k.binary("ge", dim_expr(d), ZERO))
    block.store(fine, ZERO, right)
    for d, places in written.items():
        value = block.let(dim_expr(d), "d")
        for place in places:
            block.store(table, integer(place), value)
    known = tuple(v for v in symbol_params(*dims) if v.name not in found)
    return Kernel("sizes", (*sizes, table, fine), known, k.var("chunk"), integer(1), block.body)
