"""From the MODEL level to the CORE level."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ingot.ir.node import Graph, Node, Op
from ingot.ir.rewrite import Result, Rule, RuleSet, rewrite, rules


def lower_model_ops(
    graph: Graph, keep: frozenset[type[Op]] = frozenset(), serves: Callable[[Node], bool] | None = None
) -> Graph:
    """softmax(x) -> divide(exponential(...), broadcast_in_dim(reduce(...)))

    Every op that has a `lower` is replaced by it, recursively and inside bodies; ops of the classes in `keep` stay
    where `serves` says that their own kernel can do them (None: always).
    """
    return rewrite(graph, _rules(keep, serves), mandatory=True)


@lru_cache(maxsize=64)
def _rules(keep: frozenset[type[Op]], serves: Callable[[Node], bool] | None) -> RuleSet:
    kept_classes = tuple(keep)

    def lower(n: Node) -> Result | None:
        is_kept = isinstance(n.op, kept_classes) and (serves is None or serves(n))
        return None if is_kept else n.op.lower(*n.inputs)

    return rules(Rule("lower", Op, lower))
