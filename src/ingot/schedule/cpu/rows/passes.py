"""The passes over a row that is reduced, wherever it is visited: in a kernel of rows, or in front of a contraction.

    softmax:  m = max(x); s = sum(e = exp(x - m)); visit: e / s

Reductions whose operands wait for other reductions run as later passes over the row. Where the innermost dimension is
reduced, vectors run along it and are folded at the end of the pass; where it is kept, a vector holds that many rows,
and several of them, side by side, are visited together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, boolean
from ingot.ops import ArgReduce
from ingot.ops.views import WHOLE_VIEWS, base_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.blocked_sums import FEW, SHORT, LongSums
from ingot.schedule.cpu.chunks import Line, vector_loop
from ingot.schedule.cpu.interleave_vectors import vectors_to_interleave
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for
from ingot.schedule.cpu.reducers import Reducer, in_words, operand_of
from ingot.schedule.cpu.rows.short_rows import LINE
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, store_at
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.row_box import Rows, reduction, reductions_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

_Visitor = Callable[[Block, dict[int, Expr]], None]  # told where it is in the loops around it, by their dimensions
UNROLL = 4  # independent accumulators: they hide the latency of an add, or of a maximum that lets NaN through


@dataclass(frozen=True)
class Visit:
    """A row that is at work, or a vector of rows side by side, of which those are that `mask` has."""

    row: Index
    mask: Expr | None = None


class RowPasses:
    """`visits` say which rows are at hand. caches: what a pass computes may wait for later ones in the scratch that a
    kernel begins with."""

    def __init__(self, body: Graph, em: Emitter, rows: Rows, machine: Machine, caches: bool):
        self.body, self.em, self.rows, self.machine, self.caches = body, em, rows, machine, caches
        self.found = reductions_of(body)
        self.lanes, size = lanes_for(body, machine), rows.shape[rows.axis]
        if size == 1 or (estimate(size) < self.lanes and not machine.masks):
            self.lanes = 1
        self.across, self.columns = 1, 1  # vectors of rows side by side, and how many rows that are
        self.visits: tuple[Visit, ...] = ()
        self.next: tuple[Visit, ...] = ()  # those to be asked for while the present ones are at work
        self.cached: dict[Node, Buffer] = {}
        self.scratch = self.most = 0  # bytes of a turn, of any turn
        self.turns = 1  # rows whose passes are done one after the other, each for all of them
        self.turn: Expr = ZERO  # which of them is at hand

    def fold(self, block: Block) -> None:
        """All passes that fold the row; from then on its reductions have values."""
        if self.cached:
            raise CompileError("a row group visits its rows in one loop")
        levels = self.levels()
        for level in levels:
            self._pass(block, level, again=level is not levels[0])

    def ask_for(self, block: Block, at: tuple[Expr, ...], i: int) -> None:
        """Ask for what is at `at` in visit `i` of the turn that comes next."""

    def ask_below(self, block: Block, at: tuple[Expr, ...]) -> None:
        """Where vectors run across rows: ask for what a row further on has below `at`."""

    def _elements(self) -> int:
        """Of the box that one turn visits, about."""
        return estimate(product(self.rows.shape[d] for d in self.rows.reduced)) * self.columns

    def reads_only(self, found: Sequence[Node]) -> bool:
        """Operands that are only read leave registers for more sums."""
        return all(base_of(self._operand(n), WHOLE_VIEWS) in self.body.inputs for n in found)

    def levels(self) -> list[list[Node]]:
        level: dict[Node, int] = {}
        for n in self.body.nodes():
            below = max((level[i] for i in n.inputs), default=0)
            level[n] = below + (1 if n in self.found else 0)
        order: dict[int, list[Node]] = {}
        for n in self.found:
            order.setdefault(level[n], []).append(n)
        return [order[i] for i in sorted(order)]

    def full_index(self, at: tuple[Expr, ...], row: Index) -> Index:
        """The index in the full box: the row's coordinates and `at`, one expression per reduced dimension."""
        index: list[Expr] = [ZERO] * len(self.rows.shape)
        for d, e in zip(self.rows.kept, row, strict=True):
            index[d] = e
        for d, e in zip(self.rows.reduced, at, strict=True):
            index[d] = e
        return tuple(index)

    def _around(self) -> list[int]:
        """The reduced dimensions but that of the vectors: those of the loops of a row, outermost first."""
        return [d for d in self.rows.reduced if not (self.rows.horizontal and d == self.rows.axis)]

    def over_row(
        self,
        block: Block,
        body: Callable[[Block, Index, Expr | None, int], None],
        unroll: int = 1,
        again: bool = False,
        line: Line | None = None,
        at_once: bool = False,
        sums: LongSums = SHORT,
    ) -> None:
        """Loops over the reduced dimensions: body(block, index in the box, mask, number). The vectorized one innermost,
        `unroll` vectors at a time, which the number tells apart (`at_once`: as one); where none is, it tells the visits
        apart.
        `again`: an earlier pass has read the row. `line`: what should be written in whole vectors. `sums`: what is
        added up along the loops."""
        asks, lanes = again and bool(self.next), self.lanes if self.rows.horizontal else 0
        loops = self._around()

        def innermost(b: Block, at: dict[int, Expr]) -> None:
            if not lanes:
                full = tuple(at[d] for d in self.rows.reduced)
                if not asks:
                    self.ask_below(b, full)
                for i, visit in enumerate(self.visits):
                    if asks:
                        self.ask_for(b, full, i)
                    body(b, self.full_index(full, visit.row), visit.mask, i)
                return

            def vector(c: Block, e: Expr, mask: Expr | None, slot: int = 0) -> None:
                own = at | {self.rows.axis: e}
                full = tuple(own[d] for d in self.rows.reduced)
                if asks and mask is None and e.lanes > 1:
                    self.ask_for(c, full, 0)
                body(c, self.full_index(full, self.visits[0].row), mask, slot)

            def several(c: Block, e: Expr) -> None:
                width = unroll * lanes if at_once else lanes
                for u in range(0, unroll * lanes, width):
                    vector(c, k.ramp(ix.add(e, integer(u)), width), None, u // lanes)

            extent, start = self.rows.shape[self.rows.axis], ZERO
            if unroll > 1 or sums.level == len(loops):
                step = integer(unroll * lanes)
                start = b.let(k.mul(k.binary("div", dim_expr(extent), step), step), "m")
                sums.loop(b, len(loops), "j", 0, start, unroll * lanes, several)
            first = tuple(at.get(d, ZERO) for d in self.rows.reduced)
            whole = None if line is None else line.begin(b, self.full_index(first, self.visits[0].row), lanes)
            vector_loop(b, start, extent, lanes, self.machine, vector, multiple=lanes, whole=whole)

        visit: _Visitor = innermost
        for level, dim in reversed([*enumerate(loops)]):
            visit = partial(_turns, sums, level, dim, self.rows.shape[dim], visit)
        visit(block, {})

    def _pass(self, block: Block, level: list[Node], again: bool) -> None:
        """One loop over the row for all reductions of a level."""
        self.cached = self.caches_of(block, level)
        folds = self.fold_level(block, level, again)
        for n, fold in zip(level, folds, strict=True):
            results = [fold.result(block)] if self.rows.horizontal else fold.apart(block)
            self.em.bind(n, self.row_leaf(block, n, [block.let(k.cast(r, n.dtype), "red") for r in results]))
        self.bind_cached(block, self.cached)
        self.cached = {}

    def fold_level(self, block: Block, level: list[Node], again: bool) -> list[Reducer]:
        """The loop over the row that folds all reductions of a level; what later passes need of it is cached."""
        lanes, horizontal = self.lanes, self.rows.horizontal
        unroll, at_once = 1, False
        if horizontal and lanes > 1:
            unroll = UNROLL if self.reads_only(level) else UNROLL // 2
            several = self._at_once(block, level)
            unroll = max(unroll, several)
            unroll = unroll if estimate(self.rows.shape[self.rows.axis]) >= 2 * unroll * lanes else 1
            at_once = unroll == several > 1
        wide = unroll if at_once else 1  # vectors of f32 whose words are folded as one

        def fold_of(n: Node) -> Reducer:
            words = lanes > 1 and self._in_words(n)
            own = wide if words else 1
            return Reducer.of(n, block, own * lanes, unroll // own if horizontal else len(self.visits), words)

        folds = [fold_of(n) for n in level]
        keep = self.cached.keys() & {self._operand(n) for n in level}

        def body(b: Block, index: Index, mask: Expr | None, slot: int) -> None:
            at = tuple(index[d] for d in self.rows.reduced)
            for n, fold in zip(level, folds, strict=True):
                operand, width = self._operand(n), None
                value = self.em.value(b, operand, index, mask)
                if operand in keep:
                    where = self._cache_index(index)
                    store_at(b, self.cached[operand], where, value, mask if horizontal else None)
                if horizontal:
                    width = index[self.rows.axis].lanes  # behind the last whole vector fewer
                for i in range(0, value.lanes, fold.lanes):
                    part = value
                    if value.lanes > fold.lanes:
                        part = k.Shuffle(value.dtype, fold.lanes, value, value, tuple(range(i, i + fold.lanes)))
                    fold.add(b, part, self._position(at), mask if horizontal else None, slot + i // fold.lanes, width)

        sums = self._long_sums(block, level, folds)
        self.over_row(block, body, unroll, again, at_once=at_once, sums=sums)
        sums.finish(block)
        return folds

    def _long_sums(self, block: Block, level: list[Node], folds: list[Reducer]) -> LongSums:
        """The sums of a level over the loops of `over_row`."""
        added = [f for n, f in zip(level, folds, strict=True) if reduction(n).kind == "sum"]
        axes, apart = self._around(), 1
        if self.rows.horizontal:
            axes, apart = [*axes, self.rows.axis], folds[0].slots * self.lanes
        return LongSums.of(block, [f.value for f in added], [self.rows.shape[d] for d in axes], apart, apart, FEW)

    def _at_once(self, block: Block, level: list[Node]) -> int:
        """How many vectors of the operands of a level to compute as one."""
        if any(isinstance(n.op, ArgReduce) for n in level):
            return 1
        if all(map(self._in_words, level)):
            return UNROLL

        def operands(b: Block, at: Mapping[int, Expr]) -> None:
            for n in level:
                self.em.value(b, self._operand(n), self.full_index(tuple(at.values()), self.visits[0].row))

        return vectors_to_interleave(block, self.rows.reduced, self.rows.axis, self.lanes, self.machine, operands)

    def caches_of(self, block: Block, level: list[Node]) -> dict[Node, Buffer]:
        """Room for the operands of a level that later passes need."""
        wanted = (self._operand(n) for n in level if self.caches and self._worth_caching(n))
        return {n: self.room(block, n.dtype, self._padded() * self.turns) for n in dict.fromkeys(wanted)}

    def bind_cached(self, block: Block, cached: dict[Node, Buffer]) -> None:
        """What passes have cached is read from there."""
        for operand, buffer in cached.items():

            def read(b: Block, index: Index, mask: Expr | None, buffer: Buffer = buffer) -> Expr:
                return load_at(b, buffer, self._cache_index(index), mask)

            self.em.bind(operand, Leaf(read, home=block, pinned=True))

    def _in_words(self, node: Node) -> bool:
        """Whether 16-bit floats are compared as they are. Short rows, done in turn, are widened once for all passes."""
        return self.turns == 1 and in_words(node)

    def _operand(self, node: Node) -> Node:
        """What the passes fold for a reduction."""
        return operand_of(node) if self._in_words(node) else node.inputs[0]

    def _position(self, at: tuple[Expr, ...]) -> Expr:
        """The index along the reduced dimension, for arg reductions (which reduce one)."""
        return at[0] if at else ZERO

    def row_leaf(self, block: Block, node: Node, results: Sequence[Expr]) -> Leaf:
        """`node`, of which every visit has its result."""
        visits, rows = self.visits, self.rows
        spread = len(rows.shape) == len(node.shape)  # an arg reduction may keep its dimension

        def read(b: Block, index: Index, mask: Expr | None) -> Expr:
            own = tuple(index[d] for d in rows.kept) if spread else index
            return results[_visit_at(visits, own, rows.kept_shape, node)]

        return Leaf(read, home=block)

    def _worth_caching(self, node: Node) -> bool:
        """The reduced value is computed (not just read) and needed again after this pass."""
        operand = self._operand(node)
        if operand in self.body.inputs or not operand.inputs or operand.dtype == boolean:
            return False
        again = (
            any(u not in self.found and operand in u.inputs for u in self.body.nodes()) or operand in self.body.outputs
        )
        size = product(self.rows.shape[d] for d in self.rows.reduced)
        return again and isinstance(size, int) and size * self.columns * operand.dtype.nbytes <= self.machine.l2 // 4

    def room(self, block: Block, dtype: DType, size: int) -> Buffer:
        """Scratch memory of a turn."""
        buffer = block.alloc("row", dtype, size, scratch=self.scratch)
        self.scratch += -(-size * dtype.nbytes // LINE) * LINE
        self.most = max(self.most, self.scratch)
        return buffer

    def _padded(self) -> int:
        """Elements of a row (or of vectors of rows side by side) in whole vectors."""
        return -(-self._elements() // self.lanes) * self.lanes

    def _cache_index(self, index: Index) -> Expr:
        extents = Layout.contiguous(tuple(self.rows.shape[d] for d in self.rows.reduced))
        flat = ix.linear(tuple(index[d] for d in self.rows.reduced), extents.strides)
        if self.rows.horizontal:
            return ix.add(ix.mul(self.turn, integer(self._padded())), flat)
        number = _visit_at(self.visits, tuple(index[d] for d in self.rows.kept), self.rows.kept_shape, self.found[0])
        first = ix.mul(flat, integer(self.columns))
        return k.ramp(ix.add(first, integer(self.lanes * number)), self.lanes)


def _turns(
    sums: LongSums, level: int, dim: int, extent: DimLike, visit: _Visitor, block: Block, at: dict[int, Expr]
) -> None:
    """A loop over a dimension around `visit`, which is told where it is in this one, too."""
    sums.loop(block, level, "k", 0, extent, 1, lambda b, e: visit(b, at | {dim: e}))


def _visit_at(visits: Sequence[Visit], row: Index, shape: Sequence[DimLike], node: Node) -> int:
    """The number of the visit to `row`, of those of a box of kept dimensions."""
    for i, visit in enumerate(visits):
        sized = zip(visit.row, row, shape, strict=False)
        if len(row) == len(visit.row) and all(d == 1 or _same(a, c) for a, c, d in sized):
            return i
    raise CompileError("a reduction's result is read at another row than the one at hand", where=node.loc)


def _same(a: Expr, b: Expr) -> bool:
    """Whether two index expressions are the same, by structure (they are small)."""
    return a is b or a == b


__all__ = ["UNROLL", "RowPasses", "Visit"]
