"""Row groups: reductions over one set of dimensions and the pointwise work around them, as one kernel or, where rows
are few and long, as several that all threads share: the reductions of parts of rows, what joins them, the rest.

    y = x - mean(x)   ->   p[i] = sum(x[i * n / parts ...]);  s = sum(p);  y = x - s / n
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from ingot.ir.dims import estimate, product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ops import Reduce, Slice
from ingot.ops.build import add, cast, maximum, minimum, mul, reshape
from ingot.schedule.collapse_dims import box_inside, collapse_box, reshapes
from ingot.schedule.cpu.caches import comes_from_memory
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for, lower_pointwise
from ingot.schedule.cpu.rows.loops import WIDE, RowLoops, columns_near
from ingot.schedule.cpu.rows.parts import Cut, join_parts
from ingot.schedule.folds import accumulator
from ingot.schedule.lowered import Arg, Lowered
from ingot.schedule.row_box import Rows, reductions_of, rows_of
from ingot.support.errors import CompileError

Lower = Callable[[Graph, tuple[Layout, ...], tuple[Layout, ...], Machine], Lowered]

PART = 4096  # elements that a part of a row should have at least
PART_LINES = 64  # lines of columns, where these are folded in a cache
TERMS = 8  # of a reduction that is written out
COMBINED = {"sum": add, "prod": mul, "max": maximum, "min": minimum}


def _cut(body: Graph, rows: Rows, machine: Machine, again: bool) -> Cut | None:
    """How to cut a reduction, where there are too few rows for all threads, or where those that are read `again` leave
    a core's cache before."""
    rest = product(rows.shape[d] for d in rows.reduced)
    outer = product(rows.shape[d] for d in rows.kept if d != rows.axis)
    near = columns_near(body, rows, machine)
    columns = 1 if rows.horizontal else near or WIDE * lanes_for(body, machine)
    across = 1 if rows.horizontal else -(-estimate(rows.shape[rows.axis]) // columns)
    units, goal = estimate(outer) * across, (16 if near else 4) * machine.threads
    if not isinstance(rest, int) or rest == 0:
        return None
    least, shortest = -(-goal // max(units, 1)) if machine.threads > 1 else 1, PART_LINES if near else PART
    nbytes = rest * columns * max((n.dtype.nbytes for n in body.inputs if n.shape == rows.shape), default=0)
    if again and nbytes > machine.l2 and comes_from_memory(body, machine):
        least, shortest = max(least, -(-4 * nbytes // machine.l2)), PART // columns
    if least == 1:
        return None
    for d in rows.reduced:
        extent = rows.shape[d]
        assert isinstance(extent, int)
        for parts in (*range(least, 8 * max(goal, least)), *range(least - 1, 1, -1)):
            if extent % parts == 0 and rest // parts >= shortest:
                return Cut(d, parts)
    return None


def _in_terms(body: Graph, rows: Rows, machine: Machine) -> Graph | None:
    """Reductions of few elements across lines shorter than a vector, as pointwise work on the terms of each: products
    with matrices of 2 or 3 columns.

        y[n, j] = sum over i of x[n, i, j]   ->   y[n, j] = x[n, 0, j] + x[n, 1, j] + x[n, 2, j]
    """
    found, ends = reductions_of(body), {n.shape for n in body.outputs}
    short = not rows.horizontal and estimate(rows.shape[rows.axis]) < lanes_for(body, machine)
    extents = [n for d in rows.reduced if isinstance(n := rows.shape[d], int)]
    if not short or len(extents) < len(rows.reduced) or not 0 < math.prod(extents) <= TERMS:
        return None
    if len(ends) > 1 or product(*ends) != product(rows.kept_shape) or _firsts(body) != found:
        return None
    if not all(isinstance(n.op, Reduce) and n.op.kind in COMBINED for n in found):
        return None

    def written(n: Node, inputs: Sequence[Node]) -> Node:
        if n not in found:
            return n.with_inputs(inputs) if inputs else n
        assert isinstance(n.op, Reduce)
        (x,), terms = inputs, []
        for at in itertools.product(*map(range, extents)):
            own = dict(zip(rows.reduced, at, strict=True))
            start = tuple(own.get(d, 0) for d in range(x.type.rank))
            stop = tuple(own[d] + 1 if d in own else size for d, size in enumerate(x.shape))
            term = Slice(start, stop, (1,) * x.type.rank)(x)
            terms.append(cast(reshape(term, n.shape), accumulator(n.dtype)))
        return cast(functools.reduce(COMBINED[n.op.kind], terms), n.dtype)

    return Graph(body.inputs, rebuilt(body.outputs, rule=written))


def _firsts(body: Graph) -> list[Node]:
    """The reductions that wait for no other."""
    found = set(reductions_of(body))
    return [n for n in reductions_of(body) if not found.intersection(topological([n.inputs[0]]))]


def lower_first(
    body: Graph,
    firsts: Sequence[Node],
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    machine: Machine,
    lower: Lower | None = None,
) -> Lowered:
    """Kernels for `firsts`, which are stored, then kernels for what comes behind them. lower: the first ones'."""
    read = set(topological(firsts))
    own = [i for i, n in enumerate(body.inputs) if n in read]
    places = tuple(Layout.contiguous(n.shape) for n in firsts)
    start = Graph(tuple(body.inputs[i] for i in own), tuple(firsts))
    one = (lower or lower_rows)(start, tuple(ins[i] for i in own), places, machine)

    temps = (*(n.type.nbytes for n in firsts), *one.temps)
    results = [Arg("temp", i) for i in range(len(firsts))]
    one = one.within([Arg("in", i) for i in own], results, len(firsts))
    stored = dict(zip(firsts, zip(places, results, strict=True), strict=True))
    two = lower_rest(body, stored, ins, outs, machine, temps=len(temps))
    return Lowered((*one.steps, *two.steps), (*temps, *two.temps), one.packs)


def lower_rest(
    body: Graph,
    stored: Mapping[Node, tuple[Layout, Arg]],
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    machine: Machine,
    *,
    first: int = 0,
    temps: int = 0,
    lower: Lower | None = None,
) -> Lowered:
    """Kernels for a group of whose nodes others have `stored` some: where they lie, and as which operand.

    first: the number of the group's result that is `body`'s first one. temps: how many temporaries the others have.
    """
    # names of their own: the rest may have levels too, and equal inputs are one node
    taken = {n.op.label for n in body.inputs if isinstance(n.op, Input)}
    labels = (label for label in map("row{}".format, itertools.count()) if label not in taken)
    given: dict[Node, Node] = {n: Input(label, n.type)() for n, label in zip(stored, labels, strict=False)}
    outputs = rebuilt(body.outputs, dict(given))
    read = set(topological(outputs))
    left = [i for i, n in enumerate(body.inputs) if n in read]
    rest = Graph((*given.values(), *(body.inputs[i] for i in left)), outputs)
    lower = lower or (lower_rows if reductions_of(rest) else lower_pointwise)
    low = lower(rest, (*(lay for lay, _ in stored.values()), *(ins[i] for i in left)), outs, machine)
    operands = [*(arg for _, arg in stored.values()), *(Arg("in", i) for i in left)]
    results = [Arg("out", first + i) for i in range(len(outputs))]
    return low.within(operands, results, temps)


def lower_rows(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """One kernel for a group whose reductions share their rows (see `rows_of`); several where rows are few and long."""
    rows = rows_of(body)
    if rows is None:
        raise CompileError("a row group needs reductions over one set of dimensions")
    inside = box_inside(body, rows, ins, outs)
    if inside is not None:
        return lower_rows(*inside, machine)
    reshaped = [n for n in body.outputs if reshapes(n, rows)]
    if reshaped:  # what no strides express
        return lower_first(body, tuple({n.inputs[0]: None for n in reshaped}), ins, outs, machine)
    joined = collapse_box(body, rows, ins, outs)
    if joined is not None:
        return lower_rows(*joined, machine)
    terms = _in_terms(body, rows, machine)
    if terms is not None:
        return lower_pointwise(terms, ins, outs, machine)
    found, firsts = reductions_of(body), _firsts(body)
    ends = all(product(n.shape) == product(rows.kept_shape) for n in body.outputs)
    cut = _cut(body, rows, machine, again=ends and len(firsts) < len(found))
    parts = None if cut is None else join_parts(body, cut)
    if parts is not None and ends:
        return lower_first(*parts, ins, outs, machine)
    cut = _cut(body, rows, machine, again=False)
    if cut is not None and len({n.shape for n in body.outputs}) == 1:
        return lower_first(body, firsts if parts is None else found, ins, outs, machine)
    return RowLoops(body, ins, outs, rows, machine).lower()


__all__ = ["lower_rest", "lower_rows"]
