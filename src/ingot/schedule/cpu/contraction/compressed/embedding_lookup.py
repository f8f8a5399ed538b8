"""Lookups of rows in a constant table that is packed for products, so that a table tied to the output layer of a
language model is in memory once: from panels of levels (`block_quantized_operand.py`), or of plain numbers.

    for id in the chunk:    a column of a panel
        for block, word:    y[id, block, 0..8] = ((splat(words[block, column]) >> (0, 4, ...) & 15) - zero) * scale
"""

from __future__ import annotations

from functools import reduce
from math import prod

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import product
from ingot.ir.kernel import Buffer, Expr, Kernel, Lit, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, rebuild
from ingot.ir.types import f32, i32, i64, static_shape, u32
from ingot.ops.views import base_of
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.contraction.compressed.block_quantized_operand import Dims, packed_levels
from ingot.schedule.cpu.contraction.group import Param, has_other_readers
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Factor
from ingot.schedule.cpu.contraction.pack import pack_panels, panel_widths
from ingot.schedule.cpu.contraction.plan import Plan, level_vectors
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.group_io import bind_result, result_index, store_results
from ingot.schedule.index import ZERO, Index, add, dim_expr, mul
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.support.dataclass import dataclass


def lower_embedding_lookup(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """One kernel. A chunk is one row of the result, with the fused pointwise epilogue."""
    (anchor,) = (n for n in body.nodes() if isinstance(n.op, ops.EmbeddingLookup))
    if isinstance(anchor.inputs[0].op, ops.LEVEL_FORMS):
        return _Lookup(body, ins, outs, anchor, machine).of_levels()
    if ins[body.inputs.index(anchor.inputs[0])].panel:
        return _Lookup(body, ins, outs, anchor, machine).of_panels()
    plain = rebuild(body.outputs, {anchor: ops.Take(0).lower(*anchor.inputs)})
    return lower_pointwise(body.with_outputs(plain), ins, outs, machine)


class _Lookup:
    def __init__(
        self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], anchor: Node, machine: Machine
    ) -> None:
        self.body, self.ins, self.outs, self.anchor, self.machine = body, ins, outs, anchor, machine
        self.table, self.ids = anchor.inputs
        self.operands, self.chunk, self.top = Operands.of(body), k.var("chunk"), Block()
        self.em = self.operands.emitter(body, ins)
        top = self.top
        self.place = tuple(top.let(e, "i") for e in ix.delinearize(self.chunk, self.ids.shape, top.multiples))
        (self.rows,) = static_shape(self.table.shape[:1])
        self.row = top.let(_wrap_index(k.cast(self.em.value(top, self.ids, self.place), i64), self.rows), "n")

    def of_levels(self) -> Lowered:
        lanes, table = self.machine.lanes(f32), self.table
        dims = Dims(0, tuple(range(1, table.type.rank - 1)), table.type.rank - 1)
        widths = panel_widths(self.rows, _plan(level_vectors(self.rows, self.machine) * lanes, self.machine))
        b, params, packs = packed_levels(self.body, table, self.ins, dims, widths)
        *blocks, levels = static_shape(table.shape[1:])
        column = _Column.of(self.top, self.row, widths)
        levels_per_word = 32 // b.planes[0]

        def store_block(x: Block, t: Expr) -> None:
            scale = column.term(x, t, b.scale)
            minimum = column.term(x, t, b.minimum) if b.minimum else None
            at = tuple(x.let(e, "t") for e in ix.delinearize(t, tuple(blocks), x.multiples))

            def word(y: Block, w: Expr, places: int) -> None:
                count = 1 if lanes == 1 else places
                for first in range(0, places, count):
                    value = column.values(y, b, (prod(blocks), levels), t, (w, first), count)
                    value = k.mul(value, k.splat(scale, count))
                    value = value if minimum is None else k.add(value, k.splat(minimum, count))
                    self._store(y, (*at, _span(add(mul(w, integer(levels_per_word)), integer(first)), count)), value)

            x.loop("w", 0, levels // levels_per_word, 1, lambda y, w: word(y, w, levels_per_word))
            if levels % levels_per_word:
                word(x, integer(levels // levels_per_word), levels % levels_per_word)

        self.top.loop("t", 0, prod(blocks), 1, store_block)
        return self._lowered(params, packs)

    def of_panels(self) -> Lowered:
        """Read from the panels of a product that contracts the table's last dimension."""
        table, index = self.table, self.body.inputs.index(self.table)
        panel, (columns,) = self.ins[index].panel, static_shape(table.shape[1:])
        lanes = self.machine.lanes(f32)
        reduce, cols = Axis(columns, 1, 1), Axis(self.rows, 0, columns)
        c = Contraction((), (Axis(1),), (cols,), (reduce,), f32, table.dtype, f32, level_bits=0, panel=panel)
        plan = _plan(panel, self.machine)
        pack = pack_panels(index, c, plan)
        buffer, k_per_lane = Buffer("b", pack.dtype), c.k_per_lane
        column = _Column.of(self.top, self.row, panel_widths(self.rows, plan))
        start = self.top.let(mul(column.first, dim_expr(c.padded_k)), "bp")

        def part(x: Block, first: Expr, count: int) -> None:
            at, count_in_lane = _span(first, count), k.lit(k_per_lane, i64, count)
            line = k.binary("mul", k.binary("div", at, count_in_lane), k.splat(column.width, count))
            flat = k.binary("mul", k.binary("add", line, k.splat(column.column, count)), count_in_lane)
            flat = k.binary("add", k.binary("add", flat, k.binary("rem", at, count_in_lane)), k.splat(start, count))
            value = k.gather(buffer, flat) if count > 1 else k.load(buffer, flat)
            self._store(x, (at,), value)

        self.top.loop("k", 0, columns // lanes * lanes, lanes, lambda x, first: part(x, first, lanes))
        if columns % lanes:
            part(self.top, integer(columns // lanes * lanes), columns % lanes)
        return self._lowered(((buffer, Arg("pack", 0)),), (pack,))

    def _store(self, block: Block, index: Index, value: Expr) -> None:
        """Store the results for a part of a row. index: its position in the row of the table."""
        bind_result(self.em, block, self.anchor, block.let(value, "v"))
        at = result_index(block, self.body.outputs[0], self.anchor, (*self.place, *index))
        store_results(self.em, block, self.body, self.operands.outs, self.outs, at, None)

    def _lowered(self, b: tuple[Param, ...], packs: tuple[Pack, ...]) -> Lowered:
        body, table = self.body, self.table
        parts = [(x, table) for x in table.inputs] or [(table, self.anchor)]
        unread = {base_of(x) for x, reader in parts if not has_other_readers(body, x, reader)}
        params = [
            (buffer, arg)
            for buffer, arg in zip(self.operands.params, self.operands.args, strict=True)
            if arg.kind != "in" or body.inputs[arg.index] not in unread
        ]
        params += b
        dims = symbol_params(*body_dims(body, (*self.ins, *self.outs)), *self.ids.shape)
        chunks = dim_expr(product(self.ids.shape))
        kernel = Kernel("embedding_lookup", tuple(p for p, _ in params), dims, self.chunk, chunks, self.top.body)
        return Lowered((Step(kernel, tuple(arg for _, arg in params)),), (), packs)


def _span(first: Expr, count: int) -> Expr:
    return k.ramp(first, count) if count > 1 else first


def _plan(panel: int, machine: Machine) -> Plan:
    """A plan with panels of `panel` columns."""
    lanes = machine.lanes(f32)
    return Plan(lanes, 1, 1, panel // lanes, 1, 1, 1, 1, machine.masks)


def _wrap_index(row: Expr, rows: int) -> Expr:
    """The row index, where negative ones count from the end, clamped to the table."""
    row = k.select(k.binary("lt", row, ZERO), add(row, integer(rows)), row)
    return k.binary("max", k.binary("min", row, integer(rows - 1)), ZERO)


@dataclass(frozen=True)
class _Column:
    """A column of a panel. first: the panel's first column. column: the position in the panel. width: the panel's."""

    first: Expr
    column: Expr
    width: Expr

    @staticmethod
    def of(block: Block, row: Expr, widths: list[int]) -> _Column:
        number = block.let(k.binary("div", row, integer(widths[0])), "p")
        first = block.let(mul(number, integer(widths[0])), "f")
        is_last = k.binary("eq", number, integer(len(widths) - 1))
        width = block.let(k.select(is_last, integer(widths[-1]), integer(widths[0])), "width")
        return _Column(first, block.let(k.sub(row, first), "c"), width)

    def term(self, block: Block, t: Expr, factors: tuple[Factor, ...]) -> Expr:
        """The scale or minimum of block `t`."""

        def value(factor: Factor) -> Expr:
            if isinstance(factor.values, Lit):
                return factor.values
            line = factor.line(self.first, self.width, t)
            return k.cast(block.let(k.load(factor.values, add(line, self.column)), "s"), f32)

        return block.let(reduce(k.mul, map(value, factors)), "s")

    def values(
        self, block: Block, b: BlockQuantized, shape: tuple[int, int], t: Expr, place: tuple[Expr, int], count: int
    ) -> Expr:
        """level - zero for `count` levels of block `t` from `place` on, which is (word, level in the word). shape:
        (blocks, levels per block)."""
        w, first = place
        blocks, rows = shape[0], b.word_rows(shape[1])
        levels_per_word, first_row, low_bit, parts = 32 // b.planes[0], 0, 0, list[Expr]()
        panel = mul(self.first, integer(blocks * sum(rows)))
        line = block.let(add(panel, mul(t, mul(self.width, integer(sum(rows))))), "bw")
        for bits, own_rows in zip(b.planes, rows, strict=True):
            shared = b.planes[0] // bits  # words of the lowest plane whose other bits share a word of this one
            row = add(k.binary("div", w, integer(shared)), integer(first_row))
            word = block.let(k.load(b.words, add(add(line, mul(row, self.width)), self.column)), "w")
            shift = mul(k.binary("rem", w, integer(shared)), integer(levels_per_word // 4 * bits))
            field = k.binary("lshr", k.splat(word, count), k.splat(k.cast(shift, u32), count))
            field = k.binary("lshr", field, _bit_offset(first, count, bits))
            field = k.binary("and", field, k.lit((1 << bits) - 1, u32, count))
            parts.append(k.binary("shl", field, k.lit(low_bit, u32, count)) if low_bit else field)
            first_row, low_bit = first_row + own_rows, low_bit + bits
        level = k.cast(k.bitcast(reduce(lambda x, y: k.binary("or", x, y), parts), i32), f32)
        zero = k.splat(self.term(block, t, (b.zeros,)), count)
        return k.sub(level if b.has_integer_zeros else k.sub(level, k.lit(float(b.bias), f32, count)), zero)


def _bit_offset(first: int, count: int, bits: int) -> Expr:
    """The bit offsets in a word of the levels from `first` on, in a plane of `bits` bits."""
    level = k.binary("add", k.ramp(ZERO, count), k.lit(first, i64, count)) if count > 1 else integer(first)
    byte, field = (k.binary(fn, level, k.lit(4, i64, count)) for fn in ("rem", "div"))
    byte, field = (k.binary("mul", x, k.lit(n, i64, count)) for x, n in ((byte, 8), (field, bits)))
    return k.cast(k.binary("add", byte, field), u32)


__all__ = ["lower_embedding_lookup"]
