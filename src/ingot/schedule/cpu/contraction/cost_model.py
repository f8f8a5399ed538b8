"""Choosing a contraction's register tile, column panels and chunks: an analytic model of one core.

A register tile of `m` rows by `nv` vectors of columns does, for each k, m * nv multiply-adds, nv vector loads of B
and m broadcast loads of A. It runs at the multiply-add peak when m * nv covers the latency and the loads fit beside it:

    cycles per k = max(m * nv / fma_per_cycle, fma_latency, (m + nv) / loads_per_cycle, bytes of B / l2_rate)

(Goto and van de Geijn 2008; Low et al., "Analytical modeling is enough for high-performance BLIS", 2016.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, gcd, lcm

from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.types import bf16
from ingot.schedule.axes import Contraction, merge_axes
from ingot.schedule.choice import Choice, Direct
from ingot.schedule.cpu.contraction.plan import AHEAD, LINE, Plan, transposed
from ingot.schedule.cpu.machine import Machine
from ingot.support.dataclass import dataclass


def tile_cycles(m: int, nv: int, machine: Machine, latency: int = 0, widened: int = 0) -> float:
    """Cycles per k of a register tile, or per lane of k of one with dot instructions, whose latency is given.
    widened: vectors that take an instruction more to become f32."""
    if m == 0 or nv == 0:
        return 0.0
    arithmetic = (m * nv + widened) / machine.fma_per_cycle
    loads = (m + nv) / machine.loads_per_cycle
    stream = nv * machine.vector_bits / 8 / machine.l2_rate
    # the rest breaks ties: fewer loads leave room for the epilogue's and for prefetches
    return max(arithmetic, float(latency or machine.fma_latency), loads, stream) + 0.03 * (m + nv)


def _k_cycles(c: Contraction, m: int, nv: int, machine: Machine) -> float:
    """Cycles per k, what narrow operands cost included."""
    if _dots(c, machine):
        return tile_cycles(m, nv, machine, machine.dot_latency) / c.per_lane
    # pairs come apart by a shift and a mask, other narrow operands are converted as they are loaded
    widened = (m if c.a.nbytes < c.acc.nbytes else 0) + (nv if c.b.nbytes < c.acc.nbytes else 0)
    return tile_cycles(m, nv, machine, widened=widened)


def _dots(c: Contraction, machine: Machine) -> bool:
    return c.per_lane > 1 and c.a != c.acc and (machine.bf16_dot if c.a == bf16 else machine.int8_dot)


def _most_held(c: Contraction, nv: int, machine: Machine) -> int:
    """Rows of a tile that are in registers at once; pairs that are widened there need both halves, and a single row of
    levels has words and sums of a block beside those of all."""
    if c.of_levels:
        return most_rows(nv, machine) if 3 * nv + 4 <= machine.registers else 0
    if c.per_lane == 1 or _dots(c, machine):
        return most_rows(nv, machine)
    return (machine.registers - 2) // nv - 2


def fits(m: int, nv: int, machine: Machine) -> bool:
    """Accumulators, the B vectors and one broadcast are in registers at once."""
    return m <= most_rows(nv, machine)


def most_rows(nv: int, machine: Machine) -> int:
    return (machine.registers - 1) // nv - 1


def plan_contraction(c: Contraction, machine: Machine) -> Plan:
    """The plan with the fewest modelled cycles."""
    return plan_of(c, machine, choose(c, machine))


def choose(c: Contraction, machine: Machine) -> Direct:
    """What the model chooses."""
    tile = rank_tiles(c, machine)[0]
    return _around(c, machine, tile, rank_chunks(c, machine, tile)[0])


def _around(c: Contraction, machine: Machine, tile: tuple[int, int, int], chunk: tuple[int, int, int]) -> Direct:
    plain = Direct(*tile, *chunk, blocks=1, prefetch=0)
    plan = plan_of(c, machine, plain)
    run = tiles_at_once(c, machine, plain.width, plain.tiles)
    prefetch = _prefetch(c, plan, run) if c.packed and not c.of_levels else 0
    return replace(plain, blocks=_blocks(c, machine, plan, run), prefetch=prefetch)


# Rows that a run-time number of them may well be, and how much slower a tile may be for as many than the best: likely
# is a batch of 1, but tiles of a single row would read B again for each of a batch of 64.
_MANY, _SLOWER = 64, 1.25
_CHUNK_ROWS = 32  # of which a chunk takes at least so many


def rank_tiles(c: Contraction, machine: Machine) -> list[tuple[int, int, int]]:
    """All register tiles (lines, width, vectors), the one with the fewest modelled cycles first; those that are slow
    for more rows than are likely come last."""
    costs = {tile: cost for cost, tile in _costs(c, machine, estimate(c.rows[-1].extent))}
    if isinstance(c.rows[-1].extent, int) or estimate(c.rows[-1].extent) >= _MANY:
        return sorted(costs, key=lambda tile: costs[tile])
    many = {tile: cost for cost, tile in _costs(c, machine, _MANY)}
    slow = _SLOWER * min(many.values())
    return sorted(costs, key=lambda tile: (many[tile] > slow, costs[tile]))


def least_cycles(c: Contraction, machine: Machine) -> float:
    """What the model expects of the best register tile, for one batch entry on one core."""
    outer = product(estimate(x.extent) for x in (*c.rows[:-2], *c.cols[:-1]))
    return min(cost for cost, _ in _costs(c, machine, estimate(c.rows[-1].extent))) * estimate(outer)


def _costs(c: Contraction, machine: Machine, inner: int) -> Iterator[tuple[float, tuple[int, int, int]]]:
    """Register tiles (lines, width, vectors) with modelled cycles for `inner` rows along the last axis."""
    lanes = machine.lanes(c.acc)
    outer = estimate(c.rows[-2].extent) if len(c.rows) > 1 else 1
    columns = estimate(c.cols[-1].extent)
    k = max(1, estimate(c.k))
    for nv in range(1, machine.registers):
        if nv > 1 and (nv - 1) * lanes >= columns:
            break
        for lines, width in _shapes(c, inner, outer, nv, machine):
            cost = _cost(c.widened, machine, (lines, width, nv), (outer, inner, columns, k), lanes)
            yield cost, (lines, width, nv)


def others(c: Contraction, machine: Machine) -> list[Choice]:
    """What the model ranks next: other register tiles, each with its own best chunks."""
    ranked = rank_tiles(c, machine)[1:TRIED_TILES]
    return [_around(c, machine, tile, rank_chunks(c, machine, tile)[0]) for tile in ranked]


TRIED_TILES, TRIED_CHUNKS = 10, 10


def neighbours(c: Contraction, machine: Machine, choice: Direct) -> list[Choice]:
    """Choices that differ from one in its chunks, its blocks or its prefetching."""
    tile = (choice.lines, choice.width, choice.vectors)
    out: list[Choice] = [_around(c, machine, tile, chunk) for chunk in rank_chunks(c, machine, tile)[:TRIED_CHUNKS]]
    plan = plan_of(c, machine, choice)
    cuts = list(_cuts(c, plan)) if choice.tiles > 1 else []
    if choice.blocks in cuts:
        at = cuts.index(choice.blocks)
        out += [replace(choice, blocks=n) for n in (1, *cuts[max(at - 1, 0) : at + 2])]
    if c.packed:
        lines = choice.prefetch
        out += [replace(choice, prefetch=n) for n in (0, 1, lines // 2, lines + 1, 2 * lines)]
    return [x for x in dict.fromkeys(out) if x != choice and admits(c, machine, x)]


MOST_PREFETCH = 32  # cache lines of a turn
MOST_SCRATCH = 4 << 20  # bytes of partial sums


def admits(c: Contraction, machine: Machine, choice: Choice) -> bool:
    """Whether `choice` gives a kernel for `c`: it may have been read from a file."""
    if not isinstance(choice, Direct):
        return False
    inner = estimate(c.rows[-1].extent)
    outer = estimate(c.rows[-2].extent) if len(c.rows) > 1 else 1
    lanes, columns = machine.lanes(c.acc), estimate(c.cols[-1].extent)
    if not 1 <= choice.vectors < machine.registers or (choice.vectors > 1 and (choice.vectors - 1) * lanes >= columns):
        return False
    if (choice.lines, choice.width) not in _shapes(c, inner, outer, choice.vectors, machine):
        return False
    g = _Grid.of(c, choice.lines, choice.width, choice.vectors * lanes)
    rows = choice.tiles <= g.across or (choice.tiles % g.across == 0 and choice.tiles < g.tiles + g.across)
    counts = 1 <= choice.panels <= g.panels and 1 <= choice.entries <= g.entries and choice.tiles >= 1
    if not rows or not counts or choice.prefetch > (MOST_PREFETCH if c.packed else 0):
        return False
    if choice.blocks == 1:
        return True
    plan = plan_of(c, machine, replace(choice, blocks=1))
    small = tiles_bytes(c, plan, choice.tiles) <= MOST_SCRATCH
    return (choice.tiles > 1 or c.of_levels) and choice.blocks in _cuts(c, plan) and small


def plan_of(c: Contraction, machine: Machine, choice: Direct) -> Plan:
    """A choice in terms of the loops."""
    levels, c = c.of_levels, c.widened
    reduce = merge_axes(c.reduce)
    run = estimate(reduce[-1].extent) // c.per_lane
    fixed = isinstance(reduce[-1].extent, int) and run > 0
    unroll = c.per_lane * next((u for u in (2, 3) if fixed and run % u == 0), 1)  # measured: more gains nothing
    lanes = machine.lanes(c.acc)
    across = _Grid.of(c, choice.lines, choice.width, choice.vectors * lanes).across
    block: DimLike = choice.tiles * choice.width
    tiles = choice.tiles
    if isinstance(c.rows[-1].extent, int) and choice.tiles >= across:
        block = c.rows[-1].extent
    elif choice.tiles >= across:
        # a fixed size, and no few rows that would each read B again; rows beyond it are more chunks
        each = max(across, -(-_CHUNK_ROWS // choice.width))
        block, tiles = each * choice.width, max(1, choice.tiles // across) * each
    run = tiles_at_once(c, machine, choice.width, choice.tiles)
    p = Plan(
        lanes, choice.lines, choice.width, choice.vectors, unroll, max(1, choice.tiles // across), block, choice.panels,
        machine.masks, choice.entries, choice.prefetch, AHEAD // c.b.nbytes if run == 1 else 0,
    )  # fmt: skip
    if choice.blocks > 1:
        outer = reduce[0].extent
        assert isinstance(outer, int)
        p = replace(p, k_block=outer // choice.blocks, scratch_bytes=tiles_bytes(c, p, run if c.computed else tiles))
    if isinstance(c.k, int) and (transposed(c) or (levels and product(x.extent for x in c.rows) != 1)):
        depth = c.k // choice.blocks if levels else -(-c.k // lanes) * lanes
        panel = depth * p.panel * c.acc.nbytes
        at = -(-p.scratch_bytes // LINE) * LINE
        p = replace(p, panel_at=at, scratch_bytes=at + panel)
    if c.computed:
        at, rows = -(-p.scratch_bytes // LINE) * LINE, run * choice.width
        p = replace(p, rows_at=at, rows_at_once=rows, scratch_bytes=at + rows * _row_bytes(c))
    return p


def tiles_at_once(c: Contraction, machine: Machine, width: int, tiles: int) -> int:
    """Of a chunk's register tiles, those whose rows all panels read before the next ones: all, or as many as a computed
    A may have in the first-level cache."""
    if not c.computed:
        return tiles
    room = machine.l1 if c.inner is None else machine.l2 // 4
    return min(tiles, max(1, room // max(1, width * _row_bytes(c))))


def plan_rows(c: Contraction, machine: Machine, outer: Plan) -> Plan:
    """The plan of a contraction that computes rows of A, all columns, for the chunks of another with the plan `outer`:
    its tiles must end where the other's do. Its scratch lies behind the other's."""
    tile = next(t for t in rank_tiles(c, machine) if t[0] == 1 and outer.width % t[1] == 0)
    tiles = max(1, outer.rows_at_once // tile[1])
    panels = -(-estimate(c.cols[-1].extent) // (tile[2] * machine.lanes(c.acc)))
    plan = plan_of(c, machine, Direct(*tile, panels=panels, tiles=tiles, entries=1, blocks=1, prefetch=0))
    plan = replace(plan, prefetch=_prefetch(c, plan, tiles), scratch_bytes=outer.scratch_bytes)
    if not c.computed:
        return plan
    at, rows = -(-outer.scratch_bytes // LINE) * LINE, outer.rows_at_once
    return replace(plan, rows_at=at, rows_at_once=rows, scratch_bytes=at + rows * _row_bytes(c))


def _row_bytes(c: Contraction) -> int:
    return estimate(c.rows[-1].a) * c.a.nbytes


def _shapes(c: Contraction, inner: int, outer: int, nv: int, machine: Machine) -> list[tuple[int, int]]:
    """Tiles of one line, or of several whole lines."""
    held = _most_held(c, nv, machine)
    most = min(held, max(inner, 1)) if isinstance(c.rows[-1].extent, int) else held  # there may be more than likely
    out = [(1, w) for w in range(1, most + 1)]
    # a run-time number of lines would leave any number of them over
    if len(c.rows) > 1 and all(isinstance(x.extent, int) for x in c.rows[-2:]) and outer > 1:
        out += [(n, inner) for n in range(2, min(outer, machine.registers) + 1) if n * inner <= held]
    return out


# Cycles around a tile's reduction loop: a constant, and for each accumulator (its zero, its share of the epilogue).
_ENTRY, _PER_ACCUMULATOR = 20.0, 2.0
# And for a tile of many rows that each read A alone, as in matmuls and pointwise convolutions. Measured inside models:
# 14x2 takes some 100 cycles more than the sum of its parts, 1.4 times its time at k = 16 and 1.1 times at k = 64; 10x2,
# 12x2 and 8x3 as well; 7x2, 6x4 and 7x3 do not, nor do windows, whose rows share lines. Nothing is spilled.
_FEW_ROWS, _MANY_ROWS_COST = 7, 100.0
# Per byte of B: the more of its stream a multiply-add needs, the less is hidden. Where k is long, 14x2 beats 7x2 and
# 6x4 by 2% to 3%.
_PER_STREAMED = 0.0025


def _cost(
    c: Contraction, machine: Machine, tile: tuple[int, int, int], extents: tuple[int, int, int, int], lanes: int
) -> float:
    lines, width, nv = tile
    outer, inner, columns, k = extents
    alone = len(merge_axes(c.reduce)) == 1

    def one(m: int, v: int) -> float:
        if not m or not v:
            return 0.0
        per_k = _k_cycles(c, m, v, machine) + _PER_STREAMED * v * machine.vector_bits / 8
        more = _MANY_ROWS_COST if m > _FEW_ROWS and alone else 0.0
        return per_k * k + _ENTRY + _PER_ACCUMULATOR * m * v + more

    def column(v: int) -> float:
        full, rest = divmod(inner, width)
        dynamic = not isinstance(c.rows[-1].extent, int)
        over = sum(one(p, v) for p in _powers(rest)) if dynamic else one(lines * rest, v)
        total = (full * one(lines * width, v) + over) * (outer // lines)
        left = outer % lines
        return total + (full * one(left * width, v) + one(left * rest, v) if left else 0.0)

    panels, rest = divmod(-(-columns // lanes), nv)
    total = panels * column(nv) + column(rest)
    # each kind of tile is code to print, compile and fetch
    total *= 1 + 0.01 * (bool(panels) + bool(rest)) * (1 + bool(inner % width)) * (1 + bool(outer % lines))
    rows = outer * inner
    if rows > lines * width and k * nv * lanes * c.b.nbytes > machine.l2 * 0.6:
        total *= 1.1  # a panel that the second-level cache does not keep comes from the third for every tile
    if rows == 1:
        total *= 1 + 0.02 * max(0, 8 - nv)  # a wide panel is a better stream from memory
        pieces, hertz = (panels + bool(rest)) * _entries(c), machine.gflops * 1e9 / (2 * machine.fma_per_cycle * lanes)
        if total / hertz > 8 * _CLAIM:  # worth cutting: panels that are too few leave threads idle
            total *= -(-pieces // machine.threads) * machine.threads / pieces
    return total * _conflicts(c, lines * width)


def _entries(c: Contraction) -> int:
    """Batch entries and outer columns."""
    total = 1
    for x in (*c.batch, *c.cols[:-1]):
        total *= estimate(x.extent)
    return total


def _conflicts(c: Contraction, m: int) -> float:
    """Slow-down by rows of a tile that fall into the same sets of the first-level cache and evict each other.

    Measured on a 12-way cache of 64 sets: nothing up to 3 rows in a set, 20% at 5, 40% at 7. Layouts whose row
    stride is an odd number of cache lines have no conflicts.
    """
    stride = c.rows[-1].a
    if not isinstance(stride, int) or stride == 0 or stride * c.a.nbytes % 64:
        return 1.0
    period = 64 // gcd(stride * c.a.nbytes // 64, 64)
    return 1 + 0.1 * max(0.0, m / period - 3)


def _powers(n: int) -> list[int]:
    """n as a sum of powers of two, largest first."""
    return [1 << b for b in reversed(range(n.bit_length())) if n >> b & 1]


# Seconds: of claiming a chunk and setting up its loops; and per byte that a core streams from the shared cache, of
# which prefetching hides about half.
_CLAIM, _PER_BYTE = 0.5e-6, 0.5 / 60e9
_MAX_CHUNK_SECONDS = 0.05
_MANY_PANELS = 1 << 14  # of more, chunks of powers of two are tried
_PER_LEVEL = 8.0  # arithmetic operations in whose time one level is widened


@dataclass(frozen=True)
class _Grid:
    """A contraction in register tiles. entries: batch entries and outer columns. tiles: of one column panel, `across`
    of them along the last row axis."""

    entries: int
    across: int
    tiles: int
    panels: int

    @staticmethod
    def of(c: Contraction, lines: int, width: int, panel: int) -> _Grid:
        rows = product(estimate(x.extent) for x in c.rows)
        assert isinstance(rows, int)
        inner = max(1, estimate(c.rows[-1].extent))
        across = -(-inner // width)
        tiles = -(-max(1, rows // inner) // lines) * across
        return _Grid(_entries(c), across, tiles, -(-max(1, estimate(c.cols[-1].extent)) // panel))


def rank_chunks(c: Contraction, machine: Machine, tile: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Ways to cut the output into chunks, (panels, tiles, entries) of each, best first: many enough to keep all threads
    busy to the end, few enough to stream little twice, none longer than a call should take to notice an interrupt.

    R row blocks stream B R times, C column blocks stream A C times. With n chunks on t threads the last ones to finish
    leave others idle for at most one chunk; none does where t divides n and all are equal.
    """
    lines, width, vectors = tile
    g = _Grid.of(c, lines, width, vectors * machine.lanes(c.acc))
    entries, across, row_tiles, panels = g.entries, g.across, g.tiles, g.panels
    columns = max(1, estimate(c.cols[-1].extent))
    a_bytes, b_bytes = _span(c) * c.a.nbytes, estimate(c.k) * columns * c.b.nbytes
    work = c.flops / (machine.gflops * 1e9 * (c.per_lane if _dots(c, machine) else 1))
    inner_work, inner_bytes = 0.0, 0
    if c.inner is not None:
        inner_work, inner_bytes = c.inner.flops / (machine.gflops * 1e9), estimate(c.inner.k * c.k) * c.inner.b.nbytes
    widening = _widening(c, machine)
    threads = machine.threads
    # nobody has prefetched a chunk's first panel for the thread that claims it
    first = estimate(c.k) * vectors * machine.lanes(c.acc) * c.b.nbytes
    late = c.packed and row_tiles > 1 and b_bytes > machine.l2 / 2
    start = _CLAIM + (first * _PER_BYTE if late else 0.0)
    found: dict[tuple[int, int, int], tuple[bool, float]] = {}
    prompt = ceil(work / _MAX_CHUNK_SECONDS)
    runs = range(1, panels + 1) if panels <= _MANY_PANELS else [1 << i for i in range(panels.bit_length())]
    for n in sorted({-(-panels // per) for per in runs}):
        per = -(-panels // n)
        blocks = -(-panels // per)
        for goal in (1, threads, 2 * threads, 4 * threads, 8 * threads, 16 * threads, 32 * threads, prompt):
            batch_run = min(entries, max(1, entries * blocks // goal))
            lots = -(-entries // batch_run)
            tiles = _tile_run(-(-row_tiles // min(row_tiles, -(-goal // (blocks * lots)))), across)
            row_blocks = -(-row_tiles // tiles) if tiles >= across else -(-across // tiles) * (row_tiles // across)
            count = lots * blocks * row_blocks
            total = work + inner_work * blocks
            chunk = total * (batch_run / entries) * (per / panels) * (tiles / row_tiles)
            even = count % threads == 0 and entries % batch_run == panels % per == row_tiles % tiles == 0
            idle = 0.0 if even else chunk * (threads - 1) / threads
            # what the second-level cache keeps from chunk to chunk is streamed once; a computed A is computed each time
            rows_fit = a_bytes * min(tiles, row_tiles) / row_tiles <= machine.l2 / 2
            reads = blocks if rows_fit else panels
            a_times = 2 * blocks if c.computed else reads if a_bytes > machine.l2 / 2 else 1
            passes = row_blocks * -(-tiles // tiles_at_once(c, machine, width, tiles))
            streams = b_bytes + inner_bytes
            b_times = passes if streams > machine.l2 / 2 else 1
            traffic = entries * (b_times * streams + a_times * a_bytes) * _PER_BYTE
            # a neighbour may take a core at any time: smaller chunks let the other threads take over
            total += widening * (1 if row_tiles == 1 else row_blocks)
            cost = (total + traffic + count * start) / threads + max(idle, 0.2 * chunk * (threads > 1))
            found.setdefault((per, tiles, batch_run), (chunk > 2 * _MAX_CHUNK_SECONDS, cost))
    return sorted(found, key=lambda x: found[x])


def _widening(c: Contraction, machine: Machine) -> float:
    """Seconds of widening the levels of B once, on one core."""
    elements = estimate(c.k) * estimate(c.cols[-1].extent) if c.of_levels else 0
    return elements * _PER_LEVEL / (machine.gflops * 1e9)


def _tile_run(tiles: int, across: int) -> int:
    """Row tiles of a chunk: whole line groups, or an even part of one."""
    if tiles >= across:
        return -(-tiles // across) * across
    return -(-across // -(-across // tiles))


def _blocks(c: Contraction, machine: Machine, p: Plan, tiles: int) -> int:
    """Blocks of a long reduction so that a chunk's rows of A and a panel of B fit the second-level cache together."""
    alone = tiles < 2
    if alone and (not c.of_levels or product(x.extent for x in c.rows) == 1):
        return 1
    axes, k = merge_axes(c.widened.reduce), estimate(c.k)
    a_bytes = min(_span(c), tiles * p.lines * p.width * k) * c.a.nbytes
    b_bytes = k * p.panel * c.widened.b.nbytes
    for n in _cuts(c, p):
        if alone:  # what a tile reads once may as well be in the first-level cache
            if b_bytes / n <= machine.l1 / 2:
                return n
            continue
        small = b_bytes / n <= 0.45 * machine.l2 and (len(axes) > 1 or (a_bytes + b_bytes) / n <= 0.5 * machine.l2)
        if small or k // n < 2 * MIN_K_BLOCK:
            return n
    return 1


def _cuts(c: Contraction, p: Plan) -> Iterator[int]:
    """Into how many equal blocks of whole turns the outermost reduction loop can be cut; sizes must be known."""
    axes = merge_axes(c.widened.reduce)
    outer = axes[0].extent
    if not isinstance(outer, int) or not isinstance(c.k, int):
        return
    step = p.unroll if len(axes) == 1 else 1
    if c.of_levels and len(axes) == 1:  # whole blocks, or whole words of the only one
        own = merge_axes(c.reduce)
        step = lcm(step, c.per_lane if len(own) == 1 else estimate(own[-1].extent))
    yield from (n for n in range(1, outer // step + 1) if outer % n == 0 and (outer // n) % step == 0)


MIN_K_BLOCK = 512


def tiles_bytes(c: Contraction, p: Plan, tiles: int) -> int:
    """Scratch for the partial sums of a chunk's tiles of one panel."""
    return (tiles + 1) * p.lines * p.width * p.panel * c.acc.nbytes


def _prefetch(c: Contraction, p: Plan, tiles: int) -> int:
    """Cache lines of the next panel that each turn fetches, so that the row tiles of a chunk fetch it all in time.

    Without it the first tile of a panel runs at the speed of memory. Where tiles are many that is a small part.
    """
    if tiles == 1:
        return -(-p.unroll * p.panel * c.b.nbytes // 64)
    if tiles > 64:
        return 0
    lines = p.unroll * p.panel * c.b.nbytes / 64
    return max(1, round(lines / tiles + 0.49))


def _span(c: Contraction) -> int:
    """Elements of A between the first and the last that one batch entry touches, at most one for each product."""
    total = 1
    for x in (*c.rows, *c.reduce):
        total += (estimate(x.extent) - 1) * abs(estimate(x.a))
    return total


__all__ = [
    "admits", "ceildiv", "choose", "least_cycles",
    "neighbours", "others", "plan_contraction", "plan_of", "plan_rows", "tile_cycles",
]  # fmt: skip
