"""Element types and tensor types.

A shape is a tuple of dimensions; each is an `int` or a symbolic `Dim` (see `ingot.ir.dims`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

import ml_dtypes
import numpy as np

from ingot.ir.dims import Dim, DimLike, as_dim, is_static, product, substitute, symbols_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError

Shape = tuple[DimLike, ...]
Box = tuple[tuple[DimLike, DimLike], ...]  # (begin, end) of each dimension


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `kind` is one of f (float), i (signed), u (unsigned), b (bool)."""

    name: str
    bits: int
    kind: str

    @property
    def numpy(self) -> np.dtype:
        """The numpy (or ml_dtypes) type that stores one element."""
        return _NUMPY[self.name]

    @property
    def nbytes(self) -> int:
        """Bytes of one stored element; unpacked elements of less than a byte take one."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest value of an integer type."""
        least = -(1 << (self.bits - 1)) if self.kind == "i" else 0
        return least, least + (1 << self.bits) - 1

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


f64 = DType("f64", 64, "f")
f32 = DType("f32", 32, "f")
f16 = DType("f16", 16, "f")
bf16 = DType("bf16", 16, "f")
f8e4m3fn = DType("f8e4m3fn", 8, "f")
f8e5m2 = DType("f8e5m2", 8, "f")
f8e4m3fnuz = DType("f8e4m3fnuz", 8, "f")
f8e5m2fnuz = DType("f8e5m2fnuz", 8, "f")
f8e8m0fnu = DType("f8e8m0fnu", 8, "f")
f4e2m1fn = DType("f4e2m1fn", 4, "f")
i64 = DType("i64", 64, "i")
i32 = DType("i32", 32, "i")
i16 = DType("i16", 16, "i")
i8 = DType("i8", 8, "i")
i4 = DType("i4", 4, "i")
i2 = DType("i2", 2, "i")
u64 = DType("u64", 64, "u")
u32 = DType("u32", 32, "u")
u16 = DType("u16", 16, "u")
u8 = DType("u8", 8, "u")
u4 = DType("u4", 4, "u")
u2 = DType("u2", 2, "u")
boolean = DType("bool", 8, "b")

_FLOATS = (f64, f32, f16, bf16, f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, f8e8m0fnu, f4e2m1fn)
_INTEGERS = (i64, i32, i16, i8, i4, i2, u64, u32, u16, u8, u4, u2)
DTYPES: dict[str, DType] = {t.name: t for t in (*_FLOATS, *_INTEGERS, boolean)}

_NUMPY: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4e2m1fn": np.dtype(ml_dtypes.float4_e2m1fn),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(ml_dtypes.int4),
    "i2": np.dtype(ml_dtypes.int2),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "u4": np.dtype(ml_dtypes.uint4),
    "u2": np.dtype(ml_dtypes.uint2),
    "bool": np.dtype(np.bool_),
}
_FROM_NUMPY: dict[np.dtype, DType] = {v: DTYPES[k] for k, v in _NUMPY.items()}


def dtype_of(array: np.ndarray | np.generic | np.dtype | type) -> DType:
    """The DType of a numpy array or numpy dtype. Raises TypeError for unsupported ones."""
    dt = array.dtype if isinstance(array, np.ndarray | np.generic) else np.dtype(array)
    dtype = _FROM_NUMPY.get(dt.newbyteorder("=") if dt.byteorder == ">" else dt)
    if dtype is None:
        raise TypeError(f"no Ingot dtype for numpy {dt}; expected one of {', '.join(DTYPES)}")
    return dtype


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The encoding of a float of at most 8 bits: (-1)^sign 2^(e - bias) 1.m, subnormal where e is 0.

    top: the code of the largest number. overflow: the code of larger numbers: infinity, NaN, or the largest number.
    has_sign: false for e8m0, whose codes are powers of two. has_negative_zero: if false, that code is NaN.
    """

    mantissa: int
    bias: int
    top: int
    overflow: int
    nan: int
    has_sign: bool = True
    has_negative_zero: bool = True


# as ml_dtypes rounds: ties to even, powers of two away from zero; NaN of a type without one is -0
FLOAT_FORMATS: dict[DType, FloatFormat] = {
    f8e4m3fn: FloatFormat(3, 7, 0x7E, 0x7F, 0x7F),
    f8e5m2: FloatFormat(2, 15, 0x7B, 0x7C, 0x7E),
    f8e4m3fnuz: FloatFormat(3, 8, 0x7F, 0x80, 0x80, has_negative_zero=False),
    f8e5m2fnuz: FloatFormat(2, 16, 0x7F, 0x80, 0x80, has_negative_zero=False),
    f8e8m0fnu: FloatFormat(0, 127, 0xFE, 0xFF, 0xFF, has_sign=False, has_negative_zero=False),
    f4e2m1fn: FloatFormat(1, 1, 0x7, 0x7, 0x8),
}


def truncation_type(dtype: DType) -> DType:
    """The intermediate integer type of a conversion from float to the integer `dtype`, as on x86 (`kernel.Cast`)."""
    return i64 if dtype in (i64, u64, u32) else i32


@dataclass(frozen=True)
class TensorType:
    """The dtype and shape of one value, printed as `f32[s0,3,224,224]`; a scalar is `f32[]`. Raises ShapeError for a
    negative size."""

    dtype: DType
    shape: Shape = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(as_dim(d) for d in self.shape))
        if any(isinstance(d, int) and d < 0 for d in self.shape):
            raise ShapeError("a type", expected="sizes of 0 or more", got=self)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The symbols in the shape."""
        return frozenset[str]().union(*(symbols_of(d) for d in self.shape if isinstance(d, Dim)))

    def substitute(self, values: Mapping[str, int | Dim]) -> TensorType:
        """Return this type with the symbols in its shape replaced."""
        return TensorType(self.dtype, tuple(substitute(d, values) for d in self.shape))

    @cached_property
    def size(self) -> DimLike:
        """Number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> DimLike:
        return self.size * self.dtype.nbytes

    @property
    def is_static(self) -> bool:
        return is_static(self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


def static_shape(shape: Shape) -> tuple[int, ...]:
    """`shape` as plain ints. Raises ValueError where a dimension is symbolic."""
    if any(isinstance(d, Dim) for d in shape):
        raise ValueError(f"expected a static shape, got [{','.join(map(str, shape))}]")
    return tuple(int(d) for d in shape)


@dataclass(frozen=True)
class WeightAxes:
    """The axes of the weights w, operand 1 of a sum of products x * w.

    out: the output axis of w. result: the same axis in the result. contracted: the contracted axes of x and of w; with
    several groups, each contracts its part of x's. groups: their number. plain: w has no other axes, such as a
    window's.
    """

    out: int
    result: int
    contracted: tuple[int, int]
    groups: int = 1
    plain: bool = False


_WORDS = {
    "float64": ("fp64", "f64", "double"),
    "float32": ("fp32", "f32", "float", "single"),
    "float16": ("fp16", "f16", "half"),
    "bfloat16": ("bf16", "bfloat", "brain"),
}


def word_fix(text: object, words: Collection[str]) -> str | None:
    """What to do about a type that other projects name otherwise, for the message of an error: "fp16" is float16."""
    word = next((word for word, others in _WORDS.items() if str(text).lower() in others), None)
    return f"it is called {word}" if word in words else None
