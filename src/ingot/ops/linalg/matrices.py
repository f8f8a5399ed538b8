"""What factorizations are written in: batches of matrices [b, m, n] as terms, loops, and panels of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, TypeVar

from ingot.ir.dims import DimLike, ceildiv, dim_min, product
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.types import DType, TensorType, f32, i64, u32, u64
from ingot.ops.core.binary import And, BitcastConvert, Convert
from ingot.ops.core.control import While
from ingot.ops.core.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from ingot.ops.core.indexing import Gather
from ingot.ops.core.reduce import Reduce
from ingot.ops.core.shape import Transpose
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term

# factorizations go by panels of so many columns, and update what is right of a panel by products; matrices of up to
# _ONE columns are one panel
PANEL, _ONE = 32, 64


def check_matrices(op: Op, *inputs: TensorType, square: bool = False) -> None:
    for x in inputs:
        is_matrix = x.rank >= 2 and x.dtype.is_float and x.dtype.bits >= 16
        op.expect(is_matrix, f"expected matrices of floats of 16 bits or more, got {x}")
        sizes = x.shape[-2:]
        op.expect(not square or sizes[0] == sizes[1], f"expected square matrices, got {x}", (sizes[0], sizes[1]))


L = TypeVar("L", bound=Op)


def in_f32(lower: Callable[Concatenate[L, ...], Node | tuple[Node, ...]]) -> Callable[..., Any]:
    """The lowering of an op, whose matrices of 16 bits are computed in f32 and rounded once at its end."""

    @wraps(lower)
    def in_wide(op: L, *inputs: Node) -> Node | tuple[Node, ...]:
        narrow = inputs[0].dtype
        if narrow.bits >= 32:
            return lower(op, *inputs)
        out = lower(op, *(_converted(x, narrow, f32) for x in inputs))
        return (
            tuple(_converted(r, f32, narrow) for r in out) if isinstance(out, tuple) else _converted(out, f32, narrow)
        )

    return in_wide


def _converted(x: Node, old: DType, new: DType) -> Node:
    return Convert(new)(x) if x.dtype == old else x


def as_batch(x: Node | Term) -> Term:
    """[..., m, n] as [b, m, n]."""
    x = t.as_term(x)
    return x.reshape((product(x.shape[:-2]), *x.shape[-2:]))


def transposed(x: Term) -> Term:
    """Each matrix transposed."""
    return Term(Transpose((*range(x.rank - 2), x.rank - 1, x.rank - 2))(x.node))


def times(a: Term, b: Term) -> Term:
    """[b, m, k] [b, k, n]."""
    return t.contract(a, b, [(2, 1)], [(0, 0)])


def row_of(x: Term) -> Term:
    """Each element's row, [1, m, 1]."""
    return t.iota((1, x.shape[-2], 1), 1)


def column_of(x: Term) -> Term:
    return t.iota((1, 1, x.shape[-1]), 2)


def where(condition: Term, a: Term | float, b: Term | float) -> Term:
    out = t.where(condition, a, b)
    assert isinstance(out, Term)
    return out


def identity(like: Term, columns: DimLike | None = None) -> Term:
    """[1, n, columns], of `like`'s type and rows n."""
    n = like.shape[-2]
    shape = (1, n, n if columns is None else columns)
    return t.iota(shape, 1).equals(t.iota(shape, 2)).cast(like.dtype)


def triangle(x: Term, upper: bool = False) -> Term:
    """x on its diagonal and below it (above it), zeros elsewhere, whatever x has there."""
    row, column = row_of(x), column_of(x)
    return where(column >= row if upper else column <= row, x, 0.0)


def strict_triangle(x: Term, upper: bool = False) -> Term:
    """`triangle` less the diagonal."""
    row, column = row_of(x), column_of(x)
    return where(column > row if upper else column < row, x, 0.0)


def symmetric(x: Term) -> Term:
    """The symmetric matrix whose lower triangle is x's."""
    return triangle(x) + transposed(strict_triangle(x))


def diagonal(x: Term) -> Term:
    """[b, min(m, n)]."""
    k = dim_min(x.shape[1], x.shape[2])
    square = x.slice(1, 0, k).slice(2, 0, k)
    return where(row_of(square).equals(column_of(square)), square, 0.0).sum((2,), keepdims=False)


def _starts(x: Term, at: dict[int, Term]) -> list[Node]:
    zero = t.scalar(0, i64)
    return [at.get(axis, zero).node for axis in range(x.rank)]


def cut(x: Term, axis: int, start: Term, size: DimLike = 1) -> Term:
    """`size` rows (axis 1) or columns (axis 2) from `start` on, a scalar."""
    if size == x.shape[axis]:
        return x
    sizes = tuple(size if d == axis else n for d, n in enumerate(x.shape))
    return Term(DynamicSlice(sizes)(x.node, *_starts(x, {axis: start})))


def put(x: Term, part: Term, axis: int, start: Term) -> Term:
    """x with `part` from `start` on."""
    if part.shape[axis] == x.shape[axis]:
        return part
    return Term(DynamicUpdateSlice()(x.node, part.node, *_starts(x, {axis: start})))


def rows_at(x: Term, index: Term) -> Term:
    """x[b, index[b, k], :]: [b, k, n]."""
    if 0 in (x.shape[0], x.shape[1]):
        return t.full((*index.shape, x.shape[2]), 0, x.dtype)
    sizes = (1, 1, x.shape[2])
    return Term(Gather((2,), (1,), (0,), (0,), (1,), 2, sizes)(x.node, index.node))


def repeat(
    count: DimLike | Term,
    state: Sequence[Term],
    body: Callable[..., Sequence[Term]],
    fixed: Sequence[Term] = (),
    going: Callable[..., Term] | None = None,
) -> list[Term]:
    """state = body(step, *state, *fixed) for step = 0 .. count - 1; ends early where not going(step, *state).

    The body sees its arguments, constants and sizes alone.
    """
    if count == 0:
        return list(state)
    last = count if isinstance(count, Term) else t.as_term(t.size(count))
    start = (t.scalar(0, i64), last, *state, *fixed)
    entry = tuple(Input(f"v{i}", v.node.type)() for i, v in enumerate(start))
    step, end, *values = (Term(n) for n in entry)
    after = body(step, *values)
    more = step < end
    if going is not None:
        more = Term(And()(more.node, going(step, *values[: len(state)]).node))
    leave = (step + 1, end, *after, *values[len(state) :])
    loop = While(Graph(entry, (more.node,)), Graph(entry, tuple(v.node for v in leave)))
    return [Term(n) for n in loop(*(v.node for v in start)).results[2 : 2 + len(state)]]


def width_of(count: DimLike) -> int:
    """The width of a panel where `count` columns are to be reduced."""
    return count if isinstance(count, int) and count <= _ONE else PANEL


def by_panels(
    count: DimLike, state: Sequence[Term], step: Callable[..., Sequence[Term]], backwards: bool = False
) -> list[Term]:
    """state = step(first, many, *state) for panels from column `first` on, of which `many` are among the `count`."""
    if count == 0:
        return list(state)
    width = width_of(count)
    if width == count:
        return list(step(t.scalar(0, i64), t.as_term(t.size(count)), *state))
    panels = ceildiv(count, width)

    def body(i: Term, *values: Term) -> Sequence[Term]:
        *rest, total, number = values
        first = ((number - 1 - i) if backwards else i) * width
        left = t.minimum(total - first, width)
        assert isinstance(left, Term)
        return step(first, left, *rest)

    sizes = tuple(t.as_term(t.size(v)) for v in (count, panels))
    return repeat(panels, state, body, sizes)


def padded(x: Term, rows: DimLike, columns: DimLike) -> Term:
    """x with zeros below and right of it."""
    return x.pad(1, 0, rows - x.shape[1], 0.0).pad(2, 0, columns - x.shape[2], 0.0)


def whole_panels(count: DimLike) -> DimLike:
    """The columns of all panels, those of the last one that are none counted too."""
    width = width_of(count)
    return count if width == count else ceildiv(count, width) * width


def magnitude(x: Term) -> Term:
    """[b, 1, 1]: a power of two near the largest element, so that squares of x over it neither over- nor underflow.

    1 for zeros, NaN where the matrix has a NaN or an infinity.
    """
    largest = t.absolute(x)
    assert isinstance(largest, Term)
    top = Term(Reduce("max", (1, 2))(largest.node)).expand(1, 2)
    bits, mask = (u32, 0xFF << 23) if x.dtype == f32 else (u64, 0x7FF << 52)
    power = top.map(BitcastConvert(bits)) & t.scalar(mask, bits)
    # the exponent alone; that of subnormals is 0, that of infinities and NaN is infinity
    found = power.map(BitcastConvert(x.dtype))
    return where(found.equals(0.0), 1.0, where(found < float("inf"), found, float("nan")))
