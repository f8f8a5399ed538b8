"""From the MODEL level to the CORE level."""

from __future__ import annotations

from functools import lru_cache

from ingot.ir.node import Graph, Node, Op
from ingot.ir.rewrite import Result, Rule, RuleSet, rewrite, rules


def lower_model_ops(graph: Graph, keep: frozenset[type[Op]] = frozenset()) -> Graph:
    """softmax(x) -> divide(exponential(...), broadcast_in_dim(reduce(...)))

    Every op that has a `lower` is replaced by it, recursively and inside bodies; ops of the classes in `keep` stay.
    """
    return rewrite(graph, _rules(keep), mandatory=True)


@lru_cache(maxsize=64)
def _rules(keep: frozenset[type[Op]]) -> RuleSet:
    kept = tuple(keep)

    def lower(n: Node) -> Result | None:
        return None if isinstance(n.op, kept) else n.op.lower(*n.inputs)

    return rules(Rule("lower", Op, lower))
