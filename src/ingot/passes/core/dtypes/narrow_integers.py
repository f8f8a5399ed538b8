"""Integer arithmetic in the fewest bits that hold every value: 64-bit words cost a 32-bit core several instructions.

    t = (convert<i64>(acc) * m + 2^30) >> 31        t = convert<i32>((convert<i64>(acc) * convert<i64>(m) + 2^30) >> 31)
    convert<i32>((t + half + (t >> 63)) >> n)  ->   (t + half + (t >> 31)) >> convert<i32>(n)
    m, half, n: tables of i64                       m, half of i32, n of i8

Ranges follow from constants, from the types of operands and from the lengths of sums. A node of i64 whose values, and
those of its operands, fit i32 is computed in i32; tables of constants are stored in the fewest bytes. The product that
needs 64 bits is doubled where that fits, so that its upper word is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Node, Op, const, splat_of
from ingot.ir.rewrite import current_fuel
from ingot.ir.types import DType, i8, i16, i32, i64
from ingot.ops.core.base import is_contraction
from ingot.ops.core.elementwise import Elementwise
from ingot.passes.constants import is_constant, value_of

Range = tuple[int, int]  # the least and the greatest value
_MIN_TABLE_BYTES = 16  # of a constant that is worth a conversion where it is read


def narrow_integers(graph: Graph) -> Graph:
    """Return the graph with i64 arithmetic in i32 and tables in few bytes where values fit (see module)."""
    nodes = graph.nodes()
    if not any(n.dtype.is_integer for n in nodes if len(n.types) == 1) or not current_fuel().burn("narrow-integers"):
        return graph
    ranges: dict[Node, Range] = {}
    for n in nodes:
        if len(n.types) == 1 and n.dtype.is_integer:
            ranges[n] = _range(n, ranges)
    tables = _tables(graph, nodes)
    images: dict[Node, Node] = {}
    narrow: dict[Node, Node] = {}  # in i32
    for n in nodes:
        may_narrow = n in ranges and n.dtype == i64 and (n in tables or not is_constant(n) or splat_of(n) is not None)
        small = _narrowed(n, ranges, narrow, images) if may_narrow else None
        if small is not None:
            narrow[n] = small
            is_known = splat_of(n) is not None
            images[n] = n.with_inputs([images[i] for i in n.inputs]) if is_known else ops.Convert(i64)(small)
        elif isinstance(n.op, ops.Convert) and n.inputs[0] in narrow and n.dtype == i32:
            images[n] = narrow[n.inputs[0]]
        elif n.constant is not None and n in tables:
            images[n] = _table(n, ranges.get(n))
        else:
            images[n] = n.with_inputs([images[i] for i in n.inputs])
    return graph.with_outputs([images[o] for o in graph.outputs])


def _tables(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """Return the constants, and views of them, that only arithmetic reads: it converts what it reads. Others, such as
    the weights of products, would be converted into memory."""
    users, tables = graph.uses(), set[Node]()
    for n in reversed(nodes):
        if is_constant(n) and n not in graph.outputs:
            readers = users.get(n, ())
            if all(u in tables if _is_view(u) else isinstance(u.op, Elementwise) for u in readers):
                tables.add(n)
    return tables


def _is_view(n: Node) -> bool:
    return n.op.rearranges or isinstance(n.op, ops.BroadcastInDim)


def _fits(span: Range, dtype: DType) -> bool:
    low, high = dtype.range
    return low <= span[0] and span[1] <= high


def _narrowed(
    n: Node, ranges: Mapping[Node, Range], narrow: Mapping[Node, Node], images: Mapping[Node, Node]
) -> Node | None:
    """Return an i64 node in i32, None if its values do not fit."""
    if not _fits(ranges[n], i32):
        return None
    if n.constant is not None and not n.inputs:
        value = splat_of(n)
        if value is not None:
            return (
                const(np.asarray(value.astype(np.int32)), loc=n.loc)
                if not n.shape
                else ops.full(n.shape, int(value), i32)
            )
        small = _table_dtype(ranges[n])
        table = const(n.constant.value.astype(small.numpy), loc=n.loc)
        return ops.cast(table, i32)
    if isinstance(n.op, ops.Convert):
        source = n.inputs[0]
        return ops.cast(images[source], i32) if source.dtype.is_integer and source.dtype.bits <= 32 else None
    computes = isinstance(n.op, _EXACT) or _is_view(n)
    if computes and all(i in narrow for i in n.inputs):
        operands = [narrow[i] for i in n.inputs]
        if isinstance(n.op, ops.ShiftRightArithmetic) and ranges[n.inputs[1]][1] > 31:
            value = splat_of(n.inputs[1])
            operands[1] = ops.minimum(operands[1], 31) if value is None else ops.full(n.shape, 31, i32)
        return n.op(*operands, loc=n.loc)
    if (high := _upper_half(n, ranges, narrow)) is not None:
        return high
    if isinstance(n.op, ops.ShiftRightArithmetic):
        return ops.Convert(i32)(n.with_inputs([images[i] for i in n.inputs]))
    return None


def _upper_half(n: Node, ranges: Mapping[Node, Range], narrow: Mapping[Node, Node]) -> Node | None:
    """(a * m + 2^30) >> 31 as (2a * m + 2^31) >> 32: the upper word of a product, which cores compute at once."""
    if not isinstance(n.op, ops.ShiftRightArithmetic) or splat_of(n.inputs[1]) != 31:
        return None
    total = n.inputs[0]
    if not isinstance(total.op, ops.Add) or splat_of(total.inputs[1]) != 1 << 30:
        return None
    product = total.inputs[0]
    if not isinstance(product.op, ops.Mul) or not all(x in narrow for x in product.inputs):
        return None
    a, m = sorted(product.inputs, key=lambda x: max(map(abs, ranges[x])))
    if max(map(abs, ranges[a])) >= 1 << 30:
        return None
    wide = ops.mul(ops.Convert(i64)(ops.mul(narrow[a], 2)), ops.Convert(i64)(narrow[m]), loc=product.loc)
    rounded = ops.add(wide, ops.full(n.shape, 1 << 31, i64))
    return ops.Convert(i32)(n.op(rounded, ops.full(n.shape, 32, i64), loc=n.loc))


def _table_dtype(span: Range) -> DType:
    return next(d for d in (i8, i16, i32, i64) if _fits(span, d))


def _table(n: Node, span: Range | None) -> Node:
    """A constant in the fewest bytes, converted where it is read."""
    if span is None or n.dtype not in (i16, i32, i64) or splat_of(n) is not None or n.constant is None:
        return n
    small = _table_dtype(span)
    if small.bits >= n.dtype.bits or n.constant.value.nbytes < _MIN_TABLE_BYTES:
        return n
    return ops.Convert(n.dtype)(const(n.constant.value.astype(small.numpy), loc=n.loc))


def _range(n: Node, ranges: Mapping[Node, Range]) -> Range:
    """Return the range of a node of integers: at most that of its type, in which results wrap."""
    type_range: Range = n.dtype.range
    if n.constant is not None and not n.inputs:
        value = n.constant.value
        return (int(value.min()), int(value.max())) if value.size else (0, 0)
    operands = [ranges[i] for i in n.inputs if i in ranges]
    if len(operands) != len(n.inputs):
        return type_range
    if is_contraction(n):
        span = _sum_of_products(n, operands)
    else:
        rule = next((rule for op, rule in _RULES.items() if isinstance(n.op, op)), None)
        span = rule(operands) if rule is not None else operands[0] if _keeps_values(n.op) and operands else None
    return span if span is not None and _fits(span, n.dtype) else type_range


def _keeps_values(op: Op) -> bool:
    return op.rearranges or isinstance(op, ops.BroadcastInDim | ops.Convert)


def _sum_of_products(n: Node, operands: Sequence[Range]) -> Range | None:
    """Bounds of a contraction: of its constant weights, the sum of their sizes for each result."""
    w = n.inputs[1]
    if not is_constant(w):
        return None
    value = np.abs(value_of(w).astype(np.int64))
    if isinstance(n.op, ops.Convolution):
        axes = tuple(d for d, c in enumerate(n.op.rhs_layout) if c != "O")
    else:
        assert isinstance(n.op, ops.DotGeneral)
        axes = n.op.contract[1]
    largest = int(value.sum(axes).max()) if value.size else 0
    largest_sum = largest * max(map(abs, operands[0]))
    return -largest_sum, largest_sum


def _corners(fn: Callable[[int, int], int]) -> Callable[[Sequence[Range]], Range]:
    def rule(operands: Sequence[Range]) -> Range:
        values = [fn(x, y) for x in operands[0] for y in operands[1]]
        return min(values), max(values)

    return rule


def _shift(operands: Sequence[Range]) -> Range | None:
    if operands[1][0] < 0 or operands[1][1] > 63:
        return None
    return _corners(lambda x, y: x >> y)(operands)


def _clamp(operands: Sequence[Range]) -> Range:
    low, x, high = operands
    return min(max(x[0], low[0]), high[0]), min(max(x[1], low[1]), high[1])


_EXACT = (ops.Add, ops.Sub, ops.Mul, ops.ShiftRightArithmetic, ops.Clamp, ops.Min, ops.Max)
_RULES: Mapping[type[Op], Callable[[Sequence[Range]], Range | None]] = {
    ops.Add: lambda r: (r[0][0] + r[1][0], r[0][1] + r[1][1]),
    ops.Sub: lambda r: (r[0][0] - r[1][1], r[0][1] - r[1][0]),
    ops.Mul: _corners(lambda x, y: x * y),
    ops.ShiftRightArithmetic: _shift,
    ops.Clamp: _clamp,
    ops.Min: lambda r: (min(r[0][0], r[1][0]), min(r[0][1], r[1][1])),
    ops.Max: lambda r: (max(r[0][0], r[1][0]), max(r[0][1], r[1][1])),
}

__all__ = ["narrow_integers"]
