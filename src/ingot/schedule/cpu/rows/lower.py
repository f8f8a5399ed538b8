"""Row groups: reductions over one set of dimensions, fused with pointwise ops, as one kernel. Few long rows are reduced
by several kernels that all threads share: one for parts of rows, one that joins them, and one for the rest.

    y = x - mean(x)   ->   p[i] = sum(x[i * n / parts ...]);  s = sum(p);  y = x - s / n
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from ingot.ir.dims import estimate, product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuild, topological
from ingot.ops import Reduce, Slice
from ingot.ops.build import add, cast, maximum, minimum, mul, reshape
from ingot.schedule.collapse_dims import collapse_box, reshaped_first, reshapes, without_reshapes
from ingot.schedule.cpu.caches import operands_exceed_caches
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for, lower_pointwise
from ingot.schedule.cpu.rows.loops import MAX_VECTORS_ACROSS, RowLoops, cached_column_count
from ingot.schedule.cpu.rows.memory_order import in_memory_order
from ingot.schedule.cpu.rows.parts import RowParts, join_parts
from ingot.schedule.folds import accumulator
from ingot.schedule.lowered import Arg, Lowered
from ingot.schedule.row_box import Rows, reductions_of, rows_of
from ingot.support.errors import CompileError

Lower = Callable[[Graph, tuple[Layout, ...], tuple[Layout, ...], Machine], Lowered]

MIN_PART_ELEMENTS = 4096  # of a part of a row
MIN_PART_ROWS_IN_CACHE = 64  # of a part, if columns are folded in a cache
MAX_UNROLLED_TERMS = 8
BINARY_OPS = {"sum": add, "prod": mul, "max": maximum, "min": minimum}


def _row_parts(body: Graph, rows: Rows, machine: Machine, is_reread: bool) -> RowParts | None:
    """How to split rows into parts: if there are too few rows for all threads, or if rows that several passes read do
    not fit in a core's cache. None for full rows."""
    row_elements = product(rows.shape[d] for d in rows.reduced)
    outer = product(rows.shape[d] for d in rows.kept_dims if d != rows.axis)
    cached_columns = cached_column_count(body, rows, machine)
    columns = 1 if rows.horizontal else cached_columns or MAX_VECTORS_ACROSS * lanes_for(body, machine)
    column_blocks = 1 if rows.horizontal else -(-estimate(rows.shape[rows.axis]) // columns)
    row_blocks, target = estimate(outer) * column_blocks, (16 if cached_columns else 4) * machine.threads
    if not isinstance(row_elements, int) or row_elements == 0:
        return None
    min_parts, min_length = (
        -(-target // max(row_blocks, 1)) if machine.threads > 1 else 1,
        MIN_PART_ROWS_IN_CACHE if cached_columns else MIN_PART_ELEMENTS,
    )
    nbytes = row_elements * columns * max((n.dtype.nbytes for n in body.inputs if n.shape == rows.shape), default=0)
    if is_reread and nbytes > machine.l2 and operands_exceed_caches(body, machine):
        min_parts, min_length = max(min_parts, -(-4 * nbytes // machine.l2)), MIN_PART_ELEMENTS // columns
    if min_parts == 1:
        return None
    for d in rows.reduced:
        extent = rows.shape[d]
        assert isinstance(extent, int)
        for parts in (*range(min_parts, 8 * max(target, min_parts)), *range(min_parts - 1, 1, -1)):
            if extent % parts == 0 and row_elements // parts >= min_length:
                return RowParts(d, parts)
    return None


def _unrolled_terms(body: Graph, rows: Rows, machine: Machine) -> Graph | None:
    """Unroll reductions of few elements with an innermost dimension shorter than a vector, such as products with
    matrices of 2 or 3 columns, to pointwise ops on their terms. None for other groups.

        y[n, j] = sum over i of x[n, i, j]   ->   y[n, j] = x[n, 0, j] + x[n, 1, j] + x[n, 2, j]
    """
    reductions, result_shapes = reductions_of(body), {n.shape for n in body.outputs}
    is_short = not rows.horizontal and estimate(rows.shape[rows.axis]) < lanes_for(body, machine)
    extents = [n for d in rows.reduced if isinstance(n := rows.shape[d], int)]
    if not is_short or len(extents) < len(rows.reduced) or not 0 < math.prod(extents) <= MAX_UNROLLED_TERMS:
        return None
    if (
        len(result_shapes) > 1
        or product(*result_shapes) != product(rows.kept_shape)
        or _independent_reductions(body) != reductions
    ):
        return None
    if not all(isinstance(n.op, Reduce) and n.op.kind in BINARY_OPS for n in reductions):
        return None

    def unrolled(n: Node, inputs: Sequence[Node]) -> Node:
        if n not in reductions:
            return n.with_inputs(inputs) if inputs else n
        assert isinstance(n.op, Reduce)
        (x,), terms = inputs, []
        for coordinates in itertools.product(*map(range, extents)):
            coordinate_of = dict(zip(rows.reduced, coordinates, strict=True))
            start = tuple(coordinate_of.get(d, 0) for d in range(x.type.rank))
            stop = tuple(coordinate_of[d] + 1 if d in coordinate_of else size for d, size in enumerate(x.shape))
            term = Slice(start, stop, (1,) * x.type.rank)(x)
            terms.append(cast(reshape(term, n.shape), accumulator(n.dtype)))
        return cast(functools.reduce(BINARY_OPS[n.op.kind], terms), n.dtype)

    return Graph(body.inputs, rebuild(body.outputs, rule=unrolled))


def _independent_reductions(body: Graph) -> list[Node]:
    """The reductions that do not depend on another one."""
    reductions = set(reductions_of(body))
    return [n for n in reductions_of(body) if not reductions.intersection(topological([n.inputs[0]]))]


def lower_first(
    body: Graph,
    firsts: Sequence[Node],
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    machine: Machine,
    lower: Lower | None = None,
) -> Lowered:
    """Kernels that compute `firsts` into temporaries, then kernels for the rest of the group. lower: lowers the first;
    by default `lower_rows`."""
    dependencies = set(topological(firsts))
    positions = [i for i, n in enumerate(body.inputs) if n in dependencies]
    layouts = tuple(Layout.contiguous(n.shape) for n in firsts)
    start = Graph(tuple(body.inputs[i] for i in positions), tuple(firsts))
    first_lowered = (lower or lower_rows)(start, tuple(ins[i] for i in positions), layouts, machine)

    temps = (*(n.type.nbytes for n in firsts), *first_lowered.temps)
    results = [Arg("temp", i) for i in range(len(firsts))]
    first_lowered = first_lowered.inlined([Arg("in", i) for i in positions], results, len(firsts))
    stored = dict(zip(firsts, zip(layouts, results, strict=True), strict=True))
    rest_lowered = lower_rest(body, stored, ins, outs, machine, temps=len(temps))
    return Lowered((*first_lowered.steps, *rest_lowered.steps), (*temps, *rest_lowered.temps), first_lowered.packs)


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
    """Kernels for the rest of a group, some of whose nodes other kernels have stored.

    stored: the layout and the operand of each such node. first: the number in the group of the first result of `body`.
    temps: the number of temporaries that other kernels have.
    """
    # unused labels: the rest may be split again, and equal inputs would be one node
    used_labels = {n.op.label for n in body.inputs if isinstance(n.op, Input)}
    labels = (label for label in map("row{}".format, itertools.count()) if label not in used_labels)
    inputs: dict[Node, Node] = {n: Input(label, n.type)() for n, label in zip(stored, labels, strict=False)}
    outputs = rebuild(body.outputs, dict(inputs))
    dependencies = set(topological(outputs))
    positions = [i for i, n in enumerate(body.inputs) if n in dependencies]
    rest = Graph((*inputs.values(), *(body.inputs[i] for i in positions)), outputs)
    lower = lower or (lower_rows if reductions_of(rest) else lower_pointwise)
    lowered = lower(rest, (*(lay for lay, _ in stored.values()), *(ins[i] for i in positions)), outs, machine)
    operands = [*(arg for _, arg in stored.values()), *(Arg("in", i) for i in positions)]
    results = [Arg("out", first + i) for i in range(len(outputs))]
    return lowered.inlined(operands, results, temps)


def lower_rows(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """One kernel for a group whose reductions share their rows (see `rows_of`), or several for few long rows."""
    body = reshaped_first(body, ins)
    rows = rows_of(body)
    if rows is None:
        raise CompileError("a row group needs reductions over one set of dimensions")
    unreshaped = without_reshapes(body, rows, ins, outs)
    if unreshaped is not None:
        return lower_rows(*unreshaped, machine)
    reshaped = [n for n in body.outputs if reshapes(n, rows)]
    if reshaped:  # reshapes that strides cannot express
        return lower_first(body, tuple({n.inputs[0]: None for n in reshaped}), ins, outs, machine)
    simpler = in_memory_order(body, rows, ins, outs) or collapse_box(body, rows, ins, outs)
    if simpler is not None:
        return lower_rows(*simpler, machine)
    terms = _unrolled_terms(body, rows, machine)
    if terms is not None:
        return lower_pointwise(terms, ins, outs, machine)
    reductions, independent = reductions_of(body), _independent_reductions(body)
    only_row_results = all(product(n.shape) == product(rows.kept_shape) for n in body.outputs)
    row_parts = _row_parts(body, rows, machine, is_reread=only_row_results and len(independent) < len(reductions))
    joining = None if row_parts is None else join_parts(body, row_parts)
    if joining is not None and only_row_results:
        return lower_first(*joining, ins, outs, machine)
    row_parts = _row_parts(body, rows, machine, is_reread=False)
    if row_parts is not None and len({n.shape for n in body.outputs}) == 1:
        return lower_first(body, independent if joining is None else reductions, ins, outs, machine)
    return RowLoops(body, ins, outs, rows, machine).lower()


__all__ = ["lower_rest", "lower_rows"]
