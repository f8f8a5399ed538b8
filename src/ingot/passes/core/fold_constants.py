"""Constant folding: ops whose operands are constants become constants, through the ops' own reference semantics."""

from __future__ import annotations

from math import prod

from ingot import ops
from ingot.ir.node import Const, Graph, Input, Node, Op, Project, const, deferred_const, topological
from ingot.ir.rewrite import Result, Rule, rewrite, rules
from ingot.ir.types import TensorType
from ingot.ir.verify import attribute_dims
from ingot.ops.core.base import Category, category
from ingot.ops.core.functions import Transcendental
from ingot.passes.constants import results_of, value_of

# A result up to this size is always folded: shape arithmetic, position ids.
MAX_SMALL_BYTES = 4096
# A broadcast of one value is cheaper as an immediate than as memory, unless it is as small as a shape.
MAX_BROADCAST_BYTES = 64
# The largest result of an op that needs its own kernel (a lookup, a product, a scatter) or costs more than a load (a
# sine): each run would repeat it.
MAX_TABLE_BYTES = 1 << 22
# The most that one evaluation may need for temporary arrays, and that a pass may add to the model.
MAX_TEMPORARY_BYTES = 1 << 26
MAX_ADDED_BYTES = 1 << 26
# The most scalar operations of one evaluation, which nothing interrupts: seconds, where kernels take a fraction of one.
MAX_OPERATIONS = 1 << 33
_BLAS_SPEED = 16  # of products of matrices, beside other references
# A larger result is computed when it is read: it is a weight, which is read once, by packing.
MIN_DEFERRED_BYTES = 1 << 18
# Ops that are fused into their readers at little cost. Those with a large result of small constants are not folded, but
# treated as known, as a later result may be small: a mask of iotas.
_FUSED = (Category.SOURCE, Category.ELEMENTWISE, Category.VIEW)


def fold_constants(graph: Graph) -> Graph:
    """multiply(const, const) -> const

    A result is folded if it is no larger than the constants that it depends on (twice that for a conversion), or small.
    Pointwise ops and views with large results of small constants stay; results of lookups, products, scatters and
    transcendental functions may have up to MAX_TABLE_BYTES. One pass adds at most MAX_ADDED_BYTES plus the size of the
    model's own constants.
    """
    budget = MAX_ADDED_BYTES + sum(n.constant.nbytes for n in graph.nodes() if n.constant is not None)
    return rewrite(graph, rules(Rule("fold-constants", Op, _Folder(budget).fold)))


class _Folder:
    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.is_known_node: dict[Node, bool] = {}

    def fold(self, n: Node) -> Result | None:
        op = n.op
        if isinstance(op, (Input, Const, Project, *ops.WEIGHT_FORMS)) or not all(map(self.is_known, n.inputs)):
            return None
        # an exchange involves other devices
        if op.bodies or category(op) in (Category.COLLECTIVE, Category.HOST) or not _is_static(n):
            return None
        size = sum(_nbytes(t) for t in n.types)
        if not self.is_worth_folding(n, size):
            return None
        self.budget -= size
        if size > MIN_DEFERRED_BYTES and len(n.types) == 1:
            return deferred_const(n.type, lambda: value_of(n), n.loc, key=("value", n))
        results = tuple(const(r, loc=n.loc) for r in results_of(n))
        return results[0] if len(results) == 1 else results

    def is_known(self, n: Node) -> bool:
        """Whether `n` is a constant, or depends on constants only and was not folded because of its size."""
        if n not in self.is_known_node:
            fused = category(n.op) in _FUSED and len(n.types) == 1 and _is_static(n)
            self.is_known_node[n] = n.constant is not None or (fused and all(map(self.is_known, n.inputs)))
        return self.is_known_node[n]

    def is_worth_folding(self, n: Node, size: int) -> bool:
        operands = topological([n])[:-1]
        read_bytes = sum(m.constant.nbytes for m in operands if m.constant is not None)
        temporary_bytes = sum(_nbytes(m.type) for m in operands if m.constant is None)
        if size > self.budget or temporary_bytes > MAX_TEMPORARY_BYTES + size or _operations(n) > MAX_OPERATIONS:
            return False
        if isinstance(n.op, ops.BroadcastInDim) and n.type.size != n.inputs[0].type.size:
            return size <= MAX_BROADCAST_BYTES
        needs_kernel = category(n.op) not in (*_FUSED, Category.OPAQUE) or isinstance(n.op, Transcendental)
        is_conversion = isinstance(n.op, ops.Convert)
        return size <= max(
            MAX_TABLE_BYTES if needs_kernel else MAX_SMALL_BYTES, read_bytes * (2 if is_conversion else 1)
        )


def _operations(n: Node) -> float:
    """About how many scalar operations an evaluation of `n` takes."""
    flops = n.op.flops(*(x.type for x in n.inputs))
    assert isinstance(flops, int)
    elements = sum(_size(t) for t in (*n.types, *(x.type for x in n.inputs)))
    if isinstance(n.op, ops.ReduceWindow):
        return elements * prod(n.op.window)
    if isinstance(n.op, ops.DotGeneral):
        flops //= _BLAS_SPEED
    # sorts take less; factors of a matrix [n, n] take n^3
    is_simple = flops > 0 or category(n.op) not in (Category.OPAQUE, Category.SCAN, Category.SORT)
    return max(flops, elements if is_simple else elements**1.5)


def _is_static(n: Node) -> bool:
    return all(t.is_static for t in n.types) and next(attribute_dims(n.op), None) is None


def _size(t: TensorType) -> int:
    size = t.size
    assert isinstance(size, int)
    return size


def _nbytes(t: TensorType) -> int:
    size = t.nbytes
    assert isinstance(size, int)
    return size
