"""Gradients of a scalar by the reverse mode: one walk from the loss to what it is differentiated by.

Griewank and Walther, Evaluating Derivatives, 2nd ed., chapter 3. MODEL ops without a rule of their own are lowered
first; what a rule builds is compiled, fused and checked as everything else is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff.table import CHOOSING, RULES, ways
from ingot.ir.node import Node, Project, splat_of, topological
from ingot.support.errors import InputError, UnsupportedOp, UnsupportedOpError


def gradients(loss: Node, wrt: Sequence[Node], seed: Node | None = None) -> list[Node]:
    """d loss / d x for each x of `wrt`, of x's type: over nodes that `loss` is made of.

    seed: the loss's own cotangent; 1 unless given, for which the loss has to be a scalar. What the loss does not depend
    on has a gradient of zeros.

    Raises InputError for a loss that is no scalar or no float and for an x that is no float, UnsupportedOpError naming
    all ops on the way that have no reverse rule.
    """
    if not loss.dtype.is_float or (seed is None and loss.shape):
        raise InputError("loss", expected="a float scalar", got=str(loss.type), fix="reduce it to one number: its mean")
    for x in wrt:
        if not x.dtype.is_float:
            raise InputError("a gradient's variable", expected="floats", got=str(x.type), fix="leave integers out")
    found = pulled_back([(loss, ops.scalar(1, loss.dtype) if seed is None else seed)], wrt)
    return [ops.full(x.shape, 0, x.dtype) if g is None else g for x, g in zip(wrt, found, strict=True)]


def pulled_back(seeds: Sequence[tuple[Node, Node]], wrt: Sequence[Node]) -> list[Node | None]:
    """The cotangents of `wrt` from those of some nodes, (node, cotangent); None where no node depends on one.

    Raises UnsupportedOpError naming all ops on the way that have no reverse rule.
    """
    order = topological([node for node, _ in seeds], ways)
    depends = dependents(order, wrt)
    on_the_way = [n for n in order if n in depends and n not in wrt and not isinstance(n.op, Project)]
    missing = [
        UnsupportedOp(n.op.name, n.loc or "the graph", "no reverse rule") for n in on_the_way if type(n.op) not in RULES
    ]
    if missing:
        raise UnsupportedOpError(missing, model="the gradient")
    found: dict[Node, list[Node | None]] = {}
    for node, seed in seeds:
        _accumulate(found, node, 0, seed)
    for node in reversed(order):
        cotangents = found.get(node)
        if cotangents is None or node not in depends or node in wrt:
            continue
        if isinstance(node.op, Project):
            (source,) = node.inputs
            _accumulate(found, source, node.op.index, cotangents[0])
            continue
        for operand, g in zip(node.inputs, _of_operands(node, cotangents, depends), strict=True):
            if g is not None and operand in depends:
                _accumulate(found, operand, 0, g)
    return [(found.get(x) or [None])[0] for x in wrt]


def _of_operands(node: Node, cotangents: Sequence[Node | None], depends: set[Node]) -> Sequence[Node | None]:
    if (rule := CHOOSING.get(type(node.op))) is not None:
        return rule(node, cotangents, [x in depends for x in node.inputs])
    return RULES[type(node.op)](node, cotangents)


def dependents(order: Sequence[Node], wrt: Sequence[Node]) -> set[Node]:
    """Those of `wrt` and, of nodes in their order, what a gradient by one of these may come from."""
    found = set(wrt)
    for node in order:
        if not found.isdisjoint(ways(node)):
            found.add(node)
    return found


def _accumulate(found: dict[Node, list[Node | None]], node: Node, index: int, g: Node | None) -> None:
    if g is None:
        return
    cotangents = found.setdefault(node, [None] * len(node.types))
    before = cotangents[index]
    cotangents[index] = g if before is None else _sum(before, g)


def _sum(before: Node, g: Node) -> Node:
    """before + g; where g is zeros but for a part, only this part of `before` changes."""
    if isinstance(g.op, ops.DynamicUpdateSlice) and splat_of(g.inputs[0]) == 0:
        _, part, *starts = g.inputs
        read = ops.DynamicSlice(part.shape)(before, *starts)
        return g.op(before, ops.Add()(read, part), *starts)
    return ops.Add()(before, g)
