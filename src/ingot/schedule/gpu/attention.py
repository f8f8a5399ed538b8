"""Attention without scores in memory (Dao et al., "FlashAttention-2", 2023): a program takes a block of queries of one
head and walks the keys.

    for keys in blocks:
        s = mask(q @ k^T * scale);  m' = max(m, s);  p = exp(s - m')
        l = l * exp(m - m') + sum(p);  acc = acc * exp(m - m') + p @ v;  m = m'
    out = acc / l

Where weights are rounded to 16 bits, the scale goes into the exponent: p = 2^(fma(s, unit, -m' * unit)).
Where few queries see many keys, parts of the keys are each a program's own, and the last to end joins their sums.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, log
from typing import NamedTuple

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, floordiv, is_static
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import boolean, f32, i64
from ingot.ops import Attention
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Flash, Site
from ingot.schedule.emit import Index
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    Span,
    all_of,
    constant_tile,
    if_last,
    power_of_two,
    read_at,
    register,
    write,
)
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, flash_site
from ingot.schedule.group_io import bind_result, operand_memory, result_index
from ingot.schedule.index import ZERO, both, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

LEAST = 16  # sides of tiles that are multiplied
FEW = 32  # queries of a tile, down to which tiles are cut for more programs
MOST_PARTS = 16
DEEP = 160 << 10  # bytes of shared memory that three turns of longer heads take
DEPTH = 64  # of a head, up to which a multiprocessor takes several programs of three turns' keys and values


@dataclass(frozen=True)
class _Operand:
    buffer: Buffer
    layout: Layout

    def read(self, block: Block, index: Index, mask: Expr | None) -> Expr:
        """A tile, read where `mask` is on and zero elsewhere."""
        return read_at(block, self.buffer, ix.linear(index, self.layout.strides, self.layout.offset), mask)


def lower_attention(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """An Attention and what is behind it. Raises CompileError for a symbolic head size."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Attention))
    return _Flash.of(anchor, body, ins, outs, machine).lower()


class _Sums(NamedTuple):
    """Over keys: the highest score, and of the powers relative to it the sum, and that of values by them."""

    best: Expr
    total: Expr
    acc: Expr


@dataclass
class _Flash:
    """depth, width: of a head's queries and keys, and of its values."""

    op: Attention
    anchor: Node
    group: Group
    inputs: list[_Operand]
    depth: int
    width: int
    machine: Machine

    @staticmethod
    def of(anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> _Flash:
        q, _, v = anchor.inputs[:3]
        depth, width = q.shape[3], v.shape[3]
        if not isinstance(depth, int) or not isinstance(width, int):
            raise CompileError("attention", expected="a static head size", got=f"{q.type} and {v.type}")
        op, group = anchor.op, Group.of(body, ins, outs)
        assert isinstance(op, Attention)
        inputs: list[_Operand] = []
        for x in anchor.inputs:
            at, layout = operand_memory(body, x, ins)
            inputs.append(_Operand(group.operands.ins[at], layout))
        if len(inputs) == 4:
            scores = (*q.shape[:3], anchor.inputs[1].shape[2])
            mask = inputs[3].layout
            own = tuple(range(4 - len(mask.shape), 4))
            inputs[3] = _Operand(inputs[3].buffer, mask.broadcast(scores, own))
        return _Flash(op, anchor, group, inputs, depth, width, machine)

    @cached_property
    def sharing(self) -> int:
        """Heads whose queries form one tile, as they see the same keys: where all of these are few."""
        heads, rows, shared = (
            self.anchor.inputs[0].shape[1],
            self.anchor.inputs[0].shape[2],
            self.anchor.inputs[1].shape[1],
        )
        if not isinstance(heads, int) or not isinstance(shared, int) or not isinstance(rows, int):
            return 1
        return heads // shared if heads // shared * rows <= LEAST else 1

    @property
    def _shape(self) -> tuple[DimLike, DimLike, DimLike]:
        """Of the queries: batch, heads or groups of them, and queries of one."""
        batch, heads, rows, _ = self.anchor.inputs[0].shape
        if self.sharing == 1:
            return batch, heads, rows
        return batch, floordiv(heads, self.sharing), rows * self.sharing

    @cached_property
    def site(self) -> Site:
        return flash_site(self.group.body, self.anchor, self._model(), self._admits)

    @cached_property
    def choice(self) -> Flash:
        return decided(self.site, self.machine, Flash)

    @property
    def tile(self) -> Tile:
        """Queries and keys of a turn."""
        return self.choice.queries, self.choice.keys

    def _model(self) -> Flash:
        """As many queries as leave a program for most multiprocessors."""
        batch, heads, rows = map(estimate, self._shape)
        long = self.anchor.inputs[0].dtype != f32 and DEPTH < self.depth <= 2 * DEPTH
        height = 128 if long else 64
        height = max(LEAST, min(height, power_of_two(rows)))
        width = max(LEAST, min(64, power_of_two(self._keys)))
        narrow = all(x.dtype.bits <= 16 for x in self.anchor.inputs[:3]) and self.depth <= DEPTH
        if narrow and rows > FEW and self._keys > FEW:
            # as few keys that there are not as may be where programs are many, else few turns
            many = batch * heads * -(-rows // height) > self.machine.processors
            width = min((128, 64, FEW) if many else (128, 64), key=lambda n: -(-self._keys // n) * n)
        least = FEW if self._keys > width else LEAST
        while height > least and batch * heads * -(-rows // height) < 2 * self.machine.processors // 3:
            height //= 2
        programs = batch * heads * -(-rows // height)
        parts = max(1, min(self.machine.processors // max(1, programs), self._most_parts(width)))
        warps = 8 if height == 128 or (height == LEAST and narrow) else 4
        return Flash(height, width, warps, 3 if self.depth <= DEPTH or self.machine.shared >= DEEP else 2, parts)

    @property
    def _keys(self) -> int:
        return estimate(self.anchor.inputs[1].shape[2])

    def _most_parts(self, width: int) -> int:
        """Of the keys, in turns of `width`; sizes that only a call knows are not cut."""
        fixed = isinstance(self.anchor.inputs[1].shape[2], int) and is_static(self._shape)
        return min(-(-self._keys // width), MOST_PARTS) if fixed else 1

    def _admits(self, c: Flash) -> bool:
        powers = all(n > 0 and n & n - 1 == 0 for n in (c.queries, c.keys, c.warps))
        sides = LEAST <= c.queries <= 128 and LEAST <= c.keys <= 128
        copied = c.queries * self.depth + c.stages * c.keys * (self.depth + self.width)
        sides = sides and copied * self.anchor.inputs[0].dtype.nbytes <= self.machine.shared
        return powers and sides and c.warps <= 8 and 1 <= c.stages <= 4 and 1 <= c.parts <= self._most_parts(c.keys)

    def lower(self) -> Lowered:
        top, chunk = Block(), k.var("chunk")
        heads, common = self.anchor.inputs[0].shape[1], self.anchor.inputs[1].shape[1]
        batch, groups, rows = self._shape
        height, _ = self.tile
        blocks = ceildiv(rows, height)
        whole = batch * groups * blocks
        parts = self.choice.parts
        number = ZERO if parts == 1 else top.let(k.binary("div", chunk, dim_expr(whole)), "number")
        own = chunk if parts == 1 else top.let(k.binary("rem", chunk, dim_expr(whole)), "own")
        part, entry = k.binary("rem", own, dim_expr(blocks)), k.binary("div", own, dim_expr(blocks))
        entry = top.let(entry, "entry")
        b, h = (top.let(e, "i") for e in ix.delinearize(entry, (batch, groups), {}))
        first = top.let(k.mul(part, integer(height)), "first")
        span = Span.of(top, first, height, rows, 0, wraps=True)
        shared = h
        if self.sharing > 1:  # a group is what shares a head of keys
            count = dim_expr(self.anchor.inputs[0].shape[2])
            inner = top.let(k.binary("div", span.position, count), "inner")
            h = top.let(k.add(k.mul(h, integer(self.sharing)), inner), "h")
            span = Span(top.let(k.sub(span.position, k.mul(inner, count)), "row"), span.in_bounds)
        elif common != heads:
            assert isinstance(heads, int) and isinstance(common, int)
            shared = top.let(k.binary("div", h, integer(heads // common)), "shared")
        sums = self._sums(top, b, h, shared, first, span, number, parts)
        place = b, h, span
        extra, temps, zeros = tuple[tuple[Buffer, Arg], ...](), tuple[DimLike, ...](), 0
        if parts == 1:
            self._finish(top, sums, place)
        else:
            buffers = [Buffer(n, f32, writable=True, align=ALIGNMENT_BYTES) for n in ("bests", "totals", "accs")]
            arrived = Buffer("arrived", i64, writable=True, align=ALIGNMENT_BYTES)
            self._join(top, sums, place, buffers, (number, parts), (arrived, own, whole))
            extra = *((x, Arg("temp", i)) for i, x in enumerate(buffers)), (arrived, Arg("zeros", 0))
            temps = tuple(whole * parts * lanes * f32.nbytes for lanes in (x.lanes for x in sums))
            zeros = whole * i64.nbytes
        warps, stages = self.choice.warps, self.choice.stages
        step = self.group.step("attention", chunk, whole * parts, top, *extra, warps=warps, stages=stages)
        return Lowered((step,), temps, site=self.site, zeros=zeros)

    def _join(
        self,
        top: Block,
        sums: _Sums,
        place: tuple[Expr, Expr, Span],
        buffers: list[Buffer],
        part: tuple[Expr, int],
        counter: tuple[Buffer, Expr, DimLike],
    ) -> None:
        """Keep the sums of a part of the keys; whoever ends last weighs those of all. part: its number, of how many.
        counter: where arrivals are counted, at which place of how many."""
        (number, parts), (arrived, own, whole) = part, counter
        local = [_lanes(x.tile or (1, 1)) for x in sums]

        def at(own_number: Expr, i: int) -> Expr:
            block = k.add(k.mul(own_number, dim_expr(whole)), own)
            return k.add(k.mul(block, integer(sums[i].lanes)), local[i])

        for i, (buffer, value) in enumerate(zip(buffers, sums, strict=True)):
            top.store(buffer, at(number, i), value)

        def last(block: Block) -> None:
            found = [
                _Sums(*(read_at(block, x, at(integer(p), i), None) for i, x in enumerate(buffers)))
                for p in range(parts)
            ]
            best = found[0].best
            for other in found[1:]:
                best = block.let(k.binary("max", best, other.best), "best")
            level = block.let(_finite(best), "level")
            total: Expr | None = None
            acc: Expr | None = None
            for each in found:
                weight = block.let(self._weight(each.best, level), "weight")
                own_total, own_acc = k.mul(each.total, weight), k.mul(each.acc, weight)
                total = block.let(own_total if total is None else k.add(total, own_total), "total")
                acc = block.let(own_acc if acc is None else k.add(acc, own_acc), "acc")
            assert total is not None and acc is not None
            self._finish(block, _Sums(best, total, acc), place)

        if_last(top, parts, arrived, own, last)

    def _finish(self, block: Block, sums: _Sums, place: tuple[Expr, Expr, Span]) -> None:
        """What is behind the sums over all keys."""
        empty = k.binary("eq", sums.total, k.lit(0.0, f32))
        total = k.select(empty, k.lit(1.0, f32), sums.total)
        if self._narrow:  # one division of a row
            value = k.mul(sums.acc, block.let(k.binary("div", k.lit(1.0, f32), total), "share"))
        else:
            value = k.binary("div", sums.acc, total)
        if self.op.guarded:
            value = k.select(k.binary("ne", sums.total, sums.total), k.lit(0.0, f32), value)
        em = self.group.emitter()
        bind_result(em, block, self.anchor, block.let(k.cast(value, self.anchor.dtype), "result"))
        columns = self._columns(block, self.width, 1)
        b, h, span = place
        for root, buffer, layout in self.group.results:
            index = result_index(block, root, self.anchor, (b, h, span.position, columns.position))
            write(block, em, root, buffer, layout, index, columns.in_bounds, span.in_bounds)

    def _columns(self, block: Block, size: int, axis: int) -> Span:
        """Positions along a head, in a tile's side."""
        return Span.of(block, ZERO, max(LEAST, power_of_two(size)), size, axis)

    def _sums(
        self, top: Block, b: Expr, h: Expr, shared: Expr, first: Expr, span: Span, number: Expr, parts: int
    ) -> _Sums:
        """The sums of some queries over part `number` of the keys."""
        (height, width), out = self.tile, max(LEAST, power_of_two(self.width))
        across, down = self._columns(top, self.depth, 1), self._columns(top, self.depth, 0)
        q = self.inputs[0].read(top, (b, h, span.position, across.position), across.in_bounds)
        q = k.spread(q, (height, across.position.lanes))
        best = register(top, "best", constant_tile(f32, (height, 1), -inf))
        total = register(top, "total", constant_tile(f32, (height, 1)))
        acc = register(top, "acc", constant_tile(f32, (height, out)))

        def turn(block: Block, at: Expr) -> None:
            keys = Span.of(block, at, width, self.anchor.inputs[1].shape[2], 1)
            kt = self.inputs[1].read(
                block, (b, shared, keys.position, down.position), all_of(down.in_bounds, keys.in_bounds)
            )
            kt = k.spread(kt, (down.position.lanes, width))
            s = block.let(k.tile_product(q, kt, k.spread(k.lit(0.0, f32), (height, width))), "s")
            s = s if self._late else self._capped(k.mul(s, k.lit(self.op.scale, f32)))
            s = self._masked(block, s, b, h, span, keys)
            s = block.let(s, "s")
            old = block.let(k.load(best, ZERO), "o")
            new = block.let(k.binary("max", old, k.reduce_along("max", s, 1)), "m")
            level = block.let(_finite(new), "level")
            p = block.let(self._weight(s, level), "p")
            kept = block.let(self._weight(old, level), "kept")
            block.store(best, ZERO, new)
            block.store(total, ZERO, k.fma(k.load(total, ZERO), kept, k.reduce_along("add", p, 1)))
            below = Span.of(block, at, width, self.anchor.inputs[1].shape[2], 0)
            values = self._columns(block, self.width, 1)
            v = self.inputs[2].read(
                block, (b, shared, below.position, values.position), all_of(below.in_bounds, values.in_bounds)
            )
            v = k.spread(v, (width, out))
            scaled = k.mul(k.load(acc, ZERO), kept)
            block.store(acc, ZERO, k.tile_product(k.cast(p, v.dtype), v, scaled))

        begin, end = ZERO, self._seen(top, first)
        if parts > 1:
            keys = estimate(self.anchor.inputs[1].shape[2])
            length = -(-keys // (width * parts)) * width
            begin = top.let(k.mul(number, integer(length)), "begin")
            end = top.let(k.binary("min", k.add(begin, integer(length)), end), "end")
        top.loop("j", begin, end, width, turn, multiple=width)
        return _Sums(*(top.let(k.load(x, ZERO), "sums") for x in (best, total, acc)))

    @property
    def _narrow(self) -> bool:
        """Weights are rounded to 16 bits, as the values that they meet."""
        return self.anchor.inputs[2].dtype.bits == 16

    @property
    def _late(self) -> bool:
        """Scores are scaled where weights are made of them: nothing is added to them, and the highest stays it."""
        added = len(self.inputs) == 4 and self.inputs[3].buffer.dtype != boolean
        return self._narrow and not added and not self.op.softcap and self.op.scale > 0

    def _weight(self, score: Expr, level: Expr) -> Expr:
        """The exponential of a score relative to the highest. `level` is multiplied by itself, so that what that rounds
        is the same in all weights."""
        if not self._narrow:
            return k.call("exp_decay", k.binary("sub", score, level))
        unit = k.lit((self.op.scale if self._late else 1.0) / log(2), f32)
        score, factor, below = k.alike(score, unit, k.mul(level, k.lit(-unit.value, f32)))
        return k.call("exp2_narrow", k.fma(score, factor, below))

    @property
    def _offset(self) -> DimLike:
        q, key = self.anchor.inputs[:2]
        return self.op.offset(q.shape[2], key.shape[2])

    def _seen(self, top: Block, first: Expr) -> Expr:
        """Behind the last key that some query of the block from `first` on sees."""
        keys = dim_expr(self.anchor.inputs[1].shape[2])
        if self.op.causal == "none":
            return keys
        seen = k.add(k.add(first, integer(self.tile[0])), dim_expr(self._offset))
        return top.let(k.binary("max", k.binary("min", seen, keys), ZERO), "end")

    def _capped(self, s: Expr) -> Expr:
        if not self.op.softcap:
            return s
        return k.mul(ops.Tanh().scalar(k.mul(s, k.lit(1 / self.op.softcap, f32))), k.lit(self.op.softcap, f32))

    def _masked(self, block: Block, s: Expr, b: Expr, h: Expr, rows: Span, keys: Span) -> Expr:
        """Scores of the keys that each query sees, others at minus infinity."""
        inside = keys.in_bounds
        if len(self.inputs) == 4:
            mask = self.inputs[3].read(block, (b, h, rows.position, keys.position), keys.in_bounds)
            if mask.dtype == boolean:
                inside = both(inside, mask)
            else:
                s = k.add(s, k.cast(mask, f32))
        if self.op.causal != "none":
            inside = both(inside, k.binary("le", keys.position, k.add(rows.position, dim_expr(self._offset))))
        return s if inside is None else k.select(inside, s, k.lit(-inf, f32))


def _finite(best: Expr) -> Expr:
    """What is taken off the scores: nothing where no key is seen."""
    return k.select(k.binary("eq", best, k.lit(-inf, f32)), k.lit(0.0, f32), best)


def _lanes(tile: Tile) -> Expr:
    """The places of a tile's elements, row by row."""
    rows = k.mul(k.positions(tile[0], 0), integer(tile[1]))
    return rows if tile[1] == 1 else k.add(rows, k.positions(tile[1], 1))


__all__ = ["lower_attention"]
