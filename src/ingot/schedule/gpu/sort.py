"""Sorts: compute the order of each row by `merging`, then gather the operands in this order.

order = positions of the keys in order;   out[at] = x[order[at]]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import i64
from ingot.ops import Sort
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.gpu.blocks import Elements, Group, read_at
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.merging import KeyRows, SortedRuns, key_type, order_key, order_rows
from ingot.schedule.index import linear
from ingot.schedule.lowered import Lowered, Step


def lower_sort(group: Group, machine: Machine) -> Lowered:
    """Lower a Sort: kernels that compute the order, and one that gathers the operands."""
    anchor = next(n for n in group.body.nodes() if isinstance(n.op, Sort))
    op, x = anchor.op, anchor.inputs[0]
    assert isinstance(op, Sort)
    keys, temps = anchor.inputs[: op.num_keys], list[DimLike]()
    others = tuple(d for d in range(x.type.rank) if d != op.dimension)
    emitters: dict[Block, Emitter] = {}

    def read(block: Block, row: Expr, position: Expr, mask: Expr | None) -> Sequence[Expr]:
        em = emitters.setdefault(block.root, group.emitter())
        shape = tuple(x.shape[d] for d in others)
        coordinates = dict(zip(others, ix.delinearize(row, shape, {}), strict=True))
        index = tuple(coordinates.get(d, position) for d in range(x.type.rank))
        return [block.let(order_key(em.value(block, n, index, mask), op.descending), "key") for n in keys]

    types = tuple(key_type(n.dtype) for n in keys)
    rows = KeyRows(product(x.shape[d] for d in others), x.shape[op.dimension], read, types, op.count)
    steps, runs = order_rows(rows, group, temps)
    return Lowered((*steps, _gather_in_order(anchor, group, runs, machine)), tuple(temps))


def _gather_in_order(anchor: Node, group: Group, runs: SortedRuns, machine: Machine) -> Step:
    op = anchor.op
    assert isinstance(op, Sort)
    work = Elements.of(group, anchor, machine)
    row_shape = (n for d, n in enumerate(anchor.inputs[0].shape) if d != op.dimension)
    strides = Layout.contiguous((*row_shape, runs.stride)).strides

    def read(operand: Node, block: Block, index: Index, mask: Expr | None) -> Expr:
        others = tuple(e for d, e in enumerate(index) if d != op.dimension)
        flat = linear((*others, index[op.dimension]), strides)
        source = block.let(k.cast(read_at(block, runs.order[0], flat, mask), i64), "from")
        operand_index = tuple(source if d == op.dimension else e for d, e in enumerate(index))
        return work.em.value(block, operand, operand_index, mask)

    for result, operand in zip(anchor.results, anchor.inputs, strict=True):
        work.em.bind(result, Leaf(partial(read, operand)))
    return work.step("sort", runs.order)


__all__ = ["lower_sort"]
