"""Ingot's dtype names: their size, their numpy dtype and PyTorch's name for them."""

from __future__ import annotations

from functools import cache

import numpy as np

from ingot.support.errors import InputError, VerifyError

# name -> (bytes, numpy or ml_dtypes name, PyTorch name). Numbers of less than 8 bits take a byte each.
_NUMPY_DTYPES = {
    "f64": (8, "float64", "torch.float64"),
    "f32": (4, "float32", "torch.float32"),
    "f16": (2, "float16", "torch.float16"),
    "i8": (1, "int8", "torch.int8"),
    "i16": (2, "int16", "torch.int16"),
    "i32": (4, "int32", "torch.int32"),
    "i64": (8, "int64", "torch.int64"),
    "u8": (1, "uint8", "torch.uint8"),
    "u16": (2, "uint16", "torch.uint16"),
    "u32": (4, "uint32", "torch.uint32"),
    "u64": (8, "uint64", "torch.uint64"),
    "bool": (1, "bool", "torch.bool"),
}
# from the package ml_dtypes
_ML_DTYPES = {
    "bf16": (2, "bfloat16", "torch.bfloat16"),
    "f8e4m3fn": (1, "float8_e4m3fn", "torch.float8_e4m3fn"),
    "f8e5m2": (1, "float8_e5m2", "torch.float8_e5m2"),
    "f8e4m3fnuz": (1, "float8_e4m3fnuz", "torch.float8_e4m3fnuz"),
    "f8e5m2fnuz": (1, "float8_e5m2fnuz", "torch.float8_e5m2fnuz"),
    "f8e8m0fnu": (1, "float8_e8m0fnu", "torch.float8_e8m0fnu"),
    "f4e2m1fn": (1, "float4_e2m1fn", "no torch type"),
    "i4": (1, "int4", "no torch type"),
    "i2": (1, "int2", "no torch type"),
    "u4": (1, "uint4", "no torch type"),
    "u2": (1, "uint2", "no torch type"),
}
_DTYPES = _NUMPY_DTYPES | _ML_DTYPES
NAMES = tuple(_DTYPES)


def itemsize(name: str) -> int:
    """Bytes per element. Raises VerifyError for an unknown name."""
    if name not in _DTYPES:
        raise VerifyError("dtype", expected=f"one of {', '.join(_DTYPES)}", got=repr(name))
    return _DTYPES[name][0]


def needs_ml_dtypes(name: str) -> bool:
    return name in _ML_DTYPES


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype. Dtypes that numpy lacks need the package ml_dtypes; raises InputError without it."""
    text = _DTYPES[name][1]
    if not needs_ml_dtypes(name):
        return np.dtype(text)
    # Imported here so that programs without such arrays load with numpy alone.
    try:
        import ml_dtypes
    except ImportError as error:
        raise InputError(
            f"{text} arrays need the package ml_dtypes", fix="pip install ml_dtypes, or pass torch tensors"
        ) from error
    return np.dtype(getattr(ml_dtypes, text))


def torch_name(name: str) -> str:
    """PyTorch's text for the dtype: `str(torch.float32)`."""
    return _DTYPES[name][2]
