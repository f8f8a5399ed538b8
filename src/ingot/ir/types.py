"""Element types and tensor types.

A shape is a tuple of dimensions; each is an `int` or a symbolic `Dim` (see `ingot.ir.dims`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from ingot.ir.dims import Dim, DimLike, as_dim, product

Shape = tuple[DimLike, ...]
Box = tuple[tuple[DimLike, DimLike], ...]  # of each dimension the part from the first up to the second


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
        """Bytes of one stored element; sub-byte types take a whole byte unpacked."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type."""
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
i64 = DType("i64", 64, "i")
i32 = DType("i32", 32, "i")
i16 = DType("i16", 16, "i")
i8 = DType("i8", 8, "i")
i4 = DType("i4", 4, "i")
u64 = DType("u64", 64, "u")
u32 = DType("u32", 32, "u")
u16 = DType("u16", 16, "u")
u8 = DType("u8", 8, "u")
u4 = DType("u4", 4, "u")
boolean = DType("bool", 8, "b")

DTYPES: dict[str, DType] = {
    t.name: t for t in (f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, i16, i8, i4, u64, u32, u16, u8, u4, boolean)
}

_NUMPY: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(ml_dtypes.int4),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "u4": np.dtype(ml_dtypes.uint4),
    "bool": np.dtype(np.bool_),
}
_FROM_NUMPY: dict[np.dtype, DType] = {v: DTYPES[k] for k, v in _NUMPY.items()}


def dtype_of(array: np.ndarray | np.generic | np.dtype | type) -> DType:
    """The DType of a numpy array or numpy dtype. Raises TypeError for one that Ingot has no type for."""
    dt = array.dtype if isinstance(array, np.ndarray | np.generic) else np.dtype(array)
    found = _FROM_NUMPY.get(dt.newbyteorder("=") if dt.byteorder == ">" else dt)
    if found is None:
        raise TypeError(f"no Ingot dtype for numpy {dt}; expected one of {', '.join(DTYPES)}")
    return found


def truncated_in(dtype: DType) -> DType:
    """The integer that a float is truncated to on its way to the integer `dtype`, as on x86 (`kernel.Cast`)."""
    return i64 if dtype in (i64, u64, u32) else i32


@dataclass(frozen=True)
class TensorType:
    """dtype and shape of one value. Printed as `f32[s0,3,224,224]`; a scalar is `f32[]`."""

    dtype: DType
    shape: Shape = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(as_dim(d) for d in self.shape))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> DimLike:
        """Number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> DimLike:
        return self.size * self.dtype.nbytes

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

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
