"""Merge sort of rows of keys: short runs are sorted by counting, then merged, eight at a time, by binary search.

    a run of 256:      rank of x[i] = number of elements of the run that precede it
    eight runs:        rank of x[i] = sum over the runs of the elements that precede it, by binary search

Each element computes its own rank in the merged run, so no elements are exchanged, and the sort is stable: equal keys
of runs further left come first. If only the first elements of a row are kept, runs drop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, bounds, ceildiv, dim_min, estimate
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.types import DType, boolean, i32, i64, u32, u64
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.folds import accumulator
from ingot.schedule.gpu.blocks import Group, Span, constant_tile, power_of_two, register, store_tile
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Step
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

RUN_ELEMENTS = 256  # of a run that is sorted by counting
COUNT_TILE_ROWS, COUNT_TILE_COLUMNS = 64, 64  # elements that are ranked, and elements they are compared with
MERGE_RUNS, MERGE_ELEMENTS = 8, 128  # runs per merge, and elements of one run that a program ranks
MAX_ROW_ELEMENTS = 1 << 31  # as positions are i32

ReadKeys = Callable[[Block, Expr, Expr, Expr | None], Sequence[Expr]]


@dataclass(frozen=True)
class KeyRows:
    """Rows of keys to sort: `count` rows of `length` elements. read_keys: return an element's keys, made by
    `order_key`, for its row and position. dtypes: of the keys. result_length: the number of first elements of each
    sorted row to keep; None: all."""

    count: DimLike
    length: DimLike
    read_keys: ReadKeys
    dtypes: tuple[DType, ...]
    result_length: DimLike | None = None

    def __post_init__(self) -> None:
        if isinstance(self.length, int) and self.length >= MAX_ROW_ELEMENTS:
            got = str(self.length)
            raise CompileError(
                "a sort, or updates of a scatter", expected=f"fewer than {MAX_ROW_ELEMENTS} per row", got=got
            )


def key_type(dtype: DType) -> DType:
    """Return the integer type that preserves the order of a type's values."""
    return i64 if dtype.bits == 64 or dtype == u32 else i32


def order_key(x: Expr, descending: bool) -> Expr:
    """Map x to integers in the same order: NaN is greater than any number, and -0 equals 0."""
    dtype = key_type(x.dtype)
    if x.dtype.is_float:
        x = k.cast(x, accumulator(x.dtype))
        max_key = k.lit(dtype.range[1], dtype)
        bits = k.select(k.binary("eq", x, k.lit(0.0, x.dtype)), k.lit(0, dtype), k.bitcast(x, dtype))
        key = k.select(k.binary("lt", bits, k.lit(0, dtype)), k.binary("xor", bits, max_key), bits)
        key = k.select(k.binary("ne", x, x), max_key, key)
    elif x.dtype == u64:
        key = k.binary("xor", k.bitcast(x, i64), k.lit(i64.range[0], i64))
    else:
        key = k.cast(x, dtype)
    return k.unary("not", key) if descending else key


def _precedes(a_keys: Sequence[Expr], b_keys: Sequence[Expr], if_equal: Expr) -> Expr:
    """Whether `a_keys` precede `b_keys`. if_equal: the result for equal keys."""
    precedes = if_equal
    for a, b in reversed([*zip(a_keys, b_keys, strict=True)]):
        precedes = k.binary("or", k.binary("lt", a, b), k.binary("and", k.binary("eq", a, b), precedes))
    return precedes


@dataclass(frozen=True)
class SortedRuns:
    """Rows as sorted runs of `size` elements, of which `stored_length` are stored. buffers: each element's position in
    its row, and its keys if needed."""

    rows: KeyRows
    size: int
    buffers: tuple[tuple[Buffer, Arg], ...] = ()

    def with_buffers(self, temps: list[DimLike], with_keys: bool) -> SortedRuns:
        """Allocate buffers for the runs in `temps`."""
        buffers: list[tuple[Buffer, Arg]] = []
        for dtype in (i32, *(self.rows.dtypes if with_keys else ())):
            name = f"key{len(temps)}" if buffers else f"order{len(temps)}"
            buffers.append((Buffer(name, dtype, writable=True), Arg("temp", len(temps))))
            temps.append(self.rows.count * self.stride * dtype.nbytes)
        return replace(self, buffers=tuple(buffers))

    @property
    def order(self) -> tuple[Buffer, Arg]:
        return self.buffers[0]

    @property
    def keys(self) -> list[Buffer]:
        return [buffer for buffer, _ in self.buffers[1:]]

    @property
    def count(self) -> DimLike:
        """Runs per row."""
        return 1 if self.is_full_row else ceildiv(self.rows.length, self.size)

    @property
    def is_full_row(self) -> bool:
        """Whether a run is a full row, for any size of a symbolic dimension."""
        max_length = bounds(self.rows.length)[1]
        return self.size >= (MAX_ROW_ELEMENTS if max_length is None else max_length)

    @property
    def stored_length(self) -> DimLike:
        """The maximum number of stored elements per run."""
        row_length = self.rows.length if self.rows.result_length is None else self.rows.result_length
        return dim_min(row_length, self.rows.length if self.is_full_row else self.size)

    @property
    def stride(self) -> DimLike:
        """Stored elements per row."""
        return self.stored_length if self.is_full_row else dim_min(self.count * self.stored_length, self.rows.length)

    def base(self, row: Expr, run: Expr) -> Expr:
        """Return the offset of a run."""
        return ix.add(ix.mul(row, dim_expr(self.stride)), ix.mul(run, dim_expr(self.stored_length)))

    def run_length(self, run: Expr) -> Expr:
        """Return the stored elements of a run, 0 if it does not exist."""
        remaining = ix.sub(dim_expr(self.rows.length), ix.mul(run, integer(self.size)))
        return k.binary("max", k.binary("min", remaining, dim_expr(self.stored_length)), ZERO)

    def store(self, block: Block, row: Expr, run: Expr, rank: Expr, values: Sequence[Expr], live: Expr) -> None:
        """Store elements and their keys at their ranks, unless those are dropped."""
        live = block.let(k.binary("and", live, k.binary("lt", rank, dim_expr(self.stored_length))), "live")
        offset = block.let(k.add(rank, self.base(row, run)), "to")
        for (buffer, _), value in zip(self.buffers, values, strict=False):
            store_tile(block, buffer, offset, value, live)


def order_rows(
    rows: KeyRows, group: Group, temps: list[DimLike], *, with_keys: bool = False
) -> tuple[list[Step], SortedRuns]:
    """Return kernels that sort all rows, and the resulting runs, one per row. with_keys: store the keys, too."""
    size = min(RUN_ELEMENTS, power_of_two(rows.length)) if isinstance(rows.length, int) else RUN_ELEMENTS

    def runs(size: int) -> SortedRuns:
        result = SortedRuns(rows, size)
        return result.with_buffers(temps, with_keys or not result.is_full_row)

    current = runs(size)
    steps = [_count_step(current, group)]
    while not current.is_full_row:
        size *= MERGE_RUNS
        previous, current = current, runs(size)
        steps.append(_merge_step(previous, current, group))
    return steps, current


def merge_count(length: DimLike) -> int:
    """Estimate the number of merge passes."""
    runs, count = -(-estimate(length) // RUN_ELEMENTS), 0
    while runs > 1:
        runs, count = -(-runs // MERGE_RUNS), count + 1
    return count


def _count_step(runs: SortedRuns, group: Group) -> Step:
    """The kernel that sorts runs by counting."""
    rows, top, chunk = runs.rows, Block(), k.var("chunk")
    tile_rows, tile_columns = min(COUNT_TILE_ROWS, runs.size), min(COUNT_TILE_COLUMNS, runs.size)
    pieces = runs.size // tile_rows
    row, run, piece = _locate(top, chunk, runs, pieces, tile_rows)
    begin = top.let(k.mul(run, integer(runs.size)), "begin")
    own = Span.of(top, k.add(begin, piece), tile_rows, rows.length, 0, wraps=True, tile=runs.size)
    own_keys = rows.read_keys(top, row, own.position, None)
    tile = (tile_rows, tile_columns)
    acc = register(top, "acc", constant_tile(i32, tile))

    def compare(block: Block, first: Expr) -> None:
        span = Span.of(block, k.add(begin, first), tile_columns, rows.length, 1, tile=runs.size)
        other_keys = rows.read_keys(block, row, span.position, span.in_bounds)
        precedes = _precedes(other_keys, own_keys, k.binary("lt", span.position, own.position))
        if span.in_bounds is not None:
            precedes = k.binary("and", precedes, span.in_bounds)
        block.store(acc, ZERO, k.add(k.load(acc, ZERO), k.cast(k.spread(precedes, tile), i32)))

    top.loop("j", 0, runs.size, tile_columns, compare)
    live = k.lit(True, boolean, tile_rows, (tile_rows, 1)) if own.in_bounds is None else own.in_bounds
    rank = top.let(k.cast(k.reduce_axis("add", k.load(acc, ZERO), 1), begin.dtype), "place")
    runs.store(top, row, run, rank, (k.cast(own.position, i32), *own_keys), live)
    return group.step("sort_runs", chunk, rows.count * runs.count * pieces, top, *runs.buffers)


def binary_search(top: Block, max_count: DimLike, probe: Callable[[Block, Expr], None]) -> None:
    """Emit a binary search for a count of up to `max_count`, bit by bit from the highest."""
    bits = (max_count if isinstance(max_count, int) else MAX_ROW_ELEMENTS - 1).bit_length()

    def loop_body(block: Block, iteration: Expr) -> None:
        step = k.binary("shl", k.lit(1, i32), k.cast(ix.sub(integer(bits - 1), iteration), i32))
        probe(block, block.let(step, "step"))

    top.loop("turn", 0, bits, 1, loop_body)


def _locate(top: Block, chunk: Expr, runs: SortedRuns, pieces: DimLike, width: int) -> tuple[Expr, Expr, Expr]:
    """Return a program's row, its run, and the start of its piece in the run."""
    number = top.let(k.binary("div", chunk, dim_expr(pieces)), "number")
    row = top.let(k.binary("div", number, dim_expr(runs.count)), "line")
    run = top.let(k.binary("rem", number, dim_expr(runs.count)), "run")
    return row, run, top.let(k.mul(k.binary("rem", chunk, dim_expr(pieces)), integer(width)), "piece")


def _merge_step(source: SortedRuns, target: SortedRuns, group: Group) -> Step:
    """The kernel that merges MERGE_RUNS runs each. A program ranks some elements of one run."""
    rows, top, chunk = source.rows, Block(), k.var("chunk")
    width = min(MERGE_ELEMENTS, power_of_two(max(1, estimate(source.stored_length))))
    pieces = ceildiv(source.stored_length, width)
    row, run, piece = _locate(top, chunk, source, pieces, width)
    position = top.let(k.add(piece, k.lane_indices(width, 1)), "own")
    live = top.let(k.binary("lt", position, source.run_length(run)), "live")
    offset = top.let(k.add(position, source.base(row, run)), "at")
    order, *own_keys = (top.let(k.gather(buffer, offset, live)) for buffer, _ in source.buffers)

    merged_run = top.let(k.binary("div", run, integer(MERGE_RUNS)), "joined")
    runs = top.let(k.add(k.mul(merged_run, integer(MERGE_RUNS)), k.lane_indices(MERGE_RUNS, 0)), "other")
    lengths = top.let(k.cast(source.run_length(runs), i32), "there")
    base = top.let(ix.sub(source.base(row, runs), integer(1)), "base")
    tile = (MERGE_RUNS, width)
    is_left = top.let(k.spread(k.binary("lt", runs, run), tile), "left")
    counts_before = register(top, "found", constant_tile(i32, tile))

    def probe(block: Block, step: Expr) -> None:
        count = block.let(k.load(counts_before, ZERO), "so_far")
        candidate = block.let(k.add(count, step), "beyond")
        in_bounds = block.let(k.binary("and", k.binary("le", candidate, lengths), live), "inside")
        flat = block.let(k.add(base, k.cast(candidate, i64)), "flat")
        keys = [block.let(k.gather(buffer, flat, in_bounds)) for buffer in source.keys]
        precedes = k.binary("and", in_bounds, _precedes(keys, own_keys, is_left))
        block.store(counts_before, ZERO, k.select(precedes, candidate, count))

    binary_search(top, source.stored_length, probe)
    counts = k.select(k.binary("eq", runs, run), k.cast(position, i32), k.load(counts_before, ZERO))
    rank = top.let(k.cast(k.reduce_axis("add", counts, 0), i64), "place")
    target.store(top, row, merged_run, rank, (order, *own_keys), live)
    chunks = rows.count * source.count * pieces
    return group.step("merge", chunk, chunks, top, *source.buffers, *target.buffers)


__all__ = [
    "MAX_ROW_ELEMENTS",
    "KeyRows",
    "SortedRuns",
    "binary_search",
    "key_type",
    "merge_count",
    "order_key",
    "order_rows",
]
