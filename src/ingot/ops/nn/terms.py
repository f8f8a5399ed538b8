"""Terms: nodes with Python's operators, for the lowerings of MODEL ops.

Operators broadcast as numpy does. The functions of this module (`where`, `floor`, `clamp`...) take terms or numpy
arrays, so that one formula (a coordinate map, an index map) serves as the reference (numpy), as a constant (static
sizes) and as arithmetic in the graph (symbolic sizes).

    y = (x - x.mean(axes)) * rsqrt(variance + eps)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ingot.ir.dims import Dim, DimLike, product
from ingot.ir.node import Node, Op, const
from ingot.ir.types import DType, Shape, TensorType, boolean, dtype_of, f32, i64
from ingot.ops import build
from ingot.ops.core.binary import (
    Add,
    And,
    Compare,
    Div,
    Max,
    Min,
    Mul,
    Or,
    Pow,
    Rem,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Sub,
    Xor,
)
from ingot.ops.core.contraction import DotGeneral
from ingot.ops.core.elementwise import Abs, Ceil, Floor, Neg, RoundEven
from ingot.ops.core.functions import Exp, Log, Logistic, Rsqrt, Tanh
from ingot.ops.core.indexing import Gather
from ingot.ops.core.shape import BroadcastInDim, Slice
from ingot.ops.core.source import DimValue, Iota
from ingot.support.dataclass import dataclass

Number = int | float | bool


@dataclass(frozen=True, eq=False)
class Term:
    """A node with operators. Binary operators broadcast; a Python number takes the dtype of the other operand."""

    node: Node

    # lets numpy defer `array * term` to Term.__rmul__
    __array_ufunc__ = None

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def rank(self) -> int:
        return len(self.node.shape)

    def __add__(self, other: Operand) -> Term:
        return _binary(Add(), self, other)

    def __radd__(self, other: Operand) -> Term:
        return _binary(Add(), other, self)

    def __sub__(self, other: Operand) -> Term:
        return _binary(Sub(), self, other)

    def __rsub__(self, other: Operand) -> Term:
        return _binary(Sub(), other, self)

    def __mul__(self, other: Operand) -> Term:
        return _binary(Mul(), self, other)

    def __rmul__(self, other: Operand) -> Term:
        return _binary(Mul(), other, self)

    def __truediv__(self, other: Operand) -> Term:
        return _binary(Div(), self, other)

    def __rtruediv__(self, other: Operand) -> Term:
        return _binary(Div(), other, self)

    def __pow__(self, other: Operand) -> Term:
        return _binary(Pow(), self, other)

    def __and__(self, other: Operand) -> Term:
        return _binary(And(), self, other)

    def __or__(self, other: Operand) -> Term:
        return _binary(Or(), self, other)

    def __xor__(self, other: Operand) -> Term:
        return _binary(Xor(), self, other)

    def __lshift__(self, by: int) -> Term:
        return _binary(ShiftLeft(), self, by)

    def __rshift__(self, by: int) -> Term:
        """Arithmetic for signed integers, logical for unsigned ones, as in numpy."""
        return _binary(ShiftRightArithmetic() if self.dtype.kind == "i" else ShiftRightLogical(), self, by)

    def __neg__(self) -> Term:
        return self.map(Neg())

    def __lt__(self, other: Operand) -> Term:
        return _binary(Compare("LT"), self, other)

    def __le__(self, other: Operand) -> Term:
        return _binary(Compare("LE"), self, other)

    def __gt__(self, other: Operand) -> Term:
        return _binary(Compare("GT"), self, other)

    def __ge__(self, other: Operand) -> Term:
        return _binary(Compare("GE"), self, other)

    def equals(self, other: Operand) -> Term:
        """Elementwise equality; `==` compares the terms themselves."""
        return _binary(Compare("EQ"), self, other)

    def map(self, op: Op) -> Term:
        """`op` applied to this term."""
        return Term(op(self.node))

    def cast(self, dtype: DType) -> Term:
        return Term(build.cast(self.node, dtype))

    def reshape(self, shape: Shape) -> Term:
        return Term(build.reshape(self.node, shape))

    def transpose(self, permutation: Sequence[int]) -> Term:
        return Term(build.transpose(self.node, permutation))

    def expand(self, *axes: int) -> Term:
        """This term with a dimension of size 1 at each of `axes` of the result."""
        return Term(build.expand_dims(self.node, axes))

    def broadcast(self, shape: Shape) -> Term:
        """This term broadcast to `shape`, aligned at the last dimension."""
        return Term(build.broadcast_to(self.node, shape))

    def spread(self, shape: Shape, dims: Sequence[int]) -> Term:
        """This term broadcast to `shape`; its dimension i becomes dims[i] (see `BroadcastInDim`)."""
        is_identity = tuple(shape) == self.shape and tuple(dims) == tuple(range(self.rank))
        return self if is_identity else self.map(BroadcastInDim(tuple(shape), tuple(dims)))

    def restore(self, shape: Shape, axes: Sequence[int]) -> Term:
        """The result of reducing a term of `shape` over `axes` (without keepdims), broadcast back to `shape`."""
        return self.spread(shape, [i for i in range(len(shape)) if i not in axes])

    def slice(self, axis: int, start: DimLike, limit: DimLike, stride: int = 1) -> Term:
        """x[..., start:limit:stride, ...] on `axis`."""
        if start == 0 and limit == self.shape[axis] and stride == 1:
            return self
        starts: list[DimLike] = [0] * self.rank
        limits, strides = list(self.shape), [1] * self.rank
        starts[axis], limits[axis], strides[axis] = start, limit, stride
        return self.map(Slice(tuple(starts), tuple(limits), tuple(strides)))

    def pad(self, axis: int, low: DimLike, high: DimLike, value: Number) -> Term:
        lows: list[DimLike] = [0] * self.rank
        highs: list[DimLike] = [0] * self.rank
        lows[axis], highs[axis] = low, high
        return Term(build.pad(self.node, tuple(lows), tuple(highs), value))

    def reduce(self, kind: str, axes: Sequence[int], keepdims: bool = True) -> Term:
        """The reduction `kind` over `axes` (non-negative), which remain with size 1 if `keepdims`."""
        return Term(build.reduce(kind, self.node, axes, keepdims))

    def sum(self, axes: Sequence[int], keepdims: bool = True) -> Term:
        return self.reduce("sum", axes, keepdims)

    def max(self, axes: Sequence[int], keepdims: bool = True) -> Term:
        return self.reduce("max", axes, keepdims)

    def mean(self, axes: Sequence[int], keepdims: bool = True) -> Term:
        """The mean over `axes`, whose sizes may be symbolic. Floats only."""
        return self.sum(axes, keepdims) / size(product(self.shape[a] for a in axes), self.dtype)


Operand = Term | np.ndarray | Number
Value = Term | np.ndarray


def _binary(op: Op, a: Operand, b: Operand) -> Term:
    dtype = a.dtype if isinstance(a, Term) else b.dtype if isinstance(b, Term) else None
    if not isinstance(dtype, DType):
        raise TypeError(f"{op.name}: expected a term on one side, got {type(a).__name__} and {type(b).__name__}")
    x, y = as_term(a, dtype), as_term(b, dtype)
    return Term(build.apply(op, x.node, y.node))


def term(x: Operand) -> Term:
    """`x` as a Term, for type checkers: assert that it is not an array or number."""
    assert isinstance(x, Term)
    return x


def as_term(value: Operand | Node, dtype: DType | None = None) -> Term:
    """`value` as a term; numbers and arrays become constants of `dtype` (by default their own)."""
    if isinstance(value, Term):
        return value
    if isinstance(value, Node):
        return Term(value)
    return Term(const(np.asarray(value, None if dtype is None else dtype.numpy)))


def scalar(value: Number, dtype: DType) -> Term:
    """A constant of rank 0."""
    return as_term(value, dtype)


def full(shape: Shape, value: Number, dtype: DType) -> Term:
    return scalar(value, dtype).spread(shape, ())


def iota(shape: Shape, dimension: int, dtype: DType = i64) -> Term:
    """A term of `shape` whose elements are their index along `dimension`."""
    return Term(Iota(TensorType(dtype, shape), dimension)())


_MAX_CONSTANT_ELEMENTS = 1 << 22  # longer ranges are computed at run time to save memory


def arange(count: DimLike, dtype: DType = i64) -> Value:
    """0, ..., count - 1: an array if the count is static and not too large for a constant, else a term."""
    if isinstance(count, int) and count <= _MAX_CONSTANT_ELEMENTS:
        return np.arange(count, dtype=dtype.numpy)
    return iota((count,), 0, dtype)


def size(dim: DimLike, dtype: DType = i64) -> Operand:
    """The size `dim` as a value: a numpy scalar if it is static, else a scalar term."""
    if isinstance(dim, Dim):
        return Term(DimValue(dim)()).cast(dtype)
    return np.asarray(dim, dtype.numpy)


def concat(parts: Sequence[Term], dimension: int) -> Term:
    return Term(build.concat([p.node for p in parts], dimension))


def widen_narrow(x: Node) -> Term:
    """`x` in the dtype that its arithmetic is computed in: narrow floats as f32, all others as they are."""
    t = Term(x)
    return t.cast(f32) if t.dtype.is_float and t.dtype.bits < 32 else t


def operand(x: Node) -> Term:
    """`x` as an operand of a product: 16-bit floats as they are, as their products are exact in f32; else
    `widen_narrow`."""
    return Term(x) if x.dtype.is_float and x.dtype.bits == 16 else widen_narrow(x)


def sums_dtype(dtype: DType) -> DType:
    """The dtype of sums of products of operands of `dtype`."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def as_f64(x: np.ndarray) -> np.ndarray:
    """`x` with floats in f64, in which references compute; integers stay as they are."""
    return x.astype(np.float64) if dtype_of(x).is_float else x


def is_term(*values: Operand) -> bool:
    return any(isinstance(v, Term) for v in values)


def _dispatch_unary(op: Op, function: Callable[..., np.ndarray], x: Value) -> Value:
    return x.map(op) if isinstance(x, Term) else function(x)


def _dispatch_binary(op: Op, function: Callable[..., np.ndarray], a: Operand, b: Operand) -> Value:
    return _binary(op, a, b) if is_term(a, b) else function(a, b)


def floor(x: Value) -> Value:
    return _dispatch_unary(Floor(), np.floor, x)


def ceil(x: Value) -> Value:
    return _dispatch_unary(Ceil(), np.ceil, x)


def absolute(x: Value) -> Value:
    return _dispatch_unary(Abs(), np.abs, x)


def round_even(x: Value) -> Value:
    return _dispatch_unary(RoundEven(), np.round, x)


def exp(x: Term) -> Term:
    return x.map(Exp())


def log(x: Term) -> Term:
    return x.map(Log())


def rsqrt(x: Term) -> Term:
    return x.map(Rsqrt())


def tanh(x: Term) -> Term:
    return x.map(Tanh())


def logistic(x: Term) -> Term:
    return x.map(Logistic())


def maximum(a: Operand, b: Operand) -> Value:
    return _dispatch_binary(Max(), np.maximum, a, b)


def minimum(a: Operand, b: Operand) -> Value:
    return _dispatch_binary(Min(), np.minimum, a, b)


def clamp(low: Operand, x: Operand, high: Operand) -> Value:
    """min(max(x, low), high)."""
    return minimum(maximum(x, low), high)


def equals(a: Operand, b: Operand) -> Value:
    if isinstance(a, Term):
        return a.equals(b)
    return b.equals(a) if isinstance(b, Term) else np.equal(a, b)


def logical_and(a: Value, b: Value) -> Value:
    """Elementwise `a and b` of bools."""
    return _dispatch_binary(And(), np.logical_and, a, b)


def logical_or(a: Value, b: Value) -> Value:
    """Elementwise `a or b` of bools."""
    return _dispatch_binary(Or(), np.logical_or, a, b)


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """condition ? a : b, elementwise, broadcasting all three."""
    if not (isinstance(condition, Term) or isinstance(a, Term) or isinstance(b, Term)):
        return np.where(condition, a, b)
    if isinstance(a, Term):
        dtype = a.dtype
    else:
        dtype = b.dtype if isinstance(b, Term) else dtype_of(np.result_type(a, b))
    c, x, y = as_term(condition, boolean), as_term(a, dtype), as_term(b, dtype)
    return Term(build.where(c.node, x.node, y.node))


def convert(x: Value, dtype: DType) -> Value:
    return x.cast(dtype) if isinstance(x, Term) else x.astype(dtype.numpy)


def mod(a: Value, b: Operand) -> Value:
    """a modulo b, in [0, b), for integers and b > 0."""
    if not (isinstance(a, Term) or isinstance(b, Term)):
        return np.mod(a, b)
    remainder = _binary(Rem(), a, b)
    return _binary(Rem(), remainder + b, b)


def div_floor(a: Value, b: Operand) -> Value:
    """floor(a / b) for integers a >= 0, b > 0."""
    return _dispatch_binary(Div(), np.floor_divide, a, b)


def take(x: Term, indices: Value, axis: int) -> Term:
    """numpy.take(x, indices, axis), for indices in range, of any rank."""
    index = as_term(indices)
    rank = x.rank
    slice_sizes = tuple(1 if i == axis else d for i, d in enumerate(x.shape))
    dims_after = range(axis + index.rank, rank - 1 + index.rank)
    gather = Gather(
        offset_dims=(*range(axis), *dims_after),
        collapsed_slice_dims=(axis,),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
        start_index_map=(axis,),
        index_vector_dim=index.rank,
        slice_sizes=slice_sizes,
    )
    return Term(gather(x.node, index.node))


def repeat(x: Term, axis: int, factor: DimLike) -> Term:
    """x with each element repeated `factor` times along `axis`."""
    shape = (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
    dims = [d for d in range(len(shape)) if d != axis + 1]
    return x.spread(shape, dims).reshape((*x.shape[:axis], x.shape[axis] * factor, *x.shape[axis + 1 :]))


def windows(x: Term, start: Value, count: DimLike, axis: int) -> Term:
    """Windows of `count` elements along `axis`, one from each index in `start`.

    `axis` becomes two dimensions: the windows, and the elements of a window.
    """
    gather = Gather(
        offset_dims=(*range(axis), *range(axis + 1, x.rank + 1)),
        collapsed_slice_dims=(),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
        start_index_map=(axis,),
        index_vector_dim=1,
        slice_sizes=(*x.shape[:axis], count, *x.shape[axis + 1 :]),
    )
    return Term(gather(x.node, as_term(start).node))


def contract(
    a: Term,
    b: Term,
    contracting: Sequence[tuple[int, int]],
    batch: Sequence[tuple[int, int]] = (),
    dtype: DType | None = None,
) -> Term:
    """The sum of a * b over pairs of dimensions (of a, of b) in `contracting`.

    Dimensions of the result: those of `batch`, the others of a, the others of b.
    """
    op = DotGeneral(
        batch=(tuple(p for p, _ in batch), tuple(q for _, q in batch)),
        contract=(tuple(p for p, _ in contracting), tuple(q for _, q in contracting)),
        dtype=dtype,
    )
    return Term(op(a.node, b.node))
