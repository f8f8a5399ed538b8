"""The blocking of a contraction: its register tile, its column panels and its chunks. `cost_model.py` chooses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm, prod

from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.types import bf16, f32
from ingot.schedule.axes import Contraction, merge_axes
from ingot.schedule.cpu.machine import Machine
from ingot.support.dataclass import dataclass

CACHE_LINE_BYTES = 64
PREFETCH_DISTANCE_BYTES = 8192  # a stream arrives some hundred cycles before it is needed


@dataclass(frozen=True)
class Plan:
    """The blocking that the loop nest follows.

    A line is one index of all row axes but the last: a row of an image, say. A line group is the `lines` lines of one
    register tile. A chunk is the part of the output that a thread computes at a time.

    lanes: lanes of a vector.
    lines, width, vectors: the register tile: lines, rows along the last row axis, and vectors of columns.
    unroll: the unroll factor of the innermost reduction loop.
    chunk_line_groups, chunk_panels: line groups and column panels of a chunk.
    chunk_rows: rows of a chunk along the last row axis: a multiple of `width`, or the entire axis.
    has_masks: whether the machine has mask registers.
    chunk_entries: batch entries (and outer columns) of a chunk.
    prefetch_lines: cache lines of B that each iteration of the innermost loop prefetches.
    prefetch_distance: elements between a load of B and its prefetch. 0: the next panel is prefetched.
    k_block: iterations of the outermost reduction loop between stores of partial sums to scratch. 0: no blocking.
    panel_offset: byte offset in scratch of a panel of B that is transposed at run time. -1: none.
    a_block_offset: byte offset in scratch of computed rows of A. -1: none. Partial sums precede both.
    a_block_rows: rows of A that are computed before all panels of the chunk read them.
    scratch_bytes: scratch memory of a worker.
    registers: vector registers of the machine.
    """

    lanes: int
    lines: int
    width: int
    vectors: int
    unroll: int
    chunk_line_groups: int
    chunk_rows: DimLike
    chunk_panels: int
    has_masks: bool
    chunk_entries: int = 1
    prefetch_lines: int = 0
    prefetch_distance: int = 0
    k_block: int = 0
    panel_offset: int = -1
    a_block_offset: int = -1
    a_block_rows: int = 0
    scratch_bytes: int = 0
    registers: int = 16

    @property
    def panel_columns(self) -> int:
        """Columns of a full panel."""
        return self.lanes * self.vectors

    @property
    def partial_sums_bytes(self) -> int:
        """Bytes of scratch for partial sums."""
        return next(offset for offset in (self.panel_offset, self.a_block_offset, self.scratch_bytes) if offset >= 0)


def scattered_run(c: Contraction) -> int:
    """Return the length of the contiguous runs that a batch entry reads at each position of an image, in elements.

    Grouped convolutions read runs of a cache line or less with gaps between them, which no hardware prefetcher
    follows. Return 0 if A is read in longer runs or without gaps.
    """
    run, row_stride = merge_axes(c.reduce)[-1], c.rows[-1].a
    if len(c.rows) < 2 or run.a != 1 or not isinstance(run.extent, int) or not isinstance(row_stride, int):
        return 0
    return run.extent if run.extent * c.a.nbytes <= CACHE_LINE_BYTES < row_stride * c.a.nbytes else 0


def needs_transpose(c: Contraction) -> bool:
    """Whether a run-time B is contiguous along K and not along its columns, so that its panels must be transposed."""
    return not c.packed and c.cols[-1].b != 1 and len(merge_axes(c.reduce)) == 1 and merge_axes(c.reduce)[0].b == 1


# vectors of a panel of levels, by the number of registers. Measured: a single row is as fast with 4 vectors as with 8,
# many rows with 4 as with 2; with AVX2's registers, 3 are within 4% of the best for both.
_LEVEL_VECTORS = {32: 4, 16: 3}
_MAX_SHARED_VECTORS = 4


def panel_vectors(c: Contraction, machine: Machine) -> Sequence[int]:
    """The numbers of vectors of columns that a panel may have. Levels have panels of one width for any number of rows.
    Other constants have the panels of the kernel that reads them first, so that programs for one row and for many
    share them."""
    if c.has_quantized_b:
        return (level_vectors(estimate(c.cols[-1].extent), machine),)
    lanes = machine.lanes(c.acc)
    vectors, rest = divmod(c.panel, lanes)
    # a single row reads panels of any width at memory speed; several need panels that leave registers for rows
    is_fit = vectors and not rest and (vectors <= _MAX_SHARED_VECTORS or product(x.extent for x in c.rows) == 1)
    has_columns = vectors == 1 or (vectors - 1) * lanes < estimate(c.cols[-1].extent)
    return (vectors,) if is_fit and has_columns else range(1, machine.registers)


def level_vectors(columns: int, machine: Machine) -> int:
    return max(1, min(_LEVEL_VECTORS.get(machine.registers, 2), -(-columns // machine.lanes(f32))))


def partial_sums_bytes(c: Contraction, p: Plan, tiles: int) -> int:
    """Return the bytes of scratch for the partial sums of a chunk's `tiles` register tiles of one panel."""
    return (tiles + 1) * p.lines * p.width * p.panel_columns * c.acc.nbytes


def a_span(c: Contraction) -> int:
    """Elements of A between the first and the last one that a batch entry reads."""
    total = 1
    for x in (*c.rows, *c.reduce):
        total += (estimate(x.extent) - 1) * abs(estimate(x.a))
    return total


def has_separate_parts(c: Contraction) -> bool:
    """Whether blocks of the outermost of several reduction loops read other parts of A, as where kernels' gradients
    are summed over images: blocks of it are as good for A as for B."""
    outer, *inner = merge_axes(c.dequantized.reduce)
    if not inner or not isinstance(outer.a, int):
        return False
    part = sum((estimate(x.extent) - 1) * abs(estimate(x.a)) for x in (*c.rows, *inner))
    return abs(outer.a) * estimate(outer.extent) >= 4 * part


def k_block_counts(c: Contraction, p: Plan) -> Iterator[int]:
    """Yield the numbers of equal blocks that the outermost reduction loop can be split into; sizes must be static."""
    axes = merge_axes(c.dequantized.reduce)
    outer = axes[0].extent
    if not isinstance(outer, int) or not isinstance(c.k, int):
        return
    step = p.unroll if len(axes) == 1 else 1
    if c.has_quantized_b and len(axes) == 1:  # full quantization blocks, or full words of a single block
        reduce = merge_axes(c.reduce)
        step = lcm(step, c.k_per_lane if len(reduce) == 1 else estimate(reduce[-1].extent))
    yield from (n for n in range(1, outer // step + 1) if outer % n == 0 and (outer // n) % step == 0)


def uses_dot(c: Contraction, machine: Machine) -> bool:
    """Whether register tiles use the machine's dot products."""
    return c.k_per_lane > 1 and c.a != c.acc and (machine.bf16_dot if c.a == bf16 else machine.int8_dot == c.a)


def splits_dots(c: Contraction, machine: Machine) -> bool:
    """Whether a dot product is several instructions, on halves of its operands."""
    return c.k_per_lane == 4 and machine.int8_rate < 4


def entry_count(c: Contraction) -> int:
    """The number of batch entries times outer columns."""
    return prod(estimate(x.extent) for x in (*c.batch, *c.cols[:-1]))


__all__ = [
    "CACHE_LINE_BYTES", "PREFETCH_DISTANCE_BYTES", "Plan", "a_span", "entry_count", "has_separate_parts",
    "k_block_counts", "level_vectors", "needs_transpose", "panel_vectors", "partial_sums_bytes", "scattered_run",
    "splits_dots", "uses_dot",
]  # fmt: skip
