"""Values at the model's border: numpy arrays, PyTorch tensors and anything with DLPack, without copies.

PyTorch is recognised by its tensors' methods and is never imported: a caller who passes a tensor has it loaded.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
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


class _Torch(Protocol):
    _C: object
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
        self._kind: tuple[object, object, type] = (None, None, type(None))

    def array(self, value: object) -> np.ndarray:
        """A C-contiguous array of the right dtype; a copy only for strided input. Raises InputError."""
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
            wants = f"a numpy array, a torch tensor or a DLPack object for {self.spec}"
            raise self._wrong(wants, type(value).__name__, "wrap it: np.asarray(x, dtype=...)")
        try:
            return np.from_dlpack(value)  # type: ignore[arg-type]
        except Exception as error:  # whatever another library raises for what it cannot hand over
            refused = error
        with suppress(Exception):  # numpy's DLPack knows none of ml_dtypes' types, such as bfloat16
            if hasattr(value, "__array__") and value.__dlpack_device__()[0] == _CPU:  # type: ignore[attr-defined]
                return np.asarray(value)
        raise self._wrong("a tensor in CPU memory", f"{type(value).__name__}: {refused}") from refused

    def tensor(self, value: Tensor) -> Tensor:
        """A dense tensor of the right dtype in the right place, with memory; a copy only for strided input. Raises
        InputError."""
        dtype, layout, kind = self._kind
        try:
            is_same = value.dtype is dtype and value.layout is layout and type(value) is kind and not value.is_nested
            if not is_same or not (value.is_cpu or (self.gpu and value.is_cuda)):
                self._check(value)
                self._kind = value.dtype, value.layout, type(value)
            if not (value.data_ptr() and value.untyped_storage().nbytes() >= _end(value)):
                value = self._without_memory(value)
            if value.is_neg():
                value = value.resolve_neg()
            return value if value.is_contiguous() else value.contiguous()
        except InputError:
            raise
        except Exception as error:  # what torch raises for tensors without shape or memory
            raise self._wrong("a tensor with memory", f"{_kind_of(value)}: {error}") from error

    def _without_memory(self, value: Tensor) -> Tensor:
        """One of no elements, or of zeros that torch has not written yet. Raises InputError for others."""
        if not value.numel():
            return value
        if value._is_zerotensor():
            return value.clone()
        got = f"{_kind_of(value)} without memory"
        if value.data_ptr():
            got = f"{_kind_of(value)} whose storage ends at byte {value.untyped_storage().nbytes()} of {_end(value)}"
        raise self._wrong("a tensor with memory", got)

    def _check(self, value: Tensor) -> None:
        if str(value.dtype) != self.torch_name:
            raise self._wrong_dtype(value.dtype, f"convert it: x.to({self.torch_name})")
        if not (value.is_cpu or (self.gpu and value.is_cuda)):
            wants = "a CPU or CUDA tensor" if self.gpu else "a CPU tensor"
            fix = "give it data: torch.empty_like(x, device='cpu')" if str(value.device) == "meta" else "use x.cpu()"
            raise self._wrong(wants, value.device, fix)
        if str(value.layout) != "torch.strided":
            raise self._wrong("a dense tensor", value.layout, "use x.to_dense()")
        if value.is_nested:
            raise self._wrong("a dense tensor", "a nested one", "use torch.nested.to_padded_tensor(x, 0.0)")
        torch = cast(_Torch, sys.modules["torch"])
        # such a subclass decides itself what its elements are: masked, distributed, quantized, without data
        if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
            raise self._wrong("a plain tensor", _kind_of(value), "convert it to a torch.Tensor")

    def foreign(self, value: object) -> Foreign:
        """A dense array of the right dtype on the GPU, by DLPack. Raises InputError."""
        found = taken(value, f"input {self.spec.name!r}", callers_stream())
        if found.dtype != self.spec.dtype:
            raise self._wrong_dtype(found.dtype, "convert it")
        return found

    def _wrong(self, expected: str, got: object, fix: str = "") -> InputError:
        return InputError(f"input {self.spec.name!r}", expected=expected, got=got, fix=fix)

    def _wrong_dtype(self, got: object, fix: str) -> InputError:
        shape = ", ".join(map(show, self.spec.shape))
        return self._wrong(f"dtype {self.spec.dtype} [{shape}]", f"dtype {got}", fix)

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
                return quick(shape, strides, self.torch_dtype)
            torch = cast(_Torch, sys.modules["torch"])
            return torch.empty_strided(shape, strides, dtype=self.torch_dtype, device=device)
        if memory is None:
            return self.empty(shape, strides, self.torch_dtype)
        return self.empty((0,), (1,), self.torch_dtype).set_(memory.view(self.torch_dtype), 0, shape, strides)

    def cut(self, result: np.ndarray | Tensor, shape: tuple[int, ...]) -> np.ndarray | Tensor:
        """A result of that shape, whose elements are the first that lie in a larger one; memory of its own."""
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
    guards torch's compiled code, a fifth of the time of asking each; None where this version has no such. It ends the
    process for nested tensors."""
    torch = cast(_Torch, sys.modules["torch"])
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    made = getattr(guards, "TensorGuards", None)
    return None if made is None else made(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether the value is a `torch.Tensor` (or a subclass)."""
    return hasattr(value, "data_ptr") and "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def has_tangent(value: Tensor) -> bool:
    """Whether forward-mode differentiation goes through a tensor."""
    forward_ad = sys.modules["torch.autograd.forward_ad"]
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None


def is_recording() -> bool:
    """Whether torch records what is computed of tensors that require a gradient."""
    return sys.modules["torch"].is_grad_enabled()


def host_array(value: object, name: str) -> np.ndarray:
    """The value of an input that decides what is compiled: an array of any type, of what numpy takes for one. Raises
    InputError for what has no elements to read, as a call does."""
    try:
        if is_tensor(value):
            named = (n for n in dtypes.NAMES if dtypes.torch_name(n) == str(value.dtype))
            value = Border(TensorSpec(name, next(named, "f32"), ())).tensor(value).detach()
        elif isinstance(value, np.ma.MaskedArray):
            value = Border(TensorSpec(name, "f32", ())).unmasked(value)
        return np.asarray(value)
    except (RuntimeError, TypeError) as error:
        got = f"{type(value).__name__}: {error}"
        raise InputError(f"input {name!r}", expected="an array in CPU memory", got=got) from error


def _end(value: Tensor) -> int:
    """Where the elements of a tensor end, in bytes of its storage."""
    count = value.numel()
    if not value.is_contiguous():
        count = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    return (value.storage_offset() + count) * value.itemsize


def _kind_of(value: object) -> str:
    """What else a tensor is, which its type does not tell: functional, a value of torch.func."""
    keys = str(cast(_Torch, sys.modules["torch"])._C._dispatch_keys(value))  # type: ignore[attr-defined]
    found = [word for key, word in _WRAPPERS.items() if key in keys]
    return " of ".join((type(value).__name__, *found))


_WRAPPERS = {
    "FuncTorchBatched": "torch.func.vmap",
    "FuncTorchGradWrapper": "torch.func.grad",
    "Functionalize": "functionalization",
}
