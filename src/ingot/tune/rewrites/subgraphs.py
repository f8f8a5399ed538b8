"""The subgraphs of a model in which rewrites are searched: up to six sums, products and views around a product, or
products that share an operand, which have a result each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, substitute, symbol
from ingot.ir.node import Graph, Input, Node, rebuild, splat_of, topological
from ingot.ir.show import show
from ingot.passes.constants import is_constant, value_of
from ingot.passes.core.rewrites import equality
from ingot.passes.core.rewrites.match import has_sizes, reader_counts
from ingot.passes.core.rewrites.rewrite import MAX_RESULTS
from ingot.support.dataclass import dataclass

MAX_OPS = 6
_CONTRACTIONS = (ops.DotGeneral, ops.Convolution)


@dataclass(frozen=True)
class Subgraph:
    """A subgraph whose operands are inputs: x0, x1... for values, c0, c1... for constants; open sizes are n0, n1...

    count: its occurrences in the model. constants: the values of c0, c1... in the first one. sizes: of n0, n1... in it.
    flops: of all occurrences, at these sizes.
    """

    graph: Graph
    count: int
    constants: tuple[np.ndarray, ...]
    sizes: Mapping[str, int]
    flops: int


def subgraphs(graph: Graph, sizes: Mapping[str, int] | None = None) -> list[Subgraph]:
    """The subgraphs of a CORE graph, by decreasing number of floating-point operations. sizes: of its symbols."""
    by_text: dict[str, Subgraph] = {}
    for members, results in _sets(graph):
        subgraph = _subgraph(graph, members, results, sizes or {})
        if not has_sizes(subgraph.graph) or equality.instances(subgraph.graph) is None:
            continue
        text = show(subgraph.graph)
        if text in by_text:
            old = by_text[text]
            subgraph = replace(old, count=old.count + 1, flops=old.flops + subgraph.flops)
        by_text[text] = subgraph
    return sorted(by_text.values(), key=lambda s: -s.flops)


def _sets(graph: Graph) -> Iterator[tuple[tuple[Node, ...], tuple[Node, ...]]]:
    """(members, results)"""
    readers = reader_counts(graph)
    for root in graph.nodes():
        for members in _members(root, readers):
            yield members, (root,)
    for products in _siblings(graph):
        yield products, products


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


def _siblings(graph: Graph) -> Iterator[tuple[Node, ...]]:
    """Growing sets of products of one kind that share an operand, of which none needs another."""
    uses = graph.uses()
    for shared in graph.nodes():
        kinds: dict[object, list[Node]] = {}
        for n in dict.fromkeys(uses.get(shared, ())):
            if isinstance(n.op, _CONTRACTIONS) and _is_member(n):
                ranks = tuple(i.type.rank for i in n.inputs)
                kinds.setdefault((n.op, n.inputs.index(shared), ranks), []).append(n)
        for products in kinds.values():
            chosen: list[Node] = []
            for n in products:
                if len(chosen) == MAX_RESULTS:
                    break
                if not set(chosen) & set(topological(n.inputs)):
                    chosen.append(n)
                    if len(chosen) > 1:
                        yield tuple(chosen)


def _subgraph(graph: Graph, members: Sequence[Node], results: tuple[Node, ...], sizes: Mapping[str, int]) -> Subgraph:
    inputs: dict[Node, Node] = {}
    constants: list[np.ndarray] = []
    names: dict[str, str] = {}

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
            for name in sorted(n.type.symbols):
                names.setdefault(name, f"n{len(names)}")

    for root in results:
        bind(root)
    # the model's bounds are those of the rewrite: it is measured within them
    bounds = tuple((name, low, high) for name, low, high in graph.bounds if name in names)
    before = Graph(tuple(inputs.values()), rebuild(results, inputs), bounds=bounds)
    renamed: dict[str, DimLike] = {name: symbol(new) for name, new in names.items()}
    own_sizes = {new: sizes[name] for name, new in names.items()}
    flops = int(substitute(equality.flops(before.nodes()), sizes))
    renamed_bounds = tuple((names[name], low, high) for name, low, high in bounds)
    before = replace(before.substitute(renamed), bounds=renamed_bounds)
    return Subgraph(before, 1, tuple(constants), own_sizes, flops)


def _is_literal(n: Node) -> bool:
    """Whether a constant scalar, such as a scaling factor, stays part of the pattern."""
    return n.constant is not None and n.type.rank == 0 and splat_of(n) is not None and equality.is_polynomial(n)
