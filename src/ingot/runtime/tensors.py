"""Adapters for inputs and outputs: numpy arrays, PyTorch tensors and anything with DLPack, without copies.

PyTorch is recognized by its tensors' methods and is never imported: a caller who passes a tensor has loaded it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Protocol, TypeGuard, cast

import numpy as np

from ingot.runtime import dtypes
from ingot.runtime.cpu.memory import advise_huge_pages
from ingot.runtime.cuda.foreign import DlpackArray, dlpack_array
from ingot.runtime.expr import show
from ingot.runtime.program import TensorSpec
from ingot.support.errors import InputError

_CPU = 1  # of DLPack's devices


class Tensor(Protocol):
    """The part of `torch.Tensor` that is used."""

    @property
    def dtype(self) -> object: ...
    @property
    def device(self) -> object: ...
    @property
    def layout(self) -> object: ...
    @property
    def is_cpu(self) -> bool: ...
    @property
    def is_cuda(self) -> bool: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def data_ptr(self) -> int: ...
    @property
    def is_nested(self) -> bool: ...
    @property
    def requires_grad(self) -> bool: ...
    @property
    def itemsize(self) -> int: ...
    def numel(self) -> int: ...
    def storage_offset(self) -> int: ...
    def stride(self) -> tuple[int, ...]: ...
    def _is_zerotensor(self) -> bool: ...
    def untyped_storage(self) -> _UntypedStorage: ...
    def is_contiguous(self) -> bool: ...
    def contiguous(self) -> Tensor: ...
    def is_neg(self) -> bool: ...
    def view(self, dtype: object) -> Tensor: ...
    def reshape(self, shape: int | tuple[int, ...]) -> Tensor: ...
    def tolist(self) -> list[int]: ...
    def resolve_neg(self) -> Tensor: ...
    def clone(self) -> Tensor: ...
    def set_(self, source: Tensor, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor: ...
    def detach(self) -> Tensor: ...
    def cpu(self) -> Tensor: ...
    def __getitem__(self, index: slice) -> Tensor: ...


class _UntypedStorage(Protocol):
    def nbytes(self) -> int: ...
    def is_shared(self) -> bool: ...


class _Torch(Protocol):
    _C: object
    cuda: ModuleType
    uint8: object
    Tensor: type

    def empty_strided(
        self, shape: tuple[int, ...], strides: tuple[int, ...], *, dtype: object, device: object = None
    ) -> Tensor: ...
    def empty(self, size: int, *, dtype: object, device: object) -> Tensor: ...


class _Interface(ctypes.Structure):
    """PyArrayInterface, of numpy's array interface protocol."""

    _fields_ = (
        ("two", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("kind", ctypes.c_char),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("description", ctypes.c_void_p),
    )


_interface = ctypes.PYFUNCTYPE(ctypes.POINTER(_Interface), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def address(array: np.ndarray) -> int:
    """The address of the first element. `__array_interface__` takes twice as long, as it describes the full array."""
    return _interface(array.__array_struct__, None).contents.data or 0


class TensorAdapter:
    """Checks and converts the values of one input, or allocates one output. gpu: tensors may be on an NVIDIA GPU."""

    def __init__(self, spec: TensorSpec, *, gpu: bool = False) -> None:
        self.spec, self.gpu = spec, gpu
        self.torch_name = dtypes.torch_name(spec.dtype)
        # Programs called with torch tensors need no ml_dtypes.
        self.dtype = None if dtypes.needs_ml_dtypes(spec.dtype) else dtypes.numpy_dtype(spec.dtype)
        # dtype, layout and type of the last accepted tensor: torch has one object for each, so `is` compares them
        self._last_kind: tuple[object, object, type] = (None, None, type(None))

    def array(self, value: object) -> np.ndarray:
        """The value as a C-contiguous array of the declared dtype; copies only strided input. Raises InputError."""
        if not isinstance(value, np.ndarray):
            value = self._from_other(value)
        elif type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            value = self.unmasked(value)
        dtype = self.dtype or dtypes.numpy_dtype(self.spec.dtype)
        if value.dtype != dtype:
            raise self._wrong_dtype(value.dtype, f"convert it: x.astype({dtype.name!r})")
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    def unmasked(self, value: np.ma.MaskedArray) -> np.ndarray:
        if np.ma.is_masked(value):
            raise self._wrong("an array without masked elements", "a masked array", "use x.filled(0)")
        return value.data

    def _from_other(self, value: object) -> np.ndarray:
        if isinstance(value, np.generic):
            return np.asarray(value)
        if not hasattr(value, "__dlpack__"):
            expected = f"a numpy array, a torch tensor or a DLPack object for {self.spec}"
            raise self._wrong(expected, type(value).__name__, "wrap it: np.asarray(x, dtype=...)")
        try:
            return np.from_dlpack(value)  # type: ignore[arg-type]
        except Exception as error:  # any exception of another library that cannot export its array
            refused = error
        with suppress(Exception):  # numpy's DLPack lacks the types of ml_dtypes, such as bfloat16
            if hasattr(value, "__array__") and value.__dlpack_device__()[0] == _CPU:  # type: ignore[attr-defined]
                return np.asarray(value)
        raise self._wrong("a tensor in CPU memory", f"{type(value).__name__}: {refused}") from refused

    def tensor(self, value: Tensor) -> Tensor:
        """The value as a dense tensor of the declared dtype on the right device, with memory; copies only strided
        input. Raises InputError."""
        dtype, layout, kind = self._last_kind
        try:
            is_same = value.dtype is dtype and value.layout is layout and type(value) is kind and not value.is_nested
            if not is_same or not (value.is_cpu or (self.gpu and value.is_cuda)):
                self._check(value)
                self._last_kind = value.dtype, value.layout, type(value)
            if not (value.data_ptr() and value.untyped_storage().nbytes() >= _end_byte(value)):
                value = self._without_memory(value)
            if value.is_neg():
                value = value.resolve_neg()
            return value if value.is_contiguous() else value.contiguous()
        except InputError:
            raise
        except Exception as error:  # torch's, for tensors without shape or memory
            raise self._wrong("a tensor with memory", f"{_kind_of(value)}: {error}") from error

    def _without_memory(self, value: Tensor) -> Tensor:
        """An empty tensor unchanged, or a copy with memory of a tensor of zeros that torch has not materialized. Raises
        InputError for any other tensor."""
        if not value.numel():
            return value
        if value._is_zerotensor():
            return value.clone()
        got = f"{_kind_of(value)} without memory"
        if value.data_ptr():
            got = (
                f"{_kind_of(value)} whose storage ends at byte {value.untyped_storage().nbytes()} of {_end_byte(value)}"
            )
        raise self._wrong("a tensor with memory", got)

    def _check(self, value: Tensor) -> None:
        if str(value.dtype) != self.torch_name:
            raise self._wrong_dtype(value.dtype, f"convert it: x.to({self.torch_name})")
        if not (value.is_cpu or (self.gpu and value.is_cuda)):
            expected = "a CPU or CUDA tensor" if self.gpu else "a CPU tensor"
            fix = "give it data: torch.empty_like(x, device='cpu')" if str(value.device) == "meta" else "use x.cpu()"
            raise self._wrong(expected, value.device, fix)
        if str(value.layout) != "torch.strided":
            raise self._wrong("a dense tensor", value.layout, "use x.to_dense()")
        if value.is_nested:
            raise self._wrong("a dense tensor", "a nested one", "use torch.nested.to_padded_tensor(x, 0.0)")
        torch = cast(_Torch, sys.modules["torch"])
        # such a subclass defines its own elements: masked, distributed, quantized, without data
        if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
            raise self._wrong("a plain tensor", _kind_of(value), "convert it to a torch.Tensor")

    def dlpack(self, value: object) -> DlpackArray:
        """The value as a dense array of the declared dtype on the GPU, through DLPack. Raises InputError."""
        array = dlpack_array(value, f"input {self.spec.name!r}", current_stream())
        if array.dtype != self.spec.dtype:
            raise self._wrong_dtype(array.dtype, "convert it")
        return array

    def _wrong(self, expected: str, got: object, fix: str = "") -> InputError:
        return InputError(f"input {self.spec.name!r}", expected=expected, got=got, fix=fix)

    def _wrong_dtype(self, got: object, fix: str) -> InputError:
        shape = ", ".join(map(show, self.spec.shape))
        return self._wrong(f"dtype {self.spec.dtype} [{shape}]", f"dtype {got}", fix)

    def new_array(self, shape: tuple[int, ...], memory: np.ndarray | None) -> np.ndarray:
        """An uninitialized array. memory: the bytes to use for it, if given."""
        dtype = self.dtype or dtypes.numpy_dtype(self.spec.dtype)
        return np.empty(shape, dtype) if memory is None else memory.view(dtype).reshape(shape)

    def new_tensor(
        self, shape: tuple[int, ...], strides: tuple[int, ...], memory: Tensor | None = None, device: object = None
    ) -> Tensor:
        """An uninitialized tensor. strides: those of a contiguous one, in elements. device: a GPU of torch's; None: the
        CPU."""
        if device is not None:
            fast_empty = self._empty_cuda
            if fast_empty is not None and self._current_gpu() == 0:
                return fast_empty(shape, strides, self.torch_dtype)
            torch = cast(_Torch, sys.modules["torch"])
            return torch.empty_strided(shape, strides, dtype=self.torch_dtype, device=device)
        if memory is None:
            return self.empty(shape, strides, self.torch_dtype)
        return self.empty((0,), (1,), self.torch_dtype).set_(memory.view(self.torch_dtype), 0, shape, strides)

    def check_out(self, array: np.ndarray, shape: tuple[int, ...], others: Sequence[object]) -> None:
        """Raise InputError unless an output can be written into `array`. others: what else the run reads and writes."""
        check_out(self.spec, array, self.dtype or dtypes.numpy_dtype(self.spec.dtype), shape)
        if any(np.may_share_memory(array, other) for other in others if isinstance(other, np.ndarray)):
            expected = "memory that no input and no other output has"
            raise InputError(f"output {self.spec.name!r}", expected=expected, got="shared memory", fix="pass a copy")

    def crop(self, result: np.ndarray | Tensor, shape: tuple[int, ...]) -> np.ndarray | Tensor:
        """The result cropped to a shape: a copy of the first elements of the larger one."""
        if tuple(result.shape) == shape:
            return result
        part = result.reshape(-1)[: prod(shape)].reshape(shape)
        return part.copy() if isinstance(part, np.ndarray) else part.clone()

    @cached_property
    def torch_dtype(self) -> object:
        return getattr(sys.modules["torch"], self.torch_name.removeprefix("torch."))

    @cached_property
    def empty(self) -> Callable[[tuple[int, ...], tuple[int, ...], object], Tensor]:
        torch = cast(_Torch, sys.modules["torch"])
        return _fast_empty("cpu") or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))

    @cached_property
    def _current_gpu(self) -> Callable[[], int]:
        return cast(_Torch, sys.modules["torch"])._C._cuda_getDevice  # type: ignore[attr-defined]

    @cached_property
    def _empty_cuda(self) -> Callable[[tuple[int, ...], tuple[int, ...], object], Tensor] | None:
        return _fast_empty("cuda")


def _fast_empty(device: str) -> Callable[[tuple[int, ...], tuple[int, ...], object], Tensor] | None:
    """Inductor's allocation function, which takes a third of the time of torch.empty; None if this version of torch
    lacks it. For "cuda" it allocates on the current GPU."""
    torch = cast(_Torch, sys.modules["torch"])
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, f"_empty_strided_{device}", None)


def check_count(out: Sequence[object], outputs: Sequence[TensorSpec]) -> None:
    if len(out) != len(outputs):
        raise InputError("out", expected=f"{len(outputs)} arrays, or None for some", got=len(out))


def check_out(spec: TensorSpec, array: object, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise InputError unless `array` is an array for an output: of its dtype and shape, contiguous, writable."""
    fix = f"np.empty({shape}, {dtype.name!r})"
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"output {spec.name!r}", expected=f"an array {dtype.name} {shape}", got=got, fix=fix)
    if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
        expected = "an array that is C-contiguous, aligned and writable"
        raise InputError(f"output {spec.name!r}", expected=expected, got=str(array.flags).split(), fix=fix)


class TensorResults:
    """Recycled memory for tensor results, as `memory.Results` is for arrays. The storages are torch's own, as callers
    may resize them.

    A storage is recycled only when no caller holds a tensor, an array or the storage itself, for which torch counts
    references, and when no caller has freed its memory or shared it with another process.
    """

    def __init__(self, limit: int) -> None:
        """limit: how many storages are retained."""
        self._limit = limit
        self._storages: list[_Storage] = []

    def take(self, nbytes: int, device: object = None) -> Tensor | None:
        """A tensor of `nbytes` uninitialized bytes; None if this version of torch does not expose the reference count.

        device: a GPU of torch's. Its memory is recycled on the same stream alone, and None is returned where others may
        read it later than the reference count tells: a graph that is being captured, and hooks for saved tensors."""
        torch = cast(_Torch, sys.modules["torch"])
        if not hasattr(torch._C, "_storage_Use_Count"):
            return None
        stream = -1 if device is None else current_stream()
        if device is not None and (torch.cuda.is_current_stream_capturing() or _has_hooks(torch)):
            return None
        storage = self._find_free(nbytes, stream) or _Storage(torch, nbytes, device, stream)
        memory = storage.memory.view(storage.memory.dtype)  # in use from here on
        self._storages.append(storage)
        del self._storages[: -self._limit]
        return memory

    def _find_free(self, nbytes: int, stream: int) -> _Storage | None:
        for storage in tuple(self._storages):
            try:
                self._storages.remove(storage)  # no other thread takes it meanwhile
            except ValueError:
                continue
            if (storage.memory.nbytes, storage.stream) == (nbytes, stream) and storage.is_free():
                return storage
            self._storages.append(storage)
        self._storages = [s for s in self._storages if s.is_held()]  # free storages of outdated sizes
        return None


class _Storage:
    """A storage and its first tensor, `memory`. stream: the GPU's that uses it, or -1."""

    def __init__(self, torch: _Torch, nbytes: int, device: object, stream: int) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu" if device is None else device)
        self.stream = stream
        if device is None:
            advise_huge_pages(self.memory.data_ptr(), nbytes)
        self._count: Callable[[int], int] = torch._C._storage_Use_Count  # type: ignore[attr-defined]
        self._address: int = torch._C._storage_address(self.memory)  # type: ignore[attr-defined]
        # torch counts the Python object as one owner, from when anyone asks for it, until the memory is freed
        self._object = self.memory.untyped_storage()
        self._own_references = self._references()

    def _references(self) -> int:
        return self._count(self._address) + sys.getrefcount(self._object)

    def is_held(self) -> bool:
        return self._references() > self._own_references

    def is_free(self) -> bool:
        """Whether no caller of this process or another may read the memory, and it is still there."""
        is_whole = self._object.nbytes() >= self.memory.nbytes
        # torch calls all memory of a GPU shared
        is_private = self.stream >= 0 or not self._object.is_shared()
        return is_whole and is_private and not self.is_held()


def _has_hooks(torch: _Torch) -> bool:
    """Whether hooks read what autograd saves, on whatever stream."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # type: ignore[attr-defined]


def current_stream() -> int:
    """PyTorch's current stream on the GPU; without a PyTorch for GPUs the default stream, 0."""
    torch = sys.modules.get("torch")
    try:  # called by Inductor's code, too: it takes a twentieth of the time of `torch.cuda.current_stream`
        return torch._C._cuda_getCurrentRawStream(0)  # type: ignore[union-attr]
    except AttributeError:
        return 0


def tensor_guard(tensors: Sequence[object]) -> Callable[..., bool] | None:
    """A predicate: whether its arguments have the types, sizes, strides and devices of these tensors.

    It is the guard of torch's compiled code, which takes a fifth of the time of separate checks; None if this version
    of torch lacks it. It aborts the process for nested tensors.
    """
    torch = cast(_Torch, sys.modules["torch"])
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    guard_class = getattr(guards, "TensorGuards", None)
    return (
        None if guard_class is None else guard_class(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    )


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether the value is a `torch.Tensor` (or a subclass)."""
    return hasattr(value, "data_ptr") and "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def has_tangent(value: Tensor) -> bool:
    """Whether a tensor carries a tangent of forward-mode differentiation."""
    forward_ad = sys.modules["torch.autograd.forward_ad"]
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None


def is_recording() -> bool:
    """Whether torch records operations on tensors that require a gradient."""
    return sys.modules["torch"].is_grad_enabled()


def host_array(value: object, name: str) -> np.ndarray:
    """The value of an input that selects a program, as an array of any dtype. Raises InputError for a value whose
    elements cannot be read, as a call does."""
    try:
        if is_tensor(value):
            dtype = next((n for n in dtypes.NAMES if dtypes.torch_name(n) == str(value.dtype)), "f32")
            value = TensorAdapter(TensorSpec(name, dtype, ())).tensor(value).detach()
            if dtypes.needs_ml_dtypes(dtype):  # which numpy does not take from a tensor
                elements = value.reshape((value.numel(),)).contiguous().view(cast(_Torch, sys.modules["torch"]).uint8)
                return np.asarray(elements).view(dtypes.numpy_dtype(dtype)).reshape(value.shape)
        elif isinstance(value, np.ma.MaskedArray):
            value = TensorAdapter(TensorSpec(name, "f32", ())).unmasked(value)
        return np.asarray(value)
    except (RuntimeError, TypeError) as error:
        got = f"{type(value).__name__}: {error}"
        raise InputError(f"input {name!r}", expected="an array in CPU memory", got=got) from error


def _end_byte(value: Tensor) -> int:
    """The end of a tensor's elements, in bytes from the start of its storage."""
    count = value.numel()
    if not value.is_contiguous():
        count = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    return (value.storage_offset() + count) * value.itemsize


def _kind_of(value: object) -> str:
    """The type of a tensor and of the wrappers that its type does not show: functional, or a value of torch.func."""
    keys = str(cast(_Torch, sys.modules["torch"])._C._dispatch_keys(value))  # type: ignore[attr-defined]
    wrappers = [word for key, word in _WRAPPERS.items() if key in keys]
    return " of ".join((type(value).__name__, *wrappers))


_WRAPPERS = {
    "FuncTorchBatched": "torch.func.vmap",
    "FuncTorchGradWrapper": "torch.func.grad",
    "Functionalize": "functionalization",
}
