"""A contraction's axes, and the strides with which they walk both operands."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ingot.ir.dims import DimLike, ceildiv, estimate, floordiv, product
from ingot.ir.types import DType, bf16, f32, i8, i32, u8
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Inside:
    """Which turns of a window's loop read more than zeros: at position p of the row axis of extent `positions` with
    stride `row` in A, those i with low <= p * step + i * dilation < high. An axis that others are joined with has the
    stride, but not the extent."""

    positions: int
    row: DimLike
    step: int
    dilation: int
    low: int
    high: DimLike

    def share(self, extent: int) -> float:
        """Of all turns of a loop of `extent`, for likely sizes."""
        high, read = estimate(self.high), 0
        for place in range(0, extent * self.dilation, self.dilation):
            first, last = (-((place - end) // self.step) for end in (self.low, high))
            read += max(0, min(self.positions, last) - max(0, first))
        return read / (self.positions * extent)

    def along(self, rows: Axis) -> bool:
        """Whether `rows` is the axis of its positions."""
        return rows.a == self.row and rows.extent == self.positions


@dataclass(frozen=True)
class Axis:
    """One loop of a contraction: its extent, and the strides in elements with which it walks A and B (0: not at
    all). inside: the turns that matter, None for all. apart: never joined with its neighbours, as each turn has scales
    of B of its own.
    """

    extent: DimLike
    a: DimLike = 0
    b: DimLike = 0
    inside: Inside | None = None
    apart: bool = False


@dataclass(frozen=True)
class Contraction:
    """out[batch, rows, cols] = sum over reduce of A[batch, rows, reduce] * B[batch, reduce, cols].

    There is at least one axis (of extent 1, if need be) among rows, cols and reduce. A convolution over an NHWC
    input that already has its padding has rows (n, oh, ow) and reduce (kh, kw, ci). Vectors run along the last of
    `cols`. a, b: the operands' element types; acc: the type of products and sums. packed: B is a constant, laid out
    in panels by `Plan.pack`; otherwise it is read where it lies. computed: each chunk computes its rows of A in scratch
    before it reads them; there is one row axis and one reduce axis then. inner: the contraction that they come from.

    A constant B of integers beside an A of floats is quantized in blocks: each turn of a reduction axis that is `apart`
    is a block with a zero and a scale for each column. There is one column axis then.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    a: DType
    b: DType
    acc: DType
    packed: bool = True
    computed: bool = False
    inner: Contraction | None = None

    def changed(self) -> Contraction:
        """The same products with the operands changed round: rows are columns."""

        def turn(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
            return tuple(Axis(x.extent, x.b, x.a) for x in axes)

        batch, rows, cols, reduce = map(turn, (self.batch, self.rows, self.cols, self.reduce))
        return replace(self, batch=batch, rows=cols, cols=rows, reduce=reduce, a=self.b, b=self.a)

    @cached_property
    def of_levels(self) -> bool:
        return self.b.is_integer and self.acc.is_float and self.a.is_float and self.packed

    @property
    def widened(self) -> Contraction:
        """As the register tiles see it: levels are what they stand for."""
        if not self.of_levels:
            return self
        return replace(self, b=self.acc, reduce=tuple(replace(x, apart=False) for x in self.reduce))

    @cached_property
    def k(self) -> DimLike:
        return product(x.extent for x in self.reduce)

    @cached_property
    def per_lane(self) -> int:
        """Neighbouring k that lie together in a 32-bit lane of B's panels, for instructions that multiply and add them
        at once: 2 of bf16, 4 of i8 with a u8 A; a narrow A must have its k side by side, too. Of levels as many as fit.
        """
        if self.of_levels:
            return 32 // self.b.bits
        inner = merge_axes(self.reduce)[-1]
        if not self.packed or not isinstance(inner.extent, int):
            return 1
        if self.b == bf16 and self.acc == f32:
            return 2 if self.a == f32 or (self.a == bf16 and inner.a == 1) else 1
        return 4 if (self.a, self.b, self.acc) == (u8, i8, i32) and inner.a == 1 else 1

    @cached_property
    def depth(self) -> DimLike:
        """k, with what its innermost loop lacks for whole lanes: the rows of B's panels."""
        if self.per_lane == 1:
            return self.k
        inner = merge_axes(self.reduce)[-1].extent
        return floordiv(self.k, inner) * ceildiv(inner, self.per_lane) * self.per_lane

    @cached_property
    def flops(self) -> int:
        """An estimate where dimensions are symbolic."""
        n = 2
        for x in (*self.batch, *self.rows, *self.cols, *self.reduce):
            n *= estimate(x.extent)
        return n


def merge_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Join neighbours that walk both operands as one loop; drop loops of one turn.   (3, a=64) (64, a=1) -> (192,
    a=1)
    """
    out: list[Axis] = []
    for x in axes:
        if x.extent == 1:
            continue
        last = out[-1] if out else None
        alike = last is not None and not (last.inside or x.inside or last.apart)
        if last is not None and alike and last.a == x.a * x.extent and last.b == x.b * x.extent:
            out[-1] = Axis(last.extent * x.extent, x.a, x.b)
        else:
            out.append(x)
    return tuple(out) or (Axis(1, 0, 0),)


__all__ = ["Axis", "Contraction", "Inside", "merge_axes"]
