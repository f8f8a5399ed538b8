"""A Keras model of the JAX backend as a StableHLO program whose first arguments are its variables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from ingot.frontends.jax.function import export_function, size_of
from ingot.frontends.stablehlo.model import text_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError


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
    inputs = _inputs(model, examples)
    sizes, bounds = _sizes(inputs, dynamic)
    specs = [jax.ShapeDtypeStruct(s, t) for s, (_, _, t) in zip(sizes, inputs, strict=True)]
    # layers that draw do so unless they are told not to
    inferring = {"training": False} if "training" in inspect.signature(model.call).parameters else {}
    trainable, others = list(model.trainable_variables), list(model.non_trainable_variables)

    def run(first: list[Any], rest: list[Any], given: list[Any]) -> list[Any]:
        inputs = given[0] if len(given) == 1 else given
        out, _ = model.stateless_call(first, rest, inputs, **inferring)
        return jax.tree_util.tree_leaves(out)

    kinds = [[jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in group] for group in (trainable, others)]
    try:
        exported = export_function(run, (*kinds, specs))
    except (ImportModelError, NotImplementedError, TypeError, ValueError) as e:
        fix = "fix sizes: dynamic={'batch': 1}, or {'input': {1: 224}}"
        told = re.sub(r"\x1b\[\d*m", "", str(e))  # Keras sets some of it in bold
        raise ImportModelError(f"the model cannot be exported for these sizes: {told}", fix=fix) from e
    labels = [f"{i} {v.path}" for i, v in enumerate((*trainable, *others))]
    labels += [name for name, _, _ in inputs]
    kept = exported.module_kept_var_idx
    values = {labels[i]: np.asarray(v.value) for i, v in enumerate((*trainable, *others)) if i in kept}
    shapes = tuple(tuple(str(size_of(d)) for d in exported.in_avals[i].shape) for i in kept)
    text = text_of(exported.mlir_module_serialized)
    names = tuple(labels[i] for i in kept)
    return Program(text, names, shapes, _outputs(model, len(exported.out_avals)), bounds, values)


def _outputs(model: Any, count: int) -> tuple[str, ...]:
    names = tuple(getattr(model, "output_names", None) or ())
    unique = len(names) == count and len(set(names)) == count
    return names if unique else tuple(f"output_{i}" for i in range(count)) if count > 1 else ("output",)


def _inputs(model: Any, examples: Sequence[Any] | None) -> list[tuple[str, tuple[int | None, ...], Any]]:
    """(name, shape, type) of each input."""
    if examples is not None:
        arrays = [np.asarray(x) for x in examples]
        model(arrays[0] if len(arrays) == 1 else arrays)  # makes variables that wait for a first call
        return [(f"input_{i}", (None, *x.shape[1:]) if x.ndim else (), x.dtype) for i, x in enumerate(arrays)]
    declared = getattr(model, "inputs", None)
    if not declared:
        fix = "give example inputs, or make the model with keras.Input and save it again"
        raise ImportModelError("a model that declares no inputs", fix=fix)
    found = [(str(t.name), tuple(t.shape), t.dtype) for t in declared]
    if strings := [name for name, _, dtype in found if dtype == "string"]:
        raise ImportModelError("inputs of strings", got=strings, fix="encode them before the model")
    return [(name, shape, np.dtype(jax.numpy.dtype(dtype))) for name, shape, dtype in found]


def _sizes(inputs: Sequence[tuple[str, tuple[int | None, ...], Any]], dynamic: Any) -> tuple[list[Any], dict[str, Any]]:
    """A shape for each input, with symbols for what is open, and bounds of these symbols."""
    asked: Mapping[str, Any] = dynamic if isinstance(dynamic, Mapping) else {}
    names = [name for name, _, _ in inputs]
    texts: list[str] = []
    symbols: set[str] = set()
    for name, shape, _ in inputs:
        given = asked.get(name, {}) if isinstance(asked.get(name), Mapping) else {}
        given = {int(axis): size for axis, size in given.items()}
        if wrong := [a for a in given if not 0 <= a < len(shape) or shape[a] is not None]:
            raise InputError(f"dynamic[{name!r}]", expected=f"axes that are open, of {list(shape)}", got=wrong)
        prefix = re.sub(r"\W", "_", name)
        own = ["batch" if i == 0 else f"{prefix}_{i}" for i in range(len(shape))]
        open_ = [str(given.get(i, own[i])) if d is None else str(d) for i, d in enumerate(shape)]
        symbols |= {d for d in open_ if not d.isdigit()}
        texts.append(", ".join(str(asked[d]) if isinstance(asked.get(d), int) else d for d in open_))
    if unknown := [k for k in asked if k not in {*names, *symbols}]:
        raise InputError("dynamic (--dim)", expected=f"inputs of {names}, symbols of {sorted(symbols)}", got=unknown)
    if dynamic is False and symbols:
        raise InputError("the model has dynamic dimensions", got=sorted(symbols), fix="give their sizes")
    spans = {k: v for k, v in asked.items() if isinstance(v, tuple | list)}
    bounds = {k: (int(low), None if high is None else int(high)) for k, (low, high) in spans.items()}
    limits = [f"{k} >= {low}" for k, (low, _) in bounds.items() if low > 1]
    limits += [f"{k} <= {high}" for k, (_, high) in bounds.items() if high is not None]
    scope = export.SymbolicScope(tuple(limits))
    return [export.symbolic_shape(t, scope=scope) if t else () for t in texts], bounds
