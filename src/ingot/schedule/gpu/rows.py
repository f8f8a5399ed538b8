"""Row groups: reductions over one set of dimensions and the pointwise work around them.

    softmax:   for the rows of a tile:  m = max(x);  s = sum(e = exp(x - m));  out = e / s

A program takes a tile of whole rows where they fit into registers, and computes each value once. Longer rows are walked
piece by piece, once for each level of reductions that wait for others, and once for results of the whole box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import cached_property

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Lit, Tile
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import DType, Shape, f32, f64, i64
from ingot.ops import ArgReduce, Reduction, Reshape
from ingot.ops.core.base import identity_of
from ingot.schedule.block import Block
from ingot.schedule.collapse_dims import box_inside, collapse_box
from ingot.schedule.emit import Emitter, Index, Leaf, reshape_index
from ingot.schedule.folds import accumulator, better, combining, same
from ingot.schedule.gpu.blocks import Group, Span, power_of_two, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import ZERO, integer
from ingot.schedule.lowered import Lowered
from ingot.schedule.row_box import Rows, reduction, reductions_of, rows_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

ELEMENTS = 4096  # of a tile of whole rows
LONGEST = 8192  # of a row that is one tile
FEW = 32  # elements that may all lie close to their mean, where the rounding of an f32 sum shows


def lower_rows(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    rows = rows_of(body)
    if rows is None:
        raise CompileError("a row group needs reductions over one set of dimensions")
    inside = box_inside(body, rows, ins, outs)
    if inside is not None:
        return lower_rows(*inside, machine)
    joined = collapse_box(body, rows, ins, outs)
    if joined is not None:
        return lower_rows(*joined, machine)
    return _RowTiles(Group.of(body, ins, outs), rows, machine).lower()


@dataclass
class _RowTiles:
    group: Group
    rows: Rows
    machine: Machine
    em: Emitter = field(init=False)
    span: Span = field(init=False)  # of the rows, and where they are among the kept dimensions
    kept: Index = field(init=False)
    piece: tuple[Index, Expr | None] | None = None

    def lower(self) -> Lowered:
        top, chunk = Block(), k.var("chunk")
        count = product(self.rows.kept_shape)
        height, _ = self.tile
        self.span = Span.of(top, k.mul(chunk, integer(height)), height, count, 0, held=True)
        self.kept = self.span.index(top, self.rows.kept_shape)
        self.em = self.group.emitter()
        for level in in_order(self.group.body):
            self._fold(top, level)
        self._store(top)
        step = self.group.step("rows", chunk, ceildiv(count, height), top, warps=self._warps)
        return Lowered((step,))

    @property
    def reduced_shape(self) -> Shape:
        return tuple(self.rows.shape[d] for d in self.rows.reduced)

    @cached_property
    def tile(self) -> Tile:
        """Rows and their elements that a program has at a time."""
        length = product(self.reduced_shape)
        whole = isinstance(length, int) and length <= LONGEST
        width = power_of_two(max(1, estimate(length))) if whole else ELEMENTS
        width = min(width, LONGEST)
        rows = estimate(product(self.rows.kept_shape))
        few = power_of_two(max(1, rows // self.machine.programs))
        return max(1, min(ELEMENTS // width, few, 128)), width

    @property
    def _warps(self) -> int:
        """Enough that a thread has some 16 elements of a tile."""
        return min(16, max(1, self.tile[0] * self.tile[1] // 512))

    @property
    def whole(self) -> bool:
        """Whether a tile has whole rows."""
        length = product(self.reduced_shape)
        return isinstance(length, int) and length <= self.tile[1]

    def _pieces(self, block: Block, visit: Callable[[Block, Index, Expr | None], None]) -> None:
        """Visit the rows' elements: all at once, always by the same index, or piece by piece."""
        length, width = product(self.reduced_shape), self.tile[1]
        if self.whole:
            self.piece = self.piece or self._piece(block, ZERO)
            return visit(block, *self.piece)
        return block.loop("c", 0, length, width, lambda b, at: visit(b, *self._piece(b, at)))

    def _piece(self, block: Block, first: Expr) -> tuple[Index, Expr | None]:
        """The index of a tile of the box whose columns start at `first`, and which of these there are."""
        columns = Span.of(block, first, self.tile[1], product(self.reduced_shape), 1)
        inner = columns.index(block, self.reduced_shape)
        at = dict(zip((*self.rows.kept, *self.rows.reduced), (*self.kept, *inner), strict=True))
        return tuple(at[d] for d in range(len(self.rows.shape))), columns.live

    def _fold(self, block: Block, level: list[Node]) -> None:
        """Reduce, and let the reductions have their values from here on."""
        folds = [Fold.of(block, n, self.tile, self.whole) for n in level]

        def visit(b: Block, index: Index, live: Expr | None) -> None:
            for fold in folds:
                fold.add(b, self.em.value(b, fold.operand, index, live), index, live)

        self._pieces(block, visit)
        for fold in folds:
            result = block.let(k.cast(fold.result(block), fold.node.dtype), "fold")
            self.em.bind(fold.node, Leaf(lambda b, index, mask, result=result: result, home=block))

    def _store(self, block: Block) -> None:
        ends = [*self.group.results]
        full = [end for end in ends if self._is_full(end[0])]
        for root, buffer, layout in ends:
            if not self._is_full(root):
                index = reshape_index(block, root.shape, self.rows.kept_shape, self.kept)
                write(block, self.em, root, buffer, layout, index, None, self.span.live)

        def visit(b: Block, index: Index, live: Expr | None) -> None:
            for root, buffer, layout in full:
                of = self._in_box(root)
                place = reshape_index(b, root.shape, self.rows.shape, index)
                at = index if of is not root else place  # values of tiles are there already
                write(b, self.em, of, buffer, layout, at, live, self.span.live, place)

        if full:
            self._pieces(block, visit)

    def _is_full(self, root: Node) -> bool:
        """Whether a result has the whole box, perhaps reshaped, and not a value for each row."""
        return product(root.shape) == product(self.rows.shape)

    def _in_box(self, root: Node) -> Node:
        """What a result is the reshaped box of; itself where that is none."""
        node = root
        while isinstance(node.op, Reshape) and node.shape != self.rows.shape:
            node = node.inputs[0]
        return node if node.shape == self.rows.shape else root


def in_order(body: Graph) -> list[list[Node]]:
    """The reductions of a group, those first that wait for none."""
    found = reductions_of(body)
    depth: dict[Node, int] = {}
    for n in found:
        under = [depth[m] for m in topological([n.inputs[0]]) if m in depth]
        depth[n] = 1 + max(under, default=0)
    return [[n for n in found if depth[n] == d] for d in sorted(set(depth.values()))]


@dataclass(frozen=True)
class Fold:
    """A reduction on its way: of whole rows the tile itself, else a tile of running values in registers, and for arg
    reductions one of their places."""

    node: Node
    dtype: DType
    value: Buffer | None
    place: Buffer | None
    seen: list[tuple[Expr, Expr | None]] = field(default_factory=list)

    @staticmethod
    def of(block: Block, node: Node, tile: Tile, whole: bool) -> Fold:
        dtype = accumulator(node.inputs[0].dtype)
        if whole and tile[1] <= FEW and dtype == f32 and reduction(node).kind == "sum":
            dtype = f64
        if whole:
            return Fold(node, dtype, None, None)
        lanes = tile[0] * tile[1]
        value = block.alloc("acc", dtype, 1, lanes=lanes, tile=tile)
        block.store(value, ZERO, Lit(dtype, lanes, identity_of(reduction(node).kind, dtype), tile=tile))
        place = None
        if isinstance(node.op, ArgReduce):
            place = block.alloc("place", i64, 1, lanes=lanes, tile=tile)
            block.store(place, ZERO, Lit(i64, lanes, 0, tile=tile))
        return Fold(node, dtype, value, place)

    @property
    def operand(self) -> Node:
        return self.node.inputs[0]

    def add(self, block: Block, value: Expr, index: Index, live: Expr | None) -> None:
        """Take in a tile of elements."""
        op = reduction(self.node)
        value = k.cast(value, self.dtype)
        where = index[op.dim] if isinstance(op, ArgReduce) else ZERO
        tile = _tile_of(value, *index)
        value, where = k.spread(value, tile), k.spread(where, tile)
        if live is not None:
            value = k.select(live, value, k.lit(identity_of(op.kind, self.dtype), self.dtype))
        value = block.let(value)
        if self.value is None:
            self.seen.append((value, where if live is None else k.select(live, where, _nowhere(op))))
            return
        old = block.let(k.load(self.value, ZERO), "o")
        if self.place is None:
            block.store(self.value, ZERO, k.binary(combining(op.kind, self.dtype), value, old))
            return
        assert isinstance(op, ArgReduce)
        take = block.let(better(op, value, old), "t")
        if live is not None:
            take = k.binary("and", take, live)
        block.store(self.value, ZERO, k.select(take, value, old))
        block.store(self.place, ZERO, k.select(take, where, k.load(self.place, ZERO)))

    def result(self, block: Block) -> Expr:
        """What each row folds to: a column."""
        op = reduction(self.node)
        if self.value is None:
            ((value, where),) = self.seen
        else:
            value, where = block.let(k.load(self.value, ZERO)), None
            if self.place is not None:
                where = block.let(k.load(self.place, ZERO))
        best = block.let(k.reduce_along(combining(op.kind, self.dtype), value, 1), "best")
        if not isinstance(op, ArgReduce):
            return best
        assert where is not None
        return k.reduce_along("max" if op.last else "min", k.select(same(value, best), where, _nowhere(op)), 1)


def _nowhere(op: ArgReduce | Reduction) -> Expr:
    """A place that loses against all others."""
    return k.lit(-1 if isinstance(op, ArgReduce) and op.last else i64.range[1], i64)


def _tile_of(*values: Expr) -> Tile:
    tiles = [v.tile for v in values if v.tile is not None]
    return max(t[0] for t in tiles), max(t[1] for t in tiles)


__all__ = ["LONGEST", "Fold", "in_order", "lower_rows"]
