"""What a product with sparse weights costs by each height of blocks, beside a dense one, and how its loops are cut.

    cycles = turning A + blocks * row blocks * max(multiply-adds, loads, latency) + writing the results

The constants were set by measured products; `python -m benchmarks.sparse` prints both side by side.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import f32
from ingot.schedule.axes import Contraction
from ingot.schedule.cpu.contraction.cost_model import least_cycles
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.plan import covered
from ingot.schedule.dimension_numbers import flat_rows, loops_of, rows_as_they_lie
from ingot.support.dataclass import dataclass

HEIGHTS = (1, 4, 16)  # of blocks, in outputs
TURN, WRITE = 6.0, 9.0  # cycles for each vector of A, of results
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


def plan_sparse(rows: DimLike, k: int, n: int, blocks: int, height: int, machine: Machine) -> SparsePlan:
    """The plan with the fewest modelled cycles."""
    lanes, m = machine.lanes(f32), estimate(rows)
    vectors, own = min(_tiles(height, k, machine), key=lambda t: _products(m, blocks, height, *t, machine))
    columns = max(lanes, height)
    while columns < n and 4 * columns * vectors * lanes * f32.nbytes <= machine.l1 and columns < PANEL:
        columns *= 2  # longer lines to write
    row_blocks, panels = -(-m // (vectors * lanes)), -(-n // columns)
    cycles = _products(m, blocks, height, vectors, own, machine) + m * n / lanes * WRITE
    each = cycles / (row_blocks * panels)
    local = row_blocks >= 4 * machine.threads
    run = panels if local else max(1, min(round(CHUNK / each), row_blocks * panels // (4 * machine.threads), panels))
    return SparsePlan(height, vectors, own, columns, run, local)


def _tiles(height: int, k: int, machine: Machine) -> list[tuple[int, int]]:
    """(vectors, rows of a block) whose sums are in registers, with the vectors of A and one weight."""
    bytes_of = k * machine.vector_bits // 8
    found = [
        (vectors, own)
        for own in (1, 2, 4, 8, 16)
        for vectors in (1, 2, 3, 4, 6, 8)
        if height % own == 0 and own * vectors + (vectors if own > 1 else 0) + 1 <= machine.registers
    ]
    return [t for t in found if t[0] * bytes_of <= machine.l2 // 2] or [t for t in found if t[0] == 1]


def _products(m: int, blocks: int, height: int, vectors: int, own: int, machine: Machine) -> float:
    row_blocks = -(-m // (vectors * machine.lanes(f32)))
    arithmetic = own * vectors / machine.fma_per_cycle
    loads = (vectors + own + 1) / machine.loads_per_cycle
    stream = vectors * machine.vector_bits / 8 / (2 * machine.l2_rate)
    each = max(arithmetic, loads, stream, float(machine.fma_latency)) + 1
    return blocks * (height // own) * row_blocks * each


def sparse_cycles(m: int, k: int, n: int, blocks: int, height: int, machine: Machine) -> float:
    lanes = machine.lanes(f32)
    products = min(_products(m, blocks, height, *t, machine) for t in _tiles(height, k, machine))
    whole = -(-m // lanes)  # vectors of rows
    return LAUNCH + whole * (k * TURN + n * WRITE) + products


def dense_cycles(n: Node, machine: Machine) -> float:
    a, b = (Layout.contiguous(x.shape) for x in n.inputs)
    loops = flat_rows(rows_as_they_lie(loops_of(n, a, b)))
    c = Contraction(loops.batch, loops.rows, loops.cols, loops.reduce, f32, f32, f32)
    faster = WINOGRAD if machine.winograd and covered(n, a, b) is not None else 1.0
    return faster * least_cycles(c, machine)


def sparse_height(n: Node, blocks: Callable[[int], int], machine: Machine) -> int:
    """The height of blocks by which the product `n` is fastest; 0: it is dense. blocks: how many there are of
    a height."""
    a, b = (Layout.contiguous(x.shape) for x in n.inputs)
    loops = loops_of(n, a, b)
    m, k, columns = (estimate(product(x.extent for x in axes)) for axes in (loops.rows, loops.reduce, loops.cols))
    costs = {h: sparse_cycles(m, k, columns, blocks(h), h, machine) for h in HEIGHTS}
    best = min(costs, key=lambda h: costs[h])
    return best if costs[best] < WORTH * dense_cycles(n, machine) else 0


__all__ = ["HEIGHTS", "SparsePlan", "dense_cycles", "plan_sparse", "sparse_cycles", "sparse_height"]
