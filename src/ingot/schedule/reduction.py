"""Row groups: reductions over one set of dimensions and the pointwise work around them, as one kernel or, where rows
are few and long, as several that all threads share.

    sum(x[n])   ->   p[i] = sum(x[i * n / parts ...]);  sum(p)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ingot import ops
from ingot.ir.dims import estimate, product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ops import ArgReduce, Reduce, build
from ingot.ops.build import cast
from ingot.schedule.fold import accumulator, reduction
from ingot.schedule.joined import box_inside, join_reduced, reshapes
from ingot.schedule.lowered import Arg, Lowered
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import lanes_for, lower_pointwise
from ingot.schedule.row_loops import WIDE, RowLoops
from ingot.schedule.rows import Rows, reductions_of, rows_of
from ingot.support.errors import CompileError

Lower = Callable[[Graph, tuple[Layout, ...], tuple[Layout, ...], Machine], Lowered]

PART = 4096  # elements that a part of a row should have at least


def _parts(body: Graph, rows: Rows, machine: Machine) -> tuple[int, int] | None:
    """(dimension, parts) to cut a reduction in, where there are too few rows for all threads."""
    rest = product(rows.shape[d] for d in rows.reduced)
    outer = product(rows.shape[d] for d in rows.kept if d != rows.axis)
    across = 1 if rows.horizontal else -(-estimate(rows.shape[rows.axis]) // (WIDE * lanes_for(body, machine)))
    units, goal = estimate(outer) * across, 4 * machine.threads
    if machine.threads == 1 or units >= goal or not isinstance(rest, int):
        return None
    least = -(-goal // max(units, 1))
    for d in rows.reduced:
        extent = rows.shape[d]
        assert isinstance(extent, int)
        for parts in (*range(least, 8 * goal), *range(least - 1, 1, -1)):
            if extent % parts == 0 and rest // parts >= PART:
                return d, parts
    return None


def _lower_parts(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], at: int, parts: int, machine: Machine
) -> Lowered:
    """Two kernels:   sum(x[n])   ->   p[i] = sum(x[i * n / parts ...]);  sum(p)"""
    partial: list[Node] = []
    memo: dict[Node, Node] = {}
    for n in reductions_of(body):
        x, op = n.inputs[0], reduction(n)
        extent = x.shape[at]
        assert isinstance(extent, int)
        cut = (*x.shape[:at], parts, extent // parts, *x.shape[at + 1 :])
        wide = ops.Reshape(cut)(cast(x, accumulator(x.dtype)))
        where = sum(d not in op.dims for d in range(at))
        values = Reduce(op.kind, tuple(d + (d >= at) for d in op.dims))(wide)
        partial.append(values)
        if isinstance(op, Reduce):
            memo[n] = cast(Reduce(op.kind, (where,))(values), n.dtype)
        else:
            partial.append(replace(op, dim=at + 1)(wide))
            memo[n] = _place(op, values, partial[-1], where, extent // parts)
    whole = replace(body, outputs=rebuilt(body.outputs, memo))
    return lower_first(whole, tuple(dict.fromkeys(partial)), ins, outs, machine)


def _place(op: ArgReduce, values: Node, places: Node, at: int, length: int) -> Node:
    """Where the best value is: parts of `length` along dimension `at` have their best `values` at `places`."""
    best = build.reduce(op.kind, values, at, keepdims=True)
    same = build.compare("EQ", values, best)
    if values.dtype.is_float:
        same = build.or_(same, build.and_(build.compare("NE", values, values), build.compare("NE", best, best)))
    behind = build.add(places, build.mul(ops.Iota(places.type, at)(), length))
    nowhere = -1 if op.last else (1 << 63) - 1
    return build.reduce("max" if op.last else "min", build.where(same, behind, nowhere), at)


def _lower_levels(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """The first reductions of a group, then the rest of it, by kernels that all threads share:

    y = x - mean(x)   ->   s = sum(x);  y = x - s / n
    """
    found = set(reductions_of(body))
    firsts = [n for n in reductions_of(body) if not found.intersection(topological([n.inputs[0]]))]
    return lower_first(body, firsts, ins, outs, machine)


def lower_first(
    body: Graph, firsts: Sequence[Node], ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine,
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
    joined = join_reduced(body, rows.shape, rows.reduced, ins, outs)
    if joined is not None:
        return lower_rows(*joined, machine)
    cut, found = _parts(body, rows, machine), reductions_of(body)
    levelled = any(m in topological([n.inputs[0]]) for n in found for m in found)
    ends_in_rows = all(product(n.shape) == product(rows.kept_shape) for n in body.outputs)
    if cut is not None and ends_in_rows and not levelled:
        return _lower_parts(body, ins, outs, *cut, machine)
    if cut is not None and len({n.shape for n in body.outputs}) == 1:
        return _lower_levels(body, ins, outs, machine)
    return RowLoops(body, ins, outs, rows, machine).lower()


__all__ = ["lower_rest", "lower_rows"]
