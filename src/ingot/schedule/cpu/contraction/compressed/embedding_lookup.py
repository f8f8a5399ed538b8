"""Rows of a constant table of levels, read where products store it (`block_quantized_operand.py`): a table that is the
output of a language model, too, is in memory once.

    for id in the chunk:    a column of a panel
        for block, word:    y[id, block, 0..8] = ((splat(words[block, column]) >> (0, 4, ...) & 15) - zero) * scale
"""

from __future__ import annotations

from functools import reduce
from math import prod

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import product
from ingot.ir.kernel import Expr, Kernel, Lit, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import f32, i32, i64, static_shape, u32
from ingot.ops.views import base_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.contraction.compressed.block_quantized_operand import Dims, packed_levels
from ingot.schedule.cpu.contraction.group import has_other_readers
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Factor
from ingot.schedule.cpu.contraction.plan import level_vectors
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.group_io import bind_result, result_index, store_results
from ingot.schedule.index import ZERO, add, dim_expr, mul
from ingot.schedule.lowered import Lowered, Step
from ingot.support.dataclass import dataclass


def lower_embedding_lookup(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """One kernel; a chunk is one row of the result, with the pointwise ops behind it."""
    (anchor,) = (n for n in body.nodes() if isinstance(n.op, ops.EmbeddingLookup))
    table, ids = anchor.inputs
    rank, (columns,) = table.type.rank, static_shape(table.shape[:1])
    panel = level_vectors(columns, machine) * machine.lanes(f32)
    full, rest = divmod(columns, panel)
    widths = [panel] * full + ([-(-rest // machine.lanes(f32)) * machine.lanes(f32)] if rest else [])
    b, pack_params, packs = packed_levels(body, table, ins, Dims(0, tuple(range(1, rank - 1)), rank - 1), widths)

    operands, chunk, top = Operands.of(body), k.var("chunk"), Block()
    em = operands.emitter(body, ins)
    place = tuple(top.let(e, "i") for e in ix.delinearize(chunk, ids.shape, top.multiples))
    row = top.let(_wrapped(k.cast(em.value(top, ids, place), i64), columns), "n")
    *blocks, levels = static_shape(table.shape[1:])
    words = _Column.of(top, b, prod(blocks), row, widths)

    def turn(x: Block, t: Expr) -> None:
        scale = words.term(x, t, b.scale)
        minimum = words.term(x, t, b.minimum) if b.minimum else None
        at = (*place, *(x.let(e, "t") for e in ix.delinearize(t, tuple(blocks), x.multiples)))

        def word(y: Block, w: Expr, count: int) -> None:
            value = k.mul(words.values(y, t, w, count, levels), k.splat(scale, count))
            value = value if minimum is None else k.add(value, k.splat(minimum, count))
            bind_result(em, y, anchor, y.let(value, "v"))
            first = mul(w, integer(32 // b.planes[0]))
            index = result_index(y, body.outputs[0], anchor, (*at, k.ramp(first, count) if count > 1 else first))
            store_results(em, y, body, operands.outs, outs, index, None)

        each = 32 // b.planes[0]
        x.loop("w", 0, levels // each, 1, lambda y, w: word(y, w, each))
        if levels % each:
            word(x, integer(levels // each), levels % each)

    top.loop("t", 0, prod(blocks), 1, turn)
    unread = {base_of(x) for x in table.inputs if not has_other_readers(body, x, table)}
    params = [
        (buffer, arg)
        for buffer, arg in zip(operands.params, operands.args, strict=True)
        if arg.kind != "in" or body.inputs[arg.index] not in unread
    ]
    params += pack_params
    dims = symbol_params(*body_dims(body, (*ins, *outs)), *ids.shape)
    chunks = dim_expr(product(ids.shape))
    kernel = Kernel("embedding_lookup", tuple(p for p, _ in params), dims, chunk, chunks, top.body)
    return Lowered((Step(kernel, tuple(arg for _, arg in params)),), (), packs)


def _wrapped(row: Expr, rows: int) -> Expr:
    """A row of the table: negative ones count from the end, others beyond it are the nearest."""
    row = k.select(k.binary("lt", row, ZERO), add(row, integer(rows)), row)
    return k.binary("max", k.binary("min", row, integer(rows - 1)), ZERO)


@dataclass(frozen=True)
class _Column:
    """A column of a panel of levels. blocks: of the column. first: the panel's first column. column: within the panel.
    width: the panel's."""

    b: BlockQuantized
    blocks: int
    first: Expr
    column: Expr
    width: Expr

    @staticmethod
    def of(block: Block, b: BlockQuantized, blocks: int, row: Expr, widths: list[int]) -> _Column:
        number = block.let(k.binary("div", row, integer(widths[0])), "p")
        first = block.let(mul(number, integer(widths[0])), "f")
        is_last = k.binary("eq", number, integer(len(widths) - 1))
        width = block.let(k.select(is_last, integer(widths[-1]), integer(widths[0])), "width")
        return _Column(b, blocks, first, block.let(k.sub(row, first), "c"), width)

    def term(self, block: Block, t: Expr, factors: tuple[Factor, ...]) -> Expr:
        """The scale or minimum of block `t`."""

        def value(factor: Factor) -> Expr:
            if isinstance(factor.values, Lit):
                return factor.values
            line = factor.line(self.first, self.width, t)
            return k.cast(block.let(k.load(factor.values, add(line, self.column)), "s"), f32)

        return block.let(reduce(k.mul, map(value, factors)), "s")

    def values(self, block: Block, t: Expr, w: Expr, count: int, levels: int) -> Expr:
        """level - zero of the first `count` levels of word `w` of block `t`, which has so many levels."""
        b, rows = self.b, self.b.word_rows(levels)
        each, first_row, low_bit, parts = 32 // b.planes[0], 0, 0, list[Expr]()
        panel = mul(self.first, integer(self.blocks * sum(rows)))
        line = block.let(add(panel, mul(t, mul(self.width, integer(sum(rows))))), "bw")
        for bits, own_rows in zip(b.planes, rows, strict=True):
            shared = b.planes[0] // bits  # words of the lowest plane whose other bits share a word of this one
            row = add(k.binary("div", w, integer(shared)), integer(first_row))
            word = block.let(k.load(b.words, add(add(line, mul(row, self.width)), self.column)), "w")
            bit = add(mul(k.binary("rem", w, integer(shared)), integer(each * bits)), k.ramp(ZERO, count, bits))
            field = k.binary("lshr", k.splat(word, count), k.splat(k.cast(bit, u32), count))
            field = k.binary("and", field, k.lit((1 << bits) - 1, u32, count))
            parts.append(k.binary("shl", field, k.lit(low_bit, u32, count)) if low_bit else field)
            first_row, low_bit = first_row + own_rows, low_bit + bits
        level = k.cast(k.bitcast(reduce(lambda x, y: k.binary("or", x, y), parts), i32), f32)
        zero = k.splat(self.term(block, t, (b.zeros,)), count)
        return k.sub(level if b.has_integer_zeros else k.sub(level, k.lit(float(b.bias), f32, count)), zero)


__all__ = ["lower_embedding_lookup"]
