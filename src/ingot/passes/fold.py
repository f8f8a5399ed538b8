"""Constant folding: ops whose operands are constants become constants, through the ops' own reference semantics."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Const, Graph, Input, Node, Op, Project, const, deferred
from ingot.ir.rewrite import Result, Rule, rewrite, rules
from ingot.ir.types import TensorType
from ingot.ir.verify import attribute_dims
from ingot.passes.constants import value_of

# A result of this size may always be kept: shape arithmetic, position ids.
SMALL = 4096
# What repeats one value is cheaper as an immediate than as memory, unless it is as small as a shape.
TINY = 64
# A table looked up at constant positions may grow this large: to look it up again in each run costs more.
TABLE = 1 << 22
# The most that one evaluation may put into temporary arrays, and that a pass may add to the model.
TEMPORARY = 1 << 26
ADDED = 1 << 26
# A larger result is computed when it is read: it is a weight, and is read once, to be packed.
DEFERRED = 1 << 18
# Cheap to evaluate inside another op's folding, whatever size they pass through: a mask of iotas that ends up small.
_THROUGH = (ops.BroadcastInDim, ops.Iota, ops.Reshape, ops.Transpose, ops.Slice, ops.Convert, ops.Pad)


def fold_constants(graph: Graph) -> Graph:
    """multiply(const, const) -> const

    A result is kept where it is no larger than the constants that it comes from (twice that for a wider dtype), or
    small: broadcasts, iotas and pads of something small into something big stay ops; a table may grow by lookups up to
    TABLE. One pass adds at most ADDED bytes
    and the size of the model's own constants.
    """
    budget = ADDED + sum(n.op.array.nbytes for n in graph.nodes() if isinstance(n.op, Const))
    return rewrite(graph, rules(Rule("fold-constants", Op, _Folder(budget).fold)))


class _Folder:
    def __init__(self, budget: int) -> None:
        self.budget = budget

    def fold(self, n: Node) -> Result | None:
        op = n.op
        if isinstance(op, Input | Const | Project | ops.Dequantize) or not all(_foldable(i) for i in n.inputs):
            return None
        if op.bodies or not all(t.is_static for t in n.types) or next(attribute_dims(op), None) is not None:
            return None
        size = sum(_nbytes(t) for t in n.types)
        if not self.worth(n, size):
            return None
        self.budget -= size
        if size > DEFERRED and len(n.types) == 1:
            return deferred(n.type, lambda: _results(n)[0], n.loc)
        results = tuple(const(r, loc=n.loc) for r in _results(n))
        return results[0] if len(results) == 1 else results

    def worth(self, n: Node, size: int) -> bool:
        if size > self.budget or _temporary(n) > TEMPORARY + size:
            return False
        if isinstance(n.op, ops.BroadcastInDim) and n.type.size != n.inputs[0].type.size:
            return size <= TINY
        read = sum(c.op.array.nbytes for c in _sources(n) if isinstance(c.op, Const))
        wider = isinstance(n.op, ops.Convert)
        table = TABLE if isinstance(n.op, ops.Gather) else SMALL
        return size <= max(table, read * (2 if wider else 1))


def _nbytes(t: TensorType) -> int:
    size = t.nbytes
    assert isinstance(size, int)
    return size


def _foldable(n: Node) -> bool:
    """Whether the value of `n` is known: a constant, or cheap ops on constants that stayed because of their size."""
    if isinstance(n.op, Const):
        return True
    if not isinstance(n.op, _THROUGH) or not n.type.is_static:
        return False
    return next(attribute_dims(n.op), None) is None and all(_foldable(i) for i in n.inputs)


def _results(n: Node) -> tuple[np.ndarray, ...]:
    values = [value_of(i) for i in n.inputs]
    with np.errstate(all="ignore"):
        got = n.op.reference(*values)
    return tuple(np.asarray(r) for r in (got if isinstance(got, tuple) else (got,)))


def _sources(n: Node) -> set[Node]:
    """The constants that `n` is computed from."""
    if isinstance(n.op, Const):
        return {n}
    return set().union(*(_sources(i) for i in n.inputs))


def _temporary(n: Node) -> int:
    """Bytes of the operands that are evaluated on the way."""
    return sum(_nbytes(i.type) + _temporary(i) for i in n.inputs if not isinstance(i.op, Const))
