"""The kernel that runs when a computed size is known, and writes the values that depend on it into tables of later
steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import MAX_INTEGER, MAX_SIZE, Apply, DimLike, Symbol, is_computed, is_number, symbols_of
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.types import boolean, f64, i64
from ingot.schedule.block import Block
from ingot.schedule.buffers import symbol_params
from ingot.schedule.index import ZERO, dim_expr


def size_names(dims: Sequence[DimLike]) -> tuple[str, ...]:
    """The computed sizes among the symbols of `dims`, in the order of the kernel's operands."""
    return tuple(sorted(s for s in frozenset().union(*map(symbols_of, dims)) if is_computed(s)))


# no size is as small. The smallest integer, which NaN becomes, marks a size that was not computed, and wraps in checks.
_MIN_SIZE = -MAX_INTEGER - 1


_MAX_MAGNITUDE = float((1 << 63) - (1 << 23))  # far enough from 2^63 for the rounding of f64


class _Checked:
    """Sums and products of 64-bit integers, with the condition that none overflows: their magnitudes are compared in
    f64."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.is_in_range: Expr = k.lit(True, boolean)

    def add(self, a: Expr, b: Expr) -> Expr:
        return self._checked("add", k.add(a, b), a, b)

    def mul(self, a: Expr, b: Expr) -> Expr:
        return self._checked("mul", k.mul(a, b), a, b)

    def _checked(self, fn: str, result: Expr, a: Expr, b: Expr) -> Expr:
        if result in (a, b) or isinstance(result, k.Lit):
            return result
        rounded = self._block.let(k.binary(fn, k.cast(a, f64), k.cast(b, f64)), "f")
        for comparison, limit in (("le", _MAX_MAGNITUDE), ("ge", -_MAX_MAGNITUDE)):
            is_within = k.binary(comparison, rounded, k.lit(limit, f64))
            self.is_in_range = k.binary("and", self.is_in_range, is_within)
        return self._block.let(result, "i")


def sizes_kernel(nonnegative: Sequence[DimLike], values: Mapping[DimLike, Sequence[int]]) -> Kernel:
    """written: values, and the places in the table that each goes to.

    Params: the sizes that these mention (`size_names`), i64 each, which are raised to `_MIN_SIZE`; the table; a byte
    that says whether all of `nonnegative` are not negative. One chunk. Where a sum or a product on the way overflows,
    the byte is 0 and the last of the sizes becomes `_MIN_SIZE`, which is out of its bounds.
    """
    dims = (*nonnegative, *values)
    names = size_names(dims)
    sizes = tuple(Buffer(f"size{i}", i64, 1, writable=True, align=8) for i in range(len(names)))
    table, is_valid = Buffer("table", i64, writable=True, align=8), Buffer("fine", boolean, 1, writable=True, align=1)
    block = Block()
    for name, buffer in zip(names, sizes, strict=True):
        block.stmts.append(k.Let(k.var(name), k.binary("max", k.load(buffer, ZERO), integer(_MIN_SIZE))))
        block.store(buffer, ZERO, k.var(name))
    checked = _Checked(block)

    def expression(d: DimLike) -> Expr:
        return dim_expr(d, checked.add, checked.mul) if _can_overflow(d) else dim_expr(d)

    valid: Expr = k.lit(True, boolean)
    for d in nonnegative:
        valid = k.binary("and", valid, k.binary("ge", expression(d), ZERO))
    for d, positions in values.items():
        value = block.let(expression(d), "d")
        for place in positions:
            block.store(table, integer(place), value)
    block.store(is_valid, ZERO, k.binary("and", valid, checked.is_in_range))
    if any(map(_can_overflow, dims)):
        last = k.select(checked.is_in_range, k.var(names[-1]), integer(_MIN_SIZE))
        block.store(sizes[-1], ZERO, last)
    kernel_dims = tuple(v for v in symbol_params(*dims) if v.name not in names)
    return Kernel("sizes", (*sizes, table, is_valid), kernel_dims, k.var("chunk"), integer(1), block.body)


_BITS_OF_INTEGERS, _BITS_OF_SIZES = MAX_INTEGER.bit_length() - 1, MAX_SIZE.bit_length() - 1


def _can_overflow(d: DimLike) -> bool:
    """Whether a sum or product in the evaluation of a value may exceed 64 bits, given the bits of its symbols."""
    return _bits(d) > _BITS_OF_INTEGERS


def _bits(d: DimLike) -> int:
    """An upper bound of the bits of the magnitudes in the evaluation of a value."""
    if isinstance(d, int):
        return d.bit_length()
    terms = [sum(map(_atom_bits, mono)) + abs(coefficient).bit_length() - 1 for mono, coefficient in d.terms]
    return max(terms) + (len(terms) - 1).bit_length()


def _atom_bits(atom: Symbol | Apply) -> int:
    if isinstance(atom, Apply):
        return max(_bits(atom.a), _bits(atom.b))
    return _BITS_OF_INTEGERS if is_number(atom.name) else _BITS_OF_SIZES
