"""The importer's values: graph nodes, compile-time numbers, sizes, and PyTorch's type promotion of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from typing import TypeVar

import numpy as np
import torch

from ingot import ops
from ingot.frontends.shared.composites.movement import with_shape
from ingot.frontends.torch.convert import DTYPE_OF, TORCH_OF, Sizes, dtype_of
from ingot.ir.dims import Dim, DimLike
from ingot.ir.node import Node, const
from ingot.ir.types import DTYPES, DType, TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError

T = TypeVar("T")
boolean, u8, i64, f32, f64 = (DTYPES[name] for name in ("bool", "u8", "i64", "f32", "f64"))


@dataclass(frozen=True)
class Number:
    """A Python float known only at run time (`x.shape[0] ** 0.5`): a f64[] node that promotes as a Python float. Or a
    Python bool, a bool[] node (`flag.item()`)."""

    node: Node


@dataclass(frozen=True)
class Complex:
    """A complex tensor: two real ones of one shape. `imag` is None where every imaginary part is 0."""

    real: Node
    imag: Node | None = None

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.real,) if self.imag is None else (self.real, self.imag)

    @property
    def imaginary(self) -> Node:
        return expand(scalar_like(0, self.real), self.real.shape) if self.imag is None else self.imag


Scalar = int | float | bool | Dim | Number
Operand = Node | Scalar
Value = Operand | None | str | torch.dtype | Sequence["Value"]


@dataclass(frozen=True)
class Memory:
    """The position of a strided tensor in its memory, in elements.

    Attributes:
        strides, offset: of the tensor.
        base: the value that fills the memory from element `start` on, of which the tensor may be a view.
        order: the base's axes, outermost in memory first; None where it does not fill the memory.
    """

    strides: tuple[DimLike, ...]
    offset: DimLike
    base: Node
    start: DimLike
    order: tuple[int, ...] | None


@dataclass(frozen=True)
class Context:
    """What a handler sees of the call that it imports.

    Attributes:
        results: the types of the call's results by torch's own inference, () for a call without tensors.
        loc: the location in the user's model.
        sizes: the model's sizes.
        memory: of the first tensor among the arguments; None where it has none.
        key: a fresh random key.
        tf32: of convolutions, see `ops.Convolution`: PyTorch's setting on a GPU.
    """

    results: tuple[TensorType, ...]
    loc: str
    sizes: Sizes
    memory: Callable[[], Memory | None] = lambda: None
    key: Callable[[], Node] = lambda: ops.RandomKey(0)()
    tf32: bool | None = None

    @property
    def type(self) -> TensorType:
        return self.results[0]

    @property
    def shape(self) -> tuple[DimLike, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype


def with_size(c: Context, x: Node, axis: int, size: DimLike) -> Node:
    """`x`, whose axis must have this size. If that is unknown at import, each call checks it."""
    if x.shape[axis] == size or (isinstance(x.shape[axis], int) and isinstance(size, int)):
        return x
    c.sizes.require_equal(x.shape[axis], size)
    return with_shape(x, tuple(size if i == axis else d for i, d in enumerate(x.shape)))


def require_elements(c: Context, sizes: Iterable[DimLike], what: str) -> None:
    """Require that none of these sizes is 0. Raises ShapeError for one that is, as PyTorch's own kernels do."""
    for size in sizes:
        if isinstance(size, int) and size < 1:
            raise ShapeError(f"{what} of nothing", expected="a size of 1 or more", got=size)
        c.sizes.require(1, size)


def category(dtype: DType) -> int:
    """PyTorch's promotion category: 0 bool, 1 integer, 2 float."""
    return 0 if dtype == boolean else 1 if dtype.is_integer else 2


def promote_types(a: DType, b: DType) -> DType:
    return a if a == b else DTYPE_OF[torch.promote_types(TORCH_OF[a], TORCH_OF[b])]


def _scalar_dtype(value: Scalar) -> DType:
    if isinstance(value, bool):
        return boolean
    return i64 if isinstance(value, int | Dim) else default_float()


def default_float() -> DType:
    return dtype_of(torch.get_default_dtype())


def result_type(values: Iterable[Operand]) -> DType:
    """torch.result_type of tensors, 0-d tensors and Python numbers.

    The highest category among tensors with dimensions, 0-d tensors and numbers decides; within it tensors with
    dimensions decide the width, then 0-d tensors, then numbers (with the default dtype).
    """
    ranked: list[DType | None] = [None, None, None]
    for v in values:
        level = (0 if v.type.rank else 1) if isinstance(v, Node) else 2
        dtype = v.dtype if isinstance(v, Node) else _scalar_dtype(v)
        promoted_so_far = ranked[level]
        ranked[level] = dtype if promoted_so_far is None else promote_types(promoted_so_far, dtype)
    result: DType | None = None
    for dtype in ranked:
        if dtype is not None and (result is None or category(dtype) > category(result)):
            result = dtype
    if result is None:
        raise ValueError("result_type of no values")
    return result


def float_type(values: Iterable[Operand]) -> DType:
    """The result type with integers and bools made the default float."""
    dtype = result_type(values)
    return dtype if dtype.is_float else default_float()


def cast(x: Node, dtype: DType) -> Node:
    """`x` as `dtype` with C's conversions (floats truncate to integers, a u8 by way of an i64; nonzero is True)."""
    return ops.cast(ops.cast(x, i64) if x.dtype == f64 and dtype == u8 else x, dtype)


def node_of(value: Operand, dtype: DType | None = None) -> Node:
    """`value` as a node of `dtype` (default: the value's own); numbers become 0-d."""
    if isinstance(value, Number):
        return cast(value.node, dtype or default_float())
    if isinstance(value, Dim):
        return cast(ops.DimValue(value)(), dtype or i64)
    if isinstance(value, Node):
        return cast(value, dtype or value.dtype)
    dtype = dtype or _scalar_dtype(value)
    return const(number(value, dtype))


def number(value: int | float | bool, dtype: DType) -> np.ndarray:
    """A Python number as a 0-d array of `dtype`, converted as C converts (300 is 44 as u8)."""
    with np.errstate(all="ignore"):
        if dtype.is_integer and isinstance(value, int):
            bits = value & ((1 << dtype.bits) - 1)
            signed = dtype.kind == "i" and bits >= 1 << (dtype.bits - 1)
            return np.asarray(bits - (1 << dtype.bits) if signed else bits, dtype.numpy)
        return np.asarray(value).astype(dtype.numpy)


def scalar_like(value: int | float | bool, x: Node) -> Node:
    """A constant of `x`'s dtype, 0-d."""
    return const(number(value, x.dtype))


def promoted(values: Sequence[Operand], dtype: DType | None = None) -> tuple[Node, ...]:
    """`values` as nodes of one dtype (default: their result type), not yet broadcast."""
    dtype = dtype or result_type(values)
    return tuple(node_of(v, dtype) for v in values)


def broadcast_shape(shapes: Sequence[tuple[DimLike, ...]]) -> tuple[DimLike, ...]:
    """The shape of PyTorch's broadcasting; a symbolic size wins over 1 and equals itself."""
    rank = max((len(s) for s in shapes), default=0)
    sizes: list[DimLike] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, rank - len(shape)):
            # a static size wins over a symbol: torch has already checked that they agree
            if d != 1 and (sizes[i] == 1 or isinstance(sizes[i], Dim)):
                sizes[i] = d
    return tuple(sizes)


def expand(x: Node, shape: Sequence[DimLike]) -> Node:
    """`x` broadcast to `shape` by PyTorch's rules (trailing axes aligned, sizes of 1 repeated).

    Symbolic sizes that are paired are equal: torch has proved it or guards it.
    """
    shape = tuple(shape)
    if x.shape == shape:
        return x
    lead = len(shape) - x.type.rank
    meeting = tuple(d if d == 1 else n for d, n in zip(x.shape, shape[lead:], strict=True))
    if any(isinstance(d, Dim) and d != n for d, n in zip(x.shape, meeting, strict=True)):
        x = with_shape(x, meeting)
    return ops.broadcast_to(x, shape)


def aligned(values: Sequence[Operand], dtype: DType | None = None) -> tuple[Node, ...]:
    """`values` as nodes of one dtype and one shape: promoted and broadcast."""
    nodes = promoted(values, dtype)
    shape = broadcast_shape([n.shape for n in nodes])
    return tuple(expand(n, shape) for n in nodes)


def wide(dtype: DType) -> DType:
    """The dtype that floats of `dtype` are summed in."""
    return f32 if dtype.bits < 32 else dtype


def in_f32(row: Callable[..., Node]) -> Callable[..., Node]:
    """`row`, computed in f32 for f16 and bf16 and rounded once at its end, as PyTorch's kernels do (opmath_t). All
    tensors among the arguments are operands; numbers and, as in PyTorch, 0-d tensors next to narrower ones are not
    rounded first.
    """

    @wraps(row)
    def wide(c: Context, *args: object, **named: object) -> Node:
        narrow = c.dtype
        if not narrow.is_float or narrow.bits >= 32:
            return row(c, *args, **named)

        def widened(v: object) -> object:
            return cast(cast(v, narrow) if v.type.rank else v, f32) if isinstance(v, Node) else v

        results = tuple(TensorType(f32, t.shape) for t in c.results)
        named = {name: widened(v) for name, v in named.items()}
        return cast(row(replace(c, results=results), *map(widened, args), **named), narrow)

    return wide


def sums_of(dtype: DType) -> DType | None:
    """The result dtype of a contraction whose sums are added to before rounding; None: that of its operands."""
    return f32 if dtype.is_float and dtype.bits < 32 else None


def sizes_per_axis(values: T | Sequence[T], count: int) -> tuple[T, ...]:
    """One value for each of `count` axes: PyTorch repeats a number, or a list of one."""
    sizes = tuple(values) if isinstance(values, Sequence) else (values,)
    return sizes * count if len(sizes) == 1 else sizes


def axis_of(dim: int, rank: int) -> int:
    """A non-negative axis; a 0-d tensor counts as 1-d, as in PyTorch."""
    return dim + max(rank, 1) if dim < 0 else dim


def axes_of(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes; all of them for None and for an empty list."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted(axis_of(d, rank) for d in dims))
