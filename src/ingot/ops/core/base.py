"""What every CORE op shares: its category, the layout hook, and helpers for type rules and references."""

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
    """How an op reads and writes, as fusion, layout and scheduling passes ask it."""

    SOURCE = "source"  # no tensor operand: iota, dim_value
    ELEMENTWISE = "elementwise"  # result[i] is a scalar expression of operands[i]
    VIEW = "view"  # result[i] is operand[f(i)] or a padding value, f affine per piece
    REDUCTION = "reduction"  # folds whole dimensions
    WINDOW = "window"  # folds a window around each index
    SCAN = "scan"  # folds every prefix
    CONTRACTION = "contraction"  # sums of products: dot_general, convolution
    GATHER = "gather"  # reads at computed indices
    SCATTER = "scatter"  # writes at computed indices
    SORT = "sort"
    CONTROL = "control"  # holds graphs that may run any number of times
    GROUP = "group"  # holds a fused graph
    OPAQUE = "opaque"  # anything else; model-level ops until they are lowered


class CoreOp(Op):
    """Base of the CORE primitives."""

    category: ClassVar[Category] = Category.OPAQUE

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        """This op on operands transposed by `perm`, and the permutation its result then has.

        For operands x of perm's rank: `new(transpose(x, perm), ...) == transpose(self(x, ...), result_perm)`; others
        (Pad's value, a gather's indices) stay. inputs: types before the transposition. None: the op fixes its layout.
        """
        return None

    def held(self, *inputs: TensorType) -> tuple[tuple[int, Shape], ...]:
        """Of an op that `holds_operands`: which of them, each with where in the result it begins."""
        return ()

    def yielding(self, perm: Perm) -> CoreOp | None:
        """The op that gives `transpose(self(x), perm)` from the same, untouched operands; None if there is none."""
        return None


def held_operands(node: Node) -> list[tuple[Node, Shape]]:
    """The operands that lie in the node's result, each with where it begins there; see `CoreOp.held`."""
    held = node.op.held(*(x.type for x in node.inputs)) if isinstance(node.op, CoreOp) else ()
    return [(node.inputs[i], start) for i, start in held]


def unsettled(node: Node) -> list[DimLike]:
    """The node's constraints that some sizes break. Views have none: what makes them clamps their bounds."""
    if not node.op.computes or category(node.op) is Category.VIEW:
        return []
    found = (d for d, _ in node.op.constraints(*(x.type for x in node.inputs)))
    return [d for d in found if (low := bounds(d)[0]) is None or low < 0]


def category(op: Op) -> Category:
    """The op's category; OPAQUE for ops that are no CORE primitives."""
    return op.category if isinstance(op, CoreOp) else Category.OPAQUE


def is_contraction(node: Node) -> bool:
    """Whether it is a sum of products of CORE: a matmul or a convolution."""
    return category(node.op) is Category.CONTRACTION


def permute(values: Sequence, perm: Perm) -> tuple:
    """values[perm[0]], values[perm[1]], ...: what transpose does to a shape."""
    return tuple(values[p] for p in perm)


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes `perm`."""
    out = [0] * len(perm)
    for i, p in enumerate(perm):
        out[p] = i
    return tuple(out)


def whole(shape: Shape) -> Box:
    """The box that holds all of `shape`."""
    return tuple((0, d) for d in shape)


def sizes(box: Box) -> Shape:
    return tuple(high - low for low, high in box)


def is_whole(box: Box, shape: Shape, axes: Sequence[int] | None = None) -> bool:
    """Whether `box` leaves nothing of `axes` out (of any axis unless told)."""
    return all(box[d] == (0, shape[d]) for d in (range(len(shape)) if axes is None else axes))


def show_shape(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def known(*dims: DimLike) -> bool:
    """Whether all of `dims` are plain ints."""
    return not any(isinstance(d, Dim) for d in dims)


def within(parts: Iterable[DimLike], shape: Shape, what: str, results: Shape = ()) -> Iterator[tuple[DimLike, str]]:
    """The constraints that a part is no larger than the whole on any axis. results: how many parts there are, as a
    shape: where there are none, the whole may be nothing."""
    some = dim_min(product(results), 1)
    for axis, (part, size) in enumerate(zip(parts, shape, strict=True)):
        yield size - part * some, f"axis {axis}: expected a {what} of at most {size}, got {part}"


def extent(size: DimLike, window: DimLike, stride: int, dilation: int = 1) -> DimLike:
    """How many windows fit into `size` (padding and base dilation already counted).

    A static size smaller than the window gives 0; a symbolic one is taken to hold at least one window.
    """
    count = (size - ((window - 1) * dilation + 1)) // stride + 1
    return max(count, 0) if isinstance(count, int) else count


def positions_read(size: int, window: int, count: int, stride: int, padding: tuple[int, int], dilation: int) -> range:
    """Of a window's positions those that read more than padding at some of its `count` places; one if none does.

    What is left out at either end is no more than the padding there.
    """
    low, high = padding
    first = min(window - 1, max(0, low - (count - 1) * stride) // dilation)
    last = min(window - 1, max((size - 1 + low) // dilation, window - 1 - max(0, high) // dilation))
    return range(first, max(first, last) + 1)


def dilated(size: DimLike, dilation: int) -> DimLike:
    """The size after dilation - 1 holes between neighbours; 0 stays 0, and a symbolic size is taken to be another."""
    if dilation == 1 or size == 0:
        return size
    return (size - 1) * dilation + 1


def dilatable(sizes: Iterable[DimLike], dilations: Iterable[int]) -> Iterator[tuple[DimLike, str]]:
    """The constraints that symbolic sizes have the element that `dilated` takes for granted."""
    for size, dilation in zip(sizes, dilations, strict=True):
        if dilation > 1 and isinstance(size, Dim):
            yield size - 1, f"expected elements to dilate, got {size}"


def check_dims(op: Op, dims: Sequence[int], rank: int, what: str) -> None:
    """Raise ShapeError unless `dims` are distinct axes of a tensor of rank `rank`."""
    op.expect(
        all(0 <= d < rank for d in dims) and len(set(dims)) == len(dims),
        f"{what}: expected distinct axes in [0, {rank}), got {tuple(dims)}",
    )


def check_count(op: Op, inputs: Sequence[TensorType], count: int) -> None:
    op.expect(len(inputs) == count, f"expected {count} operands, got {len(inputs)}")


def check_scalar_index(op: Op, inputs: Sequence[TensorType]) -> None:
    for t in inputs:
        op.expect(t.rank == 0 and t.dtype.is_integer, f"start index: expected an integer scalar, got {t}")


# References compute narrow floats in f32 and sub-byte integers in a byte, and round once at the end.
_NARROW = {t.numpy for t in DTYPES.values() if t.is_float and t.bits < 32}


def widen(x: np.ndarray) -> np.ndarray:
    """`x` in a type that numpy computes in."""
    if x.dtype in _NARROW:
        return x.astype(np.float32)
    dtype = dtype_of(x)
    return x.astype(DTYPES[f"{dtype.kind}8"].numpy) if dtype.bits < 8 else x


def finish(y: np.ndarray | np.generic, dtype: DType) -> np.ndarray:
    """`y` as an array of `dtype`, rounded once; integers wrap."""
    y = np.asarray(y)
    if y.dtype == dtype.numpy:
        return y
    if dtype.kind in "iu" and dtype.bits < 8:
        low, high = dtype.range
        return (((y.astype(np.int64) - low) & (high - low)) + low).astype(np.int8).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        return y.astype(dtype.numpy)


def identity_of(kind: str, dtype: DType) -> int | float | bool:
    """The value that leaves a sum, prod, max, min, and, or of `dtype` unchanged."""
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
            ends = ml_dtypes.finfo(dtype.numpy)
            return float(ends.min if kind == "max" else ends.max)
        return float("-inf") if kind == "max" else float("inf")
    low, high = dtype.range
    return low if kind == "max" else high
