"""Reverse-mode gradients of a scalar: one walk from the loss back to the variables.

Griewank and Walther, Evaluating Derivatives, 2nd ed., chapter 3. MODEL ops without a rule of their own are lowered
first. The nodes that rules build are fused and compiled like all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff.table import RULES, SELECTIVE_RULES, differentiable_operands
from ingot.ir.node import Node, Project, splat_of, topological
from ingot.support.errors import REWRITE, InputError, UnsupportedOp, UnsupportedOpError


def gradients(loss: Node, wrt: Sequence[Node], seed: Node | None = None) -> list[Node]:
    """d loss / d x for each x of `wrt`, of x's type.

    seed: the cotangent of the loss; by default 1, and then the loss must be a scalar. The gradient of an x on which the
    loss does not depend is zero.

    Raises InputError for a loss that is not a float scalar and for an x that is not a float; UnsupportedOpError, which
    names all ops between them that have no reverse rule.
    """
    if not loss.dtype.is_float or (seed is None and loss.shape):
        raise InputError("loss", expected="a float scalar", got=str(loss.type), fix="reduce it to one number: its mean")
    for x in wrt:
        if not x.dtype.is_float:
            raise InputError("a gradient's variable", expected="floats", got=str(x.type), fix="leave integers out")
    cotangents = pull_back_cotangents([(loss, ops.scalar(1, loss.dtype) if seed is None else seed)], wrt)
    return [ops.full(x.shape, 0, x.dtype) if g is None else g for x, g in zip(wrt, cotangents, strict=True)]


def pull_back_cotangents(seeds: Sequence[tuple[Node, Node]], wrt: Sequence[Node]) -> list[Node | None]:
    """The cotangents of `wrt`, given the cotangents of some nodes; None for a node that they do not depend on.

    seeds: (node, cotangent). Raises UnsupportedOpError, which names all ops between them that have no reverse rule.
    """
    order = topological([node for node, _ in seeds], differentiable_operands)
    depends = dependents(order, wrt)
    active = [n for n in order if n in depends and n not in wrt and not isinstance(n.op, Project)]
    missing = [
        UnsupportedOp(n.op.name, n.loc or "the graph", "no reverse rule") for n in active if type(n.op) not in RULES
    ]
    if missing:
        raise UnsupportedOpError(missing, model="the gradient", fix=REWRITE)
    cotangents_of: dict[Node, list[Node | None]] = {}
    for node, seed in seeds:
        _accumulate(cotangents_of, node, 0, seed)
    for node in reversed(order):
        cotangents = cotangents_of.get(node)
        if cotangents is None or node not in depends or node in wrt:
            continue
        if isinstance(node.op, Project):
            (source,) = node.inputs
            _accumulate(cotangents_of, source, node.op.index, cotangents[0])
            continue
        for operand, g in zip(node.inputs, _operand_cotangents(node, cotangents, depends), strict=True):
            if g is not None and operand in depends:
                _accumulate(cotangents_of, operand, 0, g)
    return [(cotangents_of.get(x) or [None])[0] for x in wrt]


def _operand_cotangents(node: Node, cotangents: Sequence[Node | None], depends: set[Node]) -> Sequence[Node | None]:
    if (rule := SELECTIVE_RULES.get(type(node.op))) is not None:
        return rule(node, cotangents, [x in depends for x in node.inputs])
    return RULES[type(node.op)](node, cotangents)


def dependents(order: Sequence[Node], wrt: Sequence[Node]) -> set[Node]:
    """`wrt`, and the nodes of a topological order that depend differentiably on one of them."""
    dependent = set(wrt)
    for node in order:
        if not dependent.isdisjoint(differentiable_operands(node)):
            dependent.add(node)
    return dependent


def _accumulate(cotangents_of: dict[Node, list[Node | None]], node: Node, index: int, g: Node | None) -> None:
    if g is None:
        return
    cotangents = cotangents_of.setdefault(node, [None] * len(node.types))
    total = cotangents[index]
    cotangents[index] = g if total is None else _sum(total, g)


def _sum(total: Node, g: Node) -> Node:
    """total + g. If g is zero outside of a slice, only this slice of `total` is updated."""
    if isinstance(g.op, ops.DynamicUpdateSlice) and splat_of(g.inputs[0]) == 0:
        _, part, *starts = g.inputs
        read = ops.DynamicSlice(part.shape)(total, *starts)
        return g.op(total, ops.Add()(read, part), *starts)
    return ops.Add()(total, g)
