"""Building blocks of factorizations: batches of matrices [b, m, n] as terms, loops, and panels of columns."""

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

# Factorizations process panels of PANEL_COLUMNS columns and update the columns to the right of a panel by products.
# Matrices of at most _MAX_SINGLE_PANEL_COLUMNS columns are one panel.
PANEL_COLUMNS, _MAX_SINGLE_PANEL_COLUMNS = 32, 64


def check_matrices(op: Op, *inputs: TensorType, square: bool = False) -> None:
    """Raise ShapeError unless `inputs` are (square) matrices [..., m, n] of floats of 16 bits or more."""
    for x in inputs:
        is_matrix = x.rank >= 2 and x.dtype.is_float and x.dtype.bits >= 16
        op.expect(is_matrix, f"expected matrices of floats of 16 bits or more, got {x}")
        sizes = x.shape[-2:]
        op.expect(not square or sizes[0] == sizes[1], f"expected square matrices, got {x}", (sizes[0], sizes[1]))


LARGEST_TOLERANCE = 0.9  # relative to the largest: tolerates rounding between equal elements
_OpT = TypeVar("_OpT", bound=Op)


def in_f32(lower: Callable[Concatenate[_OpT, ...], Node | tuple[Node, ...]]) -> Callable[..., Any]:
    """A decorator of lowerings: 16-bit matrices are computed in f32, and the results are rounded once."""

    @wraps(lower)
    def lower_in_f32(op: _OpT, *inputs: Node) -> Node | tuple[Node, ...]:
        dtype = inputs[0].dtype
        if dtype.bits >= 32:
            return lower(op, *inputs)
        results = lower(op, *(_convert_from(x, dtype, f32) for x in inputs))
        return (
            tuple(_convert_from(r, f32, dtype) for r in results)
            if isinstance(results, tuple)
            else _convert_from(results, f32, dtype)
        )

    return lower_in_f32


def _convert_from(x: Node, old: DType, new: DType) -> Node:
    return Convert(new)(x) if x.dtype == old else x


def as_batch(x: Node | Term) -> Term:
    """[..., m, n] as [b, m, n]."""
    x = t.as_term(x)
    return x.reshape((product(x.shape[:-2]), *x.shape[-2:]))


def transpose(x: Term) -> Term:
    """Each matrix transposed."""
    return Term(Transpose((*range(x.rank - 2), x.rank - 1, x.rank - 2))(x.node))


def matmul(a: Term, b: Term) -> Term:
    """The product of each pair of matrices [b, m, k] [b, k, n]."""
    return t.contract(a, b, [(2, 1)], [(0, 0)])


def row_of(x: Term) -> Term:
    """The row index of each element, [1, m, 1]."""
    return t.iota((1, x.shape[-2], 1), 1)


def column_of(x: Term) -> Term:
    """The column index of each element, [1, 1, n]."""
    return t.iota((1, 1, x.shape[-1]), 2)


def where(condition: Term, a: Term | float, b: Term | float) -> Term:
    """condition ? a : b."""
    out = t.where(condition, a, b)
    assert isinstance(out, Term)
    return out


def identity(like: Term, columns: DimLike | None = None) -> Term:
    """The identity [1, n, columns] of the dtype of `like`, n being its rows, and by default also the columns."""
    n = like.shape[-2]
    shape = (1, n, n if columns is None else columns)
    return t.iota(shape, 1).equals(t.iota(shape, 2)).cast(like.dtype)


def triangular_part(x: Term, upper: bool = False) -> Term:
    """The lower (upper) triangle of x with the diagonal, zeros elsewhere, even if x is NaN there."""
    row, column = row_of(x), column_of(x)
    return where(column >= row if upper else column <= row, x, 0.0)


def strict_triangular_part(x: Term, upper: bool = False) -> Term:
    """The lower (upper) triangle of x without the diagonal, zeros elsewhere."""
    row, column = row_of(x), column_of(x)
    return where(column > row if upper else column < row, x, 0.0)


def symmetric(x: Term) -> Term:
    """The symmetric matrix whose lower triangle is x's."""
    return triangular_part(x) + transpose(strict_triangular_part(x))


def diagonal(x: Term) -> Term:
    """The diagonal of each matrix, [b, min(m, n)]."""
    k = dim_min(x.shape[1], x.shape[2])
    square = x.slice(1, 0, k).slice(2, 0, k)
    return where(row_of(square).equals(column_of(square)), square, 0.0).sum((2,), keepdims=False)


def _start_nodes(x: Term, starts: dict[int, Term]) -> list[Node]:
    zero = t.scalar(0, i64)
    return [starts.get(axis, zero).node for axis in range(x.rank)]


def dynamic_slice(x: Term, axis: int, start: Term, size: DimLike = 1) -> Term:
    """`size` rows (axis 1) or columns (axis 2) of x from the scalar `start` on."""
    if size == x.shape[axis]:
        return x
    sizes = tuple(size if d == axis else n for d, n in enumerate(x.shape))
    return Term(DynamicSlice(sizes)(x.node, *_start_nodes(x, {axis: start})))


def dynamic_update(x: Term, part: Term, axis: int, start: Term) -> Term:
    """x with the rows or columns from `start` on replaced by `part`."""
    if part.shape[axis] == x.shape[axis]:
        return part
    return Term(DynamicUpdateSlice()(x.node, part.node, *_start_nodes(x, {axis: start})))


def take_rows(x: Term, index: Term) -> Term:
    """The rows x[b, index[b, k], :], as [b, k, n]."""
    if 0 in (x.shape[0], x.shape[1]):
        return t.full((*index.shape, x.shape[2]), 0, x.dtype)
    sizes = (1, 1, x.shape[2])
    return Term(Gather((2,), (1,), (0,), (0,), (1,), 2, sizes)(x.node, index.node))


def for_loop(
    count: DimLike | Term,
    state: Sequence[Term],
    body: Callable[..., Sequence[Term]],
    invariants: Sequence[Term] = (),
    condition: Callable[..., Term] | None = None,
) -> list[Term]:
    """A loop: state = body(step, *state, *invariants) for step in range(count), while condition(step, *state).

    The body may use only its arguments, constants and sizes.
    """
    if count == 0:
        return list(state)
    count_value = count if isinstance(count, Term) else t.as_term(t.size(count))
    operands = (t.scalar(0, i64), count_value, *state, *invariants)
    entry = tuple(Input(f"v{i}", v.node.type)() for i, v in enumerate(operands))
    step, end, *values = (Term(n) for n in entry)
    next_state = body(step, *values)
    has_next = step < end
    if condition is not None:
        has_next = Term(And()(has_next.node, condition(step, *values[: len(state)]).node))
    outputs = (step + 1, end, *next_state, *values[len(state) :])
    loop = While(Graph(entry, (has_next.node,)), Graph(entry, tuple(v.node for v in outputs)))
    return [Term(n) for n in loop(*(v.node for v in operands)).results[2 : 2 + len(state)]]


def panel_width(count: DimLike) -> int:
    """The number of columns of a panel, for `count` columns to factorize."""
    return count if isinstance(count, int) and count <= _MAX_SINGLE_PANEL_COLUMNS else PANEL_COLUMNS


def panel_loop(
    count: DimLike, state: Sequence[Term], step: Callable[..., Sequence[Term]], reverse: bool = False
) -> list[Term]:
    """A loop over the panels of `count` columns: state = step(first, n_columns, *state).

    A panel starts at column `first`; its first n_columns columns are among the `count`, others are padding.
    """
    if count == 0:
        return list(state)
    width = panel_width(count)
    if width == count:
        return list(step(t.scalar(0, i64), t.as_term(t.size(count)), *state))
    panels = ceildiv(count, width)

    def body(i: Term, *values: Term) -> Sequence[Term]:
        *values_of_state, total, n_panels = values
        first = ((n_panels - 1 - i) if reverse else i) * width
        remaining = t.minimum(total - first, width)
        assert isinstance(remaining, Term)
        return step(first, remaining, *values_of_state)

    sizes = tuple(t.as_term(t.size(v)) for v in (count, panels))
    return for_loop(panels, state, body, sizes)


def pad_to(x: Term, rows: DimLike, columns: DimLike) -> Term:
    """x padded with zeros to `rows` and `columns`."""
    return x.pad(1, 0, rows - x.shape[1], 0.0).pad(2, 0, columns - x.shape[2], 0.0)


def padded_columns(count: DimLike) -> DimLike:
    """The number of columns of all panels, including the padding of the last one."""
    width = panel_width(count)
    return count if width == count else ceildiv(count, width) * width


def magnitude(x: Term) -> Term:
    """[b, 1, 1]: a power of two near the largest element, by which to scale x so that squares do not overflow.

    1 if x is zero, NaN if x has a NaN or an infinity.
    """
    absolute = t.absolute(x)
    assert isinstance(absolute, Term)
    largest = Term(Reduce("max", (1, 2))(absolute.node)).expand(1, 2)
    bits, mask = (u32, 0xFF << 23) if x.dtype == f32 else (u64, 0x7FF << 52)
    power = largest.map(BitcastConvert(bits)) & t.scalar(mask, bits)
    # only the exponent bits: subnormals give 0, infinities and NaN give infinity
    result = power.map(BitcastConvert(x.dtype))
    return where(result.equals(0.0), 1.0, where(result < float("inf"), result, float("nan")))
