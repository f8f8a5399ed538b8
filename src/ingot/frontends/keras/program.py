"""A Keras model of the JAX backend as a StableHLO program whose first arguments are its variables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from ingot.frontends.jax.function import export_function, scope_of, size_of
from ingot.frontends.shared.dynamic import check_static
from ingot.frontends.stablehlo.model import text_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError

Declared = tuple[str, tuple[int | None, ...], Any]  # name, shape and type of an input


@dataclass(frozen=True)
class Program:
    """text: of the module. names, shapes: of its arguments; sizes as text. outputs: names of its results.
    bounds: of its symbols. weights: the arguments that are variables, by name."""

    text: str
    names: tuple[str, ...]
    shapes: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]
    bounds: Mapping[str, tuple[int, int | None]]
    weights: Mapping[str, np.ndarray]


def program_of(model: Any, dynamic: Any, examples: Sequence[Any] | None = None) -> Program:
    """`model` in inference. examples: its inputs, for one that declares none.

    Raises InputError for sizes that do not fit its inputs, ImportModelError for what JAX cannot export.
    """
    inputs = inputs_of(model, examples)
    sizes, bounds = sizes_of(inputs, dynamic)
    specs = [jax.ShapeDtypeStruct(s, t) for s, (_, _, t) in zip(sizes, inputs, strict=True)]
    # layers with random draws use them unless called for inference
    inferring = in_training(model, False)
    trainable, others = list(model.trainable_variables), list(model.non_trainable_variables)

    def run(first: list[Any], rest: list[Any], arguments: list[Any]) -> list[Any]:
        inputs = arguments[0] if len(arguments) == 1 else arguments
        results, _ = model.stateless_call(first, rest, inputs, **inferring)
        return jax.tree_util.tree_leaves(results)

    exported = exported_program(run, variable_specs(trainable, others), specs)
    labels = variable_labels((*trainable, *others))
    values = {n: np.asarray(v.value) for n, v in zip(labels, (*trainable, *others), strict=True)}
    names, shapes = arguments_of(exported, [*labels, *(name for name, _, _ in inputs)])
    text = text_of(exported.mlir_module_serialized)
    weights = {n: values[n] for n in names if n in values}
    return Program(text, names, shapes, _outputs(model, len(exported.out_avals)), bounds, weights)


def variable_specs(*groups: Sequence[Any]) -> list[Any]:
    return [[jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in group] for group in groups]


def variable_labels(variables: Sequence[Any]) -> list[str]:
    """A unique name for each."""
    return [f"{i} {v.path}" for i, v in enumerate(variables)]


def exported_program(run: Callable[..., Any], kinds: Sequence[Any], specs: Sequence[Any]) -> Any:
    """Raises ImportModelError for what JAX cannot export."""
    try:
        return export_function(run, (*kinds, specs))
    except (ImportModelError, NotImplementedError, TypeError, ValueError) as e:
        fix = "fix sizes: dynamic={'batch': 1}, or {'input': {1: 224}}"
        message = re.sub(r"\x1b\[\d*m", "", str(e))  # Keras sets some of it in bold
        raise ImportModelError(f"the model cannot be exported for these sizes: {message}", fix=fix) from e


def arguments_of(exported: Any, labels: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Names and shapes of the arguments that the program reads, out of all arguments."""
    kept_indices: Sequence[int] = exported.module_kept_var_idx
    shapes = tuple(tuple(str(size_of(d)) for d in exported.in_avals[i].shape) for i in kept_indices)
    return tuple(labels[i] for i in kept_indices), shapes


def in_training(model: Any, training: bool) -> dict[str, bool]:
    """The keyword argument of a call for it, if the model's call takes one."""
    return {"training": training} if "training" in inspect.signature(model.call).parameters else {}


def _outputs(model: Any, count: int) -> tuple[str, ...]:
    names = tuple(getattr(model, "output_names", None) or ())
    unique = len(names) == count and len(set(names)) == count
    return names if unique else tuple(f"output_{i}" for i in range(count)) if count > 1 else ("output",)


def inputs_of(model: Any, examples: Sequence[Any] | None) -> list[Declared]:
    """(name, shape, type) of each input."""
    if examples is not None:
        arrays = [np.asarray(x) for x in examples]
        model(arrays[0] if len(arrays) == 1 else arrays)  # creates variables that are built by the first call
        return [(f"input_{i}", (None, *x.shape[1:]) if x.ndim else (), x.dtype) for i, x in enumerate(arrays)]
    declared = getattr(model, "inputs", None)
    if not declared:
        fix = "give example inputs, or make the model with keras.Input and save it again"
        raise ImportModelError("a model that declares no inputs", fix=fix)
    specs = [(str(t.name), tuple(t.shape), t.dtype) for t in declared]
    if strings := [name for name, _, dtype in specs if dtype == "string"]:
        raise ImportModelError("inputs of strings", got=strings, fix="encode them before the model")
    return [(name, shape, np.dtype(jax.numpy.dtype(dtype))) for name, shape, dtype in specs]


def sizes_of(
    inputs: Sequence[tuple[str, tuple[int | None, ...], Any]], dynamic: Any
) -> tuple[list[Any], dict[str, Any]]:
    """A shape for each input, with symbols for open sizes, and bounds of these symbols."""
    sizes_by_input: Mapping[str, Any] = dynamic if isinstance(dynamic, Mapping) else {}
    names = [name for name, _, _ in inputs]
    texts: list[str] = []
    symbols: set[str] = set()
    for name, shape, _ in inputs:
        size_names = sizes_by_input.get(name, {}) if isinstance(sizes_by_input.get(name), Mapping) else {}
        size_names = {int(axis): size for axis, size in size_names.items()}
        if wrong := [a for a in size_names if not 0 <= a < len(shape) or shape[a] is not None]:
            raise InputError(f"dynamic[{name!r}]", expected=f"axes that are open, of {list(shape)}", got=wrong)
        prefix = re.sub(r"\W", "_", name)
        own_symbols = ["batch" if i == 0 else f"{prefix}_{i}" for i in range(len(shape))]
        open_ = [str(size_names.get(i, own_symbols[i])) if d is None else str(d) for i, d in enumerate(shape)]
        symbols |= {d for d in open_ if not d.isdigit()}
        texts.append(", ".join(str(sizes_by_input[d]) if isinstance(sizes_by_input.get(d), int) else d for d in open_))
    if unknown := [k for k in sizes_by_input if k not in {*names, *symbols}]:
        raise InputError("dynamic (--dim)", expected=f"inputs of {names}, symbols of {sorted(symbols)}", got=unknown)
    check_static(sorted(symbols), dynamic)
    spans = {k: v for k, v in sizes_by_input.items() if isinstance(v, tuple | list)}
    bounds = {k: (int(low), None if high is None else int(high)) for k, (low, high) in spans.items()}
    scope = scope_of(bounds)
    return [export.symbolic_shape(t, scope=scope) if t else () for t in texts], bounds
