"""Rewrites as data, and the pass that applies them.

    Rewrite(before: (x, c0, c1) -> dot(dot(x, c0), c1),  after: (x, c0, c1) -> dot(x, dot(c0, c1)),  exact: no)

    dot(dot(x, w), v)   ->   dot(x, dot(w, v))          whose product of constants is then folded

Both sides are graphs of the same inputs, of which those named c... stand for constants, and of the same results. Sizes
may be open, within bounds that are part of the left side. A stored rewrite is untrusted: it is applied if it is small,
its ops are sums, products and views, and `equality.are_equal` says again that it holds. Rewrites that are equal over
the reals alone are applied under `fast_math`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ingot.ir.dims import DimLike
from ingot.ir.node import Const, Graph, Input, Node, rebuild, topological
from ingot.ir.parse import parse
from ingot.ir.rewrite import current_fuel
from ingot.ir.show import show
from ingot.ir.types import bf16, f16, f32, f64
from ingot.passes.core.rewrites import equality
from ingot.passes.core.rewrites.match import has_sizes, matches
from ingot.passes.core.rewrites.sink import sink_slices
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError
from ingot.support.log import Log

MAX_OPS = 16  # of each side
MAX_RESULTS = 4
MAX_TEXT_CHARS = 1 << 14
MAX_ELEMENTS = 1 << 28  # of a value of known size
MAX_FOLDED_FLOPS = 1 << 36  # of a right side's constants, which compiling computes
_UNITS = {f32: "2^-24", f64: "2^-53", bf16: "2^-8", f16: "2^-11"}  # unit roundoffs
_log = Log("ingot.passes.rewrites")


@dataclass(frozen=True)
class Rewrite:
    """`before -> after`, as texts of graphs. exact: equal in floats, else over the reals only."""

    before: str
    after: str
    exact: bool

    @staticmethod
    def of(before: Graph, after: Graph, exact: bool) -> Rewrite:
        return Rewrite(show(before), show(after), exact)

    @property
    def rule(self) -> str:
        """Its name among those of rules, see `Fuel`."""
        return f"rewrite {self}"

    @property
    def roundings(self) -> DimLike:
        """Those on the longest ways to an element, of both sides together: results differ by at most that many times
        the type's unit roundoff, to first order, of the same sum of magnitudes; 0 for an exact one."""
        sides = parsed(self)
        if self.exact or sides is None:
            return 0
        before, after = map(equality.roundings, sides)
        return before + after

    def __str__(self) -> str:
        sides = parsed(self)
        parts = " -> ".join(map(_line, sides or ()))
        unit = _UNITS[sides[0].outputs[0].dtype if sides else f32]
        bound = f"within {_factor(self.roundings)} * {unit} of the sum of magnitudes"
        how = "exact" if self.exact else f"fast math, {bound}"
        return f"{parts} ({how}{_sizes_text(sides[0]) if sides else ''})"


def _factor(d: DimLike) -> str:
    return str(d) if isinstance(d, int) else f"({d})"


def _sizes_text(graph: Graph) -> str:
    """What a rewrite with open sizes holds for: `, for n0: 1..512`."""
    limits = {name: f"{name}: {low or ''}..{high or ''}" for name, low, high in graph.bounds}
    symbols = graph.symbols()
    return f", for {', '.join(limits.get(s, f'all {s}') for s in symbols)}" if symbols else ""


def _line(graph: Graph) -> str:
    """A graph on one line: `dot_general(x0, c0)`."""

    def form(n: Node) -> str:
        if isinstance(n.op, Input):
            return n.op.label
        if isinstance(n.op, Const):
            return f"{float(n.op.value.reshape(-1)[0]):g}"
        return f"{n.op.name}({', '.join(map(form, n.inputs))})"

    return ", ".join(map(form, graph.outputs))


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
    try:
        equal = sides is not None and equality.are_equal(*sides, exactly=r.exact)
    except IngotError as error:  # sides whose sizes fit by chance
        _log.warning("rewrite: %s: it is ignored", error)
        return False
    if not equal:
        _log.warning("rewrite: the sides of a rewrite differ: it is ignored")
    return equal


def _require(before: Graph, after: Graph) -> None:
    """Raise ValueError for what this module has no rewrites of."""
    for g in (before, after):
        nodes = g.nodes()
        labels = [n.op.label for n in g.inputs if isinstance(n.op, Input)]
        if not 1 <= len(g.outputs) <= MAX_RESULTS or len(set(labels)) != len(labels):
            raise ValueError(f"expected graphs of named inputs and 1 to {MAX_RESULTS} results")
        if g.state or g.sizes or g.conditions:
            raise ValueError("expected graphs without state, conditions and sizes that the run finds")
        if not all(equality.is_polynomial(n) for n in nodes) or any(b for n in nodes for b in n.op.bodies):
            raise ValueError("expected sums, products and views of floats of one type")
        if sum(n.op.computes for n in nodes) > MAX_OPS:
            raise ValueError(f"expected at most {MAX_OPS} ops")
        if any(isinstance(n.type.size, int) and n.type.size > MAX_ELEMENTS for n in nodes) or not _folds_fast(g):
            raise ValueError("it is too large")
    if before.inputs != after.inputs or [n.types for n in before.outputs] != [n.types for n in after.outputs]:
        raise ValueError("expected two sides of the same inputs and types")
    if not has_sizes(before) or not after.free_symbols <= before.free_symbols:
        raise ValueError("expected each open size as a dimension of an input")
    if not all(n.op.computes for n in before.outputs) or len(set(before.outputs)) != len(before.outputs):
        raise ValueError("expected a left side that computes each result, once")
    if not set(before.inputs) <= set(topological(before.outputs)):
        raise ValueError("expected a left side that uses all of its inputs")


def _folds_fast(graph: Graph) -> bool:
    """Whether what depends on constants alone is soon computed."""
    folded: set[Node] = set()
    for n in graph.nodes():
        if n.op.label.startswith("c") if isinstance(n.op, Input) else all(i in folded for i in n.inputs):
            folded.add(n)
    flops = equality.flops(folded)
    return isinstance(flops, int) and flops <= MAX_FOLDED_FLOPS


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
    fuel = current_fuel()
    # proved again only for a model that has what it is about
    found = [m for m in matches(graph, before) if is_sound(r) and fuel.burn(r.rule)]
    by_result = {n: m for m in found for n in m.results}
    done: dict[Node, Node] = {}
    for n in topological(graph.outputs, lambda n: by_result[n].operands if n in by_result else n.inputs):
        if n in done:
            continue
        m = by_result.get(n)
        if m is None:
            done[n] = n.with_inputs([done[i] for i in n.inputs]) if n.inputs else n
        else:
            side = after.substitute(m.sizes)
            operands = dict(zip(side.inputs, (done[i] for i in m.operands), strict=True))
            done |= dict(zip(m.results, rebuild(side.outputs, operands), strict=True))
    graph = graph.with_outputs(done[n] for n in graph.outputs)
    return sink_slices(graph) if found and len(after.outputs) > 1 else graph
