"""The base class of CORE ops, their categories, and helpers for type rules and references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import Dim, DimLike, bounds, dim_min, product
from ingot.ir.node import Node, Op
from ingot.ir.types import DTYPES, FLOAT_FORMATS, Box, DType, Shape, TensorType, dtype_of, f8e5m2

Perm = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


class Category(Enum):
    """How an op reads its operands and writes its result. Fusion, layout and scheduling passes decide by it."""

    SOURCE = "source"  # no tensor operand: iota, dim_value
    ELEMENTWISE = "elementwise"  # result[i] is a scalar expression of operands[i]
    VIEW = "view"  # result[i] is operand[f(i)] or a padding value; f is piecewise affine
    REDUCTION = "reduction"  # reduces entire dimensions
    WINDOW = "window"  # reduces a window at each position
    SCAN = "scan"  # reduces every prefix
    CONTRACTION = "contraction"  # sums of products: dot_general, convolution
    GATHER = "gather"  # reads at computed indices
    SCATTER = "scatter"  # writes at computed indices
    SORT = "sort"
    CONTROL = "control"  # contains graphs that run zero or more times
    COLLECTIVE = "collective"  # exchanges values with other devices
    HOST = "host"  # calls a function of the host
    GROUP = "group"  # contains a fused graph
    OPAQUE = "opaque"  # anything else; MODEL ops until they are lowered


class CoreOp(Op):
    """Base of the CORE primitives. Names and semantics follow StableHLO."""

    category: ClassVar[Category] = Category.OPAQUE

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        """The op for operands transposed by `perm`, and the permutation of its result.

        For operands x of perm's rank: `new(transpose(x, perm), ...) == transpose(self(x, ...), result_perm)`. Other
        operands (the value of a Pad, the indices of a Gather) are not transposed. inputs: the types before the
        transposition. Return None if the op requires its layout.
        """
        return None

    def operand_offsets(self, *inputs: TensorType) -> tuple[tuple[int, Shape], ...]:
        """(operand index, its offset in the result) of each operand that is stored inside the result.

        Only for ops with `holds_operands`.
        """
        return ()

    def absorb_transpose(self, perm: Perm) -> CoreOp | None:
        """The op that computes `transpose(self(x), perm)` from the same operands, untransposed; None if none does."""
        return None


def operands_in_result(node: Node) -> list[tuple[Node, Shape]]:
    """The operands stored inside the node's result, each with its offset; see `CoreOp.operand_offsets`."""
    offsets = node.op.operand_offsets(*(x.type for x in node.inputs)) if isinstance(node.op, CoreOp) else ()
    return [(node.inputs[i], start) for i, start in offsets]


def violable_constraints(node: Node) -> list[DimLike]:
    """The constraints of `node` that some sizes may violate.

    Views have none: the builders that create them clamp their bounds.
    """
    if not node.op.computes or category(node.op) is Category.VIEW:
        return []
    dims = (d for d, _ in node.op.constraints(*(x.type for x in node.inputs)))
    return [d for d in dims if (low := bounds(d)[0]) is None or low < 0]


def category(op: Op) -> Category:
    """The op's category; OPAQUE unless it is a CORE primitive."""
    return op.category if isinstance(op, CoreOp) else Category.OPAQUE


def is_contraction(node: Node) -> bool:
    """Whether the node is a CORE sum of products: dot_general or convolution."""
    return category(node.op) is Category.CONTRACTION


def permute(values: Sequence, perm: Perm) -> tuple:
    """(values[perm[0]], values[perm[1]], ...): the effect of a transpose on a shape."""
    return tuple(values[p] for p in perm)


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes `perm`."""
    result = [0] * len(perm)
    for i, p in enumerate(perm):
        result[p] = i
    return tuple(result)


def full_box(shape: Shape) -> Box:
    """The box that covers all of `shape`."""
    return tuple((0, d) for d in shape)


def box_shape(box: Box) -> Shape:
    """The shape of `box`."""
    return tuple(high - low for low, high in box)


def is_full_box(box: Box, shape: Shape, axes: Sequence[int] | None = None) -> bool:
    """Whether `box` covers `axes` of `shape` completely (by default all axes)."""
    return all(box[d] == (0, shape[d]) for d in (range(len(shape)) if axes is None else axes))


def show_shape(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def fit_constraints(
    parts: Iterable[DimLike], shape: Shape, what: str, result_shape: Shape = ()
) -> Iterator[tuple[DimLike, str]]:
    """Constraints: `parts` (a slice or window) must fit into `shape` on every axis.

    result_shape: how many parts are taken, as a shape; if it has no elements, `shape` may be smaller.
    """
    n_required = dim_min(product(result_shape), 1)
    for axis, (part, size) in enumerate(zip(parts, shape, strict=True)):
        yield size - part * n_required, f"axis {axis}: expected a {what} of at most {size}, got {part}"


def window_count(size: DimLike, window: DimLike, stride: int, dilation: int = 1) -> DimLike:
    """The number of windows that fit into `size`, which includes padding and base dilation.

    A static size smaller than the window gives 0. A symbolic size is assumed to hold at least one window.
    """
    span = (window - 1) * dilation + 1
    # without the detour where windows begin at each element: of windows of 1, the size itself
    count = size - (span - 1) if stride == 1 else (size - span) // stride + 1
    return max(count, 0) if isinstance(count, int) else count


def taps_in_bounds(
    size: int, window: int, n_positions: int, stride: int, padding: tuple[int, int], dilation: int
) -> range:
    """The taps of a window that read an element, not only padding, for at least one of `n_positions` outputs.

    Never empty: at least one tap remains. At either end no more taps are dropped than the padding covers.
    """
    low, high = padding
    first = min(window - 1, max(0, low - (n_positions - 1) * stride) // dilation)
    last = min(window - 1, max((size - 1 + low) // dilation, window - 1 - max(0, high) // dilation))
    return range(first, max(first, last) + 1)


def dilated_size(size: DimLike, dilation: int) -> DimLike:
    """The size with dilation - 1 holes between neighbors. 0 stays 0; a symbolic size is assumed to be nonzero."""
    if dilation == 1 or size == 0:
        return size
    return (size - 1) * dilation + 1


def dilation_constraints(sizes: Iterable[DimLike], dilations: Iterable[int]) -> Iterator[tuple[DimLike, str]]:
    """Constraints: symbolic sizes that are dilated must be nonzero, as `dilated_size` assumes."""
    for size, dilation in zip(sizes, dilations, strict=True):
        if dilation > 1 and isinstance(size, Dim):
            yield size - 1, f"expected elements to dilate, got {size}"


def check_dims(op: Op, dims: Sequence[int], rank: int, what: str) -> None:
    """Raise ShapeError unless `dims` are distinct axes of a tensor of rank `rank`."""
    op.expect(
        all(0 <= d < rank for d in dims) and len(set(dims)) == len(dims),
        f"{what}: expected distinct axes in [0, {rank}), got {tuple(dims)}",
    )


def expect_equal(op: Op, a: Shape, b: Shape, message: str) -> None:
    """Raise ShapeError `<op name>: message` unless the sizes are equal, with the first two that are not."""
    unequal = ((x, y) for x, y in zip(a, b, strict=False) if x != y)
    op.expect(a == b, message, next(unequal, None) if len(a) == len(b) else None)


def check_count(op: Op, inputs: Sequence[TensorType], count: int) -> None:
    """Raise ShapeError unless there are `count` operands."""
    op.expect(len(inputs) == count, f"expected {count} operands, got {len(inputs)}")


def check_scalar_index(op: Op, inputs: Sequence[TensorType]) -> None:
    """Raise ShapeError unless all `inputs` are integer scalars."""
    for t in inputs:
        op.expect(t.rank == 0 and t.dtype.is_integer, f"start index: expected an integer scalar, got {t}")


# References compute narrow floats in f32 and sub-byte integers in 8 bits, and round once at the end.
_NARROW_FLOATS = {t.numpy for t in DTYPES.values() if t.is_float and t.bits < 32}


def widen(x: np.ndarray) -> np.ndarray:
    """`x` in a dtype that numpy computes in: narrow floats as f32, sub-byte integers as 8 bits."""
    if x.dtype in _NARROW_FLOATS:
        return x.astype(np.float32)
    dtype = dtype_of(x)
    return x.astype(DTYPES[f"{dtype.kind}8"].numpy) if dtype.bits < 8 else x


def round_to(y: np.ndarray | np.generic, dtype: DType) -> np.ndarray:
    """`y` as an array of `dtype`: floats are rounded, integers wrap."""
    y = np.asarray(y)
    if y.dtype == dtype.numpy:
        return y
    if dtype.kind in "iu" and dtype.bits < 8:
        low, high = dtype.range
        return (((y.astype(np.int64) - low) & (high - low)) + low).astype(np.int8).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        return y.astype(dtype.numpy)


def identity_of(kind: str, dtype: DType) -> int | float | bool:
    """The identity element of the reduction `kind` (sum, prod, max, min, and, or) in `dtype`.

    For max and min of floats it is -inf and inf, or the lowest and highest number of a format without infinities.
    """
    if kind == "sum":
        return False if dtype.kind == "b" else 0.0 if dtype.is_float else 0
    if kind == "prod":
        return True if dtype.kind == "b" else 1.0 if dtype.is_float else 1
    if kind in ("and", "or"):
        if dtype.kind == "b":
            return kind == "and"
        return 0 if kind == "or" else -1 if dtype.kind == "i" else dtype.range[1]
    if dtype.kind == "b":
        return kind == "min"
    if dtype.is_float:
        if dtype in FLOAT_FORMATS and dtype != f8e5m2:  # has no infinity
            limits = ml_dtypes.finfo(dtype.numpy)
            return float(limits.min if kind == "max" else limits.max)
        return float("-inf") if kind == "max" else float("inf")
    low, high = dtype.range
    return low if kind == "max" else high
