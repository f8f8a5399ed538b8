"""The subgraphs of a model in which rewrites are searched: up to six sums, products and views around a product, or
products that share an operand, which have a result each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ingot import ops
from ingot.ir.dims import DimLike, substitute, symbol
from ingot.ir.node import Graph, Input, Node, rebuild, splat_of, topological
from ingot.ir.show import show
from ingot.ops.core.base import Category, category
from ingot.passes.constants import is_constant
from ingot.passes.core.rewrites import equality
from ingot.passes.core.rewrites.match import has_sizes, reader_counts
from ingot.passes.core.rewrites.rewrite import MAX_RESULTS
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError

MAX_OPS = 6
MAX_READERS = 12  # elementwise ops of a context
_CONTRACTIONS = (ops.DotGeneral, ops.Convolution)


@dataclass(frozen=True)
class Subgraph:
    """A subgraph whose operands are inputs: x0, x1... for values, c0, c1... for constants; open sizes are n0, n1...

    context: the first occurrence with the elementwise ops that read its results, which kernels may fuse with it: what
    is measured, with the model's own constants and symbols. count: its occurrences in the model. sizes: of n0, n1...
    flops: of all occurrences, at these sizes.
    """

    graph: Graph
    context: Graph
    count: int
    sizes: Mapping[str, int]
    flops: int


def subgraphs(graph: Graph, sizes: Mapping[str, int] | None = None) -> list[Subgraph]:
    """The subgraphs of a CORE graph, by decreasing number of floating-point operations. sizes: of its symbols."""
    by_text: dict[str, Subgraph] = {}
    uses = graph.uses()
    for members, results in _sets(graph):
        subgraph = _subgraph(graph, members, results, sizes or {})
        if not has_sizes(subgraph.graph) or equality.instances(subgraph.graph) is None:
            continue
        text = show(subgraph.graph)
        if text in by_text:
            old = by_text[text]
            by_text[text] = replace(old, count=old.count + 1, flops=old.flops + subgraph.flops)
        else:
            by_text[text] = replace(subgraph, context=_context(graph, subgraph.context, uses))
    return sorted(by_text.values(), key=lambda s: -s.flops)


def bodies(graph: Graph, built: Callable[[Graph], Graph]) -> Iterator[Graph]:
    """The bodies of loops and branches, as the passes leave them. built: a body by itself, after these passes. Those
    that cannot be compiled by themselves are left out."""
    for body in dict.fromkeys(body for n in graph.nodes() for body in n.op.bodies):
        if not any(type_.dtype.is_float for n in body.outputs for type_ in n.types):
            continue
        try:
            after = built(body)
        except IngotError:
            continue
        yield after
        yield from bodies(after, built)


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
    n_constants = 0
    names: dict[str, str] = {}

    def bind(n: Node) -> None:
        nonlocal n_constants
        if n in members or (isinstance(n.op, ops.BroadcastInDim) and is_constant(n)):
            for i in n.inputs:
                bind(i)
        elif n not in inputs and not _is_literal(n):
            constant = is_constant(n)
            label = f"c{n_constants}" if constant else f"x{len(inputs) - n_constants}"
            n_constants += constant
            inputs[n] = Input(label, n.type)()
            for name in sorted(n.type.symbols):
                names.setdefault(name, f"n{len(names)}")

    for root in results:
        bind(root)
    values = tuple(n for n in inputs if not is_constant(n))
    # the model's bounds are those of the rewrite: it is measured within them
    bounds = tuple((name, low, high) for name, low, high in graph.bounds if name in names)
    before = Graph(tuple(inputs.values()), rebuild(results, inputs), bounds=bounds)
    renamed: dict[str, DimLike] = {name: symbol(new) for name, new in names.items()}
    own_sizes = {new: sizes[name] for name, new in names.items()}
    flops = int(substitute(equality.flops(before.nodes()), sizes))
    renamed_bounds = tuple((names[name], low, high) for name, low, high in bounds)
    before = replace(before.substitute(renamed), bounds=renamed_bounds)
    return Subgraph(before, Graph(values, results), 1, own_sizes, flops)


def _context(graph: Graph, occurrence: Graph, uses: Mapping[Node, Sequence[Node]]) -> Graph:
    """An occurrence, from its operands to its results in the graph, with elementwise readers as a graph of its own."""
    inside = dict.fromkeys(occurrence.outputs)
    for n in (growing := list(inside)):
        for reader in uses.get(n, ()):
            fits = category(reader.op) is Category.ELEMENTWISE and reader.shape == n.shape and reader not in inside
            if fits and len(inside) < len(occurrence.outputs) + MAX_READERS:
                inside[reader] = None
                growing.append(reader)
    ends = [n for n in inside if n in graph.outputs or not set(uses.get(n, ())) <= inside.keys()]
    read = (i for n in inside if n not in occurrence.outputs for i in n.inputs)
    values = dict.fromkeys((*occurrence.inputs, *(i for i in read if i not in inside and not is_constant(i))))
    inputs = {n: Input(f"x{k}", n.type)() for k, n in enumerate(values)}
    symbols = frozenset[str]().union(*(n.type.symbols for n in values))
    bounds = tuple(b for b in graph.bounds if b[0] in symbols)
    return Graph(tuple(inputs.values()), rebuild(ends, inputs), bounds=bounds)


def _is_literal(n: Node) -> bool:
    """Whether a constant scalar, such as a scaling factor, stays part of the pattern."""
    return n.constant is not None and n.type.rank == 0 and splat_of(n) is not None and equality.is_polynomial(n)
