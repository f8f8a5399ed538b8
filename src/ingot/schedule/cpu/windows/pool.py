"""Pools: a window slides over a value and is reduced at each position, followed by pointwise ops.

    for rows: for a tile of T outputs along one dimension: for 16 channels:
        for the rows of the window:   column[i] = fold(column[i], x[row, T * stride * tile + i])
        out[t] = epilogue(fold(column[t * stride], column[t * stride + 1], ...))

A tile reduces across its dimension first and along it last, so that elements that neighboring windows share are read
and reduced once. At the image's edges, the loops over the other dimensions of the window are shorter; columns outside
are read at the edge and replaced by the identity. Windows that do not overlap read each element once, so their input
may be computed in place.
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
from ingot.ops.core.base import dilated_size, identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.chunks import chunked_loops
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.group_io import bind_result, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr, mask_and
from ingot.schedule.lowered import Lowered, Step

MAX_UNROLLED_LOADS = 64  # of a tile, beyond which the taps are loops
MAX_TILE_OUTPUTS = 4  # with more, the streams exceed what the hardware prefetcher follows

Positions = dict[int, Expr]  # the position in x of each dimension


def lower_pool(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """Lower a ReduceWindow with its epilogue and its input, if that is computed."""
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
        self.vector_dim = max((d for d in range(self.rank) if anchor.shape[d] != 1), default=self.rank - 1)
        self.max_columns = machine.registers * 2 // 3
        self.tiled_dim = self._find_tiled_dim()
        self.tile = 1 if self.tiled_dim is None else self._tile_outputs(self.tiled_dim)

    def _find_tiled_dim(self) -> int | None:
        """The dimension along which the windows of a tile overlap: the last one that vectors do not run along and whose
        columns outside the image can be read at its edge."""
        op, result = self.op, None
        for d in range(self.rank):
            is_readable = (bounds(self.x.shape[d])[0] or 0) >= 1 and op.base_dilation[d] == 1
            has_overlap = (op.window[d] - 1) * op.dilation[d] >= op.strides[d] and op.window[d] <= self.max_columns
            if d != self.vector_dim and is_readable and has_overlap:
                result = d
        return result

    def _tile_outputs(self, d: int) -> int:
        """The outputs of a tile: those with the fewest steps per row whose columns fit in registers."""
        width, window = estimate(self.anchor.shape[d]), self.op.window[d]
        other_taps = prod(self.op.window) // window

        def cost(tile: int) -> float:
            return -(-width // tile) * (len(self._offsets(d, tile)) * (other_taps + 1) + tile * window + 4)

        candidates = [
            t for t in range(1, min(MAX_TILE_OUTPUTS, width) + 1) if len(self._offsets(d, t)) <= self.max_columns
        ]
        return min(candidates or [1], key=cost)

    def _offsets(self, d: int, tile: int) -> list[int]:
        """The columns of a tile, relative to its first column."""
        step, dilation = self.op.strides[d], self.op.dilation[d]
        return sorted({t * step + i * dilation for t in range(tile) for i in range(self.op.window[d])})

    @cached_property
    def offsets(self) -> list[int]:
        return [0] if self.tiled_dim is None else self._offsets(self.tiled_dim, self.tile)

    def lower(self) -> Lowered:
        chunk, top = k.var("chunk"), Block()
        shape = list(self.anchor.shape)
        if self.tiled_dim is not None:
            shape[self.tiled_dim] = ceildiv(shape[self.tiled_dim], self.tile)
        lanes = lanes_for(self.body, self.machine)
        work = max(1, self.tile * prod(self.op.window) // 4)
        chunks = chunked_loops(
            top, chunk, tuple(shape), self.vector_dim, lanes, self.machine, self._write, operations=work
        )
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), *self.anchor.shape)
        kernel = Kernel("pool", self.operands.params, dims, chunk, chunks, top.body)
        return Lowered((Step(kernel, self.operands.args),))

    def _write(self, block: Block, index: Index, mask: Expr | None) -> None:
        """The outputs of the tile at `index`, a vector of each."""
        op, tiled_dim, width = self.op, self.tiled_dim, index[self.vector_dim].lanes
        fn, start = combining_op(op.kind, self.dtype), Lit(self.dtype, width, identity_of(op.kind, self.dtype))
        acc = block.alloc("acc", self.dtype, len(self.offsets), lanes=width)
        for i in range(len(self.offsets)):
            block.store(acc, integer(i), start)
        columns, inside = self._columns(block, index)

        def accumulate(b: Block, position: Positions, live: Expr | None) -> None:
            for i, column in enumerate(columns):
                x_index = tuple(column if d == tiled_dim else position[d] for d in range(self.rank))
                value = k.cast(k.splat(self.em.value(b, self.x, x_index, live), width), self.dtype)
                if live is not None and live is not mask:
                    value = k.select(live, value, start)
                b.store(acc, integer(i), k.binary(fn, k.load(acc, integer(i)), value))

        self._taps(block, [d for d in range(self.rank) if d != tiled_dim], index, {}, mask, accumulate)
        results = [block.let(k.load(acc, integer(i)), "o") for i in range(len(columns))]
        for i, is_inside in inside.items():
            results[i] = block.let(k.select(is_inside, results[i], start), "o")
        if tiled_dim is None:
            self._finish(block, index, results[0], mask)
            return
        column_of = {o: i for i, o in enumerate(self.offsets)}
        first = block.let(ix.mul(index[tiled_dim], integer(self.tile)), "t")
        for t in range(self.tile):
            taps = [
                results[column_of[t * op.strides[tiled_dim] + i * op.dilation[tiled_dim]]]
                for i in range(op.window[tiled_dim])
            ]
            value = reduce(lambda a, b: block.let(k.binary(fn, a, b), "o"), taps)
            output = ix.add(first, integer(t))
            if self._is_in_every_tile(t):
                self._finish(block, _replace_index(index, tiled_dim, output), value, mask)
            else:
                exists = k.binary("lt", output, dim_expr(self.anchor.shape[tiled_dim]))
                block.when(
                    exists, lambda b, output=output, value=value: self._finish_in_branch(b, index, output, value, mask)
                )

    def _is_in_every_tile(self, t: int) -> bool:
        """Whether every tile has an output `t`."""
        assert self.tiled_dim is not None
        size = self.anchor.shape[self.tiled_dim]
        tail = size % self.tile if isinstance(size, int) else 1
        return not tail or t < tail

    def _finish_in_branch(self, block: Block, index: Index, output: Expr, value: Expr, mask: Expr | None) -> None:
        """`_finish` in a branch. A fresh name keeps the epilogue's loads inside the branch."""
        assert self.tiled_dim is not None
        name = block.fresh("t")
        block.stmts.append(Let(name, output))
        self._finish(block, _replace_index(index, self.tiled_dim, name), value, mask)

    def _finish(self, block: Block, index: Index, value: Expr, mask: Expr | None) -> None:
        bind_result(self.em, block, self.anchor, block.let(k.cast(value, self.x.dtype), "pool"))
        index = result_index(block, self.body.outputs[0], self.anchor, index)
        store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)

    def _columns(self, block: Block, index: Index) -> tuple[list[Expr], dict[int, Expr]]:
        """Return the positions of the tile's columns, and for columns that can be outside, whether they are inside."""
        d = self.tiled_dim
        if d is None:
            return [ZERO], {}
        low, high = self.op.padding[d]
        size, is_full = self.x.shape[d], self._is_in_every_tile(self.tile - 1)
        first = ix.mul(index[d], integer(self.tile * self.op.strides[d]))
        first = block.let(ix.sub(first, dim_expr(low)), "x")
        positions: list[Expr] = []
        inside: dict[int, Expr] = {}
        for i, offset in enumerate(self.offsets):
            position = block.let(ix.add(first, integer(offset)), "x")
            checks: list[Expr] = []
            if not _at_most(low, offset):
                checks.append(k.binary("ge", position, ZERO))
                position = k.binary("max", position, ZERO)
            if not (is_full and _at_most(high, self.offsets[-1] - offset)):
                checks.append(k.binary("lt", position, dim_expr(size)))
                position = k.binary("min", position, dim_expr(size - 1))
            for check in checks:
                inside[i] = mask_and(inside.get(i), check)
            positions.append(block.let(position, "x"))
        return positions, {i: block.let(e, "in") for i, e in inside.items()}

    def _taps(
        self,
        block: Block,
        dims: list[int],
        index: Index,
        position: Positions,
        live: Expr | None,
        body: Callable[[Block, Positions, Expr | None], None],
    ) -> None:
        """Emit body(block, positions, mask) for the taps along `dims` that are inside the image."""
        if not dims:
            body(block, position, live)
            return
        d, *rest = dims
        op, window = self.op, self.op.window[d]
        origin = ix.sub(ix.mul(index[d], integer(op.strides[d])), dim_expr(op.padding[d][0]))
        origin = block.let(origin, "x")
        low, high = op.padding[d]
        needs_mask = op.base_dilation[d] != 1 or (index[d].lanes > 1 and not (_at_most(low, 0) and _at_most(high, 0)))

        def emit_tap(b: Block, i: Expr) -> None:
            e, inside = ix.add(origin, ix.mul(i, integer(op.dilation[d]))), live
            if needs_mask:
                e, inside = self._mask_position(b, d, e, inside)
            checks = self._bounds_checks(d, i.value, e) if isinstance(i, Lit) and not needs_mask else []

            def emit_inside(c: Block) -> None:
                name = e
                if checks:  # a fresh name keeps loads inside the branch
                    name = c.fresh("x")
                    c.stmts.append(Let(name, e))
                self._taps(c, rest, index, {**position, d: name}, inside, body)

            if checks:
                b.when(reduce(mask_and, checks), emit_inside)
            else:
                emit_inside(b)

        # if unrolled, each row of the image has separate loads, which the hardware prefetcher can follow
        if window * prod(op.window[o] for o in rest) * len(self.offsets) <= MAX_UNROLLED_LOADS:
            for i in range(window):
                emit_tap(block, integer(i))
        else:
            block.loop("k", *self._inside_range(block, d, origin), 1, emit_tap)

    def _inside_range(self, block: Block, d: int, origin: Expr) -> tuple[Expr, Expr]:
        """Return the range of taps of a window at `origin` that are inside the image in at least one lane."""
        op, (low, high) = self.op, self.op.padding[d]
        begin, end = ZERO, integer(op.window[d])
        lanes = [origin if origin.lanes == 1 else k.Extract(origin.dtype, 1, origin, i) for i in (0, origin.lanes - 1)]

        def positions(room: Expr) -> Expr:
            rounded = ix.add(k.binary("max", room, ZERO), integer(op.dilation[d] - 1))
            return rounded if op.dilation[d] == 1 else k.binary("div", rounded, integer(op.dilation[d]))

        if not _at_most(low, 0):
            begin = block.let(positions(ix.sub(ZERO, lanes[1])), "k")
        if not _at_most(high, 0):
            size = dim_expr(dilated_size(self.x.shape[d], op.base_dilation[d]))
            end = block.let(k.binary("min", positions(ix.sub(size, lanes[0])), end), "k")
        return begin, end

    def _bounds_checks(self, d: int, i: float, e: Expr) -> list[Expr]:
        """Return the conditions for a scalar position, that of tap `i`, to be inside the image."""
        (low, high), last = self.op.padding[d], (self.op.window[d] - 1) * self.op.dilation[d]
        offset = int(i) * self.op.dilation[d]
        checks: list[Expr] = []
        if not _at_most(low, offset):
            checks.append(k.binary("ge", e, ZERO))
        if not _at_most(high, last - offset):
            checks.append(k.binary("lt", e, dim_expr(self.x.shape[d])))
        return checks

    def _mask_position(self, block: Block, d: int, e: Expr, live: Expr | None) -> tuple[Expr, Expr | None]:
        """Return a position along a dilated or vectorized dimension, and the mask of the lanes that are inside."""
        low, high = self.op.padding[d]
        gap = self.op.base_dilation[d]
        if gap != 1:
            step = integer(gap)
            is_multiple = k.binary("eq", k.binary("rem", e, step), k.splat(ZERO, e.lanes))
            live = mask_and(live, k.binary("and", is_multiple, k.binary("ge", e, ZERO)))
            e = k.binary("div", e, step)
        elif not _at_most(low, 0):
            live = mask_and(live, k.binary("ge", e, ZERO))
        if gap != 1 or not (_at_most(high, 0) and _at_most(low, 0)):
            live = mask_and(live, k.binary("lt", e, dim_expr(self.x.shape[d])))
        return e, None if live is None else block.let(live, "in")


def _replace_index(index: Index, d: int, e: Expr) -> Index:
    return tuple(e if i == d else old for i, old in enumerate(index))


def _at_most(size: DimLike, limit: int) -> bool:
    """Whether a padding is static and at most `limit`."""
    return isinstance(size, int) and size <= limit


__all__ = ["lower_pool"]
