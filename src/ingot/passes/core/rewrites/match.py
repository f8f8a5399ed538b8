"""Where a graph has a pattern: a graph whose inputs stand for any values, or, if named c..., for constants, and whose
symbols stand for any sizes within their bounds.

    (x0, c0, c1) -> dot(x0, c0), dot(x0, c1)    in    q = dot(h, wq); k = dot(h, wk)    with    x0 = h, c0 = wq, c1 = wk

A match may be replaced by another graph of the same inputs: nobody else reads its inner values, and no operand depends
on one of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ingot.ir.dims import Dim, DimLike, bounds, symbol, symbols_of
from ingot.ir.node import Const, Graph, Input, Node, topological
from ingot.ir.types import TensorType
from ingot.passes.constants import is_constant
from ingot.support.dataclass import dataclass

Bound = Mapping[Node, Node]  # nodes of the pattern -> nodes of the graph


@dataclass(frozen=True)
class Match:
    """results: of the pattern's outputs, operands: of its inputs, both in its order. sizes: of its symbols."""

    results: tuple[Node, ...]
    operands: tuple[Node, ...]
    sizes: Mapping[str, DimLike]


def matches(graph: Graph, pattern: Graph) -> list[Match]:
    """Matches that can be replaced together; of those that overlap the one nearest to the graph's results."""
    readers, inner = reader_counts(graph), reader_counts(pattern)
    uses = graph.uses() if len(pattern.outputs) > 1 else {}
    taken: set[Node] = set()
    found: list[Match] = []

    def may_be(p: Node, n: Node) -> bool:
        """Whether only matched nodes read the value of an inner node; copies of free ops cost nothing."""
        return n.op.duplicable or (n not in taken and (p in pattern.outputs or readers[n] <= inner[p]))

    for n in reversed(graph.nodes()):
        for bound in _match_all(pattern.outputs, [n], uses, {}, may_be):
            sizes = _sizes(graph, pattern, bound)
            if sizes is None:
                continue
            results, operands = (tuple(bound[p] for p in side) for side in (pattern.outputs, pattern.inputs))
            match_ = Match(results, operands, sizes)
            if len(results) == 1 or _is_acyclic(match_, found):
                found.append(match_)
                taken.update(m for p, m in bound.items() if p.op.computes)
                break
    return found


def reader_counts(graph: Graph) -> dict[Node, int]:
    """How often each value is read, by nodes and as an output."""
    counts = dict.fromkeys(graph.nodes(), 0)
    for read in (*(n.inputs for n in graph.nodes()), graph.outputs):
        for n in read:
            counts[n] += 1
    return counts


def _match_all(
    outputs: Sequence[Node],
    candidates: Sequence[Node],
    uses: Mapping[Node, Sequence[Node]],
    bound: Bound,
    may_be: Callable[[Node, Node], bool],
) -> Iterator[Bound]:
    """All matches of the first output at one of `candidates`, each with the first match of each output after it."""
    first, *rest = outputs
    for n in candidates:
        if n in bound.values() and bound.get(first) is not n:
            continue
        for extended in _match(first, n, bound, may_be):
            for p in rest:
                ways = _match_all([p], _reached(p, extended, uses), {}, extended, may_be)
                extended = next(ways, None)
                if extended is None:
                    break
            if extended is not None:
                yield extended


def _reached(p: Node, bound: Bound, uses: Mapping[Node, Sequence[Node]]) -> Sequence[Node]:
    """The nodes that are reached from matched ones as `p` is in the pattern."""
    reached: dict[Node, Sequence[Node]] = {}
    for q in topological((p,)):
        below = next((reached[i] for i in q.inputs if reached[i]), ())
        users = dict.fromkeys(u for n in below for u in uses.get(n, ()) if type(u.op) is type(q.op))
        reached[q] = (bound[q],) if q in bound else tuple(users)
    return reached[p]


def _match(p: Node, n: Node, bound: Bound, may_be: Callable[[Node, Node], bool]) -> Iterator[Bound]:
    """All matches of pattern `p` at node `n`, open sizes aside: `bound`, extended by the nodes that match."""
    if p in bound or not _may_have_types(p.types, n.types):
        if bound.get(p) is n:
            yield bound
        return
    if isinstance(p.op, Input):
        if not p.op.label.startswith("c") or is_constant(n):
            yield {**bound, p: n}
        return
    if isinstance(p.op, Const):
        if p is n:
            yield {**bound, p: n}
        return
    is_op = type(p.op) is type(n.op) if p.op.free_symbols else p.op == n.op
    if not is_op or len(p.inputs) != len(n.inputs) or not may_be(p, n):
        return
    orders = [n.inputs, n.inputs[::-1]] if p.op.commutative else [n.inputs]
    for operands in orders:
        states: list[Bound] = [{**bound, p: n}]
        for part, operand in zip(p.inputs, operands, strict=True):
            states = [new for s in states for new in _match(part, operand, s, may_be)]
        yield from states


def _may_have_types(pattern: Sequence[TensorType], types: Sequence[TensorType]) -> bool:
    """Whether types are those of a pattern where its sizes are numbers."""
    return len(pattern) == len(types) and all(
        p.dtype == t.dtype
        and p.rank == t.rank
        and all(isinstance(d, Dim) or d == e for d, e in zip(p.shape, t.shape, strict=True))
        for p, t in zip(pattern, types, strict=True)
    )


def _sizes(graph: Graph, pattern: Graph, bound: Bound) -> Mapping[str, DimLike] | None:
    """The sizes of the pattern's symbols with which all types and attributes are those of the matched nodes."""
    sizes: dict[str, DimLike] = {}
    for p in pattern.inputs:
        for d, size in zip(p.shape, bound[p].shape, strict=True):
            sizes |= dict.fromkeys(bare_symbol(d), size)
    for p, n in bound.items():
        if any(t.substitute(sizes) != u for t, u in zip(p.types, n.types, strict=True)):
            return None
        if p.op.computes and p.op.substitute(sizes) != n.op:
            return None
    symbol_bounds = {name: (low, high) for name, low, high in graph.bounds}
    for name, low, high in pattern.bounds:
        lowest, highest = bounds(sizes[name], symbol_bounds)
        if low is not None and (lowest is None or lowest < low):
            return None
        if high is not None and (highest is None or highest > high):
            return None
    return sizes


def bare_symbol(d: DimLike) -> frozenset[str]:
    """The name of a size that is a symbol alone; none for any other size."""
    names = symbols_of(d)
    return names if [d] in [[symbol(s, may_be_empty)] for s in names for may_be_empty in (False, True)] else frozenset()


def has_sizes(pattern: Graph) -> bool:
    """Whether the shapes of a pattern's inputs tell the sizes of its symbols: each is a dimension by itself."""
    bare = frozenset[str]().union(*(bare_symbol(d) for n in pattern.inputs for d in n.shape))
    return pattern.free_symbols <= bare and {name for name, _, _ in pattern.bounds} <= bare


def _is_acyclic(new: Match, others: Sequence[Match]) -> bool:
    """Whether no operand of a match depends on its results, where all results of a match depend on all its operands."""
    operands = {r: m.operands for m in others for r in m.results}
    above = topological(new.operands, lambda n: operands.get(n, n.inputs))
    return not set(new.results) & set(above)
