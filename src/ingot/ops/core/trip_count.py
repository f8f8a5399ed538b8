"""The trip count of a loop, if it is a constant or depends on sizes alone.

i = 2;  while i < n: ...; i = i + 1        ->        max(n - 2, 0)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ingot.ir.dims import DimLike, dim_max, dim_min
from ingot.ir.node import Graph, Node, Project, rebuild
from ingot.ir.types import boolean
from ingot.ops import Add, And, Compare, Concat, Convert, DimValue, Reshape, Slice, Sub, While
from ingot.ops.group import Group

_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def trip_count(op: While, initial_value: Callable[[int], DimLike | None]) -> DimLike | None:
    """The trip count of a loop whose counter changes by 1 or -1 until an invariant bound; None if it is unknown.

    initial_value: operand index -> its value before the loop, None if unknown. The graphs may be fused.
    """
    counts = [
        _comparison_trip_count(op, condition, initial_value)
        for condition in _loop_conditions(op, op.cond.results[0], initial_value)
    ]
    known_counts = [n for n in counts if n is not None]
    return reduce(dim_min, known_counts) if known_counts and len(known_counts) == len(counts) else None


def _loop_conditions(op: While, condition: Node, initial_value: Callable[[int], DimLike | None]) -> list[Node]:
    """The conjuncts of the loop condition, without those that are always true (ONNX loops have such ones)."""
    condition = _without_groups(condition)
    if isinstance(condition.op, And):
        return [conjunct for x in condition.inputs for conjunct in _loop_conditions(op, x, initial_value)]
    return [] if _invariant_value(op, condition, initial_value) == 1 else [condition]


def _comparison_trip_count(
    op: While, condition: Node, initial_value: Callable[[int], DimLike | None]
) -> DimLike | None:
    """The number of iterations until the comparison `condition` fails."""
    if not isinstance(condition.op, Compare):
        return None
    a, b = condition.inputs
    for counter, bound, direction in (
        (a, b, condition.op.direction),
        (b, a, _MIRRORED.get(condition.op.direction, "")),
    ):
        if counter not in op.cond.inputs:
            continue
        i = op.cond.inputs.index(counter)
        start, end, step = initial_value(i), _invariant_value(op, bound, initial_value), _step(op.body, i)
        if start is None or end is None or step is None:
            continue
        limits = np.iinfo(counter.dtype.numpy)
        if (direction, step) == ("LT", 1) or ((direction, step) == ("LE", 1) and end != limits.max):
            return dim_max(end - start + (direction == "LE"), 0)
        if (direction, step) == ("GT", -1) or ((direction, step) == ("GE", -1) and end != limits.min):
            return dim_max(start - end + (direction == "GE"), 0)
    return None


def static_value(node: Node) -> DimLike | None:
    """The integer value of `node` if it is a constant or a size, else None; true is 1."""
    node = _without_groups(node)
    while (inner := _scalar_source(node)) is not None:
        node = _without_groups(inner)
    if isinstance(node.op, DimValue):
        return node.op.dim
    if node.constant is not None and node.type.size == 1 and (node.dtype.is_integer or node.dtype == boolean):
        return int(node.constant.value.item())
    return None


def _scalar_source(node: Node) -> Node | None:
    """The operand whose value a one-element integer node has: of a conversion, a reshape, or a slice of a concat."""
    if node.type.size != 1 or not node.inputs:
        return None
    x = node.inputs[0]
    if isinstance(node.op, Convert) and node.dtype.is_integer and x.dtype.is_integer:
        return x
    if isinstance(node.op, Reshape):
        return x
    x = _without_groups(x)
    if not isinstance(node.op, Slice) or not isinstance(x.op, Concat) or node.type.rank != 1:
        return None
    start = node.op.start[0]
    scalars_only = all(part.type.size == 1 for part in x.inputs)
    return x.inputs[start] if scalars_only and isinstance(start, int) else None


def _invariant_value(op: While, operand: Node, initial_value: Callable[[int], DimLike | None]) -> DimLike | None:
    """The value of `operand` if it is loop-invariant and known, else None."""
    if operand not in op.cond.inputs:
        return static_value(operand)
    i = op.cond.inputs.index(operand)
    return initial_value(i) if _without_groups(op.body.results[i]) is op.body.inputs[i] else None


def _step(body: Graph, i: int) -> int | None:
    """The constant that an iteration adds to value i, or None."""
    new, old = _without_groups(body.results[i]), body.inputs[i]
    if not isinstance(new.op, Add | Sub):
        return None
    a, b = new.inputs
    if isinstance(new.op, Add) and b is old:
        a, b = b, a
    increment = static_value(b) if a is old else None
    if not isinstance(increment, int):
        return None
    return increment if isinstance(new.op, Add) else -increment


def _without_groups(node: Node) -> Node:
    """`node` as computed outside of groups: the result of a fused group becomes the op that computes it."""
    while True:
        index, group = (node.op.index, node.inputs[0]) if isinstance(node.op, Project) else (0, node)
        if not isinstance(group.op, Group):
            return node
        body = group.op.body
        (node,) = rebuild((body.outputs[index],), dict(zip(body.inputs, group.inputs, strict=True)))


__all__ = ["static_value", "trip_count"]
