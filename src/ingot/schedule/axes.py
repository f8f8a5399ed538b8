"""The axes of a contraction, and their strides in both operands."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ingot.ir.dims import DimLike, ceildiv, estimate, floordiv, product
from ingot.ir.types import DType, bf16, f32, i8, i16, i32, u8
from ingot.support.dataclass import dataclass

MAX_FEW_ROWS = 8


@dataclass(frozen=True)
class ValidTaps:
    """The taps of a window's loop that read data and not padding.

    At position p, tap i reads data if low <= p * step + i * dilation < high. The positions belong to the row axis of
    extent `positions` and stride `row` in A; after it is merged with other axes, the stride is the same but not the
    extent.
    """

    positions: int
    row_stride: DimLike
    step: int
    dilation: int
    low: int
    high: DimLike

    def valid_fraction(self, extent: int) -> float:
        """The fraction of a loop of `extent` taps that reads data, for likely sizes."""
        high, valid = estimate(self.high), 0
        for offset in range(0, extent * self.dilation, self.dilation):
            first, last = (-((offset - end) // self.step) for end in (self.low, high))
            valid += max(0, min(self.positions, last) - max(0, first))
        return valid / (self.positions * extent)

    def matches(self, rows: Axis) -> bool:
        """Whether `rows` is the axis of the positions."""
        return rows.a == self.row_stride and rows.extent == self.positions


@dataclass(frozen=True)
class Axis:
    """One loop of a contraction.

    extent: the number of iterations. a, b: strides in A and B, in elements (0: the operand does not depend on the
    axis). valid_taps: those that read data, None if all do. is_separate: the axis is never merged with its neighbors,
    because every iteration has its own scales of B.
    """

    extent: DimLike
    a: DimLike = 0
    b: DimLike = 0
    valid_taps: ValidTaps | None = None
    is_separate: bool = False


@dataclass(frozen=True)
class Contraction:
    """out[batch, rows, cols] = sum over reduce of A[batch, rows, reduce] * B[batch, reduce, cols].

    rows, cols and reduce each hold at least one axis, of extent 1 if need be. A convolution over a padded NHWC input
    has rows (n, oh, ow) and reduce (kh, kw, ci). Vectors run along the last of `cols`.

    a, b: element types of the operands. acc: the type of products and sums. packed: B is a constant, which `Plan.pack`
    lays out in panels; otherwise it is read in its own layout. computes_a: each chunk computes its rows of A into
    scratch before it reads them; then there is one row axis and one reduce axis. inner: the contraction that computes
    those rows. dot_bytes: the machine's, see `Machine`.

    If A is of floats and B a constant of integers, B is quantized in blocks: each iteration of the reduction axis that
    `is_separate` is a block, with a zero point and a scale per column. Then there is one column axis. level_bits: the
    bits that its levels use; 0: all of their type. panel: the columns of the panels that another kernel reads of B; 0:
    any. rounded: A is rounded to bytes in blocks of so many levels, which each chunk computes (`rounded_rows.py`); 0:
    it is of floats. of_signs: the terms are the bits in which words of A and B differ.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    a: DType
    b: DType
    acc: DType
    packed: bool = True
    computes_a: bool = False
    inner: Contraction | None = None
    dot_bytes: int = 4
    level_bits: int = 0
    panel: int = 0
    rounded: int = 0
    of_signs: bool = False

    def transposed(self) -> Contraction:
        """The transposed contraction: operands swapped, rows as columns."""

        def swap(axes_: tuple[Axis, ...]) -> tuple[Axis, ...]:
            return tuple(Axis(x.extent, x.b, x.a) for x in axes_)

        batch, rows, cols, reduce = map(swap, (self.batch, self.rows, self.cols, self.reduce))
        return replace(self, batch=batch, rows=cols, cols=rows, reduce=reduce, a=self.b, b=self.a)

    @cached_property
    def has_quantized_b(self) -> bool:
        """Whether B holds quantized levels, which are scaled before they are multiplied."""
        return self.b.is_integer and self.acc.is_float and (self.a.is_float or bool(self.rounded)) and self.packed

    @cached_property
    def has_few_rows(self) -> bool:
        """Whether all rows of A fit in a tile or two, each of which can widen quantized levels in registers."""
        rows = product(x.extent for x in self.rows)
        return isinstance(rows, int) and rows <= MAX_FEW_ROWS

    @property
    def widens_b(self) -> bool:
        """Whether quantized levels are widened into scratch, which many rows then read."""
        return self.has_quantized_b and not self.rounded and not self.has_few_rows

    @property
    def dequantized(self) -> Contraction:
        """The contraction as register tiles see it: with B dequantized, for an A of bf16 in pairs of bf16."""
        if not self.has_quantized_b:
            return self
        place = merge_axes(self.reduce)[-1]
        is_paired = self.a == bf16 and self.widens_b and place.a == 1 and estimate(place.extent) % 2 == 0
        reduce = tuple(replace(x, is_separate=False) for x in self.reduce)
        return replace(self, b=bf16 if is_paired else self.acc, reduce=reduce)

    @cached_property
    def k(self) -> DimLike:
        return product(x.extent for x in self.reduce)

    @cached_property
    def k_per_lane(self) -> int:
        """The number of consecutive k in a 32-bit lane of B's panels.

        Dot products take 2 of bf16, 4 of i8 with an A of u8 or i8, or 2 of i8 with an A of i16; an A of fewer than 32
        bits must be contiguous along k, too. Quantized levels are packed as densely as they fit.
        """
        if self.has_quantized_b:
            return 32 // level_planes(self.level_bits or self.b.bits)[0]
        inner = merge_axes(self.reduce)[-1]
        if not self.packed or not isinstance(inner.extent, int):
            return 1
        if self.b == bf16 and self.acc == f32:
            return 2 if self.a == f32 or (self.a == bf16 and inner.a == 1) else 1
        if (self.a, self.b, self.acc) == (i16, i8, i32) and inner.a == 1:
            return 2
        if self.a in (u8, i8) and (self.b, self.acc) == (i8, i32) and inner.a == 1:
            return self.dot_bytes if 4 * inner.extent >= self.dot_bytes else 4  # else most of it would be padding
        return 1

    @cached_property
    def padded_k(self) -> DimLike:
        """The rows of B's panels: k, its innermost loop padded to full lanes."""
        if self.k_per_lane == 1:
            return self.k
        inner = merge_axes(self.reduce)[-1].extent
        return floordiv(self.k, inner) * ceildiv(inner, self.k_per_lane) * self.k_per_lane

    @cached_property
    def flops(self) -> int:
        """Floating-point operations; an estimate if dimensions are symbolic."""
        n = 2
        for x in (*self.batch, *self.rows, *self.cols, *self.reduce):
            n *= estimate(x.extent)
        return n


def level_planes(bits: int) -> tuple[int, ...]:
    """The bits of each plane in which levels of so many bits are stored, the lowest first. Each divides a word."""
    return {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2)}.get(bits, (8,))


def merge_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Merge adjacent axes that walk both operands as one loop, and drop axes of extent 1.

    (3, a=64) (64, a=1) -> (192, a=1)
    """
    merged: list[Axis] = []
    for x in axes:
        if x.extent == 1:
            continue
        previous = merged[-1] if merged else None
        can_merge = previous is not None and not (previous.valid_taps or x.valid_taps or previous.is_separate)
        if previous is not None and can_merge and previous.a == x.a * x.extent and previous.b == x.b * x.extent:
            merged[-1] = Axis(previous.extent * x.extent, x.a, x.b)
        else:
            merged.append(x)
    return tuple(merged) or (Axis(1, 0, 0),)


__all__ = ["MAX_FEW_ROWS", "Axis", "Contraction", "ValidTaps", "level_planes", "merge_axes"]
