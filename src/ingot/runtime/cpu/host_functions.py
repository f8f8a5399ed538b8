"""Functions of the host that programs call by name: Python functions, and C functions through ctypes.

A function receives arrays of its operands, which it must not write or keep, and arrays for its results.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ingot.runtime.cpu.host_call import HostCall
from ingot.runtime.dtypes import numpy_dtype
from ingot.support.errors import ArtifactError, CompileError

# (operands, results, attributes by name)
HostFunction = Callable[[Sequence[np.ndarray], Sequence[np.ndarray], Mapping[str, Any]], None]
FUNCTIONS: dict[str, HostFunction] = {}


def function_of(call: HostCall) -> HostFunction:
    """The registered function. Raises ArtifactError if there is none of this name."""
    function = FUNCTIONS.get(call.name)
    if function is None:
        fix = "call ingot.register_op before"
        raise ArtifactError(f"the program calls {call.name}", expected="a registered function", got="none", fix=fix)
    return function


def of_python(name: str, function: Callable[..., Any]) -> HostFunction:
    """`function(*operands, **attributes)` returns an array, or several."""

    def run(operands: Sequence[np.ndarray], results: Sequence[np.ndarray], attributes: Mapping[str, Any]) -> None:
        returned = function(*operands, **attributes)
        values = returned if isinstance(returned, list | tuple) else [returned]
        got = [(np.asarray(v).dtype.name, np.shape(v)) for v in values]
        want = [(r.dtype.name, r.shape) for r in results]
        if got != want:
            raise CompileError(f"{name}: its results", expected=want, got=got)
        for value, result in zip(values, results, strict=True):
            result[...] = value

    return run


def of_c(function: Any) -> HostFunction:
    """`void f(const void *const *operands, void *const *results, const int64_t *sizes, const double *attributes)`.

    sizes: of all axes of the operands, then of the results. attributes: in the order of their names.
    """

    def run(operands: Sequence[np.ndarray], results: Sequence[np.ndarray], attributes: Mapping[str, Any]) -> None:
        pointers = [
            (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays)) for arrays in (operands, results)
        ]
        sizes = [n for a in (*operands, *results) for n in a.shape]
        numbers = [float(value) for _, value in sorted(attributes.items())]
        function(
            *pointers,
            (ctypes.c_int64 * max(1, len(sizes)))(*sizes),
            (ctypes.c_double * max(1, len(numbers)))(*numbers),
        )

    return run


def bound(call: HostCall) -> Callable[[Sequence[int], Sequence[int]], None]:
    """The call as a function of the addresses of operands and results, and of the flat list of their sizes."""
    function, attributes = function_of(call), json.loads(call.attributes)

    def run(addresses: Sequence[int], sizes: Sequence[int]) -> None:
        arrays: list[np.ndarray] = []
        position = 0
        for n, ((dtype, rank), address) in enumerate(zip(call.tensors, addresses, strict=True)):
            shape = tuple(sizes[position : position + rank])
            position += rank
            array = _array(address, numpy_dtype(dtype), shape)
            array.flags.writeable = n >= len(call.operands)
            arrays.append(array)
        count = len(call.operands)
        function(arrays[:count], arrays[count:], attributes)

    return run


def _array(address: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    return np.frombuffer(memoryview((ctypes.c_char * nbytes).from_address(address)), dtype).reshape(shape)
