"""Elementwise primitives: operands and result have the same shape, and an element is a kernel expression.

`compute` defines the op in numpy, `rule` as a scalar kernel expression. Both get narrow floats (f16, bf16, f8) as f32
and sub-byte integers as 8 bits; the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.node import Cropped, Samples
from ingot.ir.types import DTYPES, Box, DType, TensorType, boolean, dtype_of, f32
from ingot.ops.core import samples as s
from ingot.ops.core import scalars as sc
from ingot.ops.core.base import Category, CoreOp, Perm, check_count, round_to, widen
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Elementwise(CoreOp):
    """Base: `arity` operands of one shape and one dtype, whose kind is in `kinds` (f, i, u, b as in `DType.kind`)."""

    category: ClassVar[Category] = Category.ELEMENTWISE
    arity: ClassVar[int] = 1
    kinds: ClassVar[str] = "f"
    exact: ClassVar[bool] = False  # the reference computes f32 operands in f64
    work: ClassVar[int] = 1  # ops that it would be if it were written out
    compute: ClassVar[Callable[..., np.ndarray]]  # (self, *arrays)
    rule: ClassVar[Callable[..., Expr]]  # (self, *expressions)

    def result(self, *inputs: TensorType) -> DType:
        """The dtype of the result. Raise ShapeError for operands of the wrong dtype."""
        first = inputs[0].dtype
        # the most frequently called type rule: format messages only on failure
        if any(t.dtype != first for t in inputs):
            self.expect(False, f"expected operands of one dtype, got {', '.join(str(t.dtype) for t in inputs)}")
        if first.kind not in self.kinds:
            self.expect(False, f"expected {_kinds(self.kinds)}, got {first}")
        return first

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, self.arity)
        first = inputs[0]
        if any(t.shape != first.shape for t in inputs[1:]):
            self.expect(False, f"expected operands of one shape, got {', '.join(map(str, inputs))}")
        dtype = self.result(*inputs)
        return first if dtype == first.dtype else TensorType(dtype, first.shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        result_dtype = self.result(*(TensorType(dtype_of(x), x.shape) for x in inputs))
        wide = [widen(x) for x in inputs]
        if self.exact:
            wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in wide]
        with np.errstate(all="ignore"):
            return round_to(self.compute(*wide), result_dtype)

    def scalar(self, *xs: Expr) -> Expr:
        """One element of the result (or one vector of elements) as a kernel expression of the operands' elements."""
        result_dtype = self.result(*(TensorType(x.dtype) for x in xs))
        return k.cast(self.rule(*(widen_expr(x) for x in xs)), result_dtype)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return self, perm

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        return self, (box,) * len(inputs)

    @classmethod
    def samples(cls) -> Samples:
        return s.elementwise(cls, cls.arity, cls.kinds)


def widen_expr(x: Expr) -> Expr:
    """`x` with narrow floats cast to f32, sub-byte integers to 8 bits."""
    if x.dtype.is_float:
        return k.cast(x, f32) if x.dtype.bits < 32 else x
    return k.cast(x, DTYPES[f"{x.dtype.kind}8"]) if x.dtype.bits < 8 else x


def _kinds(kinds: str) -> str:
    names = {"f": "float", "i": "signed integer", "u": "unsigned integer", "b": "bool"}
    return " or ".join(names[c] for c in kinds) + " operands"


# --- unary: numbers


@dataclass(frozen=True)
class Abs(Elementwise):
    """|x|; the lowest signed integer wraps to itself."""

    name: ClassVar[str] = "abs"
    kinds: ClassVar[str] = "fiu"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.abs(x)

    def rule(self, x: Expr) -> Expr:
        return x if x.dtype.kind == "u" else k.unary("abs", x)


@dataclass(frozen=True)
class Neg(Elementwise):
    """-x; integers wrap."""

    name: ClassVar[str] = "negate"
    kinds: ClassVar[str] = "fiu"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.negative(x)

    def rule(self, x: Expr) -> Expr:
        return k.unary("neg", x)


@dataclass(frozen=True)
class Sign(Elementwise):
    """-1, 0 or 1; NaN and -0.0 give themselves."""

    name: ClassVar[str] = "sign"
    kinds: ClassVar[str] = "fiu"

    def compute(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f":
            return np.sign(x)
        return np.where((x == 0) | np.isnan(x), x, np.copysign(x.dtype.type(1), x))

    def rule(self, x: Expr) -> Expr:
        return sc.sign(x)


@dataclass(frozen=True)
class Floor(Elementwise):
    """The largest integer not above x, as a float."""

    name: ClassVar[str] = "floor"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.floor(x)

    def rule(self, x: Expr) -> Expr:
        return k.unary("floor", x)


@dataclass(frozen=True)
class Ceil(Elementwise):
    """The smallest integer not below x, as a float."""

    name: ClassVar[str] = "ceil"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.ceil(x)

    def rule(self, x: Expr) -> Expr:
        return k.unary("ceil", x)


@dataclass(frozen=True)
class RoundEven(Elementwise):
    """x rounded to the nearest integer, ties to even."""

    name: ClassVar[str] = "round_nearest_even"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.rint(x)

    def rule(self, x: Expr) -> Expr:
        return k.unary("round_even", x)


@dataclass(frozen=True)
class RoundAway(Elementwise):
    """x rounded to the nearest integer, ties away from zero."""

    name: ClassVar[str] = "round_nearest_afz"

    def compute(self, x: np.ndarray) -> np.ndarray:
        # adding 0.5 itself would round 0.49999997 up
        half = np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
        return np.copysign(np.trunc(x + np.copysign(half, x)), x)

    def rule(self, x: Expr) -> Expr:
        half = float(np.nextafter(x.dtype.numpy.type(0.5), x.dtype.numpy.type(0)))
        return k.binary("copysign", k.unary("trunc", k.add(x, k.binary("copysign", k.lit(half, x.dtype), x))), x)


@dataclass(frozen=True)
class Sqrt(Elementwise):
    """The square root; NaN for x < 0."""

    name: ClassVar[str] = "sqrt"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(x)

    def rule(self, x: Expr) -> Expr:
        return k.unary("sqrt", x)


@dataclass(frozen=True)
class Not(Elementwise):
    """Logical not of bool, bitwise not of integers."""

    name: ClassVar[str] = "not"
    kinds: ClassVar[str] = "iub"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.invert(x)

    def rule(self, x: Expr) -> Expr:
        return k.unary("not", x)


@dataclass(frozen=True)
class BitCount(Elementwise):
    """Base of bit counts, for integers of 8 bits or more."""

    kinds: ClassVar[str] = "iu"

    def result(self, *inputs: TensorType) -> DType:
        result_dtype = super().result(*inputs)
        self.expect(result_dtype.bits >= 8, f"expected integers of 8 bits or more, got {result_dtype}")
        return result_dtype

    @classmethod
    def samples(cls) -> Samples:
        return ((op, xs) for op, xs in s.elementwise(cls, 1, "iu") if dtype_of(xs[0]).bits >= 8)


@dataclass(frozen=True)
class PopulationCount(BitCount):
    """The number of set bits."""

    name: ClassVar[str] = "popcnt"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return _bits(x).sum(-1, dtype=x.dtype)

    def rule(self, x: Expr) -> Expr:
        return k.unary("popcnt", x)


@dataclass(frozen=True)
class CountLeadingZeros(BitCount):
    """The number of zero bits above the highest set bit; the bit width for 0."""

    name: ClassVar[str] = "count_leading_zeros"

    def compute(self, x: np.ndarray) -> np.ndarray:
        bits = _bits(x)
        return np.where(bits.any(-1), bits.argmax(-1), bits.shape[-1]).astype(x.dtype)

    def rule(self, x: Expr) -> Expr:
        return k.unary("clz", x)


def _bits(x: np.ndarray) -> np.ndarray:
    """The bits of x, most significant first, along a new last dimension."""
    size = x.dtype.itemsize
    octets = np.ascontiguousarray(x.astype(x.dtype.newbyteorder(">"))).reshape(-1).view(np.uint8)
    return np.unpackbits(octets).reshape(*x.shape, 8 * size)


@dataclass(frozen=True)
class Predicate(Elementwise):
    """Base: a float operand, a bool result."""

    def result(self, *inputs: TensorType) -> DType:
        super().result(*inputs)
        return boolean


@dataclass(frozen=True)
class IsFinite(Predicate):
    """Whether x is neither infinite nor NaN."""

    name: ClassVar[str] = "is_finite"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.isfinite(x)

    def rule(self, x: Expr) -> Expr:
        return k.binary("lt", k.unary("abs", x), k.lit(float("inf"), x.dtype))


@dataclass(frozen=True)
class IsNan(Predicate):
    """Whether x is NaN."""

    name: ClassVar[str] = "is_nan"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.isnan(x)

    def rule(self, x: Expr) -> Expr:
        return k.binary("ne", x, x)
