"""Arrays of others in a GPU's memory, by DLPack: CuPy's, JAX's, whoever has `__dlpack__` and `__dlpack_device__`.

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
_DEFAULT_STREAM = 1  # the legacy default stream, where a stream's handle is asked for
# kinds of numbers: these have bits, and those do not
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c"}
_OF_8 = {6: "bool", 10: "f8e4m3fn", 11: "f8e4m3fnuz", 12: "f8e5m2", 13: "f8e5m2fnuz", 14: "f8e8m0fnu"}


class _Device(Structure):
    _fields_ = (("type", c_int32), ("number", c_int32))


class _Tensor(Structure):
    """DLTensor, which DLManagedTensor begins with."""

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
    """A dense array on the GPU. held: what keeps its memory, a capsule that nobody has consumed."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    capsule: object


def is_dlpack_on_gpu(value: object) -> bool:
    """Whether it is an array that is no tensor of PyTorch's and lies in a GPU's memory."""
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and int(where()[0]) == _CUDA


def dlpack_array(value: Any, what: str, stream: int) -> DlpackArray:
    """Its memory, ready for work on that stream. Raises InputError where it is not dense, or on another GPU."""
    number = int(value.__dlpack_device__()[1])
    if number:
        raise InputError(what, expected="an array on GPU 0, where the model is", got=f"one on GPU {number}")
    try:
        capsule = value.__dlpack__(stream=stream or _DEFAULT_STREAM)
    except (BufferError, TypeError, RuntimeError, ValueError) as error:
        raise InputError(what, expected="an array that DLPack can tell of", got=str(error)) from error
    told = _tensor(capsule, b"dltensor").contents
    shape = tuple(told.shape[i] for i in range(told.rank))
    if told.strides and not _is_dense(shape, [told.strides[i] for i in range(told.rank)]):
        raise InputError(what, expected="a dense array", got="one with strides", fix="copy it: its ascontiguousarray")
    name = _OF_8.get(told.code) or f"{_CODES.get(told.code, f'kind {told.code} of ')}{told.bits}"
    if told.lanes != 1:
        raise InputError(what, expected="one number in each element", got=f"{told.lanes}")
    return DlpackArray((told.data or 0) + told.offset, shape, name, capsule)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return 0 in shape
        step *= size
    return True


__all__ = ["DlpackArray", "dlpack_array", "is_dlpack_on_gpu"]
