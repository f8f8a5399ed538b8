"""Values at the model's border: numpy arrays, PyTorch tensors and anything with DLPack, without copies.

PyTorch is recognised by its tensors' methods and is never imported: a caller who passes a tensor has it loaded.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Protocol, TypeGuard, cast

import numpy as np

from ingot.runtime import dtypes
from ingot.runtime.cpu.memory import advise_huge_pages
from ingot.runtime.cuda.foreign import Foreign, taken
from ingot.runtime.expr import show
from ingot.runtime.program import TensorSpec
from ingot.support.errors import InputError

_CPU = 1  # of DLPack's devices


class Tensor(Protocol):
    """What is used of `torch.Tensor`."""

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
    def is_contiguous(self) -> bool: ...
    def contiguous(self) -> Tensor: ...
    def is_neg(self) -> bool: ...
    def view(self, dtype: object) -> Tensor: ...
    def reshape(self, shape: int | tuple[int, ...]) -> Tensor: ...
    def tolist(self) -> list[int]: ...
    def resolve_neg(self) -> Tensor: ...
    def clone(self) -> Tensor: ...
    def set_(self, source: Tensor, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor: ...
    def cpu(self) -> Tensor: ...
    def __getitem__(self, index: slice) -> Tensor: ...


class _Torch(Protocol):
    _C: object
    uint8: object

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
    """Of its first element; `__array_interface__` takes twice as long, as it describes the whole array."""
    return _interface(array.__array_struct__, None).contents.data or 0


class Border:
    """The precomputed checks of one input, or the maker of one output. gpu: tensors may lie on an NVIDIA GPU, too."""

    def __init__(self, spec: TensorSpec, *, gpu: bool = False) -> None:
        self.spec, self.gpu = spec, gpu
        self.torch_name = dtypes.torch_name(spec.dtype)
        # Programs called with torch tensors need no ml_dtypes.
        self.dtype = None if dtypes.needs_ml_dtypes(spec.dtype) else dtypes.numpy_dtype(spec.dtype)
        # What the first tensor that was right had, as torch has one object for each.
        self._kind: tuple[object, object] = (None, None)

    def array(self, value: object) -> np.ndarray:
        """A C-contiguous array of the right dtype; a copy only for strided input. Raises InputError."""
        if not isinstance(value, np.ndarray):
            value = self._from_other(value)
        dtype = self.dtype or dtypes.numpy_dtype(self.spec.dtype)
        if value.dtype != dtype:
            raise self._wrong_dtype(value.dtype, f"convert it: x.astype({dtype.name!r})")
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    def _from_other(self, value: object) -> np.ndarray:
        if isinstance(value, np.generic):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            try:
                return np.from_dlpack(value)  # type: ignore[arg-type]
            except (BufferError, TypeError, RuntimeError, ValueError) as error:
                # numpy's DLPack knows none of ml_dtypes' types, such as bfloat16
                if hasattr(value, "__array__") and value.__dlpack_device__()[0] == _CPU:  # type: ignore[attr-defined]
                    return np.asarray(value)
                got = f"{type(value).__name__}: {error}"
                raise InputError(f"input {self.spec.name!r}", expected="a tensor in CPU memory", got=got) from error
        raise InputError(
            f"input {self.spec.name!r}",
            expected=f"a numpy array, a torch tensor or a DLPack object for {self.spec}",
            got=type(value).__name__,
            fix="wrap it: np.asarray(x, dtype=...)",
        )

    def tensor(self, value: Tensor) -> Tensor:
        """A dense tensor of the right dtype in the right place; a copy only for strided input. Raises InputError."""
        dtype, layout = self._kind
        if value.dtype is not dtype or value.layout is not layout or not (value.is_cpu or (self.gpu and value.is_cuda)):
            self._check(value)
            self._kind = value.dtype, value.layout
        if value.is_neg():
            value = value.resolve_neg()
        return value if value.is_contiguous() else value.contiguous()

    def _check(self, value: Tensor) -> None:
        if str(value.dtype) != self.torch_name:
            raise self._wrong_dtype(value.dtype, f"convert it: x.to({self.torch_name})")
        if not (value.is_cpu or (self.gpu and value.is_cuda)):
            wants = "a CPU or CUDA tensor" if self.gpu else "a CPU tensor"
            raise InputError(f"input {self.spec.name!r}", expected=wants, got=value.device, fix="use x.cpu()")
        if str(value.layout) != "torch.strided":
            fix = "use x.to_dense()"
            raise InputError(f"input {self.spec.name!r}", expected="a dense tensor", got=value.layout, fix=fix)

    def foreign(self, value: object) -> Foreign:
        """A dense array of the right dtype on the GPU, by DLPack. Raises InputError."""
        found = taken(value, f"input {self.spec.name!r}", callers_stream())
        if found.dtype != self.spec.dtype:
            raise self._wrong_dtype(found.dtype, "convert it")
        return found

    def _wrong_dtype(self, got: object, fix: str) -> InputError:
        shape = ", ".join(map(show, self.spec.shape))
        return InputError(
            f"input {self.spec.name!r}", expected=f"dtype {self.spec.dtype} [{shape}]", got=f"dtype {got}", fix=fix
        )

    def new_array(self, shape: tuple[int, ...], memory: np.ndarray | None) -> np.ndarray:
        """An array without content, in `memory` if that is given (its bytes)."""
        dtype = self.dtype or dtypes.numpy_dtype(self.spec.dtype)
        return np.empty(shape, dtype) if memory is None else memory.view(dtype).reshape(shape)

    def new_tensor(
        self, shape: tuple[int, ...], strides: tuple[int, ...], memory: Tensor | None = None, device: object = None
    ) -> Tensor:
        """The same as a tensor. strides: of a contiguous one, in elements. device: torch's, of a GPU; None: the CPU."""
        if device is not None:
            quick = self._empty_cuda
            if quick is not None and self._current_gpu() == 0:
                return quick(shape, strides, self._torch_dtype)
            torch = cast(_Torch, sys.modules["torch"])
            return torch.empty_strided(shape, strides, dtype=self._torch_dtype, device=device)
        if memory is None:
            return self._empty(shape, strides, self._torch_dtype)
        return self._empty((0,), (1,), self._torch_dtype).set_(memory.view(self._torch_dtype), 0, shape, strides)

    def cut(self, result: np.ndarray | Tensor, shape: tuple[int, ...]) -> np.ndarray | Tensor:
        """A result of that shape, whose elements are the first that lie in a larger one; memory of its own."""
        if tuple(result.shape) == shape:
            return result
        part = result.reshape(-1)[: prod(shape)].reshape(shape)
        return part.copy() if isinstance(part, np.ndarray) else part.clone()

    @cached_property
    def _torch_dtype(self) -> object:
        return getattr(sys.modules["torch"], self.torch_name.removeprefix("torch."))

    @cached_property
    def _empty(self) -> Callable[[tuple[int, ...], tuple[int, ...], object], Tensor]:
        torch = cast(_Torch, sys.modules["torch"])
        return _quick_empty("cpu") or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))

    @cached_property
    def _current_gpu(self) -> Callable[[], int]:
        return cast(_Torch, sys.modules["torch"])._C._cuda_getDevice  # type: ignore[attr-defined]

    @cached_property
    def _empty_cuda(self) -> Callable[[tuple[int, ...], tuple[int, ...], object], Tensor] | None:
        return _quick_empty("cuda")


def _quick_empty(where: str) -> Callable[[tuple[int, ...], tuple[int, ...], object], Tensor] | None:
    """Inductor's allocation, a third of the time of torch.empty, where this version of torch has it; of a GPU on the
    current one."""
    torch = cast(_Torch, sys.modules["torch"])
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, f"_empty_strided_{where}", None)


class TensorResults:
    """`memory.Results` of tensors: as these may be resized, their storages are torch's own.

    None is taken from callers who still hold a tensor, an array or the storage itself: torch counts them.
    """

    def __init__(self, count: int) -> None:
        """`count`: storages of one size that one call needs. Twice as many are kept: a caller may hold a call's."""
        self._limit = 2 * count
        self._kept: list[_Storage] = []

    def take(self, nbytes: int) -> Tensor | None:
        """`nbytes` bytes of any content, to be shared by `Tensor.set_`; None where this version of torch counts no
        holders."""
        torch = cast(_Torch, sys.modules["torch"])
        if not hasattr(torch._C, "_storage_Use_Count"):
            return None
        storage = self._spare(nbytes) or _Storage(torch, nbytes)
        memory = storage.memory.view(storage.memory.dtype)  # in use from here on
        self._kept.append(storage)
        del self._kept[: -self._limit]
        return memory

    def _spare(self, nbytes: int) -> _Storage | None:
        for storage in tuple(self._kept):
            try:
                self._kept.remove(storage)  # no other thread takes it meanwhile
            except ValueError:
                continue
            if storage.memory.nbytes == nbytes and not storage.is_held():
                return storage
            self._kept.append(storage)
        self._kept = [s for s in self._kept if s.is_held()]  # other sizes are not asked for any more
        return None


class _Storage:
    """One tensor, `memory`, and all others that share its storage."""

    def __init__(self, torch: _Torch, nbytes: int) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        advise_huge_pages(self.memory.data_ptr(), nbytes)
        self._count: Callable[[int], int] = torch._C._storage_Use_Count  # type: ignore[attr-defined]
        self._address: int = torch._C._storage_address(self.memory)  # type: ignore[attr-defined]

    def is_held(self) -> bool:
        return self._count(self._address) > 1


def callers_stream() -> int:
    """The current stream of PyTorch on the GPU; the default one, 0, without a PyTorch for GPUs."""
    torch = sys.modules.get("torch")
    try:  # what its compiled code calls: a twentieth of the time of `torch.cuda.current_stream`
        return torch._C._cuda_getCurrentRawStream(0)  # type: ignore[union-attr]
    except AttributeError:
        return 0


def likeness(tensors: Sequence[object]) -> Callable[..., bool] | None:
    """Whether as many values are tensors of the types, sizes, strides and places that these have: one question to what
    guards torch's compiled code, a fifth of the time of asking each; None where this version has no such."""
    torch = cast(_Torch, sys.modules["torch"])
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    made = getattr(guards, "TensorGuards", None)
    return None if made is None else made(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether the value is a `torch.Tensor` (or a subclass)."""
    return hasattr(value, "data_ptr") and "torch" in sys.modules
