"""Arguments to trace forward with, where there are no example inputs: an archive declares only names.

inputs={"x": ("f32", [1, None])}, weights={"rate": 16000}  ->  (tensor of ones, 16000), dynamic={"x": {1: "x_1"}}
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ingot.frontends.torch.convert import to_torch
from ingot.frontends.torch.script.evaluate import Evaluator
from ingot.frontends.torch.script.graph import Program
from ingot.ir.types import DTYPES
from ingot.support.errors import InputError

_OPEN_SIZE = 32  # the example's value of an open size


Values = Mapping[str, Any]


def examples(
    program: Program, example_inputs: Any, inputs: Values | None, weights: Values | None, dynamic: Any
) -> tuple[tuple[Any, ...], Any]:
    """Forward's arguments in order, and `dynamic` with the sizes that `inputs` leave open. Raises InputError."""
    if example_inputs is not None or not (inputs or weights):
        return _arguments(program, example_inputs), dynamic
    bounds_by_name: Mapping[str, Any] = dynamic if isinstance(dynamic, Mapping) else {}
    names = [a.name for a in program.arguments]
    if unknown := [name for name in (*(inputs or {}), *(weights or {})) if name not in names]:
        raise InputError("inputs", expected=f"arguments of forward, {names}", got=unknown)
    values: dict[str, Any] = {name: _value(x) for name, x in (weights or {}).items()}
    axes: dict[str, Any] = {}
    for name, form in (inputs or {}).items():
        shape = _shape(name, form)
        axis_bounds = {i: bounds_by_name.get(name, {}).get(i, f"{name}_{i}") for i, d in enumerate(shape) if d is None}
        axes[name] = {i: _bounded(d, bounds_by_name) for i, d in axis_bounds.items() if not isinstance(d, int)}
        sizes = [
            axis_bounds[i] if d is None and isinstance(axis_bounds[i], int) else _OPEN_SIZE if d is None else d
            for i, d in enumerate(shape)
        ]
        values[name] = to_torch(np.ones(sizes, DTYPES[form[0]].numpy))
    return _arguments(program, values), {k: v for k, v in axes.items() if v} or None


def _value(x: Any) -> Any:
    """A number as Python's; an array as a tensor."""
    array = np.asarray(x)
    return array.item() if array.ndim == 0 and not isinstance(x, torch.Tensor) else to_torch(array)


def _shape(name: str, form: Any) -> list[int | None]:
    if not isinstance(form, tuple) or len(form) != 2 or form[0] not in DTYPES:
        fix = f"inputs={{{name!r}: ('f32', [1, None])}}, or --inputs {name}=f32:1,?"
        raise InputError(f"inputs[{name!r}]", expected="an element type and sizes", got=repr(form), fix=fix)
    return list(form[1])


def _bounded(name: Any, bounds_by_name: Mapping[str, Any]) -> Any:
    span = bounds_by_name.get(name)
    return (name, *span) if isinstance(span, tuple) else name


def _arguments(program: Program, example_inputs: Any) -> tuple[Any, ...]:
    """Example inputs, a tensor, a tuple or a dict by name, as arguments in order. Raises InputError."""
    if example_inputs is None:
        names = ", ".join(a.name for a in program.arguments)
        raise InputError("example_inputs", expected=f"example inputs ({names})", got="none")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    signature = inspect.signature(Evaluator(program, {}).forward)
    try:
        if isinstance(example_inputs, Mapping):
            return tuple(signature.bind(**example_inputs).arguments.values())
        return tuple(signature.bind(*example_inputs).arguments.values())
    except TypeError as e:
        raise InputError(f"example_inputs do not fit forward: {e}") from e
