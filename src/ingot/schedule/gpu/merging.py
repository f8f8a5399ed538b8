"""The order of lines of keys: runs that are ordered by counting, then merged, eight at a time, by searching.

    a run of 256:      place of x[i] = how many of the run stand before it
    eight runs:        place of x[i] = how many of each of the runs stand before it, by binary search

Each element finds its own place in the next run, so nothing is exchanged, and equal keys keep their order: those of a
run further left stand before. Of runs longer than what is kept of the line, the rest is dropped.
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

COUNTED = 256  # elements of a run that is ordered by counting
ROWS, COLUMNS = 64, 64  # of these that are placed, and that they are compared with, at a time
FAN, WIDTH = 8, 128  # runs that are merged, and elements of one of them that a program places
LONGEST = 1 << 31  # a line, as places are i32

Read = Callable[[Block, Expr, Expr, Expr | None], Sequence[Expr]]


@dataclass(frozen=True)
class Lines:
    """What is ordered: `count` lines of `length` elements. read: an element's keys, as `order_key` makes them, by its
    line and place. dtypes: of these. keep: how many elements of each line are wanted, the first ones; None: all."""

    count: DimLike
    length: DimLike
    read: Read
    dtypes: tuple[DType, ...]
    keep: DimLike | None = None

    def __post_init__(self) -> None:
        if isinstance(self.length, int) and self.length >= LONGEST:
            got = str(self.length)
            raise CompileError("a sort, or updates of a scatter", expected=f"fewer than {LONGEST} in a line", got=got)


def key_type(dtype: DType) -> DType:
    """What holds the order of a type's values."""
    return i64 if dtype.bits == 64 or dtype == u32 else i32


def order_key(x: Expr, descending: bool) -> Expr:
    """Integers in the order of x: NaN is greater than any number, and -0 is 0."""
    dtype = key_type(x.dtype)
    if x.dtype.is_float:
        x = k.cast(x, accumulator(x.dtype))
        most = k.lit(dtype.range[1], dtype)
        bits = k.select(k.binary("eq", x, k.lit(0.0, x.dtype)), k.lit(0, dtype), k.bitcast(x, dtype))
        key = k.select(k.binary("lt", bits, k.lit(0, dtype)), k.binary("xor", bits, most), bits)
        key = k.select(k.binary("ne", x, x), most, key)
    elif x.dtype == u64:
        key = k.binary("xor", k.bitcast(x, i64), k.lit(i64.range[0], i64))
    else:
        key = k.cast(x, dtype)
    return k.unary("not", key) if descending else key


def _stands_before(theirs: Sequence[Expr], own: Sequence[Expr], if_equal: Expr) -> Expr:
    """Whether `theirs` stand before `own`."""
    earlier = if_equal
    for a, b in reversed([*zip(theirs, own, strict=True)]):
        earlier = k.binary("or", k.binary("lt", a, b), k.binary("and", k.binary("eq", a, b), earlier))
    return earlier


@dataclass(frozen=True)
class Runs:
    """Lines as runs of `size` elements, each in order, of which `kept` are stored. buffers: where in its line each
    element comes from, and its keys where somebody needs them."""

    lines: Lines
    size: int
    buffers: tuple[tuple[Buffer, Arg], ...] = ()

    def stored(self, temps: list[DimLike], keyed: bool) -> Runs:
        """With memory of their own, which joins `temps`."""
        made: list[tuple[Buffer, Arg]] = []
        for dtype in (i32, *(self.lines.dtypes if keyed else ())):
            name = f"key{len(temps)}" if made else f"order{len(temps)}"
            made.append((Buffer(name, dtype, writable=True), Arg("temp", len(temps))))
            temps.append(self.lines.count * self.stride * dtype.nbytes)
        return replace(self, buffers=tuple(made))

    @property
    def order(self) -> tuple[Buffer, Arg]:
        return self.buffers[0]

    @property
    def keys(self) -> list[Buffer]:
        return [buffer for buffer, _ in self.buffers[1:]]

    @property
    def count(self) -> DimLike:
        """Of a line."""
        return 1 if self.is_whole else ceildiv(self.lines.length, self.size)

    @property
    def is_whole(self) -> bool:
        """Whether a run is a line, however long that is."""
        most = bounds(self.lines.length)[1]
        return self.size >= (LONGEST if most is None else most)

    @property
    def kept(self) -> DimLike:
        """Elements of a run that are stored, at most."""
        wanted = self.lines.length if self.lines.keep is None else self.lines.keep
        return dim_min(wanted, self.lines.length if self.is_whole else self.size)

    @property
    def stride(self) -> DimLike:
        """Elements from line to line."""
        return self.kept if self.is_whole else dim_min(self.count * self.kept, self.lines.length)

    def base(self, line: Expr, run: Expr) -> Expr:
        """Where a run lies."""
        return ix.add(ix.mul(line, dim_expr(self.stride)), ix.mul(run, dim_expr(self.kept)))

    def there(self, run: Expr) -> Expr:
        """How many elements of a run there are in memory: none of one that there is not."""
        left = ix.sub(dim_expr(self.lines.length), ix.mul(run, integer(self.size)))
        return k.binary("max", k.binary("min", left, dim_expr(self.kept)), ZERO)

    def store(self, block: Block, line: Expr, run: Expr, place: Expr, values: Sequence[Expr], live: Expr) -> None:
        """Elements and their keys at their places, where these are kept."""
        live = block.let(k.binary("and", live, k.binary("lt", place, dim_expr(self.kept))), "live")
        at = block.let(k.add(place, self.base(line, run)), "to")
        for (buffer, _), value in zip(self.buffers, values, strict=False):
            store_tile(block, buffer, at, value, live)


def ordered(lines: Lines, group: Group, temps: list[DimLike], *, keyed: bool = False) -> tuple[list[Step], Runs]:
    """Kernels that order all lines, and the one run of each that they leave; keyed: with its keys."""
    size = min(COUNTED, power_of_two(lines.length)) if isinstance(lines.length, int) else COUNTED

    def runs(size: int) -> Runs:
        made = Runs(lines, size)
        return made.stored(temps, keyed or not made.is_whole)

    now = runs(size)
    steps = [_count(now, group)]
    while not now.is_whole:
        size *= FAN
        before, now = now, runs(size)
        steps.append(_merge(before, now, group))
    return steps, now


def merges(length: DimLike) -> int:
    """How often runs of a line are merged, about, until they are one."""
    runs, times = -(-estimate(length) // COUNTED), 0
    while runs > 1:
        runs, times = -(-runs // FAN), times + 1
    return times


def _count(runs: Runs, group: Group) -> Step:
    """Runs of elements in order."""
    lines, top, chunk = runs.lines, Block(), k.var("chunk")
    rows, columns = min(ROWS, runs.size), min(COLUMNS, runs.size)
    pieces = runs.size // rows
    line, run, piece = _place(top, chunk, runs, pieces, rows)
    begin = top.let(k.mul(run, integer(runs.size)), "begin")
    own = Span.of(top, k.add(begin, piece), rows, lines.length, 0, wraps=True)
    mine = lines.read(top, line, own.position, None)
    tile = (rows, columns)
    acc = register(top, "acc", constant_tile(i32, tile))

    def compare(block: Block, first: Expr) -> None:
        span = Span.of(block, k.add(begin, first), columns, lines.length, 1)
        theirs = lines.read(block, line, span.position, span.in_bounds)
        earlier = _stands_before(theirs, mine, k.binary("lt", span.position, own.position))
        if span.in_bounds is not None:
            earlier = k.binary("and", earlier, span.in_bounds)
        block.store(acc, ZERO, k.add(k.load(acc, ZERO), k.cast(k.spread(earlier, tile), i32)))

    top.loop("j", 0, runs.size, columns, compare)
    live = k.lit(True, boolean, rows, (rows, 1)) if own.in_bounds is None else own.in_bounds
    place = top.let(k.cast(k.reduce_along("add", k.load(acc, ZERO), 1), begin.dtype), "place")
    runs.store(top, line, run, place, (k.cast(own.position, i32), *mine), live)
    return group.step("sort_runs", chunk, lines.count * runs.count * pieces, top, *runs.buffers)


def halved(top: Block, most: DimLike, search: Callable[[Block, Expr], None]) -> None:
    """A binary search for a count of up to `most`: its bits, from the highest on."""
    turns = (most if isinstance(most, int) else LONGEST - 1).bit_length()

    def turn(block: Block, number: Expr) -> None:
        step = k.binary("shl", k.lit(1, i32), k.cast(ix.sub(integer(turns - 1), number), i32))
        search(block, block.let(step, "step"))

    top.loop("turn", 0, turns, 1, turn)


def _place(top: Block, chunk: Expr, runs: Runs, pieces: DimLike, width: int) -> tuple[Expr, Expr, Expr]:
    """A program's line, its run there, and where in that its piece begins."""
    number = top.let(k.binary("div", chunk, dim_expr(pieces)), "number")
    line = top.let(k.binary("div", number, dim_expr(runs.count)), "line")
    run = top.let(k.binary("rem", number, dim_expr(runs.count)), "run")
    return line, run, top.let(k.mul(k.binary("rem", chunk, dim_expr(pieces)), integer(width)), "piece")


def _merge(before: Runs, after: Runs, group: Group) -> Step:
    """Runs of FAN runs each. A program places some elements of one run."""
    lines, top, chunk = before.lines, Block(), k.var("chunk")
    width = min(WIDTH, power_of_two(max(1, estimate(before.kept))))
    pieces = ceildiv(before.kept, width)
    line, run, piece = _place(top, chunk, before, pieces, width)
    own = top.let(k.add(piece, k.positions(width, 1)), "own")
    live = top.let(k.binary("lt", own, before.there(run)), "live")
    at = top.let(k.add(own, before.base(line, run)), "at")
    order, *mine = (top.let(k.gather(buffer, at, live)) for buffer, _ in before.buffers)

    joined = top.let(k.binary("div", run, integer(FAN)), "joined")
    other = top.let(k.add(k.mul(joined, integer(FAN)), k.positions(FAN, 0)), "other")
    there = top.let(k.cast(before.there(other), i32), "there")
    base = top.let(ix.sub(before.base(line, other), integer(1)), "base")
    tile = (FAN, width)
    left = top.let(k.spread(k.binary("lt", other, run), tile), "left")
    found = register(top, "found", constant_tile(i32, tile))

    def search(block: Block, step: Expr) -> None:
        so_far = block.let(k.load(found, ZERO), "so_far")
        beyond = block.let(k.add(so_far, step), "beyond")
        inside = block.let(k.binary("and", k.binary("le", beyond, there), live), "inside")
        flat = block.let(k.add(base, k.cast(beyond, i64)), "flat")
        theirs = [block.let(k.gather(buffer, flat, inside)) for buffer in before.keys]
        earlier = k.binary("and", inside, _stands_before(theirs, mine, left))
        block.store(found, ZERO, k.select(earlier, beyond, so_far))

    halved(top, before.kept, search)
    counts = k.select(k.binary("eq", other, run), k.cast(own, i32), k.load(found, ZERO))
    place = top.let(k.cast(k.reduce_along("add", counts, 0), i64), "place")
    after.store(top, line, joined, place, (order, *mine), live)
    chunks = lines.count * before.count * pieces
    return group.step("merge", chunk, chunks, top, *before.buffers, *after.buffers)


__all__ = ["LONGEST", "Lines", "Runs", "halved", "key_type", "merges", "order_key", "ordered"]
