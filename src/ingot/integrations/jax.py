"""`ingot.jit`: a decorator that compiles a function for each tree, shapes and dtypes of its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.runtime.cpu.pool import thread_count

if TYPE_CHECKING:
    from ingot.driver.compile import Options

Compile = Callable[[tuple[Any, ...], dict[str, Any]], Callable[..., Any]]


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Compile a JAX function at the first call for each tree, shapes and dtypes of its arguments.

    A decorator, with or without options (threads, cache, fast_math, precision). Inside a function that JAX traces, the
    compiled function is a callback.
    """
    if fn is None:
        return functools.partial(jit, **options)
    from ingot.driver.compile import Options  # imported here, as `ingot.load` works without the compiler

    dynamic, weights = options.pop("dynamic", None), options.pop("weights", None)
    settings = Options(**{**options, "threads": thread_count(options.get("threads"))})
    return _per_signature(fn, functools.partial(_compile, fn, dynamic, weights, settings))


def _compile(
    fn: Callable[..., Any],
    dynamic: Any,
    weights: Any,
    settings: Options,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Callable[..., Any]:
    from ingot.driver.compile import compile_opened
    from ingot.driver.open import open_jax

    return compile_opened(open_jax(fn, args, kwargs, dynamic, weights), settings)


def _per_signature(fn: Callable[..., Any], compile: Compile) -> Callable[..., Any]:
    """A function that calls a compiled one for each kind of arguments, and returns JAX arrays. Inside a function that
    JAX traces, it is a `jax.pure_callback`. compile: compiles for arguments (args, kwargs)."""
    import jax
    from jax import tree_util
    from jax.core import Tracer

    compiled: dict[object, Callable[..., Any]] = {}

    def concrete(*args: Any, **kwargs: Any) -> Any:
        flat, tree = tree_util.tree_flatten((args, kwargs))
        key = (tree, tuple(_kind(leaf) for leaf in flat))
        if key not in compiled:
            compiled[key] = compile(args, kwargs)
        return compiled[key](*args, **kwargs)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        traced = any(isinstance(leaf, Tracer) for leaf in tree_util.tree_leaves((args, kwargs)))
        if not traced:
            return tree_util.tree_map(jax.numpy.asarray, concrete(*args, **kwargs))
        shapes = jax.eval_shape(fn, *args, **kwargs)
        return jax.pure_callback(concrete, shapes, *args, vmap_method="sequential", **kwargs)

    return call


def _kind(leaf: Any) -> object:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return tuple(leaf.shape), np.dtype(leaf.dtype)
    return type(leaf), leaf
