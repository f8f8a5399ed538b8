"""Constant folding: ops whose operands are constants become constants, through the ops' own reference semantics."""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Const, Graph, Input, Node, Op, Project, const, deferred, topological
from ingot.ir.rewrite import Result, Rule, rewrite, rules
from ingot.ir.types import TensorType
from ingot.ir.verify import attribute_dims
from ingot.ops.core.base import Category, category
from ingot.ops.core.functions import Transcendental
from ingot.passes.constants import results_of, value_of

# A result of this size may always be kept: shape arithmetic, position ids.
SMALL = 4096
# What repeats one value is cheaper as an immediate than as memory, unless it is as small as a shape.
TINY = 64
# What would be a kernel of its own (a lookup, a product, a scatter), or costs more than to be read (a sine), may grow
# this large: each run would repeat it.
TABLE = 1 << 22
# The most that one evaluation may put into temporary arrays, and that a pass may add to the model.
TEMPORARY = 1 << 26
ADDED = 1 << 26
# A larger result is computed when it is read: it is a weight, and is read once, to be packed.
DEFERRED = 1 << 18
# Fused into whatever reads them, at little cost: such ops stay where they make something big of something small, and
# folding looks through them: a mask of iotas may end up small.
_FUSED = (Category.SOURCE, Category.ELEMENTWISE, Category.VIEW)


def fold_constants(graph: Graph) -> Graph:
    """multiply(const, const) -> const

    A result is kept where it is no larger than the constants that it comes from (twice that for a wider dtype), or
    small: pointwise ops and views that make something big of something small stay; lookups, products, scatters and
    transcendental functions may grow up to TABLE. One pass adds at most ADDED bytes and the size of the model's own
    constants.
    """
    budget = ADDED + sum(n.constant.nbytes for n in graph.nodes() if n.constant is not None)
    return rewrite(graph, rules(Rule("fold-constants", Op, _Folder(budget).fold)))


class _Folder:
    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.known: dict[Node, bool] = {}

    def fold(self, n: Node) -> Result | None:
        op = n.op
        if isinstance(op, (Input, Const, Project, *ops.WEIGHT_FORMS)) or not all(map(self.is_known, n.inputs)):
            return None
        if op.bodies or not _is_static(n):
            return None
        size = sum(_nbytes(t) for t in n.types)
        if not self.worth(n, size):
            return None
        self.budget -= size
        if size > DEFERRED and len(n.types) == 1:
            return deferred(n.type, lambda: value_of(n), n.loc)
        results = tuple(const(r, loc=n.loc) for r in results_of(n))
        return results[0] if len(results) == 1 else results

    def is_known(self, n: Node) -> bool:
        """Whether `n` is a constant, or ops on constants that stayed because of their size."""
        if n not in self.known:
            fused = category(n.op) in _FUSED and len(n.types) == 1 and _is_static(n)
            self.known[n] = n.constant is not None or (fused and all(map(self.is_known, n.inputs)))
        return self.known[n]

    def worth(self, n: Node, size: int) -> bool:
        made = topological([n])[:-1]
        read = sum(m.constant.nbytes for m in made if m.constant is not None)
        temporary = sum(_nbytes(m.type) for m in made if m.constant is None)
        if size > self.budget or temporary > TEMPORARY + size:
            return False
        if isinstance(n.op, ops.BroadcastInDim) and n.type.size != n.inputs[0].type.size:
            return size <= TINY
        own = category(n.op) not in (*_FUSED, Category.OPAQUE) or isinstance(n.op, Transcendental)
        wider = isinstance(n.op, ops.Convert)
        return size <= max(TABLE if own else SMALL, read * (2 if wider else 1))


def _is_static(n: Node) -> bool:
    return all(t.is_static for t in n.types) and next(attribute_dims(n.op), None) is None


def _nbytes(t: TensorType) -> int:
    size = t.nbytes
    assert isinstance(size, int)
    return size
