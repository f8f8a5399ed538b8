"""The invariants of graphs between passes. A violation is a bug in the pass that created the graph.

    verify(graph, "fuse#3")  ->  VerifyError: after fuse#3: multiply at model.py:7: ...

Graphs are acyclic and interned by construction. `kernel/verify.py` checks kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import prod
from weakref import WeakKeyDictionary

from ingot.ir.dims import COMPUTED_PREFIX, Dim, DimLike, bounds, is_computed, symbols_of
from ingot.ir.node import Graph, Input, Node, Op, Project, free_symbols, topological
from ingot.ir.types import TensorType, i64
from ingot.support.errors import IngotError, VerifyError
from ingot.support.limits import check_elements

# Nodes are immutable: a valid node stays valid wherever its symbols are defined. So only new nodes are checked after a
# pass.
_verified: WeakKeyDictionary[Node, frozenset[str]] = WeakKeyDictionary()


def verify(graph: Graph, after: str = "", outer: frozenset[str] = frozenset()) -> None:
    """Raise VerifyError unless `graph` is well formed. `after` names the pass that created it.

    `outer`: the symbols of the enclosing graphs, if it is a body.

    Checked: inputs are distinct Input nodes, and no other Input nodes are read; output names match the outputs; every
    output and operand is a single result; the state keeps its types; every node has the types that its op's type rule
    infers; every symbol is in an input's type (or, in a body, in the enclosing graph), or is a computed size, whose
    value does not depend on it; graphs among the attributes are well formed.
    """
    _graph(graph, f"after {after}: " if after else "", outer)


def _graph(graph: Graph, prefix: str, outer: frozenset[str]) -> None:
    labels: dict[str, Node] = {}
    for n in graph.inputs:
        if not isinstance(n.op, Input):
            raise VerifyError(f"{prefix}graph inputs", expected="input nodes", got=n)
        if n.op.label in labels:
            raise VerifyError(f"{prefix}two inputs are labelled {n.op.label!r}", got=f"{labels[n.op.label]} and {n}")
        labels[n.op.label] = n
    names = graph.output_names
    if names and (len(names) != len(graph.results) or len(set(names)) != len(names)):
        raise VerifyError(f"{prefix}output names", expected=f"{len(graph.results)} distinct names or none", got=names)
    for n in graph.outputs:
        if len(n.types) != 1:
            raise VerifyError(f"{prefix}graph outputs", expected="single results", got=n)
    if len(set(graph.state)) != len(graph.state) or len(graph.state) > min(len(graph.inputs), len(graph.results)):
        raise VerifyError(f"{prefix}state", expected="distinct names, an input and a result for each", got=graph.state)
    for name, (old, new) in zip(graph.state, graph.state_pairs, strict=True):
        if old.types != new.types or old.type.shape != tuple(d for d in old.type.shape if isinstance(d, int)):
            raise VerifyError(f"{prefix}state {name!r}", expected=f"one type of fixed size, {old.type}", got=new.type)
    _sizes(graph, prefix, outer)
    symbols = frozenset(graph.symbols()) | outer
    inputs = set(graph.inputs)
    for n in graph.nodes():
        if isinstance(n.op, Input) and n not in inputs:
            where = f"input {n.op.label!r} is read but is none of the graph's inputs"
            raise VerifyError(f"{prefix}{where}", expected=list(labels))
        if (mentioned := _verified.get(n)) is not None and mentioned <= symbols:
            continue
        _symbols(n, symbols, prefix)
        for body in n.op.bodies:
            _graph(body, f"{prefix}in {_location(n)}: ", symbols)
        if mentioned is None:
            _node(n, prefix)
            _verified[n] = free_symbols(n)


def _sizes(graph: Graph, prefix: str, outer: frozenset[str]) -> None:
    """Check that each computed size is an i64 that does not depend on itself or on later ones: else no order exists."""
    undefined = {name for name, _ in graph.sizes}
    if len(undefined) != len(graph.sizes) or undefined & outer or not all(map(is_computed, undefined)):
        raise VerifyError(
            f"{prefix}sizes", expected=f"distinct names with {COMPUTED_PREFIX}", got=[s for s, _ in graph.sizes]
        )
    visited: set[Node] = set()
    for name, most in graph.sizes:
        root = graph.size_nodes[name]
        if root.types != (TensorType(i64),):
            raise VerifyError(f"{prefix}the size {name}", expected="i64[]", got=root)
        for n in topological((root,), lambda n: () if n in visited else n.inputs):
            undefined_symbols = undefined & free_symbols(n)
            if undefined_symbols:
                raise VerifyError(f"{prefix}the size {name} depends on {', '.join(sorted(undefined_symbols))}", got=n)
            visited.add(n)
        if undefined & symbols_of(most):
            raise VerifyError(f"{prefix}the most of {name}", expected="sizes known before it", got=most)
        undefined.discard(name)


def _location(n: Node) -> str:
    return f"{n.op.name} at {n.loc}" if n.loc else n.op.name


def _node(n: Node, prefix: str) -> None:
    if isinstance(n.op, Project):
        (source,) = n.inputs
        if not 0 <= n.op.index < len(source.types) or n.types != (source.types[n.op.index],):
            raise VerifyError(f"{prefix}{_location(n)}: result {n.op.index} of", got=source)
        return
    for i, operand in enumerate(n.inputs):
        if len(operand.types) != 1:
            raise VerifyError(f"{prefix}{_location(n)}: operand {i}", expected="a single result", got=operand)
    try:
        types = n.op.infer(*(i.types[0] for i in n.inputs))
    except IngotError as e:
        raise VerifyError(f"{prefix}{_location(n)}: its type rule refuses it: {e}") from e
    if (types if isinstance(types, tuple) else (types,)) != n.types:
        raise VerifyError(f"{prefix}{_location(n)}: types", expected=types, got=n.types)


def _symbols(n: Node, symbols: frozenset[str], prefix: str) -> None:
    for d in _dims(n.types):
        unbound = symbols_of(d) - symbols
        if unbound:
            what = f"{prefix}{_location(n)}: size {d} uses {', '.join(sorted(unbound))}, which no input has"
            raise VerifyError(what, expected=sorted(symbols) or "static sizes")
    if n.op.computes:
        for d in attribute_dims(n.op):
            unbound = symbols_of(d) - symbols
            if unbound:
                raise VerifyError(
                    f"{prefix}{_location(n)}: attribute {d} uses symbols that no input has", got=sorted(unbound)
                )


def _dims(types: Iterable[TensorType]) -> Iterator[Dim]:
    for t in types:
        for d in t.shape:
            if isinstance(d, Dim):
                yield d


def attribute_dims(op: Op) -> Iterator[Dim]:
    """The symbolic sizes among the attributes of `op`, without those in its graphs."""
    for value in op.attributes().values():
        yield from _dims_in(value)


def _dims_in(value: object) -> Iterator[Dim]:
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, TensorType):
        yield from _dims((value,))
    elif isinstance(value, tuple):
        for v in value:
            yield from _dims_in(v)


def check_sizes(graph: Graph, where: str) -> None:
    """Raise LimitError for a tensor that no machine can store for any values of its symbols: sizes are 64-bit."""
    limits = {name: (low, high) for name, low, high in graph.bounds}

    @cache
    def least(size: DimLike) -> int:
        return max(0, bounds(size, limits)[0] or 0)

    for n in graph.nodes():
        for t in n.types:
            check_elements(prod(map(least, t.shape)), f"{n.loc or n.op.name} in {where}")
