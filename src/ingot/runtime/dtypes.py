"""Ingot's dtype names at the border: their size, their numpy dtype and PyTorch's name for them."""

from __future__ import annotations

from functools import cache

import numpy as np

from ingot.support.errors import InputError, VerifyError

# name -> (bytes, numpy or ml_dtypes name, PyTorch name). numpy has no bfloat16 of its own.
_DTYPES = {
    "f64": (8, "float64", "torch.float64"),
    "f32": (4, "float32", "torch.float32"),
    "f16": (2, "float16", "torch.float16"),
    "bf16": (2, "bfloat16", "torch.bfloat16"),
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


def itemsize(name: str) -> int:
    """Bytes per element. Raises VerifyError for an unknown name."""
    if name not in _DTYPES:
        raise VerifyError("dtype", expected=f"one of {', '.join(_DTYPES)}", got=repr(name))
    return _DTYPES[name][0]


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype. bf16 needs the package ml_dtypes; raises InputError without it."""
    if name != "bf16":
        return np.dtype(_DTYPES[name][1])
    # Imported here so that programs without bf16 arrays load with numpy alone.
    try:
        import ml_dtypes
    except ImportError as error:
        raise InputError(
            "bfloat16 arrays need the package ml_dtypes", fix="pip install ml_dtypes, or pass torch tensors"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def torch_name(name: str) -> str:
    """PyTorch's text for the dtype: `str(torch.float32)`."""
    return _DTYPES[name][2]
