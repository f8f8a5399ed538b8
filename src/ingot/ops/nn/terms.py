"""Terms: what the lowerings of MODEL ops are written in.

A `Term` is a node with Python's operators, broadcasting as numpy does. The functions of this module (`where`, `floor`,
`clamp`...) take terms or numpy arrays, so that one formula (a coordinate map, an index map) serves as the reference
(numpy), as a constant (static sizes) and as arithmetic in the graph (symbolic sizes).

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
    """A node under arithmetic. Binary operators broadcast; a Python number takes the other side's dtype."""

    node: Node

    # numpy leaves `array * term` to Term.__rmul__
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
        """As numpy's: the sign stays."""
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
        """`op` of this one operand."""
        return Term(op(self.node))

    def cast(self, dtype: DType) -> Term:
        return Term(build.cast(self.node, dtype))

    def reshape(self, shape: Shape) -> Term:
        return Term(build.reshape(self.node, shape))

    def transpose(self, permutation: Sequence[int]) -> Term:
        return Term(build.transpose(self.node, permutation))

    def expand(self, *axes: int) -> Term:
        """A dimension of size 1 at each of `axes` of the result."""
        return Term(build.expand_dims(self.node, axes))

    def broadcast(self, shape: Shape) -> Term:
        """To `shape`, aligned at the last dimension."""
        return Term(build.broadcast_to(self.node, shape))

    def spread(self, shape: Shape, dims: Sequence[int]) -> Term:
        """To `shape`, dimension i of this term becoming dims[i]."""
        same = tuple(shape) == self.shape and tuple(dims) == tuple(range(self.rank))
        return self if same else self.map(BroadcastInDim(tuple(shape), tuple(dims)))

    def restore(self, shape: Shape, axes: Sequence[int]) -> Term:
        """A reduction's result (without kept dimensions) against `shape`, of which `axes` were folded."""
        return self.spread(shape, [i for i in range(len(shape)) if i not in axes])

    def slice(self, axis: int, start: DimLike, limit: DimLike, stride: int = 1) -> Term:
        """x[..., start:limit:stride, ...] on one axis."""
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
        """Fold `axes` (non-negative); they stay with size 1 unless told."""
        return Term(build.reduce(kind, self.node, axes, keepdims))

    def sum(self, axes: Sequence[int], keepdims: bool = True) -> Term:
        return self.reduce("sum", axes, keepdims)

    def max(self, axes: Sequence[int], keepdims: bool = True) -> Term:
        return self.reduce("max", axes, keepdims)

    def mean(self, axes: Sequence[int], keepdims: bool = True) -> Term:
        """The sum over the number of elements, which may be symbolic. Floats only."""
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
    """`x`, which is no number of numpy's."""
    assert isinstance(x, Term)
    return x


def as_term(value: Operand | Node, dtype: DType | None = None) -> Term:
    """`value` as a term; numbers and arrays become constants, of `dtype` where given."""
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
    """Each element's index on `dimension`."""
    return Term(Iota(TensorType(dtype, shape), dimension)())


_WRITTEN_DOWN = 1 << 22  # of more, the program counts: nobody's memory is held by numbers from 0 on


def arange(count: DimLike, dtype: DType = i64) -> Value:
    """0 .. count - 1: an array for a static count that one can write down, else a term."""
    if isinstance(count, int) and count <= _WRITTEN_DOWN:
        return np.arange(count, dtype=dtype.numpy)
    return iota((count,), 0, dtype)


def size(dim: DimLike, dtype: DType = i64) -> Operand:
    """A size as a value: a number of numpy's for a static one, else a scalar term."""
    if isinstance(dim, Dim):
        return Term(DimValue(dim)()).cast(dtype)
    return np.asarray(dim, dtype.numpy)


def concat(parts: Sequence[Term], dimension: int) -> Term:
    return Term(build.concat([p.node for p in parts], dimension))


def floating(x: Node) -> Term:
    """`x` in the type that its float arithmetic happens in: narrow floats in f32."""
    t = Term(x)
    return t.cast(f32) if t.dtype.is_float and t.dtype.bits < 32 else t


def operand(x: Node) -> Term:
    """`x` as an operand of a product: 16-bit floats as they are, as their products are exact in f32; else
    `floating`."""
    return Term(x) if x.dtype.is_float and x.dtype.bits == 16 else floating(x)


def sums_dtype(dtype: DType) -> DType:
    """The dtype of sums of products of operands of `dtype`."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def exact(x: np.ndarray) -> np.ndarray:
    """`x` as references compute: floats in f64, so that the reference is the more exact side of a comparison."""
    return x.astype(np.float64) if dtype_of(x).is_float else x


def is_term(*values: Operand) -> bool:
    return any(isinstance(v, Term) for v in values)


def _unary(op: Op, function: Callable[..., np.ndarray], x: Value) -> Value:
    return x.map(op) if isinstance(x, Term) else function(x)


def _both(op: Op, function: Callable[..., np.ndarray], a: Operand, b: Operand) -> Value:
    return _binary(op, a, b) if is_term(a, b) else function(a, b)


def floor(x: Value) -> Value:
    return _unary(Floor(), np.floor, x)


def ceil(x: Value) -> Value:
    return _unary(Ceil(), np.ceil, x)


def absolute(x: Value) -> Value:
    return _unary(Abs(), np.abs, x)


def round_even(x: Value) -> Value:
    return _unary(RoundEven(), np.round, x)


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
    return _both(Max(), np.maximum, a, b)


def minimum(a: Operand, b: Operand) -> Value:
    return _both(Min(), np.minimum, a, b)


def clamp(low: Operand, x: Operand, high: Operand) -> Value:
    """min(max(x, low), high)."""
    return minimum(maximum(x, low), high)


def equals(a: Operand, b: Operand) -> Value:
    if isinstance(a, Term):
        return a.equals(b)
    return b.equals(a) if isinstance(b, Term) else np.equal(a, b)


def both(a: Value, b: Value) -> Value:
    """Elementwise and of bools."""
    return _both(And(), np.logical_and, a, b)


def either(a: Value, b: Value) -> Value:
    """Elementwise or of bools."""
    return _both(Or(), np.logical_or, a, b)


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """Elementwise choice, broadcasting all three."""
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
    """a modulo b with a result in [0, b), for integers and b > 0."""
    if not (isinstance(a, Term) or isinstance(b, Term)):
        return np.mod(a, b)
    once = _binary(Rem(), a, b)
    return _binary(Rem(), once + b, b)


def div_floor(a: Value, b: Operand) -> Value:
    """floor(a / b) for integers a >= 0, b > 0."""
    return _both(Div(), np.floor_divide, a, b)


def take(x: Term, indices: Value, axis: int) -> Term:
    """x at `indices` (in range, any rank) on `axis`: numpy's take."""
    at = as_term(indices)
    rank = x.rank
    shape = tuple(1 if i == axis else d for i, d in enumerate(x.shape))
    after = range(axis + at.rank, rank - 1 + at.rank)
    gather = Gather(
        offset_dims=(*range(axis), *after),
        collapsed_slice_dims=(axis,),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
        start_index_map=(axis,),
        index_vector_dim=at.rank,
        slice_sizes=shape,
    )
    return Term(gather(x.node, at.node))


def windows(x: Term, start: Value, count: DimLike, axis: int) -> Term:
    """`count` neighbours from each place in `start` on: one dimension of places in place of `axis`, then theirs."""
    rows = Gather(
        offset_dims=(*range(axis), *range(axis + 1, x.rank + 1)),
        collapsed_slice_dims=(),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
        start_index_map=(axis,),
        index_vector_dim=1,
        slice_sizes=(*x.shape[:axis], count, *x.shape[axis + 1 :]),
    )
    return Term(rows(x.node, as_term(start).node))


def contract(
    a: Term, b: Term, over: Sequence[tuple[int, int]], batch: Sequence[tuple[int, int]] = (), dtype: DType | None = None
) -> Term:
    """The sum over pairs of dimensions `over`: batch dims, a's others, b's others."""
    op = DotGeneral(
        batch=(tuple(p for p, _ in batch), tuple(q for _, q in batch)),
        contract=(tuple(p for p, _ in over), tuple(q for _, q in over)),
        dtype=dtype,
    )
    return Term(op(a.node, b.node))
