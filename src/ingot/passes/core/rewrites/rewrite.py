"""Rewrites as data, and the pass that applies them.

    Rewrite(before: (x, c0, c1) -> dot(dot(x, c0), c1),  after: (x, c0, c1) -> dot(x, dot(c0, c1)),  exact: no)

    dot(dot(x, w), v)   ->   dot(x, dot(w, v))          whose product of constants is then folded

Both sides are graphs of the same inputs, of which those named c... stand for constants. A stored rewrite is untrusted:
it is applied if it is small, its ops are sums, products and views, and `equality.are_equal` says again that it holds.
Rewrites that are equal over the reals alone are applied under `fast_math`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from ingot.ir.node import Const, Graph, Input, Node, rebuild, topological
from ingot.ir.parse import parse
from ingot.ir.rewrite import current_fuel
from ingot.ir.show import show
from ingot.ir.types import bf16, f16, f32, f64
from ingot.passes.constants import is_constant
from ingot.passes.core.rewrites import equality
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError
from ingot.support.log import Log

MAX_OPS = 16  # of each side
MAX_TEXT_CHARS = 1 << 14
_UNITS = {f32: "2^-24", f64: "2^-53", bf16: "2^-8", f16: "2^-11"}  # unit roundoffs
_log = Log("ingot.passes.rewrites")


@dataclass(frozen=True)
class Rewrite:
    """`before -> after`, as texts of graphs of one output. exact: equal in floats, else over the reals only."""

    before: str
    after: str
    exact: bool

    @staticmethod
    def of(before: Graph, after: Graph, exact: bool) -> Rewrite:
        return Rewrite(show(before), show(after), exact)

    @property
    def roundings(self) -> int:
        """Those on the longest ways to an element, of both sides together: results differ by at most that many times
        the type's unit roundoff, to first order, of the same sum of magnitudes; 0 for an exact one."""
        return 0 if self.exact else sum(map(equality.roundings, parsed(self) or ()))

    def __str__(self) -> str:
        sides = parsed(self)
        parts = " -> ".join(map(_line, sides or ()))
        unit = _UNITS[sides[0].outputs[0].dtype if sides else f32]
        how = "exact" if self.exact else f"fast math, within {self.roundings} * {unit} of the sum of magnitudes"
        return f"{parts} ({how})"


def _line(graph: Graph) -> str:
    """A graph on one line: `dot_general(x0, c0)`."""

    def form(n: Node) -> str:
        if isinstance(n.op, Input):
            return n.op.label
        if isinstance(n.op, Const):
            return f"{float(n.op.value.reshape(-1)[0]):g}"
        return f"{n.op.name}({', '.join(map(form, n.inputs))})"

    return form(graph.outputs[0])


@cache
def parsed(r: Rewrite) -> tuple[Graph, Graph] | None:
    """Both sides of a rewrite; None, with a warning in the log, for one that is malformed."""
    try:
        if max(len(r.before), len(r.after)) > MAX_TEXT_CHARS:
            raise ValueError("it is too long")
        before, after = parse(r.before), parse(r.after)
        _require(before, after)
    except (IngotError, ValueError, TypeError) as error:
        _log.warning("rewrite: %s: it is ignored", error)
        return None
    return before, after


@cache
def is_sound(r: Rewrite) -> bool:
    """Whether the two sides are equal; with a warning in the log if not."""
    sides = parsed(r)
    equal = sides is not None and equality.are_equal(*sides, exactly=r.exact)
    if not equal:
        _log.warning("rewrite: the sides of a rewrite differ: it is ignored")
    return equal


def _require(before: Graph, after: Graph) -> None:
    """Raise ValueError for what this module has no rewrites of."""
    for g in (before, after):
        nodes = g.nodes()
        labels = [n.op.label for n in g.inputs if isinstance(n.op, Input)]
        if len(g.outputs) != 1 or g.state or g.sizes or len(set(labels)) != len(labels):
            raise ValueError("expected graphs of one output, without state")
        if not all(equality.is_polynomial(n) for n in nodes) or any(b for n in nodes for b in n.op.bodies):
            raise ValueError("expected sums, products and views of floats of one type and of known sizes")
        if sum(n.op.computes for n in nodes) > MAX_OPS or not equality.is_small(g):
            raise ValueError("it is too large")
    if before.inputs != after.inputs or before.outputs[0].types != after.outputs[0].types:
        raise ValueError("expected two sides of the same inputs and type")
    if not before.outputs[0].op.computes or not set(before.inputs) <= set(topological(before.outputs)):
        raise ValueError("expected a left side that uses all of its inputs")


def apply_rewrites(graph: Graph, rewrites: Sequence[Rewrite], *, fast_math: bool = False) -> Graph:
    """before -> after, for each rewrite that matches, in one walk; of inner nodes nobody else may read the value.

    dot(dot(x, w), v)   ->   dot(x, dot(w, v))
    """
    # a walk and not a fixpoint: stored rewrites may undo each other
    for r in rewrites:
        if r.exact or fast_math:
            graph = _applied(graph, r)
    return graph


def _applied(graph: Graph, r: Rewrite) -> Graph:
    sides = parsed(r)
    if sides is None:
        return graph
    before, after = sides
    root, fuel = before.outputs[0], current_fuel()
    inner, readers = reader_counts(before), reader_counts(graph)

    def may_be(p: Node, n: Node) -> bool:
        """Whether only matched nodes read the value of an inner node; copies of free ops cost nothing."""
        return p is root or n.op.duplicable or readers[n] <= inner[p]

    done: dict[Node, Node] = {}
    for n in graph.nodes():
        bound = next(match(root, n, {}, may_be), None)
        # proved again only for a model that has what it is about
        if bound is not None and is_sound(r) and fuel.burn(f"rewrite {r}"):
            done[n] = rebuild(after.outputs, {p: done[bound[p]] for p in after.inputs})[0]
        else:
            done[n] = n.with_inputs([done[i] for i in n.inputs]) if n.inputs else n
    return graph.with_outputs(done[n] for n in graph.outputs)


def reader_counts(graph: Graph) -> dict[Node, int]:
    """How often each value is read, by nodes and as an output."""
    counts = dict.fromkeys(graph.nodes(), 0)
    for read in (*(n.inputs for n in graph.nodes()), graph.outputs):
        for n in read:
            counts[n] += 1
    return counts


def match(
    p: Node, n: Node, bound: Mapping[Node, Node], may_be: Callable[[Node, Node], bool]
) -> Iterator[Mapping[Node, Node]]:
    """All matches of pattern `p` at node `n`: `bound`, extended by the nodes that match those of the pattern."""
    if p in bound or p.types != n.types:
        if bound.get(p) is n:
            yield bound
        return
    if isinstance(p.op, Input):
        if not p.op.label.startswith("c") or is_constant(n):
            yield {**bound, p: n}
        return
    if isinstance(p.op, Const):
        if p is n:
            yield bound
        return
    if p.op != n.op or len(p.inputs) != len(n.inputs) or not may_be(p, n):
        return
    orders = [n.inputs, n.inputs[::-1]] if p.op.commutative else [n.inputs]
    for operands in orders:
        states: list[Mapping[Node, Node]] = [{**bound, p: n}]
        for part, operand in zip(p.inputs, operands, strict=True):
            states = [new for s in states for new in match(part, operand, s, may_be)]
        yield from states


def applied(graph: Graph, rewrites: Sequence[Rewrite], *, fast_math: bool = False) -> list[Rewrite]:
    """The rewrites that change `graph`, for explanations."""
    return [r for r in rewrites if apply_rewrites(graph, [r], fast_math=fast_math).outputs != graph.outputs]
