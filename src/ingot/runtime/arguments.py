"""Check the arguments of a call: one by one, or by a single guard if they look like those of the previous call.

tensors on the host or a GPU, arrays  ->  their addresses, and the signature of the call
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from ingot.runtime.bind import Shape
from ingot.runtime.cuda.foreign import DlpackArray, is_dlpack_on_gpu
from ingot.runtime.dtypes import itemsize
from ingot.runtime.program import Program, TensorSpec
from ingot.runtime.tensors import Tensor, TensorAdapter, address, has_tangent, is_recording, is_tensor, tensor_guard
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

_ALIGN_BYTES = 512  # of a tensor's offset in a buffer, as torch's allocator aligns memory on GPUs


@dataclass(frozen=True)
class CallSignature:
    """What a call's arguments determine about the run.

    shapes: what the program is bound to. tensors: whether results are torch tensors. device: the torch GPU for the
    results; None: the CPU. resident: for each argument, state (read, then written) and result, whether it is on a GPU;
    None: none is.
    """

    shapes: tuple[Shape, ...]
    tensors: bool
    device: object = None
    resident: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Packing:
    """How many of a program's last inputs and outputs lie side by side in one uint8 tensor each, which replaces them.
    is_private: no one but another program reads these outputs, on the stream of the run."""

    inputs: int = 0
    outputs: int = 0
    is_private: bool = False


UNPACKED = Packing()


def side_by_side(nbytes: Iterable[int]) -> tuple[list[int], int]:
    """(the offset of each of several tensors in one buffer, the bytes of the buffer)."""
    offsets: list[int] = []
    end = 0
    for n in nbytes:
        offsets.append(end)
        end += -(-n // _ALIGN_BYTES) * _ALIGN_BYTES
    return offsets, end


def packed_specs(specs: Sequence[TensorSpec], count: int) -> tuple[tuple[TensorSpec, ...], list[int]]:
    """(the specs with the last `count` as one buffer, the offset of each in it). Their sizes must be constant."""
    if not count:
        return tuple(specs), []
    offsets, nbytes = side_by_side((spec.static_size or 0) * itemsize(spec.dtype) for spec in specs[-count:])
    return (*specs[:-count], TensorSpec("packed", "u8", (nbytes,))), offsets


class Arguments:
    """The checks of a program's inputs, the same for all threads."""

    def __init__(self, program: Program, packed_count: int = 0) -> None:
        """packed_count: of the last inputs, which come in one tensor."""
        gpu = program.is_on_gpu
        specs, self._offsets = packed_specs(program.inputs, packed_count)
        self._packed_shapes = static_shapes(program.inputs[-packed_count:]) if packed_count else ()
        self._adapters = [TensorAdapter(spec, gpu=gpu) for spec in specs]
        self._size_inputs = [index for index, spec in enumerate(program.inputs) if spec.elements]
        self._state: tuple[Shape, ...] = tuple(s.shape for s in program.state)
        self._results = len(program.outputs)
        self._last_signature: CallSignature | None = None
        self._guarded: _Guarded | None = None
        self._has_warned = False

    def take(
        self, inputs: Sequence[object]
    ) -> tuple[Sequence[np.ndarray | Tensor | DlpackArray], list[int], CallSignature]:
        """(values that must outlive the run, the addresses of the program's inputs, the call's signature). Raises
        InputError."""
        values, pointers, signature = self._take(inputs)
        return values, self.spread(pointers), signature

    def spread(self, pointers: list[int]) -> list[int]:
        """The addresses of the program's inputs from those of the call's, the last of which may be a packed tensor."""
        if self._offsets:
            base = pointers.pop()
            pointers += [base + offset for offset in self._offsets]
        return pointers

    def repeated(self, inputs: Sequence[object]) -> CallSignature | None:
        """The signature of calls with tensors like these, which are read in place; None if the last ones had others, or
        if these need a warning."""
        if self._guarded is None:
            return None
        guard, signature, _, is_recording = self._guarded
        return signature if guard(*inputs) and (is_recording is None or not is_recording()) else None

    def _take(
        self, inputs: Sequence[object]
    ) -> tuple[Sequence[np.ndarray | Tensor | DlpackArray], list[int], CallSignature]:
        """`take`, with the address of a packed tensor for all inputs in it."""
        if self._guarded is not None:
            guard, signature, forward_mode, is_recording = self._guarded
            if forward_mode._current_level < 0 and (is_recording is None or not is_recording()):
                try:
                    pointers = [v.data_ptr() for v in inputs if not v.is_nested]  # type: ignore[attr-defined]
                except (AttributeError, RuntimeError, ValueError):
                    pointers = []  # a value is not a tensor, or has no memory
                if len(pointers) == len(self._adapters) and 0 not in pointers and guard(*inputs):
                    return inputs, pointers, signature  # type: ignore[return-value]
        signature = self._last_signature
        if signature is not None and not (signature.tensors or signature.resident or self._size_inputs):
            pointers = self._array_pointers(inputs, signature.shapes)
            if pointers is not None:
                return inputs, pointers, signature  # type: ignore[return-value]
        return self._checked(inputs)

    def _array_pointers(self, inputs: Sequence[object], shapes: Sequence[Shape]) -> list[int] | None:
        """The addresses of arrays that have these shapes and are read in place; None for any other arguments. It takes
        two thirds of the time of the full checks."""
        pointers: list[int] = []
        for adapter, value, shape in zip(self._adapters, inputs, shapes, strict=False):
            if type(value) is not np.ndarray or value.dtype is not adapter.dtype:
                return None
            if value.shape != shape or not value.flags.c_contiguous:
                return None
            pointers.append(address(value))
        return pointers if len(pointers) == len(inputs) else None

    def _checked(
        self, inputs: Sequence[object]
    ) -> tuple[list[np.ndarray | Tensor | DlpackArray], list[int], CallSignature]:
        arrays: list[np.ndarray | Tensor | DlpackArray] = []
        pointers: list[int] = []
        kind: type | None = None  # of the last tensor
        device: object = None
        resident: list[bool] = []
        has_gradient = False
        for adapter, value in zip(self._adapters, inputs, strict=True):
            if type(value) is kind or is_tensor(value):
                kind = type(value)
                tensor = adapter.tensor(value)  # type: ignore[arg-type]
                has_gradient = has_gradient or tensor.requires_grad
                if has_tangent(tensor):
                    raise InputError(
                        f"input {adapter.spec.name!r}", expected="a tensor without a tangent", got="a dual tensor",
                        fix="a compiled model has no derivatives: use torch.compile(net, backend='ingot')",
                    )  # fmt: skip
                arrays.append(tensor)
                pointers.append(tensor.data_ptr())
                resident.append(adapter.gpu and tensor.is_cuda)
                if resident[-1]:
                    device = tensor.device
            elif adapter.gpu and not isinstance(value, np.ndarray) and is_dlpack_on_gpu(value):
                dlpack = adapter.dlpack(value)
                arrays.append(dlpack)
                pointers.append(dlpack.address)
                resident.append(True)
            else:
                array = adapter.array(value)
                arrays.append(array)
                pointers.append(address(array))
                resident.append(False)
        if has_gradient and not self._has_warned and is_recording():
            self._has_warned = True
            warnings.warn(_NO_GRADIENT, stacklevel=5)  # at the model's call
        if device is not None and any(isinstance(array, DlpackArray) for array in arrays):
            fix = "torch.from_dlpack(x)"  # which keeps the memory for as long as the GPU reads it
            raise InputError(
                "inputs", expected="GPU arrays of torch alone, or of other libraries alone", got="both", fix=fix
            )
        if getattr(device, "index", 0):
            raise InputError("inputs", expected="tensors on cuda:0, the model's device", got=device)
        values = [tuple(self._host_value(i, arrays[i]).reshape((-1,)).tolist()) for i in self._size_inputs]
        input_shapes = [array.shape for array in arrays]
        if self._packed_shapes:
            spec = self._adapters[-1].spec  # of a size that binding does not see
            if tuple(arrays[-1].shape) != spec.shape:
                raise InputError(f"input {spec.name!r}", expected=f"{spec.shape[0]} bytes", got=list(arrays[-1].shape))
            input_shapes[-1:] = self._packed_shapes
            resident[-1:] = resident[-1:] * len(self._packed_shapes)
        shapes = (*input_shapes, *self._state, *values)
        state_and_results = (*[True] * (2 * len(self._state)), *[device is not None] * self._results)
        residency = (*resident, *state_and_results) if any(resident) else None
        tensors, signature = kind is not None, self._last_signature
        if signature is None or (signature.shapes, signature.tensors, signature.device, signature.resident) != (
            shapes,
            tensors,
            device,
            residency,
        ):
            signature = self._last_signature = CallSignature(shapes, tensors, device, residency)
        elif tensors and not self._size_inputs:
            self._remember(inputs, arrays, signature, has_gradient and not self._has_warned)
        return arrays, pointers, signature

    def _host_value(self, number: int, array: np.ndarray | Tensor | DlpackArray) -> np.ndarray | Tensor:
        """The value of an input whose elements are sizes. Raises InputError if the host cannot read it."""
        if isinstance(array, DlpackArray):
            what = f"input {self._adapters[number].spec.name!r}"
            raise InputError(what, expected="sizes in CPU memory", got="an array on a GPU", fix="copy it to the CPU")
        return array

    def _remember(
        self, inputs: Sequence[object], arrays: Sequence[object], signature: CallSignature, must_warn: bool
    ) -> None:
        """Build a guard for arguments that were read in place twice in a row, as more such calls are likely.
        must_warn: whether they need a warning as soon as torch records gradients."""
        if all(value is array and is_tensor(value) for value, array in zip(inputs, arrays, strict=True)):
            guard, torch = tensor_guard(inputs), cast(_Torch, sys.modules["torch"])
            recording = torch.is_grad_enabled if must_warn else None
            forward_mode = sys.modules["torch.autograd.forward_ad"]
            self._guarded = None if guard is None else (guard, signature, forward_mode, recording)


# a predicate of arguments that are read in place; their signature; the module that counts levels of forward-mode
# differentiation; whether torch records gradients, for arguments that then need a warning
_Guarded = tuple[Callable[..., bool], CallSignature, Any, Callable[[], bool] | None]


class _Torch(Protocol):
    def is_grad_enabled(self) -> bool: ...


_NO_GRADIENT = (
    "an input requires a gradient, and the results of a compiled model have none: call it under torch.no_grad(), pass "
    "x.detach(), or use torch.compile(net, backend='ingot') or ingot.value_and_grad, which differentiate"
)


def static_shapes(specs: Sequence[TensorSpec]) -> tuple[tuple[int, ...], ...]:
    """The shapes of inputs of constant sizes."""
    return tuple(tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in specs)


__all__ = ["UNPACKED", "Arguments", "CallSignature", "Packing", "packed_specs", "side_by_side", "static_shapes"]
