"""Arguments of a call as a run takes them: checked one by one, or at once where they are like those of a call before.

tensors on the host or a GPU, arrays  ->  their addresses, and what they tell of the call
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ingot.runtime.bind import Shape
from ingot.runtime.cuda.foreign import Foreign, is_foreign
from ingot.runtime.program import Program
from ingot.runtime.tensors import Border, Tensor, address, has_tangent, is_recording, is_tensor, likeness
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError


@dataclass(frozen=True)
class Told:
    """What arguments that are alike tell of a call. shapes: what is bound. tensors: whether results are torch's. place:
    torch's GPU, where results are to lie; resident: which arguments, state (read and written) and results are on a GPU,
    if any."""

    shapes: tuple[Shape, ...]
    tensors: bool
    place: object = None
    resident: tuple[bool, ...] | None = None


class Arguments:
    """The checks of a program's inputs, the same for all threads."""

    def __init__(self, program: Program) -> None:
        gpu = program.device == "cuda"
        self._borders = [Border(spec, gpu=gpu) for spec in program.inputs]
        self._telling = [index for index, spec in enumerate(program.inputs) if spec.elements]
        self._state: tuple[Shape, ...] = tuple(s.shape for s in program.state)
        self._results = len(program.outputs)
        self._last: Told | None = None
        self._like: tuple[Callable[..., bool], Told, Any] | None = None
        self._warned = False

    def take(self, inputs: Sequence[object]) -> tuple[Sequence[np.ndarray | Tensor | Foreign], list[int], Told]:
        """(what has to outlive the run, addresses, what is told). Raises InputError."""
        like = self._like
        if like is not None and like[2]._current_level < 0:  # of forward-mode differentiation
            try:
                pointers = [value.data_ptr() for value in inputs if not value.is_nested]  # type: ignore[attr-defined]
            except (AttributeError, RuntimeError, ValueError):
                pointers = []  # one that is no tensor, or has no memory
            if len(pointers) == len(self._borders) and 0 not in pointers and like[0](*inputs):
                return inputs, pointers, like[1]  # type: ignore[return-value]
        told = self._last
        if told is not None and not (told.tensors or told.resident or self._telling):
            pointers = self._of_arrays(inputs, told.shapes)
            if pointers is not None:
                return inputs, pointers, told  # type: ignore[return-value]
        return self._checked(inputs)

    def _of_arrays(self, inputs: Sequence[object], shapes: Sequence[Shape]) -> list[int] | None:
        """The addresses of arrays that are read in place and have these shapes: two thirds of the time of asking what
        each is. None for others."""
        pointers: list[int] = []
        for border, value, shape in zip(self._borders, inputs, shapes, strict=False):
            if type(value) is not np.ndarray or value.dtype is not border.dtype:
                return None
            if value.shape != shape or not value.flags.c_contiguous:
                return None
            pointers.append(address(value))
        return pointers if len(pointers) == len(inputs) else None

    def _checked(self, inputs: Sequence[object]) -> tuple[list[np.ndarray | Tensor | Foreign], list[int], Told]:
        arrays: list[np.ndarray | Tensor | Foreign] = []
        pointers: list[int] = []
        kind: type | None = None  # of the last tensor
        place: object = None
        resident: list[bool] = []
        graded = False
        for border, value in zip(self._borders, inputs, strict=True):
            if type(value) is kind or is_tensor(value):
                kind = type(value)
                tensor = border.tensor(value)  # type: ignore[arg-type]
                graded = graded or tensor.requires_grad
                if has_tangent(tensor):
                    raise InputError(
                        f"input {border.spec.name!r}", expected="a tensor without a tangent", got="a dual tensor",
                        fix="a compiled model has no derivatives: use torch.compile(net, backend='ingot')",
                    )  # fmt: skip
                arrays.append(tensor)
                pointers.append(tensor.data_ptr())
                resident.append(border.gpu and tensor.is_cuda)
                if resident[-1]:
                    place = tensor.device
            elif border.gpu and not isinstance(value, np.ndarray) and is_foreign(value):
                there = border.foreign(value)
                arrays.append(there)
                pointers.append(there.address)
                resident.append(True)
            else:
                array = border.array(value)
                arrays.append(array)
                pointers.append(address(array))
                resident.append(False)
        if graded and not self._warned and is_recording():
            self._warned = True
            warnings.warn(_NO_GRADIENT, stacklevel=5)  # at the model's call
        if place is not None and any(isinstance(array, Foreign) for array in arrays):
            fix = "torch.from_dlpack(x)"  # which keeps the memory for as long as the GPU reads it
            raise InputError(
                "inputs", expected="tensors of torch's on the GPU, or arrays of others", got="both", fix=fix
            )
        if getattr(place, "index", 0):
            raise InputError("inputs", expected="tensors on cuda:0, where the model is", got=place)
        values = [tuple(self._read(i, arrays[i]).reshape((-1,)).tolist()) for i in self._telling]
        shapes = (*[array.shape for array in arrays], *self._state, *values)
        rest = (*[True] * (2 * len(self._state)), *[place is not None] * self._results)
        where = (*resident, *rest) if any(resident) else None
        tensors, told = kind is not None, self._last
        if told is None or (told.shapes, told.tensors, told.place, told.resident) != (shapes, tensors, place, where):
            told = self._last = Told(shapes, tensors, place, where)
        elif tensors and not self._telling:
            self._remember(inputs, arrays, told, graded and not self._warned)
        return arrays, pointers, told

    def _read(self, number: int, array: np.ndarray | Tensor | Foreign) -> np.ndarray | Tensor:
        """One whose elements are sizes."""
        if isinstance(array, Foreign):
            what = f"input {self._borders[number].spec.name!r}"
            raise InputError(what, expected="sizes that the host can read", got="an array on a GPU")
        return array

    def _remember(self, inputs: Sequence[object], arrays: Sequence[object], told: Told, warns: bool) -> None:
        """Arguments that were taken as they are, twice in a row, may come again. warns: whether there is something to
        say of them once torch records."""
        if all(given is taken and is_tensor(given) for given, taken in zip(inputs, arrays, strict=True)):
            same = likeness(inputs)
            if same is not None and warns:
                same = partial(_unrecorded, same)
            self._like = None if same is None else (same, told, sys.modules["torch.autograd.forward_ad"])


def _unrecorded(same: Callable[..., bool], *values: object) -> bool:
    return not is_recording() and same(*values)


_NO_GRADIENT = (
    "an input requires a gradient, and the results of a compiled model have none: call it under torch.no_grad(), pass "
    "x.detach(), or use torch.compile(net, backend='ingot') or ingot.value_and_grad, which differentiate"
)


__all__ = ["Arguments", "Told"]
