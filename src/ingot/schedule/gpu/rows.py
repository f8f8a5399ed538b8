"""Row groups: reductions over one set of dimensions and the pointwise work around them.

    softmax:   for the rows of a tile:  m = max(x);  s = sum(e = exp(x - m));  out = e / s

A program takes a tile of whole rows where they fit into registers, and computes each value once. Longer rows are walked
piece by piece, once for each level of reductions that wait for others, and once for results of the whole box. Of rows
that lie side by side a tile has many, and few elements of each.

Few long rows are cut into parts, each a program's, with a kernel for each level and one for the results:

    for the parts of rows:  partial[row, part] = max(x)
    for the parts of rows:  m = max(partial[row]);  partial'[row, part] = sum(exp(x - m))
    for the parts of rows:  m = max(partial[row]);  s = sum(partial'[row]);  out = exp(x - m) / s
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import DType, Shape, f32, f64, i64
from ingot.ops import ArgReduce, Reduction, Reshape
from ingot.ops.core.base import identity_of
from ingot.schedule.block import Block
from ingot.schedule.collapse_dims import box_inside, collapse_box
from ingot.schedule.emit import Emitter, Index, Leaf, reshape_index
from ingot.schedule.folds import accumulator, better, combining, same
from ingot.schedule.gpu.blocks import Group, Span, constant_tile, power_of_two, register, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import ZERO, both, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.row_box import Rows, reduction, reductions_of, rows_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

CHUNK = k.var("chunk")
ELEMENTS = 4096  # of a tile of whole rows
LONGEST = 8192  # of a row that is one tile
SIDE_BY_SIDE = 32  # rows whose elements are neighbours in memory, at most
SECTOR = 8  # neighbours that memory gives at a time
PARTS = 256  # of a row, at most
TURNS = 8  # tiles of a row from which on it is cut
FEW = 32  # elements that may all lie close to their mean, where the rounding of an f32 sum shows


Partials = tuple[tuple[Buffer, Arg], ...]  # what parts of rows fold to; of arg reductions the places, too


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
    group = Group.of(body, ins, outs)
    parts = _RowTiles(group, rows, machine).room
    return _RowTiles(group, rows, machine).lower() if parts == 1 else _in_parts(group, rows, machine, parts)


def _in_parts(group: Group, rows: Rows, machine: Machine, parts: int) -> Lowered:
    """A kernel for each level of reductions, and one for the results."""
    partials: dict[Node, Partials] = {}
    temps: list[DimLike] = []
    steps: list[Step] = []
    for level in in_order(group.body):
        held = {n: _partials(n, product(rows.kept_shape) * parts, temps) for n in level}
        steps.append(_RowTiles(group, rows, machine, parts, partials, parts).fold_parts(held))
        partials = {**partials, **held}
    is_box = any(product(n.shape) == product(rows.shape) for n in group.body.outputs)
    steps.append(_RowTiles(group, rows, machine, parts, partials, parts if is_box else 1).join_parts())
    return Lowered(tuple(steps), tuple(temps))


def _partials(node: Node, count: DimLike, temps: list[DimLike]) -> Partials:
    """Memory that joins `temps`."""
    made: list[tuple[Buffer, Arg]] = []
    for dtype in (accumulator(node.inputs[0].dtype), *((i64,) if isinstance(node.op, ArgReduce) else ())):
        made.append((Buffer(f"partial{len(temps)}", dtype, writable=True), Arg("temp", len(temps))))
        temps.append(count * dtype.nbytes)
    return tuple(made)


@dataclass
class _RowTiles:
    """One kernel. parts: of each row; partials: what they fold to, of reductions that are known. programs: of each row,
    with a part each, or one for all."""

    group: Group
    rows: Rows
    machine: Machine
    parts: int = 1
    partials: Mapping[Node, Partials] = field(default_factory=dict)
    programs: int = 1
    top: Block = field(default_factory=Block)
    em: Emitter = field(init=False)
    span: Span = field(init=False)  # of the rows, and where they are among the kept dimensions
    kept: Index = field(init=False)
    part: Expr = ZERO
    piece: tuple[Index, Expr | None] | None = None

    def __post_init__(self) -> None:
        chunk, (height, _) = CHUNK, self.tile
        if self.programs > 1:
            self.part = self.top.let(k.binary("rem", chunk, integer(self.programs)), "part")
            chunk = self.top.let(k.binary("div", chunk, integer(self.programs)), "tile")
        count = product(self.rows.kept_shape)
        self.span = Span.of(self.top, k.mul(chunk, integer(height)), height, count, 0, wraps=True)
        self.kept = self.span.index(self.top, self.rows.kept_shape)
        self.em = self.group.emitter()

    def lower(self) -> Lowered:
        """Whole rows."""
        for level in in_order(self.group.body):
            for fold in self._folded(level):
                self._bind(fold)
        self._store()
        return Lowered((self._step("rows"),))

    def fold_parts(self, held: Mapping[Node, Partials]) -> Step:
        """What parts of rows fold to."""
        self._join()
        for fold in self._folded([*held]):
            place = k.add(k.mul(self.span.position, integer(self.parts)), self.part)
            for (buffer, _), value in zip(held[fold.node], fold.best(self.top), strict=False):
                if value is not None:
                    self.top.store(buffer, place, value, self.span.in_bounds)
        return self._step("parts", *(pair for pairs in held.values() for pair in pairs))

    def join_parts(self) -> Step:
        """The results."""
        self._join()
        self._store()
        return self._step("rows")

    def _join(self) -> None:
        """Reductions whose parts are known have their values."""
        place = k.add(k.mul(self.span.position, integer(self.parts)), k.positions(self.parts, 1))
        for node, pairs in self.partials.items():
            value, *where = (self.top.let(k.gather(buffer, place)) for buffer, _ in pairs)
            fold = Fold(node, value.dtype, None, None)
            fold.seen.append((value, where[0] if where else None))
            self._bind(fold)

    def _step(self, name: str, *extra: tuple[Buffer, Arg]) -> Step:
        chunks = ceildiv(product(self.rows.kept_shape), self.tile[0]) * self.programs
        held = (pair for pairs in self.partials.values() for pair in pairs)
        return self.group.step(name, CHUNK, chunks, self.top, *held, *extra, warps=self._warps)

    @property
    def reduced_shape(self) -> Shape:
        return tuple(self.rows.shape[d] for d in self.rows.reduced)

    @cached_property
    def tile(self) -> Tile:
        """Rows and their elements that a program has at a time."""
        length, rows = product(self.reduced_shape), estimate(product(self.rows.kept_shape))
        if not self.rows.horizontal and estimate(length) > 1:
            return self._side_by_side(length)
        whole = isinstance(length, int) and length <= LONGEST
        width = power_of_two(max(1, estimate(length))) if whole else ELEMENTS
        width = min(width, LONGEST)
        few = power_of_two(max(1, rows // self.machine.programs))
        return max(1, min(ELEMENTS // width, few, 128)), width

    def _side_by_side(self, length: DimLike) -> Tile:
        """Rows whose elements are neighbours: whole ones, if a few of them fit."""
        most = min(SIDE_BY_SIDE, power_of_two(max(1, estimate(self.rows.shape[self.rows.axis]))))
        width = power_of_two(estimate(length))
        fit = LONGEST // width
        if isinstance(length, int) and fit >= min(most, SECTOR):
            return min(most, fit), width
        return most, min(ELEMENTS // most, width)

    @property
    def room(self) -> int:
        """How many parts of each row would keep the GPU busy."""
        (height, width), rows = self.tile, estimate(product(self.rows.kept_shape))
        turns = estimate(product(self.reduced_shape)) // width
        programs = -(-rows // height)
        if self.whole or turns < TURNS or 2 * programs > self.machine.programs:
            return 1
        return min(PARTS, power_of_two(self.machine.programs // max(1, programs)), power_of_two(turns))

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
        begin, end = ZERO, dim_expr(length)
        if self.programs > 1:
            piece = dim_expr(ceildiv(ceildiv(length, self.programs), width) * width)
            begin = block.let(k.mul(self.part, piece), "begin")
            end = block.let(k.binary("min", k.add(begin, piece), end), "end")
        return block.loop("c", begin, end, width, lambda b, at: visit(b, *self._piece(b, at)), multiple=width)

    def _piece(self, block: Block, first: Expr) -> tuple[Index, Expr | None]:
        """The index of a tile of the box whose columns start at `first`, and which of these there are."""
        columns = Span.of(block, first, self.tile[1], product(self.reduced_shape), 1)
        inner = columns.index(block, self.reduced_shape)
        at = dict(zip((*self.rows.kept, *self.rows.reduced), (*self.kept, *inner), strict=True))
        return tuple(at[d] for d in range(len(self.rows.shape))), columns.in_bounds

    def _folded(self, level: Sequence[Node]) -> list[Fold]:
        """Reductions of the program's elements."""
        folds = [Fold.of(self.top, n, self.tile, self.whole) for n in level]

        def visit(b: Block, index: Index, live: Expr | None) -> None:
            for fold in folds:
                fold.add(b, self.em.value(b, fold.operand, index, live), index, live)

        self._pieces(self.top, visit)
        return folds

    def _bind(self, fold: Fold) -> None:
        """Let a reduction have its value from here on."""
        result = self.top.let(k.cast(fold.result(self.top), fold.node.dtype), "fold")
        self.em.bind(fold.node, Leaf(lambda b, index, mask: result, home=self.top))

    def _store(self) -> None:
        block, ends = self.top, [*self.group.results]
        full = [end for end in ends if self._is_full(end[0])]
        live = self.span.in_bounds
        if self.programs > 1:  # of a row's parts one stores what there is once
            live = block.let(both(live, k.binary("eq", self.part, ZERO)), "once")
        for root, buffer, layout in ends:
            if not self._is_full(root):
                index = reshape_index(block, root.shape, self.rows.kept_shape, self.kept)
                write(block, self.em, root, buffer, layout, index, None, live)

        def visit(b: Block, index: Index, live: Expr | None) -> None:
            for root, buffer, layout in full:
                of = self._in_box(root)
                place = reshape_index(b, root.shape, self.rows.shape, index)
                at = index if of is not root else place  # values of tiles are there already
                write(b, self.em, of, buffer, layout, at, live, self.span.in_bounds, place)

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
        value = register(block, "acc", constant_tile(dtype, tile, identity_of(reduction(node).kind, dtype)))
        place = register(block, "place", constant_tile(i64, tile)) if isinstance(node.op, ArgReduce) else None
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
        best, where = self.best(block)
        return best if where is None else where

    def best(self, block: Block) -> tuple[Expr, Expr | None]:
        """What each row folds to, and for an arg reduction where that stands: columns."""
        op = reduction(self.node)
        if self.value is None:
            ((value, where),) = self.seen
        else:
            value, where = block.let(k.load(self.value, ZERO)), None
            if self.place is not None:
                where = block.let(k.load(self.place, ZERO))
        best = block.let(k.reduce_along(combining(op.kind, self.dtype), value, 1), "best")
        if not isinstance(op, ArgReduce):
            return best, None
        assert where is not None
        where = k.select(same(value, best), where, _nowhere(op))
        return best, k.reduce_along("max" if op.last else "min", where, 1)


def _nowhere(op: ArgReduce | Reduction) -> Expr:
    """A place that loses against all others."""
    return k.lit(-1 if isinstance(op, ArgReduce) and op.last else i64.range[1], i64)


def _tile_of(*values: Expr) -> Tile:
    tiles = [v.tile for v in values if v.tile is not None]
    return max(t[0] for t in tiles), max(t[1] for t in tiles)


__all__ = ["LONGEST", "Fold", "in_order", "lower_rows"]
