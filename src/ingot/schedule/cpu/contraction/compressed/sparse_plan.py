"""What a product with sparse weights costs by each height of blocks, beside a dense one, and how its loops are cut.

    cycles = turning A + blocks * row blocks * max(multiply-adds, loads, latency) + writing the results

Bytes are turned and multiplied four times as many at once, and interleaved for that (`sparse_bytes.py`):

    cycles = ... runs of four blocks * row blocks * max(dots + shuffles, loads, latency) ...

The constants were set by measured products; `python -m benchmarks.sparse` prints both side by side.
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
TURN, TURN_BYTES, WRITE = 6.0, 10.0, 9.0  # cycles for each vector of A, of results
SHUFFLES = 8  # that interleave four vectors of bytes
LAUNCH = 3000.0  # cycles of a further kernel
WORTH = 0.9  # of the dense product's cycles at most
WINOGRAD = 0.5  # of the direct convolution's cycles, where it covers a shape
PANEL = 64  # columns of a panel at most
CHUNK = 60_000  # cycles of a chunk


@dataclass(frozen=True)
class SparsePlan:
    """height: of blocks. vectors: of rows in a block of rows. own: rows of a block that are in registers at once.
    columns: of a panel; panels: of a chunk. local: each chunk turns its rows of A, and has all panels."""

    height: int
    vectors: int
    own: int
    columns: int
    panels: int
    local: bool


def plan_sparse(
    rows: DimLike, k: int, n: int, blocks: int, height: int, machine: Machine, stored: DType = f32
) -> SparsePlan:
    """The plan with the fewest modelled cycles. stored: the type of A, f32 or u8. blocks: or runs of them."""
    lanes, m = machine.lanes(f32), estimate(rows)
    vectors, own = min(
        _tiles(height, k, machine, stored), key=lambda t: _products(m, blocks, height, *t, machine, stored)
    )
    columns = max(lanes, height)
    while columns < n and 4 * columns * vectors * lanes * f32.nbytes <= machine.l1 and columns < PANEL:
        columns *= 2  # longer lines to write
    row_blocks, panels = -(-m // (vectors * lanes)), -(-n // columns)
    cycles = _products(m, blocks, height, vectors, own, machine, stored) + m * n / lanes * WRITE
    each = cycles / (row_blocks * panels)
    local = row_blocks >= 4 * machine.threads
    run = panels if local else max(1, min(round(CHUNK / each), row_blocks * panels // (4 * machine.threads), panels))
    return SparsePlan(height, vectors, own, columns, run, local)


def _tiles(height: int, k: int, machine: Machine, stored: DType) -> list[tuple[int, int]]:
    """(vectors, rows of a block) whose sums are in registers, with the vectors of A and one weight."""
    if stored == u8:  # the four vectors that four blocks are interleaved to
        return [(4, own) for own in (1, 2, 4, 8, 16) if height % own == 0 and own * 4 + 6 <= machine.registers]
    bytes_of = k * machine.vector_bits // 8
    found = [
        (vectors, own)
        for own in (1, 2, 4, 8, 16)
        for vectors in (1, 2, 3, 4, 6, 8)
        if height % own == 0 and own * vectors + (vectors if own > 1 else 0) + 1 <= machine.registers
    ]
    return [t for t in found if t[0] * bytes_of <= machine.l2 // 2] or [t for t in found if t[0] == 1]


def _products(m: int, blocks: int, height: int, vectors: int, own: int, machine: Machine, stored: DType = f32) -> float:
    row_blocks = -(-m // (vectors * machine.lanes(f32)))
    shuffles, columns = (SHUFFLES, 4) if stored == u8 else (0, 1)
    arithmetic = (own * vectors + shuffles) / machine.fma_per_cycle
    loads = (vectors + own + columns) / machine.loads_per_cycle
    stream = vectors * machine.vector_bits / 8 / (2 * machine.l2_rate)
    each = max(arithmetic, loads, stream, float(machine.dot_latency if stored == u8 else machine.fma_latency)) + 1
    return blocks * (height // own) * row_blocks * each


def sparse_cycles(m: int, k: int, n: int, blocks: int, height: int, machine: Machine, stored: DType = f32) -> float:
    lanes, count = machine.lanes(f32), blocks if stored == f32 else -(-blocks // 4)
    products = min(_products(m, count, height, *t, machine, stored) for t in _tiles(height, k, machine, stored))
    turned = -(-m // machine.lanes(stored)) * k  # vectors
    return LAUNCH + turned * (TURN if stored == f32 else TURN_BYTES) + -(-m // lanes) * n * WRITE + products


def dense_cycles(n: Node, machine: Machine) -> float:
    a, b = (Layout.contiguous(x.shape) for x in n.inputs)
    loops = flat_rows(rows_in_memory_order(loops_of(n, a, b)))
    x, w = (i.dtype for i in n.inputs)
    c = Contraction(loops.batch, loops.rows, loops.cols, loops.reduce, x, w, n.dtype)
    faster = WINOGRAD if machine.winograd and winograd_shape_of(n, a, b) is not None else 1.0
    return faster * min_cycles(c, machine)


def sparse_height(n: Node, blocks: Callable[[int], int], machine: Machine) -> int:
    """The height of blocks by which the product `n` is fastest; 0: it is dense. blocks: how many there are of
    a height."""
    a, b = (Layout.contiguous(x.shape) for x in n.inputs)
    loops = loops_of(n, a, b)
    m, k, columns = (estimate(product(x.extent for x in axes)) for axes in (loops.rows, loops.reduce, loops.cols))
    stored = n.inputs[0].dtype
    costs = {h: sparse_cycles(m, k, columns, blocks(h), h, machine, stored) for h in HEIGHTS}
    best = min(costs, key=lambda h: costs[h])
    return best if costs[best] < WORTH * dense_cycles(n, machine) else 0


__all__ = ["HEIGHTS", "SparsePlan", "dense_cycles", "plan_sparse", "sparse_cycles", "sparse_height"]
