"""GPU arrays of other libraries by DLPack: CuPy, JAX, and any with `__dlpack__` and `__dlpack_device__`.

Structures follow dlpack.h, version 1; see "Python Specification for DLPack" of the array API standard for streams.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any

from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

_CUDA = 2  # device type of a GPU's memory
_DEFAULT_STREAM = 1  # the handle of the legacy default stream
# DLPack's type codes: of kinds of numbers, whose bits complete the dtype, and of dtypes of 8 bits
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c"}
_BYTE_DTYPES = {6: "bool", 10: "f8e4m3fn", 11: "f8e4m3fnuz", 12: "f8e5m2", 13: "f8e5m2fnuz", 14: "f8e8m0fnu"}


class _Device(Structure):
    _fields_ = (("type", c_int32), ("number", c_int32))


class _Tensor(Structure):
    """DLTensor, the first field of DLManagedTensor."""

    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("rank", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("offset", c_uint64),
    )


_tensor = ctypes.PYFUNCTYPE(POINTER(_Tensor), py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


@dataclass(frozen=True)
class DlpackArray:
    """A dense array on the GPU. capsule: keeps its memory alive; not consumed."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    capsule: object


def is_dlpack_on_gpu(value: object) -> bool:
    """Whether it is an array in a GPU's memory that supports DLPack."""
    dlpack_device = getattr(value, "__dlpack_device__", None)
    return dlpack_device is not None and int(dlpack_device()[0]) == _CUDA


def dlpack_array(value: Any, what: str, stream: int) -> DlpackArray:
    """The array's memory, ready for work on `stream`. Raises InputError if it is not dense or on another GPU."""
    number = int(value.__dlpack_device__()[1])
    if number:
        raise InputError(what, expected="an array on GPU 0, where the model is", got=f"one on GPU {number}")
    try:
        capsule = value.__dlpack__(stream=stream or _DEFAULT_STREAM)
    except (BufferError, TypeError, RuntimeError, ValueError) as error:
        raise InputError(what, expected="an array that DLPack can tell of", got=str(error)) from error
    tensor = _tensor(capsule, b"dltensor").contents
    shape = tuple(tensor.shape[i] for i in range(tensor.rank))
    if tensor.strides and not _is_dense(shape, [tensor.strides[i] for i in range(tensor.rank)]):
        raise InputError(what, expected="a dense array", got="one with strides", fix="copy it: its ascontiguousarray")
    name = _BYTE_DTYPES.get(tensor.code) or f"{_CODES.get(tensor.code, f'kind {tensor.code} of ')}{tensor.bits}"
    if tensor.lanes != 1:
        raise InputError(what, expected="one number in each element", got=f"{tensor.lanes}")
    return DlpackArray((tensor.data or 0) + tensor.offset, shape, name, capsule)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return 0 in shape
        step *= size
    return True


__all__ = ["DlpackArray", "dlpack_array", "is_dlpack_on_gpu"]
