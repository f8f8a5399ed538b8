"""A JAX function with its loss, to be trained: its first argument is a tree of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax import tree_util

from ingot.frontends.jax.function import import_jax
from ingot.frontends.jax.gradients import gradient_marks
from ingot.frontends.shared.targets import check_loss, target_names
from ingot.ir.node import Graph, Input, Node
from ingot.support.dataclass import dataclass
from ingot.support.errors import select_trainable

_PARAMETERS_ARGUMENT = "__learned__"  # the argument's name; must not clash with the function's own


@dataclass(frozen=True)
class TrainableFunction:
    """parameters: by the path of each leaf, its value and the graph's input, None for those that are not read."""

    graph: Graph
    parameters: Mapping[str, tuple[np.ndarray, Node]]
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]]
    restore: Callable[[Mapping[str, np.ndarray]], Any]


def import_trainable(
    fn: Callable[..., Any], loss: Callable[..., Any] | None, args: tuple[Any, ...], targets: tuple[Any, ...],
    dynamic: Mapping[str, Any] | None, patterns: tuple[str, ...] | None,
) -> TrainableFunction:  # fmt: skip
    """fn(*args), whose results and then the targets `loss` takes: (loss, results), or the results without a loss.

    patterns: of the paths of leaves to train; by default all floats. The others stay as they are.

    Raises InputError for chosen leaves that are no floats, and as `import_jax` does.
    """
    read = targets if loss is not None else ()
    paths, tree = tree_util.tree_flatten_with_path(args[0])
    leaves = [leaf for _, leaf in paths]
    names = [tree_util.keystr(path) or "parameters" for path, _ in paths]
    floats = {n: _is_float(leaf) for n, leaf in zip(names, leaves, strict=True)}
    trained = {n for n in names if floats[n]} if patterns is None else {*select_trainable(patterns, floats)}
    learned = [i for i, n in enumerate(names) if n in trained]

    def with_all_leaves(values: Sequence[Any]) -> Any:
        full = list(leaves)
        for i, value in zip(learned, values, strict=True):
            full[i] = value
        return tree_util.tree_unflatten(tree, full)

    def stepped(learned: Sequence[Any], *rest: Any) -> Any:
        count = len(rest) - len(read)
        results = fn(with_all_leaves(learned), *rest[:count])
        if loss is None:
            return results
        value = loss(results, *rest[count:])
        check_loss(value, jax.Array, "array")
        return value, results

    stepped.__signature__ = _signature(fn, len(args) - 1, len(read))  # type: ignore[attr-defined]
    first = tuple(jnp.asarray(leaves[i]) for i in learned)
    arguments = (first, *args[1:], *read)
    with gradient_marks():
        imported = import_jax(stepped, arguments, dynamic=dynamic)
    nodes = {x.op.label: x for x in imported.graph.inputs if isinstance(x.op, Input)}
    inputs = {names[k]: nodes.get(f"{_PARAMETERS_ARGUMENT}[{at}]") for at, k in enumerate(learned)}
    parameter_nodes = {x for x in inputs.values() if x is not None}
    own_inputs = [i for i, x in enumerate(imported.graph.inputs) if x not in parameter_nodes]

    def flatten(arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        arrays = imported.flatten((first, *arguments), named)
        return [arrays[i] for i in own_inputs]

    def restore(values: Mapping[str, np.ndarray]) -> Any:
        return with_all_leaves([jnp.asarray(values.get(names[i], leaves[i])) for i in learned])

    # JAX's types of them, not those of numpy's and Python's numbers
    parameters = {n: (np.array(a), x) for (n, x), a in zip(inputs.items(), first, strict=True) if x is not None}
    return TrainableFunction(imported.graph, parameters, flatten, restore)


def _is_float(leaf: Any) -> bool:
    """False also for leaves that are no numbers, such as functions in Equinox modules, or names."""
    number = isinstance(leaf, bool | int | float | complex) or hasattr(leaf, "dtype")
    return number and bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _signature(fn: Callable[..., Any], count: int, targets: int) -> inspect.Signature:
    """The parameters, the function's other arguments under their names, and the targets."""
    own_names = list(inspect.signature(fn).parameters)[1 : count + 1]
    own_names += [f"x{i}" for i in range(len(own_names), count)]
    names = [_PARAMETERS_ARGUMENT, *own_names, *(f"loss_{n}" if n in own_names else n for n in target_names(targets))]
    return inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
