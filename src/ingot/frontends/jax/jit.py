"""`ingot.jit`: a decorator that compiles a function for each kind of arguments that it is called with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer

Compile = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Callable[..., Any]]


def jit(fn: Callable[..., Any], compile: Compile) -> Callable[..., Any]:
    """`fn`, compiled at the first call with arguments of a tree, shapes and types; other calls of that kind run it.

    compile: (fn, args, kwargs) to the function compiled for such arguments. Inside of a function that JAX traces the
    result is a `jax.pure_callback`. It gives JAX arrays.
    """
    compiled: dict[object, Callable[..., Any]] = {}

    def concrete(*args: Any, **kwargs: Any) -> Any:
        flat, tree = tree_util.tree_flatten((args, kwargs))
        key = (tree, tuple(_kind(leaf) for leaf in flat))
        if key not in compiled:
            compiled[key] = compile(fn, args, kwargs)
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
