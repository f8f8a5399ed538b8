"""The passes over a row that is reduced, in a kernel of rows or in the prologue of a contraction.

    softmax:  m = max(x); s = sum(e = exp(x - m)); visit: e / s

Reductions whose operands depend on other reductions are later passes over the row. If the innermost dimension is
reduced, vectors run along it and are reduced to a scalar at the end of the pass. If it is not, a vector holds adjacent
rows, and several such vectors are visited together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, boolean
from ingot.ops import ArgReduce
from ingot.ops.views import BIJECTIVE_VIEWS, base_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.blocked_sums import MAX_TERMS_FROM_MEMORY, SHORT, LongSums
from ingot.schedule.cpu.chunks import AlignedLine, vector_loop
from ingot.schedule.cpu.interleave_vectors import vectors_to_interleave
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for
from ingot.schedule.cpu.reducers import Reducer, compares_as_words, operand_of
from ingot.schedule.cpu.rows.short_rows import CACHE_LINE_BYTES
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, store_at
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.row_box import Rows, moved_rows, reduction, reductions_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

_Visitor = Callable[[Block, dict[int, Expr]], None]  # takes the indices of the enclosing loops, by dimension
ACCUMULATORS = 4  # independent ones hide the latency of an add, or of a maximum that propagates NaN


@dataclass(frozen=True)
class Visit:
    """The row being visited, or a vector of adjacent rows, of which `mask` selects the existing ones."""

    row: Index
    mask: Expr | None = None


class RowPasses:
    """The passes over the rows in `visits`. caches: whether a pass may save values for later ones in scratch memory, at
    its start."""

    def __init__(self, body: Graph, em: Emitter, rows: Rows, machine: Machine, caches: bool):
        self.body, self.em, self.rows, self.machine, self.caches = body, em, rows, machine, caches
        self.reductions = reductions_of(body)
        self.lanes, size = lanes_for(body, machine), rows.shape[rows.axis]
        if size == 1 or (estimate(size) < self.lanes and not machine.masks):
            self.lanes = 1
        self.vectors_across, self.columns = 1, 1  # vectors of adjacent rows visited together, and their rows
        self.visits: tuple[Visit, ...] = ()
        self.next_visits: tuple[Visit, ...] = ()  # prefetched during the current visits
        self.cached: dict[Node, Buffer] = {}
        self.scratch = self.max_scratch = 0  # bytes of a visit, and their maximum
        self.rows_per_pass = 1  # rows for which each pass runs before the next pass
        self.row_number: Expr = ZERO  # the current one of them

    def fold(self, block: Block) -> None:
        """Emit all passes over the row, after which its reductions are bound to values."""
        if self.cached:
            raise CompileError("a row group visits its rows in one loop")
        levels = self.levels()
        for level in levels:
            self._pass(block, level, is_repeated=level is not levels[0])

    def prefetch_next(self, block: Block, at: tuple[Expr, ...], i: int) -> None:
        """Prefetch the element at `at` of visit `i` of the next visits."""

    def prefetch_below(self, block: Block, at: tuple[Expr, ...]) -> None:
        """If vectors run across rows: prefetch elements at later indices of the reduced dimensions than `at`."""

    def _elements(self) -> int:
        """The estimated number of elements that one visit reads."""
        return estimate(product(self.rows.shape[d] for d in self.rows.reduced)) * self.columns

    def has_plain_operands(self, reductions: Sequence[Node]) -> bool:
        """Whether the operands are loaded without arithmetic, which leaves registers for more accumulators."""
        return all(base_of(self._operand(n), BIJECTIVE_VIEWS) in self.body.inputs for n in reductions)

    def levels(self) -> list[list[Node]]:
        level: dict[Node, int] = {}
        for n in self.body.nodes():
            operand_level = max((level[i] for i in n.inputs), default=0)
            level[n] = operand_level + (1 if n in self.reductions else 0)
        order: dict[int, list[Node]] = {}
        for n in self.reductions:
            order.setdefault(level[n], []).append(n)
        return [order[i] for i in sorted(order)]

    def full_index(self, at: tuple[Expr, ...], row: Index) -> Index:
        """The index in the full box: the row's coordinates and `at`, one expression per reduced dimension."""
        index: list[Expr] = [ZERO] * len(self.rows.shape)
        for d, e in zip(self.rows.kept_dims, row, strict=True):
            index[d] = e
        for d, e in zip(self.rows.reduced, at, strict=True):
            index[d] = e
        return tuple(index)

    def _outer_dims(self) -> list[int]:
        """The reduced dimensions except the vectorized one: those of the loops over a row, outermost first."""
        return [d for d in self.rows.reduced if not (self.rows.horizontal and d == self.rows.axis)]

    def over_row(
        self,
        block: Block,
        body: Callable[[Block, Index, Expr | None, int], None],
        unroll: int = 1,
        is_reread: bool = False,
        line: AlignedLine | None = None,
        as_one: bool = False,
        sums: LongSums = SHORT,
    ) -> None:
        """Loops over the reduced dimensions: body(block, index in the box, mask, number).

        The vectorized dimension is innermost, with `unroll` vectors per iteration, numbered by `number`; if none is
        vectorized, `number` is that of the visit. is_reread: an earlier pass has read the row. line: a result that
        should be written in aligned vectors. as_one: the vectors of an iteration are computed as one. sums: accumulated
        along the loops.
        """
        prefetches, lanes = is_reread and bool(self.next_visits), self.lanes if self.rows.horizontal else 0
        loops = self._outer_dims()

        def innermost(b: Block, at: dict[int, Expr]) -> None:
            if not lanes:
                full = tuple(at[d] for d in self.rows.reduced)
                if not prefetches:
                    self.prefetch_below(b, full)
                for i, visit in enumerate(self.visits):
                    if prefetches:
                        self.prefetch_next(b, full, i)
                    body(b, self.full_index(full, visit.row), visit.mask, i)
                return

            def vector(c: Block, e: Expr, mask: Expr | None, slot: int = 0) -> None:
                index = at | {self.rows.axis: e}
                full = tuple(index[d] for d in self.rows.reduced)
                if prefetches and mask is None and e.lanes > 1:
                    self.prefetch_next(c, full, 0)
                body(c, self.full_index(full, self.visits[0].row), mask, slot)

            def unrolled(c: Block, e: Expr) -> None:
                width = unroll * lanes if as_one else lanes
                for u in range(0, unroll * lanes, width):
                    vector(c, k.ramp(ix.add(e, integer(u)), width), None, u // lanes)

            extent, start = self.rows.shape[self.rows.axis], ZERO
            if unroll > 1 or sums.level == len(loops):
                step = integer(unroll * lanes)
                start = b.let(k.mul(k.binary("div", dim_expr(extent), step), step), "m")
                sums.loop(b, len(loops), "j", 0, start, unroll * lanes, unrolled)
            first = tuple(at.get(d, ZERO) for d in self.rows.reduced)
            aligned_start = (
                None if line is None else line.aligned_start(b, self.full_index(first, self.visits[0].row), lanes)
            )
            vector_loop(b, start, extent, lanes, self.machine, vector, multiple=lanes, aligned_start=aligned_start)

        visit: _Visitor = innermost
        for level, dim in reversed([*enumerate(loops)]):
            visit = partial(_loop_over_dim, sums, level, dim, self.rows.shape[dim], visit)
        visit(block, {})

    def _pass(self, block: Block, level: list[Node], is_repeated: bool) -> None:
        """One pass over the row for all reductions of a level."""
        self.cached = self.alloc_caches(block, level)
        folds = self.fold_level(block, level, is_repeated)
        for n, fold in zip(level, folds, strict=True):
            results = [fold.result(block)] if self.rows.horizontal else fold.slot_results(block)
            self.em.bind(n, self.row_leaf(block, n, [block.let(k.cast(r, n.dtype), "red") for r in results]))
        self.bind_cached(block, self.cached)
        self.cached = {}

    def fold_level(self, block: Block, level: list[Node], is_repeated: bool) -> list[Reducer]:
        """The loop over the row for all reductions of a level, which also caches values that later passes need."""
        lanes, horizontal = self.lanes, self.rows.horizontal
        unroll, as_one = 1, False
        if horizontal and lanes > 1:
            unroll = ACCUMULATORS if self.has_plain_operands(level) else ACCUMULATORS // 2
            vectors = self._vectors_per_value(block, level)
            unroll = max(unroll, vectors)
            unroll = unroll if estimate(self.rows.shape[self.rows.axis]) >= 2 * unroll * lanes else 1
            as_one = unroll == vectors > 1
        vectors_per_word = unroll if as_one else 1  # vectors of f32 per vector of 16-bit words

        def fold_of(n: Node) -> Reducer:
            words = lanes > 1 and self._folds_as_words(n)
            vectors = vectors_per_word if words else 1
            return Reducer.of(n, block, vectors * lanes, unroll // vectors if horizontal else len(self.visits), words)

        folds = [fold_of(n) for n in level]
        cached = self.cached.keys() & {self._operand(n) for n in level}

        def body(b: Block, index: Index, mask: Expr | None, slot: int) -> None:
            at = tuple(index[d] for d in self.rows.reduced)
            for n, fold in zip(level, folds, strict=True):
                operand, width = self._operand(n), None
                value = self.em.value(b, operand, index, mask)
                if operand in cached:
                    where = self._cache_index(index)
                    store_at(b, self.cached[operand], where, value, mask if horizontal else None)
                if horizontal:
                    width = index[self.rows.axis].lanes  # fewer lanes after the last full vector
                for i in range(0, value.lanes, fold.lanes):
                    part = value
                    if value.lanes > fold.lanes:
                        part = k.Shuffle(value.dtype, fold.lanes, value, value, tuple(range(i, i + fold.lanes)))
                    fold.add(b, part, self._position(at), mask if horizontal else None, slot + i // fold.lanes, width)

        sums = self._long_sums(block, level, folds)
        self.over_row(block, body, unroll, is_repeated, as_one=as_one, sums=sums)
        sums.finish(block)
        return folds

    def _long_sums(self, block: Block, level: list[Node], folds: list[Reducer]) -> LongSums:
        """The sums of a level over the loops of `over_row`."""
        sums = [f for n, f in zip(level, folds, strict=True) if reduction(n).kind == "sum"]
        axes, accumulators = self._outer_dims(), 1
        if self.rows.horizontal:
            axes, accumulators = [*axes, self.rows.axis], folds[0].slots * self.lanes
        return LongSums.of(
            block,
            [f.value for f in sums],
            [self.rows.shape[d] for d in axes],
            accumulators,
            accumulators,
            MAX_TERMS_FROM_MEMORY,
        )

    def _vectors_per_value(self, block: Block, level: list[Node]) -> int:
        """The number of vectors of a level's operands to compute as one."""
        if any(isinstance(n.op, ArgReduce) for n in level):
            return 1
        if all(map(self._folds_as_words, level)):
            return ACCUMULATORS

        def operands(b: Block, at: Mapping[int, Expr]) -> None:
            for n in level:
                self.em.value(b, self._operand(n), self.full_index(tuple(at.values()), self.visits[0].row))

        return vectors_to_interleave(block, self.rows.reduced, self.rows.axis, self.lanes, self.machine, operands)

    def alloc_caches(self, block: Block, level: list[Node]) -> dict[Node, Buffer]:
        """Scratch buffers for the operands of a level that later passes need."""
        operands = (self._operand(n) for n in level if self.caches and self._pays_to_cache(n))
        return {
            n: self.alloc_scratch(block, n.dtype, self._padded_elements() * self.rows_per_pass)
            for n in dict.fromkeys(operands)
        }

    def bind_cached(self, block: Block, cached: dict[Node, Buffer]) -> None:
        """Bind operands that passes have cached to their buffers."""
        for operand, buffer in cached.items():

            def read(b: Block, index: Index, mask: Expr | None, buffer: Buffer = buffer) -> Expr:
                return load_at(b, buffer, self._cache_index(index), mask)

            self.em.bind(operand, Leaf(read, home=block, pinned=True))

    def _folds_as_words(self, node: Node) -> bool:
        """Whether a reduction compares 16-bit floats as words. If each pass runs over several short rows, they are
        widened once for all passes instead."""
        return self.rows_per_pass == 1 and compares_as_words(node)

    def _operand(self, node: Node) -> Node:
        """The operand that the passes fold for a reduction."""
        return operand_of(node) if self._folds_as_words(node) else node.inputs[0]

    def _position(self, at: tuple[Expr, ...]) -> Expr:
        """The index along the reduced dimension, for arg reductions, which reduce a single dimension."""
        return at[0] if at else ZERO

    def row_leaf(self, block: Block, node: Node, results: Sequence[Expr]) -> Leaf:
        """The leaf of a reduction, given its result for each visit."""
        visits, rows = self.visits, self.rows
        keeps_dims = len(rows.shape) == len(node.shape)  # an arg reduction may keep its dimension

        def read(b: Block, index: Index, mask: Expr | None) -> Expr:
            row_index = tuple(index[d] for d in rows.kept_dims) if keeps_dims else index
            return results[_visit_at(visits, row_index, rows.kept_shape, node)]

        return Leaf(read, home=block)

    @cached_property
    def _moved(self) -> set[Node]:
        return moved_rows(self.body, self.rows)

    def _pays_to_cache(self, node: Node) -> bool:
        """Whether an operand is computed, not just loaded, and used again after this pass, at the same row, and fits in
        the cache."""
        operand = self._operand(node)
        if operand in self.body.inputs or not operand.inputs or operand.dtype == boolean:
            return False
        if operand in self._moved:
            return False
        is_reused = (
            any(u not in self.reductions and operand in u.inputs for u in self.body.nodes())
            or operand in self.body.outputs
        )
        size = product(self.rows.shape[d] for d in self.rows.reduced)
        return (
            is_reused and isinstance(size, int) and size * self.columns * operand.dtype.nbytes <= self.machine.l2 // 4
        )

    def alloc_scratch(self, block: Block, dtype: DType, size: int) -> Buffer:
        """Allocate scratch memory of a visit."""
        buffer = block.alloc("row", dtype, size, scratch=self.scratch)
        self.scratch += -(-size * dtype.nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        self.max_scratch = max(self.max_scratch, self.scratch)
        return buffer

    def _padded_elements(self) -> int:
        """Elements of a visit, rounded up to full vectors."""
        return -(-self._elements() // self.lanes) * self.lanes

    def _cache_index(self, index: Index) -> Expr:
        extents = Layout.contiguous(tuple(self.rows.shape[d] for d in self.rows.reduced))
        flat = ix.linear(tuple(index[d] for d in self.rows.reduced), extents.strides)
        if self.rows.horizontal:
            return ix.add(ix.mul(self.row_number, integer(self._padded_elements())), flat)
        number = _visit_at(
            self.visits, tuple(index[d] for d in self.rows.kept_dims), self.rows.kept_shape, self.reductions[0]
        )
        first = ix.mul(flat, integer(self.columns))
        return k.ramp(ix.add(first, integer(self.lanes * number)), self.lanes)


def _loop_over_dim(
    sums: LongSums, level: int, dim: int, extent: DimLike, visit: _Visitor, block: Block, at: dict[int, Expr]
) -> None:
    """Emit a loop over a dimension around `visit`, and pass it the loop's index."""
    sums.loop(block, level, "k", 0, extent, 1, lambda b, e: visit(b, at | {dim: e}))


def _visit_at(visits: Sequence[Visit], row: Index, shape: Sequence[DimLike], node: Node) -> int:
    """The number of the visit to `row`. shape: of the dimensions that are not reduced."""
    for i, visit in enumerate(visits):
        sized = zip(visit.row, row, shape, strict=False)
        if len(row) == len(visit.row) and all(d == 1 or _are_equal(a, c) for a, c, d in sized):
            return i
    raise CompileError("a reduction's result is read at another row than the one visited", where=node.loc)


def _are_equal(a: Expr, b: Expr) -> bool:
    """Whether two index expressions are structurally equal. They are small."""
    return a is b or a == b


__all__ = ["ACCUMULATORS", "RowPasses", "Visit"]
