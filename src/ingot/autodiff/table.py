"""The reverse rules, by the class of their op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.ir.node import Node, Op
from ingot.support.errors import REWRITE, UnsupportedOp, UnsupportedOpError

# (the node, the cotangents of its results, None for 0) -> the cotangents of its operands, None for 0
Rule = Callable[[Node, Sequence[Node | None]], Sequence[Node | None]]
RULES: dict[type[Op], Rule] = {}
# rules that also take which operands' cotangents are needed
SelectiveRule = Callable[[Node, Sequence[Node | None], Sequence[bool]], Sequence[Node | None]]
SELECTIVE_RULES: dict[type[Op], SelectiveRule] = {}
# for ops some of whose operands never have a gradient: the others
DIFFERENTIABLE_OPERANDS: dict[type[Op], Callable[[Node], Sequence[Node]]] = {}


def differentiable_operands(node: Node) -> Sequence[Node]:
    """The operands of a node that can have cotangents."""
    active_operands = DIFFERENTIABLE_OPERANDS.get(type(node.op))
    return node.inputs if active_operands is None else active_operands(node)


def selective(cls: type[Op]) -> Callable[[SelectiveRule], SelectiveRule]:
    """Register a rule that computes only the cotangents that are needed."""

    def register(f: SelectiveRule) -> SelectiveRule:
        SELECTIVE_RULES[cls] = f
        RULES[cls] = lambda node, cotangents: f(node, cotangents, [True] * len(node.inputs))
        return f

    return register


def reverse(*classes: type[Op]) -> Callable[[Callable[..., Sequence[Node | None]]], Rule]:
    """Register `f(node, cotangent)` for ops of one result."""

    def register(f: Callable[..., Sequence[Node | None]]) -> Rule:
        def rule(node: Node, cotangents: Sequence[Node | None]) -> Sequence[Node | None]:
            (g,) = cotangents
            return [None] * len(node.inputs) if g is None else f(node, g)

        for c in classes:
            RULES[c] = rule
        return rule

    return register


def constant_everywhere(*classes: type[Op]) -> None:
    """Register ops whose derivative is 0 wherever it exists: comparisons, rounding, indices."""
    for c in classes:
        RULES[c] = lambda node, cotangents: [None] * len(node.inputs)


def no_rule(node: Node, what: str) -> UnsupportedOpError:
    """The error for a kind of an op that its rule does not support."""
    missing = UnsupportedOp(node.op.name, node.loc or "the graph", f"no reverse rule for {what}")
    return UnsupportedOpError([missing], model="the gradient", fix=REWRITE)
