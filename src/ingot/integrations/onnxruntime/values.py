"""ONNX Runtime's wrappers of arrays: `OrtValue`, and bindings of inputs and outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ingot.runtime.dtypes import numpy_dtype
from ingot.support.errors import InputError

# ONNX Runtime's names of element types, and ONNX's numbers
ELEMENTS = {
    "f32": ("float", 1), "u8": ("uint8", 2), "i8": ("int8", 3), "u16": ("uint16", 4), "i16": ("int16", 5),
    "i32": ("int32", 6), "i64": ("int64", 7), "string": ("string", 8), "bool": ("bool", 9), "f16": ("float16", 10),
    "f64": ("double", 11), "u32": ("uint32", 12), "u64": ("uint64", 13), "bf16": ("bfloat16", 16),
}  # fmt: skip
_DTYPES = {number: name for name, (_, number) in ELEMENTS.items() if name != "string"}


def element_dtype(element: Any) -> np.dtype:
    """The dtype of a numpy type or of ONNX's number. Raises InputError."""
    if not isinstance(element, int):
        return np.dtype(element)
    if element not in _DTYPES:
        raise InputError("an element type", expected=f"one of {sorted(_DTYPES)}", got=element)
    return numpy_dtype(_DTYPES[element])


def at_address(address: int, shape: Sequence[int], element: Any) -> np.ndarray:
    """The array at an address of this process, which the caller keeps alive."""
    dtype = element_dtype(element)
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    if address <= 0 or min(shape) < 0:
        raise InputError("a buffer", expected="an address and sizes >= 0", got=f"{address:#x}, {[*shape]}")
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), dtype).reshape(tuple(shape))


def _check_cpu(device: str) -> None:
    if device.lower() != "cpu":
        fix = "pass torch's CUDA tensors to a model of target='cuda:sm_90a'"
        raise InputError("a value's device", expected="cpu", got=device, fix=fix)


class OrtValue:
    """A value on the host: an array, shared with its creator, or a sequence."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        _check_cpu(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        _check_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), element_dtype(element_type)))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        array = np.from_dlpack(data)
        return OrtValue(array.view(bool) if is_bool_tensor else array)

    def numpy(self) -> Any:
        return self._value

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Raises InputError for another dtype or shape."""
        if np_arr.dtype != self._array.dtype or np_arr.shape != self._array.shape:
            expected = f"{self._array.dtype} {self._array.shape}"
            raise InputError("an update", expected=expected, got=f"{np_arr.dtype} {np_arr.shape}")
        self._array[...] = np_arr

    @property
    def _array(self) -> np.ndarray:
        if not isinstance(self._value, np.ndarray):
            raise InputError("a value", expected="a tensor", got=type(self._value).__name__)
        return self._value

    def shape(self) -> list[int]:
        return [*self._array.shape]

    def data_type(self) -> str:
        return (
            type_name(self._array) if self.is_tensor() else f"seq({type_name(self._value[0]) if self._value else ''})"
        )

    def element_type(self) -> int:
        return next(number for text, number in ELEMENTS.values() if f"tensor({text})" == type_name(self._array))

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._array, dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def type_name(array: np.ndarray) -> str:
    """ "tensor(float)" of an array."""
    if array.dtype.kind in "OSU":
        return "tensor(string)"
    names = (text for name, (text, _) in ELEMENTS.items() if name != "string" and numpy_dtype(name) == array.dtype)
    return f"tensor({next(names, array.dtype.name)})"


class IOBinding:
    """Inputs and outputs of a run by name, optionally in memory of the caller."""

    def __init__(self, session: object) -> None:
        """session: unused; for compatibility with ONNX Runtime."""
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        _check_cpu(device_type)
        self._inputs[name] = at_address(buffer_ptr, shape, element_type)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """shape, buffer_ptr: memory of the caller; without them the run allocates."""
        _check_cpu(device_type)
        array = None if buffer_ptr is None or shape is None else at_address(buffer_ptr, shape, element_type)
        self._outputs[name] = array

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        self._outputs[name] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Nothing: runs are synchronous."""

    def synchronize_outputs(self) -> None:
        """Nothing: runs are synchronous."""

    def get_outputs(self) -> list[OrtValue]:
        return self._results

    def copy_outputs_to_cpu(self) -> list[Any]:
        return [value.numpy() for value in self._results]

    @property
    def bound(self) -> tuple[Mapping[str, Any], Mapping[str, np.ndarray | None]]:
        return self._inputs, self._outputs

    def set_results(self, results: Sequence[Any]) -> None:
        self._results = [OrtValue(result) for result in results]
