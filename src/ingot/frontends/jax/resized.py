"""A JAX function's example arguments with the sizes of a call that its program refused.

f(x[b, 3]), b >= 1;  x[0, 3] comes   ->   f(x[0, 3]), with b fixed at 0 and other names as they were
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
from jax import tree_util

from ingot.frontends.jax.function import ImportedFunction, paths_of
from ingot.support.errors import SizesError

Call = tuple[tuple[Any, ...], dict[str, Any]]


def resized(
    fn: Any, imported: ImportedFunction, call: Call, dynamic: Mapping[str, Any], refused: SizesError
) -> tuple[Call, dict[str, Any]] | None:
    """(arguments, dynamic) to trace `fn` with; None where explicit bounds exclude the sizes, or no size is open."""
    outer_names = set(refused.out_of_range)
    if any(isinstance(dynamic.get(name), int | tuple) for name in outer_names):
        return None
    flat, tree = tree_util.tree_flatten(call)
    paths = paths_of(fn, call)
    array_paths = {path for path, kind, _ in imported.leaves if kind == "array"}
    arrays = [i for i, path in enumerate(paths) if path in array_paths]
    shapes = dict(zip((arrays[k] for k in imported.read_indices), refused.shapes, strict=False))
    remaining: dict[str, Any] = {}
    for key, axes in dynamic.items():
        if not isinstance(axes, Mapping):
            remaining[key] = axes
        elif kept_axes := {axis: text for axis, text in axes.items() if outer_names and not outer_names & _words(text)}:
            remaining[key] = kept_axes
    if remaining == dict(dynamic):
        return None
    for i, shape in shapes.items():
        flat[i] = jax.ShapeDtypeStruct(shape, flat[i].dtype)
    named = [text for axes in remaining.values() if isinstance(axes, Mapping) for text in axes.values()]
    used = set[str]().union(*map(_words, named))
    remaining = {key: bound for key, bound in remaining.items() if isinstance(bound, Mapping) or key in used}
    return tree_util.tree_unflatten(tree, flat), remaining


def _words(text: object) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", str(text)))
