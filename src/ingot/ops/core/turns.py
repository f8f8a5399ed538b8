"""How many turns a loop makes, where that can be told before the run.

i = 2;  while i < n: ...; i = i + 1        ->        max(n - 2, 0)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ingot.ir.dims import DimLike, dim_max, dim_min
from ingot.ir.node import Graph, Node, Project, rebuilt
from ingot.ir.types import boolean
from ingot.ops import Add, And, Compare, Concat, Convert, DimValue, Reshape, Slice, Sub, While
from ingot.ops.group import Group

_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def turns(op: While, told: Callable[[int], DimLike | None]) -> DimLike | None:
    """The turns of a loop whose counter goes up or down by one until a bound that stays; None: only the run knows.

    told: the number that operand i is at the beginning, if that is known. The graphs may be fused.
    """
    counts = [_counted(op, part, told) for part in _asked(op, op.cond.results[0], told)]
    known = [n for n in counts if n is not None]
    return reduce(dim_min, known) if known and len(known) == len(counts) else None


def _asked(op: While, ends: Node, told: Callable[[int], DimLike | None]) -> list[Node]:
    """What has to hold for a turn: parts of a conjunction, but those that stay true, which ONNX's loops also ask."""
    ends = _opened(ends)
    if isinstance(ends.op, And):
        return [part for x in ends.inputs for part in _asked(op, x, told)]
    return [] if _bound(op, ends, told) == 1 else [ends]


def _counted(op: While, ends: Node, told: Callable[[int], DimLike | None]) -> DimLike | None:
    """The turns until one comparison fails."""
    if not isinstance(ends.op, Compare):
        return None
    a, b = ends.inputs
    for counter, bound, direction in ((a, b, ends.op.direction), (b, a, _MIRRORED.get(ends.op.direction, ""))):
        if counter not in op.cond.inputs:
            continue
        i = op.cond.inputs.index(counter)
        first, last, step = told(i), _bound(op, bound, told), _step(op.body, i)
        if first is None or last is None or step is None:
            continue
        limits = np.iinfo(counter.dtype.numpy)
        if (direction, step) == ("LT", 1) or ((direction, step) == ("LE", 1) and last != limits.max):
            return dim_max(last - first + (direction == "LE"), 0)
        if (direction, step) == ("GT", -1) or ((direction, step) == ("GE", -1) and last != limits.min):
            return dim_max(first - last + (direction == "GE"), 0)
    return None


def value_of(node: Node) -> DimLike | None:
    """The integer that a value is, if it is known before the run; 1 of true."""
    node = _opened(node)
    while (inner := _shown(node)) is not None:
        node = _opened(inner)
    if isinstance(node.op, DimValue):
        return node.op.dim
    if node.constant is not None and node.type.size == 1 and (node.dtype.is_integer or node.dtype == boolean):
        return int(node.constant.value.item())
    return None


def _shown(node: Node) -> Node | None:
    """What a value of one integer is in another type or shape, or the part of a vector that it is cut from."""
    if node.type.size != 1 or not node.inputs:
        return None
    x = node.inputs[0]
    if isinstance(node.op, Convert) and node.dtype.is_integer and x.dtype.is_integer:
        return x
    if isinstance(node.op, Reshape):
        return x
    x = _opened(x)
    if not isinstance(node.op, Slice) or not isinstance(x.op, Concat) or node.type.rank != 1:
        return None
    at = node.op.start[0]
    ones = all(part.type.size == 1 for part in x.inputs)
    return x.inputs[at] if ones and isinstance(at, int) else None


def _bound(op: While, bound: Node, told: Callable[[int], DimLike | None]) -> DimLike | None:
    """What the counter is compared with, if no turn changes it."""
    if bound not in op.cond.inputs:
        return value_of(bound)
    i = op.cond.inputs.index(bound)
    return told(i) if _opened(op.body.results[i]) is op.body.inputs[i] else None


def _step(body: Graph, i: int) -> int | None:
    """What a turn adds to value i."""
    new, old = _opened(body.results[i]), body.inputs[i]
    if not isinstance(new.op, Add | Sub):
        return None
    a, b = new.inputs
    if isinstance(new.op, Add) and b is old:
        a, b = b, a
    by = value_of(b) if a is old else None
    if not isinstance(by, int):
        return None
    return by if isinstance(new.op, Add) else -by


def _opened(node: Node) -> Node:
    """A value of a fused graph as the op that gives it."""
    while True:
        index, group = (node.op.index, node.inputs[0]) if isinstance(node.op, Project) else (0, node)
        if not isinstance(group.op, Group):
            return node
        body = group.op.body
        (node,) = rebuilt((body.outputs[index],), dict(zip(body.inputs, group.inputs, strict=True)))


__all__ = ["turns", "value_of"]
