"""The reverse rules, by the class of their op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.ir.node import Node, Op
from ingot.support.errors import UnsupportedOp, UnsupportedOpError

# (the node, the cotangents of its results, None for 0) -> the cotangents of its operands, None for 0
Rule = Callable[[Node, Sequence[Node | None]], Sequence[Node | None]]
RULES: dict[type[Op], Rule] = {}
# rules that are also told which operands' cotangents are asked for
Choosing = Callable[[Node, Sequence[Node | None], Sequence[bool]], Sequence[Node | None]]
CHOOSING: dict[type[Op], Choosing] = {}
# of ops through some of whose operands no gradient goes, whatever they are: the others
WAYS: dict[type[Op], Callable[[Node], Sequence[Node]]] = {}


def ways(node: Node) -> Sequence[Node]:
    """The operands that a rule may give cotangents to."""
    chosen = WAYS.get(type(node.op))
    return node.inputs if chosen is None else chosen(node)


def choosing(cls: type[Op]) -> Callable[[Choosing], Choosing]:
    """Register a rule that is told what is asked for."""

    def register(f: Choosing) -> Choosing:
        CHOOSING[cls] = f
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
    """Ops whose derivative is 0 where they have one: comparisons, roundings, positions."""
    for c in classes:
        RULES[c] = lambda node, cotangents: [None] * len(node.inputs)


def no_rule(node: Node, what: str) -> UnsupportedOpError:
    """The error of an op that has a rule, but none for this kind of it."""
    return UnsupportedOpError([UnsupportedOp(node.op.name, node.loc or "the graph", f"no reverse rule for {what}")])
