"""Row groups: reductions over one set of dimensions and the pointwise work around them, as one kernel or, where rows
are few and long, as several that all threads share.

    sum(x[n])   ->   p[i] = sum(x[i * n / parts ...]);  sum(p)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ingot import ops
from ingot.ir.dims import estimate, product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ir.types import TensorType
from ingot.ops import ArgReduce, Reduce, build
from ingot.ops.build import cast
from ingot.schedule.fold import accumulator, reduction
from ingot.schedule.joined import box_inside, join_reduced, reshapes
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import lanes_for, lower_pointwise
from ingot.schedule.row_loops import WIDE, RowLoops
from ingot.schedule.rows import Rows, reductions_of, rows_of
from ingot.support.errors import CompileError

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
    whole, own = rest_of(body, memo, ())
    return _lower_apart(whole, tuple(dict.fromkeys(partial)), tuple(ins[i] for i in own), outs, machine)


def _place(op: ArgReduce, values: Node, places: Node, at: int, length: int) -> Node:
    """Where the best value is: parts of `length` along dimension `at` have their best `values` at `places`."""
    best = build.reduce(op.kind, values, at, keepdims=True)
    same = build.compare("EQ", values, best)
    if values.dtype.is_float:
        same = build.or_(same, build.and_(build.compare("NE", values, values), build.compare("NE", best, best)))
    behind = build.add(places, build.mul(ops.Iota(places.type, at)(), length))
    nowhere = -1 if op.last else (1 << 63) - 1
    return build.reduce("max" if op.last else "min", build.where(same, behind, nowhere), at)


@dataclass(frozen=True)
class Parts:
    """What a reduction gives for parts of its operand, in a temporary of this type, to be folded over `dims`."""

    node: Node
    type: TensorType
    dims: tuple[int, ...]


def lower_folded(
    body: Graph, parts: tuple[Parts, ...], ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine,
    first: int = 0,
) -> tuple[Step, ...]:
    """The rest of a group whose reductions have been folded in parts, which lie in its first temporaries. first: the
    number of the group's result that is the first of `body`'s."""
    memo: dict[Node, Node] = {}
    given: list[Node] = []
    for i, f in enumerate(parts):
        op = reduction(f.node)
        assert isinstance(op, Reduce)
        given.append(Input(f"part{i}", f.type)())
        memo[f.node] = cast(replace(op, dims=f.dims)(given[-1]), f.node.dtype)
    rest, lasts = rest_of(body, memo, given)
    places = tuple(Layout.contiguous(f.type.shape) for f in parts)
    rows = rows_of(rest)
    assert rows is not None
    low = RowLoops(rest, (*places, *(ins[i] for i in lasts)), outs, rows, machine).lower()
    args = [*(Arg("temp", i) for i in range(len(parts))), *(Arg("in", i) for i in lasts)]
    results = [Arg("out", first + i) for i in range(len(rest.outputs))]
    return tuple(with_args(s, {"in": args, "out": results}) for s in low.steps)


def rest_of(body: Graph, memo: dict[Node, Node], given: Sequence[Node]) -> tuple[Graph, list[int]]:
    """`body` with what `memo` has in the place of its nodes, and the numbers of its own inputs that are still read:
    they come behind the new ones, `given`."""
    outputs = rebuilt(body.outputs, memo)
    read = set(topological(outputs))
    left = [i for i, n in enumerate(body.inputs) if n in read]
    return Graph((*given, *(body.inputs[i] for i in left)), outputs), left


def _lower_levels(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """The first reductions of a group, then the rest of it, by kernels that all threads share:

    y = x - mean(x)   ->   s = sum(x);  y = x - s / n
    """
    found = set(reductions_of(body))
    firsts = [n for n in reductions_of(body) if not found.intersection(topological([n.inputs[0]]))]
    return _lower_apart(body, firsts, ins, outs, machine)


def _lower_apart(
    body: Graph, firsts: Sequence[Node], ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """Kernels for `firsts`, which are stored, then kernels for what comes behind them."""
    read = set(topological(firsts))
    own = [i for i, n in enumerate(body.inputs) if n in read]
    places = tuple(Layout.contiguous(n.shape) for n in firsts)
    start = Graph(tuple(body.inputs[i] for i in own), tuple(firsts))
    one = lower_rows(start, tuple(ins[i] for i in own), places, machine)

    # names of their own: the rest may have levels too, and equal inputs are one node
    taken = {n.op.label for n in body.inputs if isinstance(n.op, Input)}
    labels = (label for label in map("row{}".format, itertools.count()) if label not in taken)
    memo: dict[Node, Node] = {n: Input(label, n.type)() for n, label in zip(firsts, labels, strict=False)}
    rest, left = rest_of(body, memo, [memo[n] for n in firsts])
    lower = lower_rows if reductions_of(rest) else lower_pointwise
    two = lower(rest, (*places, *(ins[i] for i in left)), outs, machine)

    results = [Arg("temp", i) for i in range(len(firsts))]
    temps = [Arg("temp", len(firsts) + i) for i in range(len(one.temps) + len(two.temps))]
    steps = [with_args(s, {"in": [Arg("in", i) for i in own], "out": results, "temp": temps}) for s in one.steps]
    given_args = [*results, *(Arg("in", i) for i in left)]
    steps += [with_args(s, {"in": given_args, "temp": temps[len(one.temps) :]}) for s in two.steps]
    return Lowered(tuple(steps), (*(n.type.nbytes for n in firsts), *one.temps, *two.temps))


def with_args(step: Step, places: Mapping[str, Sequence[Arg]]) -> Step:
    return Step(step.kernel, tuple(places[a.kind][a.index] if a.kind in places else a for a in step.args))


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
        return _lower_apart(body, tuple({n.inputs[0]: None for n in reshaped}), ins, outs, machine)
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


__all__ = ["Parts", "lower_folded", "lower_rows", "rest_of", "with_args"]
