"""A JAX function: exported for TPUs, so that linear algebra and random numbers stay StableHLO, and imported.

fn(params, x)   ->   leaves of (params, x)  ->  main(%0, %1, ...)  ->  graph  ->  leaves of the result  ->  its tree
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from ingot.frontends.shared.dynamic import Bound
from ingot.frontends.stablehlo import ImportedModel, import_stablehlo
from ingot.frontends.stablehlo.model import text_in_subprocess, text_of
from ingot.frontends.stablehlo.rows.control import COTANGENT, OWN_GRADIENT, STOP_GRADIENT, UNKNOWN_GRADIENT
from ingot.ir.dims import DimLike, parse_dim
from ingot.ir.node import Graph
from ingot.ops import custom
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, IngotError, InputError
from ingot.support.files import open_regular
from ingot.support.log import warn_if_untested

warn_if_untested("jax", jax.__version__)

# custom calls of JAX's lowering for TPUs: linear algebra, marks on values, cumulative sums of open size
_CUSTOM_CALLS = (
    "LuDecomposition", "Qr", "Eigh", "ProductOfElementaryHouseholderReflectors", "ApproxTopK", "Sharding",
    "stablehlo.dynamic_reduce_window", STOP_GRADIENT, UNKNOWN_GRADIENT, COTANGENT, OWN_GRADIENT,
)  # fmt: skip

# types that JAX computes in, with its option for 64 bits and without
_NARROW_DTYPES = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "u1", "u2", "u4", "f2", "f4", "c8")))


@dataclass(frozen=True)
class ImportedFunction:
    """A function as a graph, with the adapters of its arguments and results to the graph's.

    leaves: the names of the leaves of a call in order, and what each is: "array", "fixed" (with its value) or "weight".
    read_indices: of the arrays that the program reads, of all that are arrays.
    """

    program: ImportedModel
    in_tree: Any
    out_tree: Any
    leaves: tuple[tuple[str, str, Any], ...]
    read_indices: tuple[int, ...]

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def plain(self) -> bool:
        return False

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The graph's inputs of a call without its weights. Raises InputError for another tree than the example's."""
        flat, tree = tree_util.tree_flatten((tuple(args), dict(kwargs)))
        if tree != self.in_tree:
            raise self._misfit(args, kwargs, tree)
        arrays: list[Any] = []
        for (name, kind, fixed), value in zip(self.leaves, flat, strict=True):
            if kind == "array":
                arrays.append(_array(value))
            elif type(value) is not type(fixed) or value != fixed:
                fix = "compile again for another value, or give it as an array"
                raise InputError(f"argument {name}", expected=f"{fixed!r}, as compiled", got=repr(value)[:60], fix=fix)
        return self.program.graph_inputs([arrays[i] for i in self.read_indices])

    def _misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any], tree: Any) -> InputError:
        """The error for a call of another tree: it names the leaves that are missing and those that are too many."""
        names = [name for name, *_ in self.leaves]
        places = tree_util.tree_unflatten(self.in_tree, names)[0]
        first = [tree_util.tree_leaves(place) for place in places]
        roots = [re.split(r"[\[.]", leaves[0], maxsplit=1)[0] if leaves else "" for leaves in first]
        roots += [f"arg{i}" for i in range(len(roots), len(args))]
        paths = [_path(path, roots) for path, _ in tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]]
        parts = [f"no {name}" for name in names if name not in paths]
        parts += [f"{name}, which is not in it" for name in paths if name not in names]
        fix = "call it as in the example"
        if not parts:
            return InputError("arguments", expected=str(self.in_tree), got=str(tree), fix=fix)
        return InputError("arguments", expected="the example's tree", got="; ".join(parts[:8]), fix=fix)

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """The function's own result, of numpy arrays."""
        return tree_util.tree_unflatten(self.out_tree, self.program.results(outputs))


def is_jax(model: Any) -> bool:
    """Whether `import_jax` takes it: a function, an Exported or a lowered one."""
    return isinstance(model, export.Exported | jax.stages.Lowered) or callable(model)


def is_function(model: Any) -> bool:
    """Whether it can be traced again for other arguments."""
    return callable(model) and not isinstance(model, export.Exported | jax.stages.Lowered)


def import_jax(
    model: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *,
    dynamic: Mapping[str, Any] | None = None, weights: Sequence[int | str] | Mapping[int | str, Any] | None = None,
) -> ImportedFunction:  # fmt: skip
    """A JAX function as a graph.

    model: a function (jitted or not, a module that is callable), a `jax.export.Exported`, the path of a file with what
        its `serialize` gives, or a `jax.stages.Lowered`.
    args, kwargs: for a function, its arguments. Arrays and ShapeDtypeStructs tell shape and type; Python numbers,
        strings and functions among them are fixed.
    dynamic: which sizes vary: {"x": {0: "batch"}} by argument name (or a leaf's path, "x['ids']"), and bounds of the
        symbols, {"batch": (1, 64)}.
    weights: arguments whose example values are constants of the program, by index or name, or a mapping from these to
        values. A call of the compiled function leaves them out.

    Raises InputError for arguments that do not fit, ImportModelError for what JAX cannot export, UnsupportedOpError
    naming every operation that Ingot has no row for, with the user's file and line.
    """
    if isinstance(model, Path):
        return _file(model, weights, dynamic)
    if isinstance(model, export.Exported):
        return _exported(model, weights, dynamic, text_of)
    if isinstance(model, jax.stages.Lowered):
        return _lowered(model, weights)
    return _function(model, tuple(args), dict(kwargs or {}), dynamic or {}, weights or ())


# --- functions


def _function(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Mapping[str, Any],
    weights: Sequence[Any] | Mapping[Any, Any],
) -> ImportedFunction:  # fmt: skip
    fn = _pure(fn)
    names = _parameters(fn, len(args))
    constant_arguments = _chosen(weights, names, kwargs)
    values = weights if isinstance(weights, Mapping) else {}
    for key in values:
        at = constant_arguments[key]
        if isinstance(at, int):
            args = (*args[:at], values[key], *args[at + 1 :])
        else:
            kwargs[at] = values[key]
    kept_args = tuple(a for i, a in enumerate(args) if i not in constant_arguments.values())
    kept_kwargs = {k: v for k, v in kwargs.items() if k not in constant_arguments.values()}
    _, call_tree = tree_util.tree_flatten((kept_args, kept_kwargs))
    flat, tree = tree_util.tree_flatten_with_path((args, kwargs))
    paths = [_path(path, names) for path, _ in flat]
    leaves = [leaf for _, leaf in flat]
    is_weight = [_root(path) in constant_arguments.values() for path, _ in flat]
    arrays = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

    def flattened(*arguments: Any) -> Any:
        full = list(leaves)
        for i, value in zip(arrays, arguments, strict=True):
            key = _is_key(leaves[i])
            full[i] = jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaves[i])) if key else value
        args, kwargs = tree_util.tree_unflatten(tree, full)
        return fn(*args, **kwargs)

    flattened.__name__ = getattr(fn, "__name__", "function")
    scope, specs = _specs([(paths[i], _data(leaves[i])) for i in arrays], names, dynamic)
    exported = export_function(flattened, specs)
    constants = {k: _array(leaves[i]) for k, i in enumerate(arrays) if is_weight[i]}
    call_leaves = tuple(
        (paths[i], "array" if i in arrays else "fixed", None if i in arrays else leaves[i])
        for i in range(len(leaves))
        if not is_weight[i]
    )
    bounds = {k: v for k, v in dynamic.items() if isinstance(v, int | tuple)}
    if unknown := [k for k in bounds if k not in scope]:
        raise InputError("dynamic", expected=f"a symbol of {sorted(scope)}", got=unknown)
    return _imported(exported, [paths[i] for i in arrays], constants, bounds, call_tree, call_leaves)


def _pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A Flax NNX module, or a method of one, as a function of its arguments: each trace has a copy of its variables,
    which it may set. Random keys and parameters that it sets are not kept for the next call."""
    nnx = sys.modules.get("flax.nnx")
    owner = getattr(fn, "__self__", fn)
    if nnx is None or not isinstance(owner, nnx.Module):
        return fn
    constant_state = nnx.All(nnx.Not(nnx.Param), nnx.Not(nnx.RngState))

    @functools.wraps(fn)
    def pure(*args: Any, **kwargs: Any) -> Any:
        copy = nnx.clone(owner)
        result = (copy if owner is fn else getattr(copy, fn.__name__))(*args, **kwargs)
        state_before, state_after = (
            tree_util.tree_leaves_with_path(nnx.state(m, constant_state)) for m in (owner, copy)
        )
        before = {tree_util.keystr(path): value for path, value in state_before}
        now = [(tree_util.keystr(path), value) for path, value in state_after]
        if changed := [path for path, value in now if before.get(path) is not value]:
            fix = "call .eval() on it, or compile a function that takes and returns the state of nnx.split"
            raise ImportModelError(f"the module sets {', '.join(changed[:4])} when it is called", fix=fix)
        return result

    return pure


def paths_of(fn: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[str]:
    """The name of each leaf of a call, in order."""
    names = _parameters(fn, len(call[0]))
    return [_path(path, names) for path, _ in tree_util.tree_flatten_with_path(call)[0]]


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _is_key(leaf: Any) -> bool:
    # the type of everything except keys and the like is numpy's
    is_plain = not _is_array(leaf) or isinstance(leaf.dtype, np.dtype)
    return not is_plain and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> Any:
    """A random key as its integers; anything else unchanged."""
    if not _is_key(leaf):
        return leaf
    spec = isinstance(leaf, jax.ShapeDtypeStruct)
    return jax.eval_shape(jax.random.key_data, leaf) if spec else jax.random.key_data(leaf)


def _array(leaf: Any) -> np.ndarray:
    """The array in the type that JAX computes in: without its option for 64 bits, numpy's f64 becomes f32."""
    array = np.asarray(_data(leaf))
    return (
        array if array.dtype in _NARROW_DTYPES else array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    )


def _parameters(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the positional arguments."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in positional]
    return [*names[:count], *(f"arg{i}" for i in range(len(names), count))]


def _chosen(
    weights: Sequence[Any] | Mapping[Any, Any], names: list[str], kwargs: Mapping[str, Any]
) -> dict[Any, int | str]:
    """For each requested weight its position, or its name if it is a keyword argument."""
    positions: dict[Any, int | str] = {}
    for key in (weights,) if isinstance(weights, int | str) else weights:
        if isinstance(key, int) and -len(names) <= key < len(names):
            positions[key] = key % len(names)
        elif key in names:
            positions[key] = names.index(key)
        elif key in kwargs:
            positions[key] = key
        else:
            raise InputError("weights", expected=f"indices or names of {[*names, *kwargs]}", got=repr(key))
    return positions


def _root(path: Sequence[Any]) -> int | str:
    """The argument that a leaf belongs to: its position, or its name."""
    return path[1].idx if path[0].idx == 0 else path[1].key


def _path(path: Sequence[Any], names: Sequence[str]) -> str:
    """params['w'][0]"""
    root = _root(path)
    return (names[root] if isinstance(root, int) else root) + tree_util.keystr(tuple(path[2:]))


def _specs(
    arrays: Sequence[tuple[str, Any]], names: Sequence[str], dynamic: Mapping[str, Any]
) -> tuple[frozenset[str], list[jax.ShapeDtypeStruct]]:
    """Shapes and types, with symbols where sizes vary; and the symbols."""
    axes = {k: v for k, v in dynamic.items() if isinstance(v, Mapping)}
    texts: list[str | None] = []
    used: set[str] = set()
    for path, leaf in arrays:
        root = re.split(r"[\[.]", path, maxsplit=1)[0]
        key = path if path in axes else root
        if key not in axes:
            texts.append(None)
            continue
        used.add(key)
        dims: Mapping[int, str] = axes[key]
        if wrong := [a for a in dims if not -len(leaf.shape) <= a < len(leaf.shape)]:
            raise InputError(f"dynamic[{key!r}]", expected=f"axes of {path}, {list(leaf.shape)}", got=wrong)
        at = {a % len(leaf.shape): str(s) for a, s in dims.items()}
        texts.append(", ".join(at.get(i, str(d)) for i, d in enumerate(leaf.shape)))
    if unknown := [k for k in axes if k not in used]:
        raise InputError("dynamic", expected=f"arguments of {[path for path, _ in arrays]}", got=unknown)
    words = frozenset(w for t in texts if t is not None for w in re.findall(r"[A-Za-z_]\w*", t)) - {"max", "min", "mod"}
    requested = {name: dynamic.get(name) for name in sorted(words)}  # a mapping is an argument's axes
    scope = scope_of({name: _bounds(name, None if isinstance(b, Mapping) else b) for name, b in requested.items()})
    specs = [
        jax.ShapeDtypeStruct(leaf.shape if t is None else export.symbolic_shape(t, scope=scope), leaf.dtype)
        for t, (_, leaf) in zip(texts, arrays, strict=True)
    ]
    return words, specs


def scope_of(bounds: Mapping[str, tuple[int, int | None]]) -> export.SymbolicScope:
    """Symbols between bounds; JAX takes each as 1 at least."""
    limits = [f"{name} >= {low}" for name, (low, _) in bounds.items() if low > 1]
    limits += [f"{name} <= {high}" for name, (_, high) in bounds.items() if high is not None]
    return export.SymbolicScope(tuple(limits))


def _bounds(name: str, bound: Any) -> tuple[int, int | None]:
    match bound:
        case None:
            return 1, None
        case int(size):
            return size, size
        case (int(low), int() | None as high):
            return low, high
        case _:
            raise InputError(f"dynamic[{name!r}]", expected="a size, or (low, high)", got=repr(bound))


def export_function(fn: Callable[..., Any], specs: Sequence[Any]) -> export.Exported:
    """`fn` for arguments of trees of these shapes, exported for TPUs, where linear algebra stays StableHLO.

    Raises ImportModelError for what JAX cannot export.
    """
    calls = (*_CUSTOM_CALLS, *custom.names_of("stablehlo"))
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in calls]
    jitted = jax.jit(fn)
    jitted.trace(*specs)  # so that the function's own errors are raised unchanged
    try:
        return export.export(jitted, platforms=["tpu"], disabled_checks=checks)(*specs)
    except (ValueError, NotImplementedError) as e:
        fix = "leave out what runs outside of the program: callbacks, other devices"
        raise ImportModelError(f"JAX cannot export the function: {e}", fix=fix) from e


# --- functions that are exported already


def _paths(tree: Any) -> list[str]:
    """A path for every leaf of (args, kwargs)."""
    full = tree_util.tree_unflatten(tree, list(range(tree.num_leaves)))
    flat = tree_util.tree_flatten_with_path(full)[0]
    return [_path(path, [f"arg{i}" for i in range(len(full[0]))]) for path, _ in flat]


def _file(path: Path, weights: Any, dynamic: Mapping[str, Any] | None) -> ImportedFunction:
    """Its module is read in a separate process, as a file is untrusted."""
    with open_regular(path) as file:
        data = bytearray(file.read())
    try:
        return _exported(export.deserialize(data), weights, dynamic, partial(text_in_subprocess, where=str(path)))
    except IngotError:
        raise
    except Exception as e:  # damaged offsets may raise anything
        fix = "write exported.serialize() again, with a version of JAX that the installed one reads"
        got = f"{type(e).__name__}: {e}"
        raise ImportModelError("not a readable file of jax.export", got=got, where=str(path), fix=fix) from e


def _exported(
    exported: export.Exported, weights: Any, dynamic: Mapping[str, Any] | None, read: Callable[[bytes], str]
) -> ImportedFunction:
    """read: its module's bytecode as text."""
    paths = _paths(exported.in_tree)
    if exported.nr_devices > 1:
        raise ImportModelError("an exported function", expected="one device", got=exported.nr_devices)
    if weights:
        raise InputError("weights", expected="none: a call of what is exported has all arguments", got=list(weights))
    leaves = tuple((path, "array", None) for path in paths)
    return _imported(exported, paths, {}, dict(dynamic or {}), exported.in_tree, leaves, read)


def _lowered(lowered: jax.stages.Lowered, weights: Any) -> ImportedFunction:
    paths = _paths(lowered.in_tree)
    if weights:
        raise InputError("weights", expected="none: a call of what is lowered has all arguments", got=list(weights))
    text = lowered.as_text(debug_info=True)
    kept_indices = tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))
    program = import_stablehlo(text, names=[paths[i] for i in kept_indices])
    leaves = tuple((path, "array", None) for path in paths)
    return ImportedFunction(program, lowered.in_tree, lowered.out_tree, leaves, kept_indices)


def _imported(
    exported: export.Exported, paths: Sequence[str], constants: Mapping[int, np.ndarray], bounds: Mapping[str, Bound],
    in_tree: Any, leaves: tuple[tuple[str, str, Any], ...], read: Callable[[bytes], str] = text_of,
) -> ImportedFunction:  # fmt: skip
    """constants: values of the arrays that are no inputs, by index."""
    kept_indices = exported.module_kept_var_idx
    names = [paths[i] for i in kept_indices]
    shapes = [tuple(map(size_of, exported.in_avals[i].shape)) for i in kept_indices]
    values = {paths[i]: constants[i] for i in kept_indices if i in constants}
    text = read(exported.mlir_module_serialized)
    program = import_stablehlo(text, names=names, shapes=shapes, weights=values, dynamic=bounds)
    # positions among the arrays of a call, which are those that are no constants
    place = {i: k for k, i in enumerate(i for i in range(len(paths)) if i not in constants)}
    reads = tuple(place[i] for i in kept_indices if i not in constants)
    return ImportedFunction(program, in_tree, exported.out_tree, leaves, reads)


_FUNCTIONS = (("floordiv", "//"), ("mod", "%"))


def size_of(d: Any) -> DimLike:
    """JAX's symbolic size as Ingot's."""
    if isinstance(d, int | np.integer):
        return int(d)
    text = str(d)
    for name, operator in _FUNCTIONS:
        text = re.sub(rf"\b{name}\(([^(),]+), ([^(),]+)\)", rf"(\1) {operator} (\2)", text)
    text = re.sub(r"(\w+)\^(\d+)", lambda m: "*".join([m[1]] * int(m[2])), text)
    try:
        return parse_dim(text)
    except ValueError as e:
        raise ImportModelError("a size", expected="sums, products, quotients of symbols", got=text) from e
