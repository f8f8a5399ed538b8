"""The choice of a contraction's register tile, column panels and chunks, by an analytic model of one core.

For each k, a register tile of `m` rows by `nv` vectors of columns does m * nv multiply-adds, nv vector loads of B and m
broadcast loads of A. It runs at the multiply-add peak if m * nv covers the latency and the loads take no longer:

    cycles per k = max(m * nv / fma_per_cycle, fma_latency, (m + nv) / loads_per_cycle, bytes of B / l2_rate)

(Goto and van de Geijn 2008; Low et al., "Analytical modeling is enough for high-performance BLIS", 2016.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, gcd

from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.types import i16
from ingot.schedule.axes import Contraction, merge_axes
from ingot.schedule.choice import Choice, Direct
from ingot.schedule.cpu.contraction.plan import (
    CACHE_LINE_BYTES,
    PREFETCH_DISTANCE_BYTES,
    Plan,
    a_span,
    entry_count,
    has_separate_parts,
    k_block_counts,
    needs_transpose,
    panel_vectors,
    partial_sums_bytes,
    splits_dots,
    uses_dot,
)
from ingot.schedule.cpu.machine import Machine
from ingot.support.dataclass import dataclass


def tile_cycles(m: int, nv: int, machine: Machine, latency: int = 0, widened_vectors: float = 0) -> float:
    """Return the cycles per k of a register tile of `m` rows and `nv` vectors, or per lane of k with dot instructions.

    latency: of the dot instruction; 0: multiply-adds. widened_vectors: each is converted by one more instruction.
    """
    if not m * nv:
        return 0.0
    arithmetic = (m * nv + widened_vectors) / machine.fma_per_cycle
    loads = (m + nv) / machine.loads_per_cycle
    if machine.in_order:
        return arithmetic + loads
    stream = nv * machine.vector_bits / 8 / machine.l2_rate
    # the last term breaks ties: fewer loads leave room for the epilogue's and for prefetches
    return max(arithmetic, float(latency or machine.fma_latency), loads, stream) + 0.03 * (m + nv)


def _cycles_per_k(c: Contraction, m: int, nv: int, machine: Machine) -> float:
    """Cycles per k, including the conversion of narrow operands, or their split into halves with a product each."""
    if uses_dot(c, machine):
        if c.a == i16:  # only sums wait for sums, for a cycle; B is widened
            return tile_cycles(m, nv, machine, 1, nv / 2) / 2
        splits = 2 * (m + nv) + m * nv if machine.in_order and c.k_per_lane == 4 else 0.0
        if splits_dots(c, machine):
            splits = m * nv * (4 / machine.int8_rate - 1) + m + nv
        return tile_cycles(m, nv, machine, machine.dot_latency, splits) / c.k_per_lane
    # a shift and a mask split pairs; other narrow operands are converted as they are loaded
    widened_vectors = (m if c.a.nbytes < c.acc.nbytes else 0) + (nv if c.b.nbytes < c.acc.nbytes else 0)
    return tile_cycles(m, nv, machine, widened_vectors=widened_vectors)


def _max_tile_rows(c: Contraction, nv: int, machine: Machine) -> int:
    """The most rows of a tile whose operands fit in registers. Pairs that are widened there need both halves. For a
    single row, quantized levels need words and block sums in addition to the accumulators."""
    if c.has_quantized_b:
        return max_tile_rows(nv, machine) if 3 * nv + 4 <= machine.registers else 0
    if c.of_signs:  # counting bits takes some
        return max_tile_rows(nv, replace(machine, registers=machine.registers * 5 // 8))
    if splits_dots(c, machine):
        return (machine.registers - 8) // nv - 2
    if c.k_per_lane == 1 or uses_dot(c, machine):
        splits = c.k_per_lane == 4 and machine.in_order  # words to halves
        registers = machine.registers // (1 + splits) - (c.a == i16)  # of pairs a product before it is added
        return max_tile_rows(nv, replace(machine, registers=registers))
    return (machine.registers - 2) // nv - 2


def fits_registers(m: int, nv: int, machine: Machine) -> bool:
    """Whether the accumulators, the vectors of B and one broadcast fit in registers."""
    return m <= max_tile_rows(nv, machine)


def max_tile_rows(nv: int, machine: Machine) -> int:
    return (machine.registers - 1) // nv - 1


def plan_contraction(c: Contraction, machine: Machine) -> Plan:
    """Return the plan with the fewest predicted cycles."""
    return plan_of(c, machine, choose(c, machine))


def choose(c: Contraction, machine: Machine) -> Direct:
    """Return the choice of the cost model."""
    tile = rank_tiles(c, machine)[0]
    return _choice(c, machine, tile, rank_chunks(c, machine, tile)[0])


def _choice(c: Contraction, machine: Machine, tile: tuple[int, int, int], chunk: tuple[int, int, int]) -> Direct:
    base = Direct(*tile, *chunk, blocks=1, prefetch=0)
    plan = plan_of(c, machine, base)
    tiles = tiles_per_a_block(c, machine, base.width, base.tiles)
    prefetch = _prefetch_lines(c, plan, tiles) if c.packed and not c.has_quantized_b else 0
    return replace(base, blocks=_k_blocks(c, machine, plan, tiles), prefetch=prefetch)


# A dynamic batch is probably 1, but tiles of one row would read B again for each row of a batch of 64: a tile may be at
# most _MAX_SLOWDOWN times slower than the best one for _LIKELY_MAX_ROWS rows.
_LIKELY_MAX_ROWS, _MAX_SLOWDOWN = 64, 1.25
_MIN_CHUNK_ROWS = 32  # of a dynamic number of rows


def rank_tiles(c: Contraction, machine: Machine) -> list[tuple[int, int, int]]:
    """Return all register tiles (lines, width, vectors), the one with the fewest predicted cycles first. If the number
    of rows is dynamic, tiles that are slow for many rows come last."""
    costs = {tile: cost for cost, tile in _tile_costs(c, machine, estimate(c.rows[-1].extent))}
    if isinstance(c.rows[-1].extent, int) or estimate(c.rows[-1].extent) >= _LIKELY_MAX_ROWS:
        return sorted(costs, key=lambda tile: costs[tile])
    costs_at_max = {tile: cost for cost, tile in _tile_costs(c, machine, _LIKELY_MAX_ROWS)}
    max_cost = _MAX_SLOWDOWN * min(costs_at_max.values())
    return sorted(costs, key=lambda tile: (costs_at_max[tile] > max_cost, costs[tile]))


def min_cycles(c: Contraction, machine: Machine) -> float:
    """Return the predicted cycles of the best register tile, for one batch entry on one core."""
    outer = product(estimate(x.extent) for x in (*c.rows[:-2], *c.cols[:-1]))
    return min(cost for cost, _ in _tile_costs(c, machine, estimate(c.rows[-1].extent))) * estimate(outer)


def _tile_costs(c: Contraction, machine: Machine, inner: int) -> Iterator[tuple[float, tuple[int, int, int]]]:
    """Yield (cycles, (lines, width, vectors)) of each register tile, for `inner` rows along the last row axis."""
    lanes = machine.lanes(c.acc)
    outer = estimate(c.rows[-2].extent) if len(c.rows) > 1 else 1
    columns = estimate(c.cols[-1].extent)
    k = max(1, estimate(c.k))
    for nv in panel_vectors(c, machine):
        if nv > 1 and (nv - 1) * lanes >= columns:
            break
        for lines, width in _tile_shapes(c, inner, outer, nv, machine):
            cost = _tile_cost(c.dequantized, machine, (lines, width, nv), (outer, inner, columns, k), lanes)
            yield cost, (lines, width, nv)


def candidates(c: Contraction, machine: Machine) -> list[Choice]:
    """Return the next best register tiles by the cost model, each with its best chunks."""
    tiles = rank_tiles(c, machine)[1:MAX_TILE_CANDIDATES]
    return [_choice(c, machine, tile, rank_chunks(c, machine, tile)[0]) for tile in tiles]


MAX_TILE_CANDIDATES, MAX_CHUNK_CANDIDATES = 10, 10


def neighbors(c: Contraction, machine: Machine, choice: Direct) -> list[Choice]:
    """Return the choices that differ from `choice` only in chunks, in k blocks or in prefetching."""
    tile = (choice.lines, choice.width, choice.vectors)
    chunks = rank_chunks(c, machine, tile)[:MAX_CHUNK_CANDIDATES]
    choices: list[Choice] = [_choice(c, machine, tile, chunk) for chunk in chunks]
    plan = plan_of(c, machine, choice)
    block_counts = list(k_block_counts(c, plan)) if choice.tiles > 1 else []
    if choice.blocks in block_counts:
        position = block_counts.index(choice.blocks)
        choices += [replace(choice, blocks=n) for n in (1, *block_counts[max(position - 1, 0) : position + 2])]
    if c.packed:
        lines = choice.prefetch
        choices += [replace(choice, prefetch=n) for n in (0, 1, lines // 2, lines + 1, 2 * lines)]
    return [x for x in dict.fromkeys(choices) if x != choice and admits(c, machine, x)]


MAX_PREFETCH_LINES = 32  # cache lines per iteration of the innermost loop
MAX_PARTIAL_SUMS_BYTES = 4 << 20


def admits(c: Contraction, machine: Machine, choice: Choice) -> bool:
    """Whether `choice` is valid for `c`. It may have been read from a file."""
    if not isinstance(choice, Direct):
        return False
    inner = estimate(c.rows[-1].extent)
    outer = estimate(c.rows[-2].extent) if len(c.rows) > 1 else 1
    lanes, columns = machine.lanes(c.acc), estimate(c.cols[-1].extent)
    is_too_wide = choice.vectors > 1 and (choice.vectors - 1) * lanes >= columns
    if choice.vectors not in panel_vectors(c, machine) or is_too_wide:
        return False
    if (choice.lines, choice.width) not in _tile_shapes(c, inner, outer, choice.vectors, machine):
        return False
    g = _Grid.of(c, choice.lines, choice.width, choice.vectors * lanes)
    per_line = g.tiles_per_line
    has_valid_tiles = choice.tiles <= per_line or (choice.tiles % per_line == 0 and choice.tiles < g.tiles + per_line)
    has_valid_counts = 1 <= choice.panels <= g.panels and 1 <= choice.entries <= g.entries and choice.tiles >= 1
    if not has_valid_tiles or not has_valid_counts or choice.prefetch > (MAX_PREFETCH_LINES if c.packed else 0):
        return False
    if choice.blocks == 1:
        return True
    if c.has_quantized_b != c.widens_b:
        return False
    plan = plan_of(c, machine, replace(choice, blocks=1))
    is_small = partial_sums_bytes(c, plan, choice.tiles) <= MAX_PARTIAL_SUMS_BYTES
    return (choice.tiles > 1 or c.has_quantized_b) and choice.blocks in k_block_counts(c, plan) and is_small


def plan_of(c: Contraction, machine: Machine, choice: Direct) -> Plan:
    """Return the plan of the loops for `choice`."""
    is_widened, c = c.widens_b, c.dequantized
    reduce = merge_axes(c.reduce)
    run = estimate(reduce[-1].extent) // c.k_per_lane
    is_static = isinstance(reduce[-1].extent, int) and run > 0
    is_split = (machine.in_order and c.k_per_lane == 4) or splits_dots(c, machine)
    factors = () if is_split else (2, 3)  # measured: more gains nothing
    unroll = c.k_per_lane * next((u for u in factors if is_static and run % u == 0), 1)
    lanes = machine.lanes(c.acc)
    per_line = _Grid.of(c, choice.lines, choice.width, choice.vectors * lanes).tiles_per_line
    chunk_rows: DimLike = choice.tiles * choice.width
    tiles = choice.tiles
    if isinstance(c.rows[-1].extent, int) and choice.tiles >= per_line:
        chunk_rows = c.rows[-1].extent
    elif choice.tiles >= per_line:
        # a static size, and enough rows to share each read of B; more rows make more chunks
        line_tiles = max(per_line, -(-_MIN_CHUNK_ROWS // choice.width))
        chunk_rows, tiles = line_tiles * choice.width, max(1, choice.tiles // per_line) * line_tiles
    run = tiles_per_a_block(c, machine, choice.width, choice.tiles)
    plan = Plan(
        lanes, choice.lines, choice.width, choice.vectors, unroll, max(1, choice.tiles // per_line), chunk_rows,
        choice.panels, machine.masks, choice.entries, choice.prefetch,
        PREFETCH_DISTANCE_BYTES // c.b.nbytes if run == 1 else 0, registers=machine.registers,
    )  # fmt: skip
    if choice.blocks > 1:
        outer = reduce[0].extent
        assert isinstance(outer, int)
        scratch_bytes = partial_sums_bytes(c, plan, run if c.computes_a else tiles)
        plan = replace(plan, k_block=outer // choice.blocks, scratch_bytes=scratch_bytes)
    if isinstance(c.k, int) and (needs_transpose(c) or is_widened):
        depth = c.k // choice.blocks if is_widened else -(-c.k // lanes) * lanes
        panel = depth * plan.panel_columns * (c.b if is_widened else c.acc).nbytes
        offset = -(-plan.scratch_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        plan = replace(plan, panel_offset=offset, scratch_bytes=offset + panel)
    if c.computes_a:
        offset, rows = -(-plan.scratch_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES, run * choice.width
        plan = replace(plan, a_block_offset=offset, a_block_rows=rows, scratch_bytes=offset + rows * _row_bytes(c))
    return plan


def tiles_per_a_block(c: Contraction, machine: Machine, width: int, tiles: int) -> int:
    """Return how many of a chunk's `tiles` register tiles all panels read before the next tiles begin: all of them, or
    as many as keep the computed rows of A in cache."""
    if not c.computes_a:
        return tiles
    max_bytes = machine.l2 // 4 if c.inner is not None or c.rounded else machine.l1
    return min(tiles, max(1, max_bytes // max(1, width * _row_bytes(c))))


def plan_rows(c: Contraction, machine: Machine, outer: Plan) -> Plan:
    """Return the plan of a contraction that computes full rows of A for another contraction with the plan `outer`. Its
    tile width divides the outer one's. Its scratch follows the outer one's."""
    tile = next(t for t in rank_tiles(c, machine) if t[0] == 1 and outer.width % t[1] == 0)
    tiles = max(1, outer.a_block_rows // tile[1])
    panels = -(-estimate(c.cols[-1].extent) // (tile[2] * machine.lanes(c.acc)))
    plan = plan_of(c, machine, Direct(*tile, panels=panels, tiles=tiles, entries=1, blocks=1, prefetch=0))
    plan = replace(plan, prefetch_lines=_prefetch_lines(c, plan, tiles), scratch_bytes=outer.scratch_bytes)
    if not c.computes_a:
        return plan
    offset, rows = -(-outer.scratch_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES, outer.a_block_rows
    return replace(plan, a_block_offset=offset, a_block_rows=rows, scratch_bytes=offset + rows * _row_bytes(c))


def _row_bytes(c: Contraction) -> int:
    return estimate(c.rows[-1].a) * c.a.nbytes


def _tile_shapes(c: Contraction, inner: int, outer: int, nv: int, machine: Machine) -> list[tuple[int, int]]:
    """The (lines, width) of tiles within one line, and of tiles of several full lines."""
    max_rows = _max_tile_rows(c, nv, machine)
    max_width = min(max_rows, max(inner, 1)) if isinstance(c.rows[-1].extent, int) else max_rows
    shapes = [(1, w) for w in range(1, max_width + 1)]
    # a dynamic number of lines could leave a tail of any size
    if len(c.rows) > 1 and all(isinstance(x.extent, int) for x in c.rows[-2:]) and outer > 1:
        shapes += [(n, inner) for n in range(2, min(outer, machine.registers) + 1) if n * inner <= max_rows]
    return shapes


# Cycles outside a tile's reduction loop: a constant, and the initialization and epilogue of each accumulator.
_TILE_CYCLES, _CYCLES_PER_ACCUMULATOR = 20.0, 2.0
# A tile with more than _MAX_CHEAP_ROWS rows takes _MANY_ROWS_CYCLES more if its rows share no cache lines of A, as in
# matmuls and pointwise convolutions. Measured inside models: 14x2 takes some 100 cycles more than the sum of its parts,
# 1.4 times its time at k = 16 and 1.1 times at k = 64. So do 10x2, 12x2 and 8x3, but not 7x2, 6x4, 7x3 and windows.
_MAX_CHEAP_ROWS, _MANY_ROWS_CYCLES = 7, 100.0
# The more bytes of B a multiply-add needs, the less of the stream is hidden. For long k, 14x2 beats 7x2 and 6x4 by 2%
# to 3%.
_CYCLES_PER_STREAM_BYTE = 0.0025


def _tile_cost(
    c: Contraction, machine: Machine, tile: tuple[int, int, int], extents: tuple[int, int, int, int], lanes: int
) -> float:
    lines, width, nv = tile
    outer, inner, columns, k = extents
    has_single_reduce_axis = len(merge_axes(c.reduce)) == 1

    def cycles(m: int, v: int) -> float:
        if not m or not v:
            return 0.0
        per_k = _cycles_per_k(c, m, v, machine) + _CYCLES_PER_STREAM_BYTE * v * machine.vector_bits / 8
        penalty = _MANY_ROWS_CYCLES if m > _MAX_CHEAP_ROWS and has_single_reduce_axis else 0.0
        return per_k * k + _TILE_CYCLES + _CYCLES_PER_ACCUMULATOR * m * v + penalty

    def panel_cycles(v: int) -> float:
        full, edge_rows = divmod(inner, width)
        is_dynamic = not isinstance(c.rows[-1].extent, int)
        edges = [cycles(p, v) for p in _powers_of_two(edge_rows)] if is_dynamic else [cycles(lines * edge_rows, v)]
        total = (full * cycles(lines * width, v) + sum(edges)) * (outer // lines)
        edge_lines = outer % lines
        return total + (full * cycles(edge_lines * width, v) + cycles(edge_lines * edge_rows, v) if edge_lines else 0.0)

    panels, last_vectors = divmod(-(-columns // lanes), nv)
    total = panels * panel_cycles(nv) + panel_cycles(last_vectors)
    # each kind of tile is code to print, to compile and to fetch
    total *= 1 + 0.01 * (bool(panels) + bool(last_vectors)) * (1 + bool(inner % width)) * (1 + bool(outer % lines))
    rows = outer * inner
    if rows > lines * width and k * nv * lanes * c.b.nbytes > machine.l2 * 0.6 and not has_separate_parts(c):
        total *= 1.1  # every tile reads a panel from L3 if L2 does not hold it
    if rows == 1:
        total *= 1 + 0.02 * max(0, 8 - nv)  # wide panels stream better from memory
        chunks = (panels + bool(last_vectors)) * entry_count(c)
        hertz = machine.gflops * 1e9 / (2 * machine.fma_per_cycle * lanes)
        if total / hertz > 8 * _CLAIM_SECONDS:  # worth splitting: too few panels leave threads idle
            total *= -(-chunks // machine.threads) * machine.threads / chunks
    return total * _conflict_factor(c, lines * width)


def _conflict_factor(c: Contraction, m: int) -> float:
    """Return the slowdown from rows of a tile that map to the same sets of the L1 cache and evict each other.

    Measured on a 12-way cache of 64 sets: none up to 3 rows in a set, 20% at 5, 40% at 7; none at all where the row
    stride is an odd number of cache lines.
    """
    stride = c.rows[-1].a
    if not isinstance(stride, int) or stride == 0 or stride * c.a.nbytes % 64:
        return 1.0
    period = 64 // gcd(stride * c.a.nbytes // 64, 64)
    return 1 + 0.1 * max(0.0, m / period - 3)


def _powers_of_two(n: int) -> list[int]:
    """The powers of two that sum to n, largest first."""
    return [1 << b for b in reversed(range(n.bit_length())) if n >> b & 1]


_CLAIM_SECONDS = 0.5e-6  # to claim a chunk and to set up its loops
_STREAM_SECONDS_PER_BYTE = 0.5 / 60e9  # from the shared cache to one core; prefetching hides about half
_MAX_CHUNK_SECONDS = 0.05
_MAX_EXACT_PANELS = 1 << 14  # with more panels, only chunks of a power of two of them are tried
_OPS_PER_LEVEL = 8.0  # arithmetic operations that take as long as widening one quantized level


@dataclass(frozen=True)
class _Grid:
    """The number of register tiles of a contraction. entries: batch entries times outer columns. tiles: register tiles
    of one column panel. tiles_per_line: those along the last row axis."""

    entries: int
    tiles_per_line: int
    tiles: int
    panels: int

    @staticmethod
    def of(c: Contraction, lines: int, width: int, panel: int) -> _Grid:
        rows = product(estimate(x.extent) for x in c.rows)
        assert isinstance(rows, int)
        inner = max(1, estimate(c.rows[-1].extent))
        tiles_per_line = -(-inner // width)
        tiles = -(-max(1, rows // inner) // lines) * tiles_per_line
        return _Grid(entry_count(c), tiles_per_line, tiles, -(-max(1, estimate(c.cols[-1].extent)) // panel))


def rank_chunks(c: Contraction, machine: Machine, tile: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return chunk sizes (panels, tiles, entries), the fastest by the cost model first.

    There should be enough chunks to keep all threads busy, few enough to stream little twice, and none so long that a
    call is slow to notice an interrupt. R row blocks stream B R times; C column blocks stream A C times. With n chunks
    on t threads, the last chunks to finish leave other threads idle for at most one chunk, or not at all if t divides n
    and all chunks are equal.
    """
    lines, width, vectors = tile
    g = _Grid.of(c, lines, width, vectors * machine.lanes(c.acc))
    entries, line_tiles, row_tiles, panels = g.entries, g.tiles_per_line, g.tiles, g.panels
    columns = max(1, estimate(c.cols[-1].extent))
    a_bytes, b_bytes = a_span(c) * c.a.nbytes, estimate(c.k) * columns * c.b.nbytes
    seconds = c.flops / (machine.gflops * 1e9 * (c.k_per_lane if uses_dot(c, machine) else 1))
    inner_seconds, inner_bytes = 0.0, 0
    if c.inner is not None:
        inner_seconds = c.inner.flops / (machine.gflops * 1e9)
        inner_bytes = estimate(c.inner.k * c.k) * c.inner.b.nbytes
    widening_seconds = _widening_seconds(c, machine)
    threads = machine.threads
    # no prefetch has loaded the first panel of a chunk for the thread that claims it
    first_panel_bytes = estimate(c.k) * vectors * machine.lanes(c.acc) * c.b.nbytes
    is_first_panel_cold = c.packed and row_tiles > 1 and b_bytes > machine.l2 / 2
    start_seconds = _CLAIM_SECONDS + (first_panel_bytes * _STREAM_SECONDS_PER_BYTE if is_first_panel_cold else 0.0)
    costs: dict[tuple[int, int, int], tuple[bool, float]] = {}
    min_chunks = max(1, ceil(seconds / _MAX_CHUNK_SECONDS))
    panel_counts = range(1, panels + 1) if panels <= _MAX_EXACT_PANELS else [1 << i for i in range(panels.bit_length())]
    for requested_blocks in sorted({-(-panels // chunk_panels) for chunk_panels in panel_counts}):
        chunk_panels = -(-panels // requested_blocks)
        blocks = -(-panels // chunk_panels)
        for goal in (1, threads, 2 * threads, 4 * threads, 8 * threads, 16 * threads, 32 * threads, min_chunks):
            chunk_entries = min(entries, max(1, entries * blocks // goal))
            batches = -(-entries // chunk_entries)
            tiles = _chunk_tiles(-(-row_tiles // min(row_tiles, -(-goal // (blocks * batches)))), line_tiles)
            row_blocks = -(-row_tiles // tiles)
            if tiles < line_tiles:
                row_blocks = -(-line_tiles // tiles) * (row_tiles // line_tiles)
            count = batches * blocks * row_blocks
            total = seconds + inner_seconds * blocks
            chunk_seconds = total * (chunk_entries / entries) * (chunk_panels / panels) * (tiles / row_tiles)
            is_even = entries % chunk_entries == panels % chunk_panels == row_tiles % tiles == count % threads == 0
            idle_seconds = 0.0 if is_even else chunk_seconds * (threads - 1) / threads
            # an operand that stays in L2 from chunk to chunk is streamed once; a computed A is computed by each chunk
            rows_fit = a_bytes * min(tiles, row_tiles) / row_tiles <= machine.l2 / 2
            a_reads = blocks if rows_fit else panels
            a_times = 2 * blocks if c.computes_a else a_reads if a_bytes > machine.l2 / 2 else 1
            passes = row_blocks * -(-tiles // tiles_per_a_block(c, machine, width, tiles))
            stream_bytes = b_bytes + inner_bytes
            b_times = passes if stream_bytes > machine.l2 / 2 else 1
            traffic_seconds = entries * (b_times * stream_bytes + a_times * a_bytes) * _STREAM_SECONDS_PER_BYTE
            # another process may take a core at any time: with smaller chunks, the other threads take over
            total += widening_seconds * (1 if row_tiles == 1 else row_blocks)
            spread = 0.2 * chunk_seconds * (threads > 1)
            cost = (total + traffic_seconds + count * start_seconds) / threads + max(idle_seconds, spread)
            costs.setdefault((chunk_panels, tiles, chunk_entries), (chunk_seconds > 2 * _MAX_CHUNK_SECONDS, cost))
    return sorted(costs, key=lambda x: costs[x])


def _widening_seconds(c: Contraction, machine: Machine) -> float:
    """Seconds to widen the quantized levels of B once, on one core."""
    elements = estimate(c.k) * estimate(c.cols[-1].extent) if c.has_quantized_b else 0
    return elements * _OPS_PER_LEVEL / (machine.gflops * 1e9)


def _chunk_tiles(tiles: int, line_tiles: int) -> int:
    """Round the row tiles of a chunk to full line groups, or to an even part of one."""
    if tiles >= line_tiles:
        return -(-tiles // line_tiles) * line_tiles
    return -(-line_tiles // -(-line_tiles // tiles))


def _k_blocks(c: Contraction, machine: Machine, p: Plan, tiles: int) -> int:
    """The number of blocks of a long reduction, so that a chunk's rows of A and a panel of B both fit in L2."""
    is_single_tile = tiles < 2
    if c.has_quantized_b != c.widens_b or (is_single_tile and not c.has_quantized_b):
        return 1
    axes, k = merge_axes(c.dequantized.reduce), estimate(c.k)
    a_bytes = min(a_span(c), tiles * p.lines * p.width * k) * c.a.nbytes
    b_bytes = k * p.panel_columns * c.dequantized.b.nbytes
    is_cut = len(axes) == 1 or has_separate_parts(c)  # windows of one block and of the next read the same lines
    largest = 1  # the number of blocks, if L2 never holds the rows of A as well
    for n in k_block_counts(c, p):
        if is_single_tile or (c.has_quantized_b and tiles <= _FEW_TILES):  # what few tiles read can be in L1
            if b_bytes / n <= machine.l1 / 2:
                return n
            continue
        has_small_panel = b_bytes / n <= 0.45 * machine.l2
        if k // n < 2 * MIN_BLOCK_K or (
            has_small_panel and (not is_cut or (a_bytes + b_bytes) / n <= 0.5 * machine.l2)
        ):
            return n
        largest = n if has_small_panel and len(axes) > 1 else largest
    return largest


MIN_BLOCK_K, _FEW_TILES = 512, 3  # few tiles share widened levels in L1; more pay for the partial sums of its blocks


def _prefetch_lines(c: Contraction, p: Plan, tiles: int) -> int:
    """Return the cache lines of the next panel that each iteration prefetches, so that the row tiles of a chunk
    prefetch all of it.

    Without prefetching, the first tile of a panel runs at the speed of memory. With many tiles that hardly matters.
    """
    if tiles == 1:
        return -(-p.unroll * p.panel_columns * c.b.nbytes // 64)
    if tiles > 64:
        return 0
    lines_per_step = p.unroll * p.panel_columns * c.b.nbytes / 64
    return max(1, round(lines_per_step / tiles + 0.49))


__all__ = [
    "admits", "candidates", "choose", "min_cycles", "neighbors", "plan_contraction", "plan_of", "plan_rows",
    "tile_cycles",
]  # fmt: skip
