"""Sorts: a line's order by `merging`, and its operands in it.

order = places of the keys in order;   out[at] = x[order[at]]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import i64
from ingot.ops import Sort
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.gpu.blocks import Elements, Group, read_at
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.merging import Lines, Runs, key_type, order_key, ordered
from ingot.schedule.index import linear
from ingot.schedule.lowered import Lowered, Step


def lower_sort(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A Sort of any number of operands: kernels for their order, and one that reads them in it."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Sort))
    op, x = anchor.op, anchor.inputs[0]
    assert isinstance(op, Sort)
    group = Group.of(body, ins, outs)
    keys, temps = anchor.inputs[: op.num_keys], list[DimLike]()
    others = tuple(d for d in range(x.type.rank) if d != op.dimension)
    emitters: dict[Block, Emitter] = {}

    def read(block: Block, line: Expr, place: Expr, mask: Expr | None) -> Sequence[Expr]:
        em = emitters.setdefault(block.root, group.emitter())
        shape = tuple(x.shape[d] for d in others)
        at = dict(zip(others, ix.delinearize(line, shape, {}), strict=True))
        index = tuple(at.get(d, place) for d in range(x.type.rank))
        return [block.let(order_key(em.value(block, n, index, mask), op.descending), "key") for n in keys]

    types = tuple(key_type(n.dtype) for n in keys)
    lines = Lines(product(x.shape[d] for d in others), x.shape[op.dimension], read, types, op.keep)
    steps, runs = ordered(lines, group, temps)
    return Lowered((*steps, _reordered(anchor, group, runs, machine)), tuple(temps))


def _reordered(anchor: Node, group: Group, runs: Runs, machine: Machine) -> Step:
    op = anchor.op
    assert isinstance(op, Sort)
    work = Elements.of(group, anchor, machine)
    lines = (n for d, n in enumerate(anchor.inputs[0].shape) if d != op.dimension)
    strides = Layout.contiguous((*lines, runs.stride)).strides

    def read(operand: Node, block: Block, index: Index, mask: Expr | None) -> Expr:
        others = tuple(e for d, e in enumerate(index) if d != op.dimension)
        flat = linear((*others, index[op.dimension]), strides)
        place = block.let(k.cast(read_at(block, runs.order[0], flat, mask), i64), "from")
        at = tuple(place if d == op.dimension else e for d, e in enumerate(index))
        return work.em.value(block, operand, at, mask)

    for result, operand in zip(anchor.results, anchor.inputs, strict=True):
        work.em.bind(result, Leaf(partial(read, operand)))
    return work.step("sort", runs.order)


__all__ = ["lower_sort"]
