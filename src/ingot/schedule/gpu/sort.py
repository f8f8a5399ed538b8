"""Sorts by counting: the place of an element is the number of those that stand before it.

    for a row of elements i:  order[count of j with x[j] before x[i], or equal and j < i] = i
    out[at] = x[order[at]]

Work grows with the square of the length; all of it runs side by side, without exchanges.
"""

from __future__ import annotations

from functools import partial

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import i32, i64
from ingot.ops import Sort
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index, Leaf
from ingot.schedule.gpu.blocks import Elements, Group, Span, power_of_two, read_at
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import ZERO, dim_expr, integer, linear
from ingot.schedule.lowered import Arg, Lowered, Step

ROWS, COLUMNS = 64, 64  # elements that are placed, and that these are compared with, at a time


def lower_sort(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A Sort of any number of operands: a kernel for their order, and one that reads them in it."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Sort))
    order = Buffer("order", i32, writable=True)
    group, given = Group.of(body, ins, outs), (order, Arg("temp", 0))
    steps = _count(anchor, group, given), _reordered(anchor, group, given, machine)
    return Lowered(steps, (product(anchor.inputs[0].shape) * i32.nbytes,))


def _count(anchor: Node, group: Group, order: tuple[Buffer, Arg]) -> Step:
    op, x = anchor.op, anchor.inputs[0]
    assert isinstance(op, Sort)
    top, chunk = Block(), k.var("chunk")
    length = x.shape[op.dimension]
    others = [d for d in range(x.type.rank) if d != op.dimension]
    rows, columns = (min(n, max(1, power_of_two(estimate(length)))) for n in (ROWS, COLUMNS))
    blocks = ceildiv(length, rows)
    line = top.let(k.binary("div", chunk, dim_expr(blocks)), "line")
    first = top.let(k.mul(k.binary("rem", chunk, dim_expr(blocks)), integer(rows)), "first")
    own = Span.of(top, first, rows, length, 0, held=True)
    at = dict(zip(others, ix.delinearize(line, tuple(x.shape[d] for d in others), {}), strict=True))
    em = group.emitter()

    def keys(block: Block, place: Expr, mask: Expr | None) -> list[Expr]:
        index = tuple(at.get(d, place) for d in range(x.type.rank))
        return [em.value(block, n, index, mask) for n in anchor.inputs[: op.num_keys]]

    mine = keys(top, own.at, None)
    tile = (rows, 1)
    acc = top.alloc("acc", i64, 1, lanes=rows, tile=tile)
    top.store(acc, ZERO, Lit(i64, rows, 0, tile=tile))

    def compare(block: Block, start: Expr) -> None:
        span = Span.of(block, start, columns, length, 1)
        theirs = keys(block, span.at, span.live)
        earlier = k.binary("lt", span.at, own.at)
        for a, b in reversed([*zip(theirs, mine, strict=True)]):
            first, second = (b, a) if op.descending else (a, b)
            ahead, behind = _before(first, second), _before(second, first)
            earlier = k.binary("or", ahead, k.binary("and", k.unary("not", behind), earlier))
        if span.live is not None:
            earlier = k.binary("and", earlier, span.live)
        number = k.cast(k.spread(earlier, (rows, columns)), i64)
        block.store(acc, ZERO, k.add(k.reduce_along("add", number, 1), k.load(acc, ZERO)))

    top.loop("j", 0, length, columns, compare)
    place = top.let(k.add(k.load(acc, ZERO), k.mul(line, dim_expr(length))), "place")
    top.store(order[0], place, k.cast(own.at, i32), own.live)
    chunks = product(x.shape[d] for d in others) * blocks
    return group.step("sort_order", chunk, chunks, top, order)


def _before(a: Expr, b: Expr) -> Expr:
    """Whether `a` stands before `b` in an ascending row: NaN is greater than any number."""
    less = k.binary("lt", a, b)
    if not a.dtype.is_float:
        return less
    return k.binary("or", less, k.binary("and", k.binary("eq", a, a), k.binary("ne", b, b)))


def _reordered(anchor: Node, group: Group, order: tuple[Buffer, Arg], machine: Machine) -> Step:
    op, x = anchor.op, anchor.inputs[0]
    assert isinstance(op, Sort)
    work = Elements.of(group, anchor, machine)
    lines = (n for d, n in enumerate(x.shape) if d != op.dimension)
    strides = Layout.contiguous((*lines, x.shape[op.dimension]))

    def read(operand: Node, block: Block, index: Index, mask: Expr | None) -> Expr:
        others = tuple(e for d, e in enumerate(index) if d != op.dimension)
        flat = linear((*others, index[op.dimension]), strides.strides)
        place = block.let(k.cast(read_at(block, order[0], flat, mask), i64), "from")
        at = tuple(place if d == op.dimension else e for d, e in enumerate(index))
        return work.em.value(block, operand, at, mask)

    for result, operand in zip(anchor.results, anchor.inputs, strict=True):
        work.em.bind(result, Leaf(partial(read, operand)))
    return work.step("sort", order)


__all__ = ["lower_sort"]
