"""Cost model of products with block-sparse weights, compared with dense ones, and the tiling of their loops.

    cycles = transposing A + blocks * row blocks * max(multiply-adds, loads, latency) + writing the results

Bytes are transposed and multiplied four at a time, and interleaved for that (`sparse_bytes.py`):

    cycles = ... runs of four blocks * row blocks * max(dots + shuffles, loads, latency) ...

The constants are fitted to measured products; `python -m benchmarks.sparse` prints the model next to measurements.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import DType, f32, u8
from ingot.schedule.axes import Contraction
from ingot.schedule.cpu.contraction.cost_model import min_cycles
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.plan import winograd_shape_of
from ingot.schedule.dimension_numbers import flat_rows, loops_of, rows_in_memory_order
from ingot.support.dataclass import dataclass

HEIGHTS = (1, 4, 16)  # of blocks, in outputs
TRANSPOSE_CYCLES_PER_VECTOR, BYTE_TRANSPOSE_CYCLES_PER_VECTOR = 6.0, 10.0  # of A in float32, in bytes
WRITE_CYCLES_PER_VECTOR = 9.0  # of results
INTERLEAVE_SHUFFLES = 8  # to interleave four vectors of bytes
LAUNCH_CYCLES = 3000.0  # cycles of an additional kernel
MAX_CYCLES_RATIO = 0.9  # the largest fraction of the dense product's cycles at which sparse is chosen
WINOGRAD_CYCLES_RATIO = 0.5  # fraction of the direct convolution's cycles, for shapes that it supports
MAX_PANEL_COLUMNS = 64  # the most columns of a panel
CHUNK_CYCLES = 60_000  # target cycles of a chunk


@dataclass(frozen=True)
class SparsePlan:
    """height: of blocks of weights. vectors: vectors of rows in a block of rows. rows_at_once: rows of a block of
    weights whose sums are in registers at once. columns: of a panel. panels: of a chunk. local: whether each chunk
    transposes its own rows of A and computes all panels."""

    height: int
    vectors: int
    rows_at_once: int
    columns: int
    panels: int
    local: bool


def plan_sparse(
    rows: DimLike, k: int, n: int, blocks: int, height: int, machine: Machine, stored: DType = f32
) -> SparsePlan:
    """The plan with the fewest predicted cycles. blocks: the number of blocks, or of runs of four for bytes. stored:
    the type of A, f32 or u8."""
    lanes, m = machine.lanes(f32), estimate(rows)
    vectors, rows_at_once = min(
        _register_tiles(height, k, machine, stored),
        key=lambda t: _product_cycles(m, blocks, height, *t, machine, stored),
    )
    columns = max(lanes, height)
    while columns < n and 4 * columns * vectors * lanes * f32.nbytes <= machine.l1 and columns < MAX_PANEL_COLUMNS:
        columns *= 2  # longer lines to write
    row_blocks, panels = -(-m // (vectors * lanes)), -(-n // columns)
    cycles = (
        _product_cycles(m, blocks, height, vectors, rows_at_once, machine, stored)
        + m * n / lanes * WRITE_CYCLES_PER_VECTOR
    )
    cycles_per_tile = cycles / (row_blocks * panels)
    local = row_blocks >= 4 * machine.threads
    run = (
        panels
        if local
        else max(1, min(round(CHUNK_CYCLES / cycles_per_tile), row_blocks * panels // (4 * machine.threads), panels))
    )
    return SparsePlan(height, vectors, rows_at_once, columns, run, local)


def _register_tiles(height: int, k: int, machine: Machine, stored: DType) -> list[tuple[int, int]]:
    """(vectors of rows, rows of a block) whose sums fit in registers beside the vectors of A and one weight."""
    if stored == u8:  # a run of four blocks is interleaved into four vectors
        return [
            (4, rows_at_once)
            for rows_at_once in (1, 2, 4, 8, 16)
            if height % rows_at_once == 0 and rows_at_once * 4 + 6 <= machine.registers
        ]
    bytes_of = k * machine.vector_bits // 8
    tiles = [
        (vectors, rows_at_once)
        for rows_at_once in (1, 2, 4, 8, 16)
        for vectors in (1, 2, 3, 4, 6, 8)
        if height % rows_at_once == 0
        and rows_at_once * vectors + (vectors if rows_at_once > 1 else 0) + 1 <= machine.registers
    ]
    return [t for t in tiles if t[0] * bytes_of <= machine.l2 // 2] or [t for t in tiles if t[0] == 1]


def _product_cycles(
    m: int, blocks: int, height: int, vectors: int, rows_at_once: int, machine: Machine, stored: DType = f32
) -> float:
    row_blocks = -(-m // (vectors * machine.lanes(f32)))
    shuffles, columns = (INTERLEAVE_SHUFFLES, 4) if stored == u8 else (0, 1)
    arithmetic = (rows_at_once * vectors + shuffles) / machine.fma_per_cycle
    loads = (vectors + rows_at_once + columns) / machine.loads_per_cycle
    stream = vectors * machine.vector_bits / 8 / (2 * machine.l2_rate)
    cycles_per_block = (
        max(arithmetic, loads, stream, float(machine.dot_latency if stored == u8 else machine.fma_latency)) + 1
    )
    return blocks * (height // rows_at_once) * row_blocks * cycles_per_block


def sparse_cycles(m: int, k: int, n: int, blocks: int, height: int, machine: Machine, stored: DType = f32) -> float:
    lanes, count = machine.lanes(f32), blocks if stored == f32 else -(-blocks // 4)
    products = min(
        _product_cycles(m, count, height, *t, machine, stored) for t in _register_tiles(height, k, machine, stored)
    )
    transposed_vectors = -(-m // machine.lanes(stored)) * k  # vectors
    return (
        LAUNCH_CYCLES
        + transposed_vectors * (TRANSPOSE_CYCLES_PER_VECTOR if stored == f32 else BYTE_TRANSPOSE_CYCLES_PER_VECTOR)
        + -(-m // lanes) * n * WRITE_CYCLES_PER_VECTOR
        + products
    )


def dense_cycles(n: Node, machine: Machine) -> float:
    a, b = (Layout.contiguous(x.shape) for x in n.inputs)
    loops = flat_rows(rows_in_memory_order(loops_of(n, a, b)))
    x, w = (i.dtype for i in n.inputs)
    c = Contraction(loops.batch, loops.rows, loops.cols, loops.reduce, x, w, n.dtype)
    winograd_factor = WINOGRAD_CYCLES_RATIO if machine.winograd and winograd_shape_of(n, a, b) is not None else 1.0
    return winograd_factor * min_cycles(c, machine)


def sparse_height(n: Node, blocks: Callable[[int], int], machine: Machine) -> int:
    """The height of blocks with which the product `n` is fastest; 0 if the dense product is. blocks: from a height to
    the number of blocks."""
    a, b = (Layout.contiguous(x.shape) for x in n.inputs)
    loops = loops_of(n, a, b)
    m, k, columns = (estimate(product(x.extent for x in axes)) for axes in (loops.rows, loops.reduce, loops.cols))
    stored = n.inputs[0].dtype
    costs = {h: sparse_cycles(m, k, columns, blocks(h), h, machine, stored) for h in HEIGHTS}
    best = min(costs, key=lambda h: costs[h])
    return best if costs[best] < MAX_CYCLES_RATIO * dense_cycles(n, machine) else 0


__all__ = ["HEIGHTS", "SparsePlan", "dense_cycles", "plan_sparse", "sparse_cycles", "sparse_height"]
