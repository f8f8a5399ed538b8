"""Pools: a window slides over a value and is folded at each place, with the pointwise ops behind it.

    for rows: for a tile of T outputs along one dimension: for 16 channels:
        for the rows of the window:   column[i] = fold(column[i], x[row, T * stride * tile + i])
        out[t] = epilogue(fold(column[t * stride], column[t * stride + 1], ...))

A tile folds across its dimension first and along it last, so that what neighbouring windows share is read and folded
once. Where the image ends, the loops over the other dimensions of the window are shorter; columns outside are read at
the image's edge, and then count as nothing. Windows that do not overlap read each element once, so what they read may
be computed there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, reduce
from math import prod

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, bounds, ceildiv, estimate
from ingot.ir.kernel import Expr, Kernel, Let, Lit, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops.core.base import dilated, identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.chunks import chunked_loops
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.group_io import bind_result, result_index, store_results
from ingot.schedule.index import ZERO, both, dim_expr
from ingot.schedule.lowered import Lowered, Step

UNROLL = 64  # loads of a tile that are printed one by one
TILE = 4  # outputs of a tile, at most: more streams than hardware follows cost more than they share

Places = dict[int, Expr]  # by dimension: where x is read


def lower_pool(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A ReduceWindow, what it reads where that is computed, and its epilogue."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, ops.ReduceWindow))
    return _Pool(anchor, body, ins, outs, machine).lower()


class _Pool:
    def __init__(
        self, anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
    ) -> None:
        op = anchor.op
        assert isinstance(op, ops.ReduceWindow)
        self.op, self.anchor, self.body, self.ins, self.outs, self.machine = op, anchor, body, ins, outs, machine
        self.x = anchor.inputs[0]
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.dtype = accumulator(self.x.dtype)
        self.rank = anchor.type.rank
        self.axis = max((d for d in range(self.rank) if anchor.shape[d] != 1), default=self.rank - 1)
        self.most = machine.registers * 2 // 3
        self.along = self._tiled()
        self.tile = 1 if self.along is None else self._tile(self.along)

    def _tiled(self) -> int | None:
        """The dimension along which a tile's windows share what they read: the last one that vectors do not run along,
        and which has elements to read for columns outside of it."""
        op, found = self.op, None
        for d in range(self.rank):
            some = (bounds(self.x.shape[d])[0] or 0) >= 1 and op.base_dilation[d] == 1
            shared = (op.window[d] - 1) * op.dilation[d] >= op.strides[d] and op.window[d] <= self.most
            if d != self.axis and some and shared:
                found = d
        return found

    def _tile(self, d: int) -> int:
        """Outputs of a tile: the fewest steps for a row, with all columns in registers."""
        width, window = estimate(self.anchor.shape[d]), self.op.window[d]
        across = prod(self.op.window) // window

        def cost(tile: int) -> float:
            return -(-width // tile) * (len(self._offsets(d, tile)) * (across + 1) + tile * window + 4)

        fitting = [t for t in range(1, min(TILE, width) + 1) if len(self._offsets(d, t)) <= self.most]
        return min(fitting or [1], key=cost)

    def _offsets(self, d: int, tile: int) -> list[int]:
        """The columns of a tile, relative to its first."""
        step, dilation = self.op.strides[d], self.op.dilation[d]
        return sorted({t * step + i * dilation for t in range(tile) for i in range(self.op.window[d])})

    @cached_property
    def offsets(self) -> list[int]:
        return [0] if self.along is None else self._offsets(self.along, self.tile)

    def lower(self) -> Lowered:
        chunk, top = k.var("chunk"), Block()
        shape = list(self.anchor.shape)
        if self.along is not None:
            shape[self.along] = ceildiv(shape[self.along], self.tile)
        lanes = lanes_for(self.body, self.machine)
        work = max(1, self.tile * prod(self.op.window) // 4)
        chunks = chunked_loops(top, chunk, tuple(shape), self.axis, lanes, self.machine, self._write, work=work)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), *self.anchor.shape)
        kernel = Kernel("pool", self.operands.params, dims, chunk, chunks, top.body)
        return Lowered((Step(kernel, self.operands.args),))

    def _write(self, block: Block, index: Index, mask: Expr | None) -> None:
        """The outputs of the tile at `index`, a vector of each."""
        op, along, width = self.op, self.along, index[self.axis].lanes
        fn, start = combining(op.kind, self.dtype), Lit(self.dtype, width, identity_of(op.kind, self.dtype))
        acc = block.alloc("acc", self.dtype, len(self.offsets), lanes=width)
        for i in range(len(self.offsets)):
            block.store(acc, integer(i), start)
        columns, inside = self._columns(block, index)

        def take(b: Block, at: Places, live: Expr | None) -> None:
            for i, column in enumerate(columns):
                where = tuple(column if d == along else at[d] for d in range(self.rank))
                value = k.cast(k.splat(self.em.value(b, self.x, where, live), width), self.dtype)
                if live is not None and live is not mask:
                    value = k.select(live, value, start)
                b.store(acc, integer(i), k.binary(fn, k.load(acc, integer(i)), value))

        self._taps(block, [d for d in range(self.rank) if d != along], index, {}, mask, take)
        found = [block.let(k.load(acc, integer(i)), "o") for i in range(len(columns))]
        for i, real in inside.items():
            found[i] = block.let(k.select(real, found[i], start), "o")
        if along is None:
            self._finish(block, index, found[0], mask)
            return
        at = {o: i for i, o in enumerate(self.offsets)}
        first = block.let(ix.mul(index[along], integer(self.tile)), "t")
        for t in range(self.tile):
            mine = [found[at[t * op.strides[along] + i * op.dilation[along]]] for i in range(op.window[along])]
            value = reduce(lambda a, b: block.let(k.binary(fn, a, b), "o"), mine)
            own = ix.add(first, integer(t))
            if self._always(t):
                self._finish(block, _with(index, along, own), value, mask)
            else:
                exists = k.binary("lt", own, dim_expr(self.anchor.shape[along]))
                block.when(exists, lambda b, own=own, value=value: self._finish_there(b, index, own, value, mask))

    def _always(self, t: int) -> bool:
        """Whether every tile has an output `t`."""
        assert self.along is not None
        size = self.anchor.shape[self.along]
        left = size % self.tile if isinstance(size, int) else 1
        return not left or t < left

    def _finish_there(self, block: Block, index: Index, own: Expr, value: Expr, mask: Expr | None) -> None:
        """`_finish` in a branch: a name of its own keeps loads of the epilogue inside of it."""
        assert self.along is not None
        here = block.fresh("t")
        block.stmts.append(Let(here, own))
        self._finish(block, _with(index, self.along, here), value, mask)

    def _finish(self, block: Block, index: Index, value: Expr, mask: Expr | None) -> None:
        bind_result(self.em, block, self.anchor, block.let(k.cast(value, self.x.dtype), "pool"))
        index = result_index(block, self.body.outputs[0], self.anchor, index)
        store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)

    def _columns(self, block: Block, index: Index) -> tuple[list[Expr], dict[int, Expr]]:
        """Where the tile's columns are read, and for those that may lie outside whether they do not."""
        d = self.along
        if d is None:
            return [ZERO], {}
        low, high = self.op.padding[d]
        size, whole = self.x.shape[d], self._always(self.tile - 1)
        first = ix.mul(index[d], integer(self.tile * self.op.strides[d]))
        first = block.let(ix.sub(first, dim_expr(low)), "x")
        places: list[Expr] = []
        inside: dict[int, Expr] = {}
        for i, offset in enumerate(self.offsets):
            at = block.let(ix.add(first, integer(offset)), "x")
            checks: list[Expr] = []
            if not _at_most(low, offset):
                checks.append(k.binary("ge", at, ZERO))
                at = k.binary("max", at, ZERO)
            if not (whole and _at_most(high, self.offsets[-1] - offset)):
                checks.append(k.binary("lt", at, dim_expr(size)))
                at = k.binary("min", at, dim_expr(size - 1))
            for check in checks:
                inside[i] = both(inside.get(i), check)
            places.append(block.let(at, "x"))
        return places, {i: block.let(e, "in") for i, e in inside.items()}

    def _taps(
        self,
        block: Block,
        left: list[int],
        index: Index,
        at: Places,
        live: Expr | None,
        take: Callable[[Block, Places, Expr | None], None],
    ) -> None:
        """The window's positions in the dimensions `left`; take(block, places, mask) at each that is inside."""
        if not left:
            take(block, at, live)
            return
        d, *rest = left
        op, window = self.op, self.op.window[d]
        origin = ix.sub(ix.mul(index[d], integer(op.strides[d])), dim_expr(op.padding[d][0]))
        origin = block.let(origin, "x")
        low, high = op.padding[d]
        masked = op.base_dilation[d] != 1 or (index[d].lanes > 1 and not (_at_most(low, 0) and _at_most(high, 0)))

        def one(b: Block, i: Expr) -> None:
            e, inside = ix.add(origin, ix.mul(i, integer(op.dilation[d]))), live
            if masked:
                e, inside = self._masked(b, d, e, inside)
            checks = self._checks(d, i.value, e) if isinstance(i, Lit) and not masked else []

            def there(c: Block) -> None:
                own = e
                if checks:  # a name of its own keeps loads inside the branch
                    own = c.fresh("x")
                    c.stmts.append(Let(own, e))
                self._taps(c, rest, index, {**at, d: own}, inside, take)

            if checks:
                b.when(reduce(both, checks), there)
            else:
                there(b)

        # printed one by one, each row of the image has loads of its own, which hardware can follow
        if window * prod(op.window[o] for o in rest) * len(self.offsets) <= UNROLL:
            for i in range(window):
                one(block, integer(i))
        else:
            block.loop("k", *self._reach(block, d, origin), 1, one)

    def _reach(self, block: Block, d: int, origin: Expr) -> tuple[Expr, Expr]:
        """From where to where positions of a window that begins at `origin` are inside, in some lane at least."""
        op, (low, high) = self.op, self.op.padding[d]
        begin, end = ZERO, integer(op.window[d])
        lanes = [origin if origin.lanes == 1 else k.Extract(origin.dtype, 1, origin, i) for i in (0, origin.lanes - 1)]

        def positions(room: Expr) -> Expr:
            up = ix.add(k.binary("max", room, ZERO), integer(op.dilation[d] - 1))
            return up if op.dilation[d] == 1 else k.binary("div", up, integer(op.dilation[d]))

        if not _at_most(low, 0):
            begin = block.let(positions(ix.sub(ZERO, lanes[1])), "k")
        if not _at_most(high, 0):
            size = dim_expr(dilated(self.x.shape[d], op.base_dilation[d]))
            end = block.let(k.binary("min", positions(ix.sub(size, lanes[0])), end), "k")
        return begin, end

    def _checks(self, d: int, i: float, e: Expr) -> list[Expr]:
        """What tells whether a scalar place, of position `i` of the window, is inside."""
        (low, high), last = self.op.padding[d], (self.op.window[d] - 1) * self.op.dilation[d]
        offset = int(i) * self.op.dilation[d]
        checks: list[Expr] = []
        if not _at_most(low, offset):
            checks.append(k.binary("ge", e, ZERO))
        if not _at_most(high, last - offset):
            checks.append(k.binary("lt", e, dim_expr(self.x.shape[d])))
        return checks

    def _masked(self, block: Block, d: int, e: Expr, live: Expr | None) -> tuple[Expr, Expr | None]:
        """A place along a dimension that has gaps, or which vectors run along: lanes outside are masked off."""
        low, high = self.op.padding[d]
        gap = self.op.base_dilation[d]
        if gap != 1:
            step = integer(gap)
            whole = k.binary("eq", k.binary("rem", e, step), k.splat(ZERO, e.lanes))
            live = both(live, k.binary("and", whole, k.binary("ge", e, ZERO)))
            e = k.binary("div", e, step)
        elif not _at_most(low, 0):
            live = both(live, k.binary("ge", e, ZERO))
        if gap != 1 or not (_at_most(high, 0) and _at_most(low, 0)):
            live = both(live, k.binary("lt", e, dim_expr(self.x.shape[d])))
        return e, None if live is None else block.let(live, "in")


def _with(index: Index, d: int, e: Expr) -> Index:
    return tuple(e if i == d else own for i, own in enumerate(index))


def _at_most(size: DimLike, most: int) -> bool:
    """Whether a padding is known to be no larger."""
    return isinstance(size, int) and size <= most


__all__ = ["lower_pool"]
