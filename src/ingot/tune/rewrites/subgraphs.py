"""The subgraphs of a model in which rewrites are searched: up to six sums, products and views around a product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node, rebuild, splat_of
from ingot.ir.show import show
from ingot.passes.constants import is_constant, value_of
from ingot.passes.core.rewrites import equality
from ingot.passes.core.rewrites.rewrite import reader_counts
from ingot.support.dataclass import dataclass

MAX_OPS = 6
_CONTRACTIONS = (ops.DotGeneral, ops.Convolution)


@dataclass(frozen=True)
class Subgraph:
    """A subgraph whose operands are inputs: x0, x1... for values, c0, c1... for constants.

    count: its occurrences in the model. constants: the values of c0, c1... in the first one. flops: of all occurrences.
    """

    graph: Graph
    count: int
    constants: tuple[np.ndarray, ...]
    flops: int


def subgraphs(graph: Graph) -> list[Subgraph]:
    """The subgraphs of a CORE graph, by decreasing number of floating-point operations."""
    readers = reader_counts(graph)
    by_text: dict[str, Subgraph] = {}
    for root in graph.nodes():
        for members in _members(root, readers):
            subgraph = _subgraph(root, members)
            if not equality.is_small(subgraph.graph):
                continue
            old = by_text.get(show(subgraph.graph))
            if old is not None:
                subgraph = replace(old, count=old.count + 1, flops=old.flops + subgraph.flops)
            by_text[show(subgraph.graph)] = subgraph
    return sorted(by_text.values(), key=lambda s: -s.flops)


def _is_member(n: Node) -> bool:
    return n.op.computes and isinstance(n.op, equality.POLYNOMIAL) and equality.is_polynomial(n) and not is_constant(n)


def _members(root: Node, readers: Mapping[Node, int]) -> Iterator[tuple[Node, ...]]:
    """Growing sets of nodes with the result `root`, whose other nodes have readers in the set only. They grow
    breadth-first."""
    if not _is_member(root):
        return
    members = [root]
    while len(members) < MAX_OPS:
        read_counts = Counter(i for n in members for i in n.inputs)
        chosen = next(
            (i for i in read_counts if i not in members and _is_member(i) and read_counts[i] == readers[i]), None
        )
        if chosen is None:
            return
        members.append(chosen)
        if any(isinstance(n.op, _CONTRACTIONS) for n in members):
            yield tuple(members)


def _subgraph(root: Node, members: tuple[Node, ...]) -> Subgraph:
    inputs: dict[Node, Node] = {}
    constants: list[np.ndarray] = []

    def bind(n: Node) -> None:
        if n in members or (isinstance(n.op, ops.BroadcastInDim) and is_constant(n)):
            for i in n.inputs:
                bind(i)
        elif n not in inputs and not _is_literal(n):
            constant = is_constant(n)
            label = f"c{len(constants)}" if constant else f"x{len(inputs) - len(constants)}"
            if constant:
                constants.append(value_of(n))
            inputs[n] = Input(label, n.type)()

    bind(root)
    before = Graph(tuple(inputs.values()), rebuild((root,), inputs))
    return Subgraph(before, 1, tuple(constants), equality.flops(before))


def _is_literal(n: Node) -> bool:
    """Whether a constant scalar, such as a scaling factor, stays part of the pattern."""
    return n.constant is not None and n.type.rank == 0 and splat_of(n) is not None and equality.is_polynomial(n)
