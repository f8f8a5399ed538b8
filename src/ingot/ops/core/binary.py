"""Elementwise primitives of two or three operands, and conversions; see elementwise.py."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.node import Samples
from ingot.ir.types import DType, TensorType, boolean, dtype_of, truncation_type, u64
from ingot.ops.core import samples as s
from ingot.ops.core import scalars as sc
from ingot.ops.core.base import round_to, widen
from ingot.ops.core.elementwise import Elementwise, widen_expr
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class BinaryOp(Elementwise):
    """Base: two operands of one dtype; both shapes are equal (builders broadcast)."""

    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "fiu"


@dataclass(frozen=True)
class Add(BinaryOp):
    """a + b; integers wrap; or of bool."""

    name: ClassVar[str] = "add"
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "fiub"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.add(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.binary("or" if a.dtype == boolean else "add", a, b)


@dataclass(frozen=True)
class Sub(BinaryOp):
    """a - b; integers wrap."""

    name: ClassVar[str] = "subtract"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.subtract(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.sub(a, b)


@dataclass(frozen=True)
class Mul(BinaryOp):
    """a * b; integers wrap; and of bool."""

    name: ClassVar[str] = "multiply"
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "fiub"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.multiply(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.binary("and" if a.dtype == boolean else "mul", a, b)


@dataclass(frozen=True)
class Div(BinaryOp):
    """a / b; integers truncate towards zero. As in XLA, integer x / 0 has all bits set and lowest / -1 = lowest."""

    name: ClassVar[str] = "divide"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind == "f":
            return np.divide(a, b)
        safe = np.where((b == 0) | (b == _minus_one(b)), b.dtype.type(1), b)
        quotient = (a - np.fmod(a, safe)) // safe
        if a.dtype.kind == "i":
            quotient = np.where(b == -1, np.negative(a), quotient)
        else:
            quotient = np.where(b == _minus_one(b), a == b, quotient)
        return np.where(b == 0, ~np.zeros_like(a), quotient)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return sc.div(a, b)


@dataclass(frozen=True)
class Rem(BinaryOp):
    """The remainder of a / b with the sign of a (C's fmod and %). As in XLA, integer x rem 0 = x."""

    name: ClassVar[str] = "remainder"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind == "f":
            return np.fmod(a, b)
        safe = np.where(b == 0, b.dtype.type(1), b)
        if a.dtype.kind == "i":
            safe = np.where(b == -1, b.dtype.type(1), safe)
        return np.where(b == 0, a, np.fmod(a, safe))

    def rule(self, a: Expr, b: Expr) -> Expr:
        return sc.rem(a, b)


def _minus_one(x: np.ndarray) -> np.ndarray:
    return ~np.zeros((), x.dtype)


@dataclass(frozen=True)
class Max(BinaryOp):
    """The larger of a and b; NaN if either is NaN; or of bool."""

    name: ClassVar[str] = "maximum"
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "fiub"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.maximum(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.binary("or" if a.dtype == boolean else "max", a, b)


@dataclass(frozen=True)
class Min(BinaryOp):
    """The smaller of a and b; NaN if either is NaN; and of bool."""

    name: ClassVar[str] = "minimum"
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "fiub"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.minimum(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.binary("and" if a.dtype == boolean else "min", a, b)


@dataclass(frozen=True)
class Pow(BinaryOp):
    """a to the power b: IEEE pow of floats; integers wrap, and a negative power gives 0 unless a is 1 or -1."""

    name: ClassVar[str] = "power"
    costly: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind == "f":
            return np.power(a, b)
        if a.dtype.kind == "u":
            return np.power(a, b)
        positive = np.power(a, np.maximum(b, 0))
        odd = np.where(b % 2 == 0, 1, -1).astype(a.dtype)
        negative = np.where(a == 1, 1, np.where(a == -1, odd, 0)).astype(a.dtype)
        return np.where(b < 0, negative, positive)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.call("pow", a, b) if a.dtype.is_float else sc.integer_power(a, b)


@dataclass(frozen=True)
class Atan2(BinaryOp):
    """The angle of the point (x=b, y=a): atan(a / b) in the quadrant of the point."""

    name: ClassVar[str] = "atan2"
    kinds: ClassVar[str] = "f"
    exact: ClassVar[bool] = True

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.arctan2(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.call("atan2", a, b)


@dataclass(frozen=True)
class And(BinaryOp):
    """Bitwise and of integers, logical and of bool."""

    name: ClassVar[str] = "and"
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "iub"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.bitwise_and(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.binary("and", a, b)


@dataclass(frozen=True)
class Or(BinaryOp):
    """Bitwise or of integers, logical or of bool."""

    name: ClassVar[str] = "or"
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "iub"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.bitwise_or(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.binary("or", a, b)


@dataclass(frozen=True)
class Xor(BinaryOp):
    """Bitwise exclusive or of integers, logical of bool."""

    name: ClassVar[str] = "xor"
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "iub"

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.bitwise_xor(a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return k.binary("xor", a, b)


@dataclass(frozen=True)
class Shift(BinaryOp):
    """Base: a shifted by b bits. For b < 0 or b >= the bit width: 0, or the sign bit in all bits if arithmetic."""

    kinds: ClassVar[str] = "iu"
    fn: ClassVar[str] = ""

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = 8 * a.dtype.itemsize
        unsigned = b.view(f"u{b.dtype.itemsize}")
        overflows = unsigned >= width
        safe = np.where(overflows, 0, unsigned).astype(a.dtype)
        if self.fn == "shl":
            return np.where(overflows, 0, np.left_shift(a, safe)).astype(a.dtype)
        bits = a.view(f"{'u' if self.fn == 'lshr' else 'i'}{a.dtype.itemsize}")
        fill = np.zeros_like(bits) if self.fn == "lshr" else bits >> (width - 1)
        return np.where(overflows, fill, np.right_shift(bits, safe.astype(bits.dtype))).astype(bits.dtype).view(a.dtype)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return sc.shift(self.fn, a, b)

    @classmethod
    def samples(cls) -> Samples:
        return s.shifts(cls)


@dataclass(frozen=True)
class ShiftLeft(Shift):
    """a << b."""

    name: ClassVar[str] = "shift_left"
    fn: ClassVar[str] = "shl"


@dataclass(frozen=True)
class ShiftRightArithmetic(Shift):
    """a >> b with the sign bit shifted in."""

    name: ClassVar[str] = "shift_right_arithmetic"
    fn: ClassVar[str] = "ashr"


@dataclass(frozen=True)
class ShiftRightLogical(Shift):
    """a >> b with zeros shifted in."""

    name: ClassVar[str] = "shift_right_logical"
    fn: ClassVar[str] = "lshr"


_COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@dataclass(frozen=True)
class Compare(BinaryOp):
    """a `direction` b as a bool. direction: EQ, NE, LT, LE, GT or GE. With NaN only NE is true (IEEE 754)."""

    name: ClassVar[str] = "compare"
    kinds: ClassVar[str] = "fiub"
    direction: str

    def result(self, *inputs: TensorType) -> DType:
        super().result(*inputs)
        choices = " ".join(_COMPARE)
        self.expect(self.direction in _COMPARE, f"direction: expected one of {choices}, got {self.direction}")
        return boolean

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _COMPARE[self.direction](a, b)

    def rule(self, a: Expr, b: Expr) -> Expr:
        return sc.compare(self.direction.lower(), a, b)

    @classmethod
    def samples(cls) -> Samples:
        for direction in _COMPARE:
            yield from s.elementwise(lambda d=direction: cls(d), 2, cls.kinds)


@dataclass(frozen=True)
class Select(Elementwise):
    """pred ? a : b, for a bool pred and a, b of one dtype."""

    name: ClassVar[str] = "select"
    arity: ClassVar[int] = 3

    def result(self, *inputs: TensorType) -> DType:
        pred, a, b = (t.dtype for t in inputs)
        self.expect(pred == boolean, f"expected a bool predicate, got {pred}")
        self.expect(a == b, f"expected branches of one dtype, got {a} and {b}")
        return a

    def compute(self, pred: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(pred, a, b)

    def scalar(self, *xs: Expr) -> Expr:
        return k.select(*xs)

    @classmethod
    def samples(cls) -> Samples:
        for op, (a, b, c) in s.elementwise(cls, 3, "fiub"):
            with np.errstate(all="ignore"):
                yield op, (widen(a) > widen(b), b, c)


@dataclass(frozen=True)
class Clamp(Elementwise):
    """min(max(x, lo), hi) for operands (lo, x, hi); NaN propagates.

    open: the derivative by x at the bounds is 0 (PyTorch's hardtanh, jax.lax.clamp), else 1 (torch.clamp).
    """

    name: ClassVar[str] = "clamp"
    open: bool = False
    arity: ClassVar[int] = 3
    kinds: ClassVar[str] = "fiu"

    def compute(self, lo: np.ndarray, x: np.ndarray, hi: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(x, lo), hi)

    def rule(self, lo: Expr, x: Expr, hi: Expr) -> Expr:
        return k.binary("min", k.binary("max", x, lo), hi)


@dataclass(frozen=True)
class Convert(Elementwise):
    """x in `dtype`, as `kernel.Cast` converts.

    Float to integer truncates; NaN and values out of range give what x86 gives. Integer to integer wraps. To bool: x !=
    0.
    """

    name: ClassVar[str] = "convert"
    dtype: DType

    def result(self, *inputs: TensorType) -> DType:
        return self.dtype

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        x = widen(x) if dtype_of(x) != self.dtype else x
        if self.dtype == boolean:
            return np.asarray(x != 0)
        if x.dtype.kind == "f" and self.dtype.is_integer:
            return _truncate(x, self.dtype)
        return round_to(x, self.dtype)

    def scalar(self, *xs: Expr) -> Expr:
        (x,) = xs
        if self.dtype == boolean and x.dtype != boolean:
            wide = widen_expr(x)
            return k.binary("ne", wide, k.lit(0.0 if wide.dtype.is_float else 0, wide.dtype))
        return k.cast(x, self.dtype)

    @classmethod
    def samples(cls) -> Samples:
        return s.conversions(cls)


def _truncate(x: np.ndarray, dtype: DType) -> np.ndarray:
    word = truncation_type(dtype)
    limit, zero = x.dtype.type(2.0 ** (word.bits - 1)), x.dtype.type(0)
    is_in_range = np.abs(x) < limit
    truncated = np.where(is_in_range, np.where(is_in_range, x, zero).astype(np.int64), word.range[0])
    if dtype == u64:
        needs_top_bit = (x >= limit) & (x < 2 * limit)
        unsigned = np.where(needs_top_bit, x, zero).astype(np.uint64)
        return np.where(x >= limit, unsigned, truncated.astype(np.uint64))
    return round_to(truncated, dtype)


@dataclass(frozen=True)
class BitcastConvert(Elementwise):
    """The bits of x as another dtype of the same width; bool is excluded."""

    name: ClassVar[str] = "bitcast_convert"
    dtype: DType

    def result(self, *inputs: TensorType) -> DType:
        got = inputs[0].dtype
        self.expect(
            got.bits == self.dtype.bits and boolean not in (got, self.dtype),
            f"expected dtypes of one width and no bool, got {got} and {self.dtype}",
        )
        return self.dtype

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(inputs[0]).view(self.dtype.numpy).reshape(inputs[0].shape)

    def scalar(self, *xs: Expr) -> Expr:
        return k.bitcast(xs[0], self.dtype)

    @classmethod
    def samples(cls) -> Samples:
        return s.bitcasts(cls)
