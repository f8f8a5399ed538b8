"""Row groups: reductions over one set of dimensions and the pointwise work around them.

    softmax:   for the rows of a tile:  m = max(x);  s = sum(e = exp(x - m));  out = e / s

A program computes a tile of full rows if they fit in registers, and computes each value once. Longer rows are traversed
tile by tile, once for each level of dependent reductions, and once for results of the full box. If the elements of
different rows are adjacent in memory, a tile has many rows and few elements of each.

Few long rows are split into parts, one per program, with a kernel for each level and one for the results:

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
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import DType, Shape, f32, f64, i64
from ingot.ops import ArgReduce, Reduction, Reshape
from ingot.ops.core.base import identity_of
from ingot.schedule.block import Block
from ingot.schedule.collapse_dims import collapse_box, without_reshapes
from ingot.schedule.emit import Emitter, Index, Leaf, reshape_index
from ingot.schedule.folds import accumulator, combining_op, is_same_value, takes_new
from ingot.schedule.gpu.blocks import Group, Span, constant_tile, power_of_two, register, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import ZERO, dim_expr, integer, mask_and
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.row_box import Rows, reduction, reductions_of, rows_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

CHUNK = k.var("chunk")
TILE_ELEMENTS = 4096  # of a tile of full rows
MAX_ROW_ELEMENTS = 8192  # of a row that is a single tile
# elements of rows that a warp reduces without barriers, and words of an element's operands, which its registers hold
MIN_WARP_ROW, MAX_WARP_ROW, MAX_WARP_OPERANDS = 257, 1024, 3
MAX_INTERLEAVED_ROWS = 32  # rows of a tile whose elements are adjacent in memory
LINE_ELEMENTS = 64  # of 16 bits, in a line of the cache: rows of a tile of parts, if their number wastes few lanes
MIN_LANE_UTILIZATION = 0.85
SECTOR_ELEMENTS = 8  # adjacent elements of one memory transaction
MAX_PARTS = 256  # of a row, twice as many if each program of the last kernel does not read them all
FOLD_ELEMENTS = 2048  # parts of rows that a program adds
MIN_TILES_TO_SPLIT = 8  # of a row
MAX_F64_SUM_TERMS = 32  # with few elements, all close to the mean, rounding errors of an f32 sum are visible


Partials = tuple[tuple[Buffer, Arg], ...]  # values of parts of rows; of arg reductions the positions, too


def lower_rows(group: Group, machine: Machine) -> Lowered:
    group, rows = row_group(group)
    parts = RowTiles(group, rows, machine).suggested_parts
    return RowTiles(group, rows, machine).lower() if parts == 1 else _lower_split(group, rows, machine, parts)


def row_group(group: Group) -> tuple[Group, Rows]:
    """A group over the fewest dimensions, without reshapes of its inputs and results, and its rows."""
    rows = rows_of(group.body)
    if rows is None:
        raise CompileError("a row group needs reductions over one set of dimensions")
    for simplify in (without_reshapes, collapse_box):
        simpler = simplify(group.body, rows, group.ins, group.outs)
        if simpler is not None:
            return row_group(Group.of(*simpler))
    return group, rows


def _lower_split(group: Group, rows: Rows, machine: Machine, parts: int) -> Lowered:
    """Lower to a kernel for each level of reductions, and one for the results."""
    partials: dict[Node, Partials] = {}
    temps: list[DimLike] = []
    steps: list[Step] = []
    for level in reduction_levels(group.body):
        outputs = {n: _allocate_partials(n, product(rows.kept_shape) * parts, temps) for n in level}
        steps.append(RowTiles(group, rows, machine, parts, partials, parts).fold_parts(outputs))
        partials = {**partials, **outputs}
    stored = RowTiles(group, rows, machine, parts).early_results
    is_box = any(product(n.shape) == product(rows.shape) for n in group.body.outputs if n not in stored)
    steps.append(RowTiles(group, rows, machine, parts, partials, parts if is_box else 1).finish())
    return Lowered(tuple(steps), tuple(temps))


def _allocate_partials(node: Node, count: DimLike, temps: list[DimLike]) -> Partials:
    """Allocate buffers for the partial results of a reduction in `temps`."""
    buffers: list[tuple[Buffer, Arg]] = []
    for dtype in (accumulator(node.inputs[0].dtype), *((i64,) if isinstance(node.op, ArgReduce) else ())):
        buffers.append((Buffer(f"partial{len(temps)}", dtype, writable=True), Arg("temp", len(temps))))
        temps.append(count * dtype.nbytes)
    return tuple(buffers)


@dataclass
class RowTiles:
    """One kernel. parts: per row. partials: the values of parts, of reductions of earlier kernels. programs: per row,
    one for each part or one for all. top, number: the block that computes a tile, and the tile's number.
    max_elements: of a tile of full rows, unless a row has more."""

    group: Group
    rows: Rows
    machine: Machine
    parts: int = 1
    partials: Mapping[Node, Partials] = field(default_factory=dict)
    programs: int = 1
    top: Block = field(default_factory=Block)
    number: Expr = CHUNK
    max_elements: int = TILE_ELEMENTS
    em: Emitter = field(init=False)
    span: Span = field(init=False)  # of the rows; row_index: the same as an index of the kept dimensions
    row_index: Index = field(init=False)
    part: Expr = ZERO
    cached_tile: tuple[Index, Expr | None] | None = None
    bounds: list[Expr] = field(default_factory=list)  # masks of columns, beyond which values are not read

    def __post_init__(self) -> None:
        chunk, (height, _) = self.number, self.tile
        if self.programs > 1:
            # neighboring programs read what is adjacent: parts of a row, or elements of rows that are interleaved
            count = integer(self.programs) if self.rows.horizontal else dim_expr(self.row_tiles)
            names = ("part", "tile") if self.rows.horizontal else ("tile", "part")
            inner, outer = (
                self.top.let(k.binary(o, chunk, count), n) for o, n in zip(("rem", "div"), names, strict=True)
            )
            self.part, chunk = (inner, outer) if self.rows.horizontal else (outer, inner)
        count = product(self.rows.kept_shape)
        self.span = Span.of(self.top, k.mul(chunk, integer(height)), height, count, 0, wraps=True)
        self.row_index = self.span.index(self.top, self.rows.kept_shape)
        self.em = self.group.emitter(self.bounds)

    def lower(self) -> Lowered:
        """Lower rows that are not split."""
        self.compute()
        return Lowered((self._step("rows"),))

    def compute(self) -> None:
        """Reduce and store the rows of a tile."""
        for level in reduction_levels(self.group.body):
            for fold in self._fold(level):
                self._bind(fold)
        self._store()

    def fold_parts(self, outputs: Mapping[Node, Partials]) -> Step:
        """The kernel that reduces parts of rows."""
        self._bind_partials()
        for fold in self._fold([*outputs]):
            offset = k.add(k.mul(self.span.position, integer(self.parts)), self.part)
            for (buffer, _), value in zip(outputs[fold.node], fold.reduce(self.top), strict=False):
                if value is not None:
                    self.top.store(buffer, offset, value, self.span.in_bounds)
        return self._step("parts", *(pair for pairs in outputs.values() for pair in pairs))

    def finish(self) -> Step:
        """The kernel that computes the results."""
        self._bind_partials()
        self._store()
        return self._step("rows")

    def _bind_partials(self) -> None:
        """Bind reductions of earlier kernels to the values of their parts."""
        offsets = k.add(k.mul(self.span.position, integer(self.parts)), k.lane_indices(self.parts, 1))
        for node, pairs in self.partials.items():
            value, *positions = (self.top.let(k.gather(buffer, offsets)) for buffer, _ in pairs)
            fold = Fold(node, value.dtype, None, None)
            fold.tiles.append((value, positions[0] if positions else None))
            self._bind(fold)

    def _step(self, name: str, *extra: tuple[Buffer, Arg]) -> Step:
        chunks = self.row_tiles * self.programs
        inputs = (pair for pairs in self.partials.values() for pair in pairs)
        return self.group.step(name, CHUNK, chunks, self.top, *inputs, *extra, warps=self.warps)

    @property
    def row_tiles(self) -> DimLike:
        return ceildiv(product(self.rows.kept_shape), self.tile[0])

    @property
    def reduced_shape(self) -> Shape:
        return tuple(self.rows.shape[d] for d in self.rows.reduced)

    @cached_property
    def tile(self) -> Tile:
        """The rows and columns of a tile; if rows have no columns left, the rows whose parts a program folds."""
        length, rows = product(self.reduced_shape), estimate(product(self.rows.kept_shape))
        if not self.rows.horizontal and estimate(length) > 1:
            height, width = self._interleaved_tile(length)
            return (height, width) if self.programs == self.parts else (min(height, self._folded_rows), width)
        fits_in_tile = isinstance(length, int) and length <= MAX_ROW_ELEMENTS
        width = power_of_two(max(1, estimate(length))) if fits_in_tile else TILE_ELEMENTS
        width = min(width, MAX_ROW_ELEMENTS)
        rows_per_program = power_of_two(max(1, rows // self.machine.target_programs))
        max_elements = MAX_WARP_ROW if self.has_warp_rows else self.max_elements
        return max(1, min(max_elements // width, rows_per_program, 128)), width

    @cached_property
    def has_warp_rows(self) -> bool:
        """Whether a program is one warp, which holds full rows."""
        length, size = product(self.reduced_shape), product(self.rows.shape)
        operands = sum(-(-n.dtype.bits // 32) for n in self.group.body.inputs if product(n.shape) == size)
        is_held = isinstance(length, int) and MIN_WARP_ROW <= length <= MAX_WARP_ROW < self.max_elements
        return self.rows.horizontal and is_held and operands <= MAX_WARP_OPERANDS

    @property
    def _folded_rows(self) -> int:
        """The rows whose parts a program adds, where nothing else is left to do."""
        return max(1, FOLD_ELEMENTS // self.parts)

    def _interleaved_tile(self, length: DimLike) -> Tile:
        """The tile for rows whose elements are interleaved: full rows if enough of them fit."""
        count = max(1, estimate(self.rows.shape[self.rows.axis]))
        max_rows, width = min(MAX_INTERLEAVED_ROWS, power_of_two(count)), power_of_two(estimate(length))
        fitting_rows = MAX_ROW_ELEMENTS // width
        if isinstance(length, int) and fitting_rows >= min(max_rows, SECTOR_ELEMENTS):
            return min(max_rows, fitting_rows), width
        if count >= MIN_LANE_UTILIZATION * LINE_ELEMENTS * -(-count // LINE_ELEMENTS):
            max_rows = LINE_ELEMENTS
        return max_rows, min(TILE_ELEMENTS // max_rows, width)

    @property
    def suggested_parts(self) -> int:
        """The parts per row that keep the GPU busy."""
        (height, width), rows = self.tile, estimate(product(self.rows.kept_shape))
        tiles = estimate(product(self.reduced_shape)) // width
        programs = -(-rows // height)
        if self.has_full_rows or tiles < MIN_TILES_TO_SPLIT or 2 * programs > self.machine.target_programs:
            return 1
        per_row = self.machine.target_programs // max(1, programs)
        parts = power_of_two(per_row) if self.rows.horizontal else power_of_two(per_row + 1) // 2
        max_parts = MAX_PARTS if any(map(self._is_full, self.group.body.outputs)) else 2 * MAX_PARTS
        return min(max_parts, parts, power_of_two(tiles))

    @property
    def warps(self) -> int:
        """Warps for about 16 elements of a tile per thread, or 32 of rows that a warp holds and of interleaved rows in
        parts."""
        if self.has_warp_rows:
            return 1
        is_fold = self.programs != self.parts
        width = self.parts if is_fold else self.tile[1]
        elements = 1024 if self.parts > 1 and not is_fold and not self.rows.horizontal else 512
        return min(16, max(1, self.tile[0] * width // elements))

    @property
    def has_full_rows(self) -> bool:
        """Whether a tile has full rows."""
        length = product(self.reduced_shape)
        return isinstance(length, int) and length <= self.tile[1]

    def _for_each_tile(self, block: Block, visit: Callable[[Block, Index, Expr | None], None]) -> None:
        """Visit the rows' elements: in one tile, always with the same index, or in a loop over tiles."""
        length, width = product(self.reduced_shape), self.tile[1]
        if self.has_full_rows:
            self.cached_tile = self.cached_tile or self._tile_index(block, ZERO)
            return visit(block, *self.cached_tile)
        begin, end = ZERO, dim_expr(length)
        if self.programs > 1:
            part_length = dim_expr(ceildiv(ceildiv(length, self.programs), width) * width)
            begin = block.let(k.mul(self.part, part_length), "begin")
            end = block.let(k.binary("min", k.add(begin, part_length), end), "end")
        return block.loop("c", begin, end, width, lambda b, at: visit(b, *self._tile_index(b, at)), multiple=width)

    def _tile_index(self, block: Block, first: Expr) -> tuple[Index, Expr | None]:
        """Return the index of the tile whose columns start at `first`, and the mask of columns in bounds."""
        length = product(self.reduced_shape)
        columns = Span.of(block, first, self.tile[1], length, 1)
        inner = columns.index(block, self.reduced_shape)
        if columns.in_bounds is not None and isinstance(length, int) and length > 0:
            self.bounds.append(columns.in_bounds)  # there is an element, which is read in place of those beyond
        coordinates = dict(zip((*self.rows.kept_dims, *self.rows.reduced), (*self.row_index, *inner), strict=True))
        return tuple(coordinates[d] for d in range(len(self.rows.shape))), columns.in_bounds

    @cached_property
    def early_results(self) -> frozenset[Node]:
        """The results of the full box that depend on no reduction: the first of several traversals stores them."""
        if self.has_full_rows:
            return frozenset()
        reductions = {*reductions_of(self.group.body)}
        return frozenset(
            n for n in self.group.body.outputs if self._is_full(n) and reductions.isdisjoint(topological([n]))
        )

    def _fold(self, level: Sequence[Node]) -> list[Fold]:
        """Reduce the program's elements. The first level also stores what it knows."""
        folds = [Fold.of(self.top, n, self.tile, self.has_full_rows) for n in level]
        stored = self.early_results if level == reduction_levels(self.group.body)[0] else frozenset[Node]()

        def visit(b: Block, index: Index, live: Expr | None) -> None:
            for fold in folds:
                fold.add(b, self.em.value(b, fold.operand, index, live), index, live)
            self._store_elements(b, index, live, stored)

        self._for_each_tile(self.top, visit)
        return folds

    def _bind(self, fold: Fold) -> None:
        """Bind a reduction to its value."""
        result = self.top.let(k.cast(fold.result(self.top), fold.node.dtype), "fold")
        self.em.bind(fold.node, Leaf(lambda b, index, mask: result, home=self.top))

    def _store(self) -> None:
        block, full = self.top, frozenset(n for n in self.group.body.outputs if self._is_full(n)) - self.early_results
        live = self.span.in_bounds
        if self.programs > 1:  # one value per row: only the first part stores it
            live = block.let(mask_and(live, k.binary("eq", self.part, ZERO)), "once")
        for root, buffer, layout in self.group.results:
            if not self._is_full(root):
                index = reshape_index(block, root.shape, self.rows.kept_shape, self.row_index)
                write(block, self.em, root, buffer, layout, index, None, live)
        if full:
            self._for_each_tile(block, lambda b, index, live: self._store_elements(b, index, live, full))

    def _store_elements(self, b: Block, index: Index, live: Expr | None, roots: frozenset[Node]) -> None:
        """Store the elements of results of the full box at an index."""
        for root, buffer, layout in self.group.results:
            if root in roots:
                root_index = reshape_index(b, root.shape, self.rows.shape, index)
                source, source_index = self._source(root, index, root_index)
                write(b, self.em, source, buffer, layout, source_index, live, self.span.in_bounds, root_index)

    def elements(self, root: Node) -> Expr:
        """The elements of a result of the full box, of a tile of full rows whose reductions are computed."""
        assert self.cached_tile is not None
        index, live = self.cached_tile
        root_index = reshape_index(self.top, root.shape, self.rows.shape, index)
        return self.em.value(self.top, *self._source(root, index, root_index), live)

    def _source(self, root: Node, index: Index, root_index: Index) -> tuple[Node, Index]:
        """The node that a result reshapes and its index, at which the tile's values are computed already."""
        source = self._box_source(root)
        return source, root_index if source is root else index

    def _is_full(self, root: Node) -> bool:
        """Whether a result has the size of the full box, perhaps reshaped, instead of one value per row."""
        return product(root.shape) == product(self.rows.shape)

    def _box_source(self, root: Node) -> Node:
        """Return the node of the box's shape that a result reshapes; the result itself if there is none."""
        node = root
        while isinstance(node.op, Reshape) and node.shape != self.rows.shape:
            node = node.inputs[0]
        return node if node.shape == self.rows.shape else root


def reduction_levels(body: Graph) -> list[list[Node]]:
    """Return the reductions of a group by level: those of the first level depend on no other."""
    reductions = reductions_of(body)
    depth: dict[Node, int] = {}
    for n in reductions:
        operand_depths = [depth[m] for m in topological([n.inputs[0]]) if m in depth]
        depth[n] = 1 + max(operand_depths, default=0)
    return [[n for n in reductions if depth[n] == d] for d in sorted(set(depth.values()))]


@dataclass(frozen=True)
class Fold:
    """The state of a reduction: of full rows the tile itself (`tiles`), else a register tile of running values, and for
    arg reductions one of their positions."""

    node: Node
    dtype: DType
    value: Buffer | None
    position: Buffer | None
    tiles: list[tuple[Expr, Expr | None]] = field(default_factory=list)

    @staticmethod
    def of(block: Block, node: Node, tile: Tile, is_full_row: bool) -> Fold:
        dtype = accumulator(node.inputs[0].dtype)
        if is_full_row and tile[1] <= MAX_F64_SUM_TERMS and dtype == f32 and reduction(node).kind == "sum":
            dtype = f64
        if is_full_row:
            return Fold(node, dtype, None, None)
        value = register(block, "acc", constant_tile(dtype, tile, identity_of(reduction(node).kind, dtype)))
        position = register(block, "place", constant_tile(i64, tile)) if isinstance(node.op, ArgReduce) else None
        return Fold(node, dtype, value, position)

    @property
    def operand(self) -> Node:
        return self.node.inputs[0]

    def add(self, block: Block, value: Expr, index: Index, live: Expr | None) -> None:
        """Accumulate a tile of elements."""
        op = reduction(self.node)
        value = k.cast(value, self.dtype)
        position = index[op.dim] if isinstance(op, ArgReduce) else ZERO
        tile = _tile_of(value, *index)
        value, position = k.spread(value, tile), k.spread(position, tile)
        if live is not None:
            value = k.select(live, value, k.lit(identity_of(op.kind, self.dtype), self.dtype))
        value = block.let(value)
        if self.value is None:
            self.tiles.append((value, position if live is None else k.select(live, position, _losing_position(op))))
            return
        old = block.let(k.load(self.value, ZERO), "o")
        if self.position is None:
            block.store(self.value, ZERO, k.binary(combining_op(op.kind, self.dtype), value, old))
            return
        assert isinstance(op, ArgReduce)
        is_better = block.let(takes_new(op, value, old), "t")
        if live is not None:
            is_better = k.binary("and", is_better, live)
        block.store(self.value, ZERO, k.select(is_better, value, old))
        block.store(self.position, ZERO, k.select(is_better, position, k.load(self.position, ZERO)))

    def result(self, block: Block) -> Expr:
        """Return the reduction of each row, as a column; of an arg reduction the position."""
        best, position = self.reduce(block)
        return best if position is None else position

    def reduce(self, block: Block) -> tuple[Expr, Expr | None]:
        """Return the reduced value of each row and, for an arg reduction, its position, as columns."""
        op = reduction(self.node)
        if self.value is None:
            ((value, position),) = self.tiles
        else:
            value, position = block.let(k.load(self.value, ZERO)), None
            if self.position is not None:
                position = block.let(k.load(self.position, ZERO))
        best = block.let(k.reduce_axis(combining_op(op.kind, self.dtype), value, 1), "best")
        if not isinstance(op, ArgReduce):
            return best, None
        assert position is not None
        position = k.select(is_same_value(value, best), position, _losing_position(op))
        return best, k.reduce_axis("max" if op.last else "min", position, 1)


def _losing_position(op: ArgReduce | Reduction) -> Expr:
    """A position that loses ties against all others."""
    return k.lit(-1 if isinstance(op, ArgReduce) and op.last else i64.range[1], i64)


def _tile_of(*values: Expr) -> Tile:
    tiles = [v.tile for v in values if v.tile is not None]
    return max(t[0] for t in tiles), max(t[1] for t in tiles)


__all__ = ["CHUNK", "MAX_ROW_ELEMENTS", "Fold", "RowTiles", "lower_rows", "reduction_levels", "row_group"]
