"""The tiling of a contraction, chosen by a cost model whose rates were measured on an H100.

time = tiles per multiprocessor * multiply-adds per tile / rate + prologues and epilogues that nothing overlaps
     + the reduction of split-K parts

A copy to shared memory takes about a microsecond, so a multiprocessor needs some 100 KB of copies in flight: a program
that runs alone on one prefetches more steps than programs that share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.ir.dims import DimLike, estimate, is_static
from ingot.ir.types import DType, bf16, f32
from ingot.schedule.choice import Tiling
from ingot.schedule.gpu.blocks import pieces_of, power_of_two
from ingot.schedule.gpu.contraction.boxed_tiling import MAX_PARTS as MAX_BOXED_PARTS
from ingot.schedule.gpu.contraction.boxed_tiling import BoxedProduct
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

MIN_STEPS_PER_PART = 4
MAX_PARTS = 512  # of a long sum of few elements; what joining them costs limits others
MAX_OPEN_ROWS, MAX_OPEN_PARTS = 16, 4  # likely rows of an open number that are split, and parts: more may come
MAX_STAGES = 6
MAX_STAGES_OF_LEVELS = 3  # whose k-steps are longer
STEP_BYTES = 128  # of a row of a k-step's tile: a line of the cache
BF16X6_RATE_RATIO = 1 / 6  # of products of f32 by six of bf16 to those of 16 bits
TF32_RATE_RATIO = 0.5  # of products of f32 cut to TF32 to those of 16 bits
ROW_COLUMNS = 64  # columns and k-step of a program for a single row, if B's rows are contiguous
ROW_STEP_ELEMENTS = 4096  # elements of all B operands per k-step for a single row, if B's columns are contiguous
ROW_LEVELS = 1 << 15  # of all B operands per k-step for a single row
MAX_QUAD_COLUMNS = 8  # of a program that multiplies a row by quads: with 16, fewer programs run at once
MIN_ROW_LEVELS_STEP, MAX_ROW_LEVELS_STEP = 1024, 8192  # terms of such a k-step, the only one if there are no more
MAX_PADDING = 1.2  # terms of all k-steps beside those that there are
MIN_ROWS_FOR_BOXES = 512  # below, setting up a box copy costs more than it saves
START_US = 1.2  # until a program's first operands have arrived
EPILOGUE_US_PER_ELEMENT = 4.5e-4  # of a warp's share of the tile
COSTLY_OP_US_PER_ELEMENT = 1e-3  # added for each op of the epilogue that takes many instructions
COPY_US_PER_BYTE = 2e-9  # of operands, summed over all programs
MAX_OVERLAPPING_PROGRAMS = 3  # per multiprocessor, whose prologues and epilogues run beside another's products
JOIN_US_PER_ELEMENT = 8 / 3e6  # of a split-K part: all programs write it, some read it
LAST_PROGRAM_US_PER_ELEMENT = 4 / 1.1e5  # of the parts that the last program to finish reads alone
LAST_PROGRAM_START_US = 0.2


@dataclass(frozen=True)
class _Tile:
    """rate: multiply-adds per microsecond of a multiprocessor that several programs share. exclusive_rate: of one that
    runs a single program, which waits for its own loads."""

    rows: int
    columns: int
    warps: int
    rate: float
    exclusive_rate: float

    @property
    def area(self) -> int:
        return self.rows * self.columns


_TILES = (
    _Tile(128, 256, 8, 2.85e6, 2.85e6), _Tile(256, 128, 8, 2.7e6, 2.7e6), _Tile(128, 128, 8, 2.45e6, 2.45e6),
    _Tile(64, 256, 4, 2.65e6, 2.4e6), _Tile(64, 128, 4, 2.05e6, 1.7e6), _Tile(128, 64, 4, 1.9e6, 1.5e6),
    _Tile(64, 64, 4, 1.75e6, 1.3e6), _Tile(32, 64, 4, 0.95e6, 0.6e6), _Tile(64, 32, 4, 1.2e6, 0.7e6),
    _Tile(32, 32, 4, 0.5e6, 0.2e6),
)  # fmt: skip
# f32 without tensor cores: one program keeps a multiprocessor almost as busy as several do
_TILES_F32 = (
    _Tile(128, 64, 8, 1.7e5, 1.5e5), _Tile(64, 128, 8, 1.7e5, 1.5e5), _Tile(64, 64, 4, 1.7e5, 1.3e5),
    _Tile(32, 64, 4, 1.4e5, 1.05e5), _Tile(64, 32, 4, 1.15e5, 0.87e5), _Tile(32, 32, 4, 1.08e5, 0.63e5),
)  # fmt: skip
# TF32 with strided terms. Warp groups multiply what lies in shared memory, to which each number would be copied by
# itself, eight of a warp into one bank; products of single warps, at half the rate, read registers, which are loaded
# from any order without conflicts. By counts of instructions and banks
_TILES_BY_REGISTERS = (
    _Tile(64, 64, 2, 1.4e6, 3.5e5), _Tile(32, 64, 2, 1e6, 2.5e5), _Tile(64, 32, 2, 1e6, 2.5e5),
    _Tile(32, 32, 2, 7e5, 1.7e5),
)  # fmt: skip
# f32 as limbs, which programs make in registers
_TILES_BF16X6 = (
    _Tile(128, 128, 8, 1.8e6, 1.8e6), _Tile(128, 64, 4, 1.8e6, 1.2e6), _Tile(64, 128, 4, 1.8e6, 1.2e6),
    _Tile(64, 64, 4, 1.5e6, 0.8e6), _Tile(64, 32, 4, 1.0e6, 0.5e6), _Tile(32, 32, 4, 0.5e6, 0.2e6),
)  # fmt: skip
MAX_ELEMENTS_PER_WARP_BF16X6 = 64 * 32  # of a tile, of which registers hold two sums, and limbs
MAX_TILE_AREA = 128 * 256
MAX_ELEMENTS_PER_WARP = 192 * 32  # of a tile of two pieces, which registers hold without spills
MIN_ROWS_OF_PIECE = 64  # of a tile of two pieces: a warp group's instruction multiplies so many
MAX_TILE_AREA_F32 = 128 * 64  # accumulators and operands fit in registers, without tensor cores
# products of 8-bit floats that hardware accumulates in fewer bits than f32 has (docs/reference/precision.md)
F8_RUN_TERMS = 128
MAX_RUN_ELEMENTS_PER_WARP = 128 * 16  # of a tile whose total and run accumulators fit in registers


@dataclass(frozen=True)
class ProductShape:
    """The sizes of a contraction, and what its operands allow.

    dtype: of the operands. is_k_contiguous: B's columns are contiguous. fixed_step: the k-step where packed levels
    leave no choice, else 0. block: what the k-step is a multiple of. packed_halves: parts of a k-step that share
    elements of packed B. products: contractions of the kernel, which share A. allows_boxes: operands can be copied by
    the bulk copy engine. is_a_transposed: A's columns are contiguous. costly_ops: ops of the epilogue that take many
    instructions. epilogue_bytes: that the epilogue reads and writes for an element. tf32: operands of f32 are cut to
    TF32. bf16x6: or multiplied by six products of bf16. has_strided_terms: no terms of A, or of B, are contiguous.
    by_quads: a row is multiplied by quads (`levels/row_of_quads.py`).
    """

    rows: DimLike
    columns: DimLike
    depth: DimLike
    batch: DimLike
    dtype: DType
    is_k_contiguous: bool = False
    fixed_step: int = 0
    block: int = 1
    packed_halves: int = 1
    products: int = 1
    allows_boxes: bool = False
    is_a_transposed: bool = False
    costly_ops: int = 0
    epilogue_bytes: int = 2
    tf32: bool = False
    bf16x6: bool = False
    has_strided_terms: bool = False
    by_quads: bool = False

    @property
    def has_tensor_cores(self) -> bool:
        """Whether tensor cores multiply the operands."""
        return self.dtype.bits <= 16 or self.tf32 or self.bf16x6

    @property
    def rate_ratio(self) -> float:
        """Multiply-adds in the time of one of 16 bits, of those that tensor cores do."""
        return TF32_RATE_RATIO if self.tf32 else BF16X6_RATE_RATIO if self.bf16x6 and self.dtype == f32 else 1.0

    @property
    def is_single_row(self) -> bool:
        """Whether a single row is multiplied."""
        return self.rows == 1 and self.dtype.is_float

    @property
    def sums_in_runs(self) -> bool:
        """Whether a run of `F8_RUN_TERMS` terms is accumulated separately, before it is added to the total."""
        return self.dtype.is_float and self.dtype.bits == 8

    def candidates(self, machine: Machine) -> list[Tiling]:
        """Tilings, the fastest by the cost model first."""
        row_tilings = self._row_of_levels_tilings if self.packed_halves > 1 else self._single_row_tilings
        tilings = row_tilings(machine) if self.is_single_row else self._tile_tilings(machine)
        return [*dict.fromkeys(self._of_levels(t, machine) if self.fixed_step else t for t in tilings)]

    def _of_levels(self, t: Tiling, machine: Machine) -> Tiling:
        """`t` with the k-step of packed levels, and as many stages as shared memory has room for."""
        fits = machine.shared_bytes * 7 // 8 // self._stage_bytes(t.rows, t.columns, self.fixed_step)
        return replace(t, depth=self.fixed_step, stages=max(1, min(t.stages, fits, MAX_STAGES_OF_LEVELS)))

    def _stage_bytes(self, rows: int, columns: int, depth: int) -> int:
        """Bytes of the operands' tiles of a k-step."""
        return (rows + columns // self.packed_halves) * depth * self.dtype.nbytes

    def neighbors(self, choice: Tiling, machine: Machine) -> list[Tiling]:
        """Tilings that differ in one of warps, stages, k-step, parts, boxes, or in splitting only the last wave."""
        tilings = [replace(choice, warps=w) for w in (choice.warps // 2, choice.warps * 2)]
        tilings += [replace(choice, stages=n) for n in (choice.stages - 1, choice.stages + 1)]
        tilings += [replace(choice, depth=d) for d in (choice.depth // 2, choice.depth * 2) if not self.fixed_step]
        tilings += [replace(choice, parts=n) for n in (choice.parts - 1, choice.parts + 1)]
        tilings += [replace(choice, boxes=1 - choice.boxes)]
        tilings += [replace(choice, persistent=n) for n in (0, 1, 2) if n != choice.persistent]
        if choice.parts == 1 and (waves := self._tiles(choice) // machine.processors):
            tilings += [replace(choice, parts=n, waves=waves) for n in (2, 4)]
        return [t for t in tilings if self.admits(t, machine)]

    def admits(self, t: Tiling, machine: Machine) -> bool:
        """Whether a kernel can be made for `t`: sizes are powers of two, except sides of two pieces, and operands fit
        in shared memory."""
        area, max_area = t.rows * t.columns, MAX_TILE_AREA if self.has_tensor_cores else MAX_TILE_AREA_F32
        max_area = MAX_ELEMENTS_PER_WARP_BF16X6 * t.warps if self.bf16x6 else max_area
        sides, pieces = (t.rows, t.columns), (pieces_of(t.rows), pieces_of(t.columns))
        is_uneven = pieces != ((t.rows,), (t.columns,))
        if is_uneven:
            halves = all(len(p) == 1 or (len(p) == 2 and p[0] == 2 * p[1]) for p in pieces)
            if self.bf16x6 or not (halves and t.boxes and machine.product_rate and min(pieces[0]) >= MIN_ROWS_OF_PIECE):
                return False
            sides, max_area = (pieces[0][0], pieces[1][0]), MAX_ELEMENTS_PER_WARP * t.warps
        powers = all(n > 0 and n & n - 1 == 0 for n in (*sides, t.depth, t.warps))
        if not powers or t.warps > 8 or not 1 <= t.stages <= 6 or not 1 <= t.parts <= self._max_parts(t.depth, t.boxes):
            return False
        if t.waves and (t.parts == 1 or t.waves * machine.processors >= self._tiles(t)):
            return False
        if self.bf16x6 and (t.persistent or (self.dtype == bf16 and (t.waves or not t.boxes or t.depth > 64))):
            return False
        if t.persistent and not (t.boxes and t.parts == 1 and t.persistent <= 2 and machine.product_rate):
            return False
        if t.boxes > self.allows_boxes or (self.fixed_step and t.depth != self.fixed_step):
            return False
        if self.is_single_row:
            size = t.columns * t.depth * self.products // self.packed_halves
            return t.rows == 1 and t.depth % self.block == 0 and size <= 4 * ROW_STEP_ELEMENTS
        min_step = 16 if self.dtype.bits > 8 else 32
        if self.sums_in_runs and (t.depth > F8_RUN_TERMS or area > MAX_RUN_ELEMENTS_PER_WARP * t.warps):
            return False
        fits = t.stages * self._stage_bytes(t.rows, t.columns, t.depth) <= machine.shared_bytes
        return min(t.rows, t.columns) >= 16 and t.depth >= min_step and fits and area <= max_area

    def _tiles(self, t: Tiling) -> int:
        """Tiles of the result; 0 if its sizes are symbolic."""
        if not is_static((self.rows, self.columns, self.batch)):
            return 0
        m, n, count = map(estimate, (self.rows, self.columns, self.batch))
        return -(-m // t.rows) * -(-n // t.columns) * count

    def _max_parts(self, step: int, boxes: int = 0) -> int:
        if not is_static((self.columns, self.depth, self.batch)):
            return 1
        min_steps = 2 if self.is_single_row else MIN_STEPS_PER_PART
        max_parts = MAX_BOXED_PARTS if boxes else MAX_PARTS
        if not is_static((self.rows,)):
            max_parts = MAX_OPEN_PARTS if estimate(self.rows) <= MAX_OPEN_ROWS else 1
        terms = estimate(self.depth) // (6 if self.bf16x6 and self.dtype == bf16 else 1)
        return max(1, min(terms // (min_steps * step), max_parts))

    def _single_row_tilings(self, machine: Machine) -> Iterator[Tiling]:
        n, count, length = map(estimate, (self.columns, self.batch, self.depth))
        base = ROW_COLUMNS, min(ROW_COLUMNS, power_of_two(length))
        sizes = [base, (ROW_COLUMNS // 2, base[1]), (ROW_COLUMNS, base[1] // 2), (ROW_COLUMNS // 2, 2 * base[1])]
        if self.is_k_contiguous:
            width, step = self._contiguous_tile(n * count * self.products, length, machine)
            sizes = [(width, step), (2 * width, step), (width // 2, step), (width, step // 2), (2 * width, step // 2)]
        for number, (width, step) in enumerate(sizes):
            if width < 1 or step < 1 or step % self.block:
                continue
            programs = -(-n // width) * count
            parts = max(1, min(machine.target_programs // programs, self._max_parts(step)))
            yield Tiling(1, width, step, 4, 3, parts)
            if number == 0:
                yield from (Tiling(1, width, step, 8, 3, parts), Tiling(1, width, step, 4, 3, max(1, parts // 2)))

    def _row_of_levels_tilings(self, machine: Machine) -> Iterator[Tiling]:
        """A thread loads 16 bytes of words of each of a program's columns, for which it keeps the row's terms."""
        n, count, length = map(estimate, (self.columns, self.batch, self.depth))
        longest = min(power_of_two(length), MAX_ROW_LEVELS_STEP)
        while longest > MIN_ROW_LEVELS_STEP and -(-length // longest) * longest > MAX_PADDING * length:
            longest //= 2
        longest = max(longest, self.block)
        width = 1 << max(1, 2 * n * count * self.products // (3 * machine.processors)).bit_length() - 1
        width = min(width // 2, MAX_QUAD_COLUMNS) if self.by_quads else width
        for step, scale in ((longest, 1), (longest, 2), (longest // 2, 1), (longest // 2, 2)):
            if step % self.block:
                continue
            columns = max(1, min(width, ROW_LEVELS // step) // scale // self.products)
            warps = max(1, min(8, step // (8 * self.packed_halves * 32)))
            parts = max(1, min(machine.processors // (-(-n // columns) * count), self._max_parts(step)))
            yield Tiling(1, columns, step, warps, 3, parts)

    def _contiguous_tile(self, columns: int, length: int, machine: Machine) -> tuple[int, int]:
        """(columns, k-step) of a program for a single row, if B's `columns` columns are contiguous."""
        min_width, elements = 4 if columns >= 4 * machine.target_programs else 2, ROW_STEP_ELEMENTS * self.packed_halves
        step = min(elements // 4, max(self.block, power_of_two(length)))
        if self.packed_halves == 1 and power_of_two(length) <= ROW_STEP_ELEMENTS // 2:
            step, elements = power_of_two(length), 2 * elements  # one step, so that nothing waits for a second
        max_width = min(elements // step, 4 * min_width)
        width = max(min_width, min(max_width, power_of_two(columns // machine.target_programs)))
        return max(1, width // self.products), step

    def _tile_tilings(self, machine: Machine) -> list[Tiling]:
        m, n, count, length = map(estimate, (self.rows, self.columns, self.batch, self.depth))
        max_programs = 4 * machine.processors
        boxes = int(self.allows_boxes and m >= MIN_ROWS_FOR_BOXES)
        takes_boxes = self.allows_boxes and (m >= MIN_ROWS_FOR_BOXES or self.is_a_transposed)
        if takes_boxes and machine.product_rate and (self.dtype.bits == 16 or self.tf32):
            is_known = is_static((self.rows, self.columns, self.depth, self.batch))
            assert is_known, "matrices that are copied in boxes have static sizes"
            rate = machine.product_rate * self.rate_ratio
            sizes = m, n, length, count, self.dtype.nbytes, self._step
            product = BoxedProduct(*sizes, self.epilogue_bytes, rate, self._sums)
            if self.costly_ops == 0 and product.is_fitted:
                return [t for t in product.tilings(machine) if self.admits(t, machine)]
        by_registers = self.tf32 and self.has_strided_terms
        tiles = _TILES_BY_REGISTERS if by_registers else _TILES if self.has_tensor_cores else _TILES_F32
        tiles = _TILES_BF16X6 if self.bf16x6 else tiles
        boxes = 1 if self.bf16x6 and self.dtype == bf16 else boxes

        def options() -> Iterator[tuple[float, int, int, Tiling]]:
            for rank, tile in enumerate(tiles):
                if self.sums_in_runs and tile.area > MAX_RUN_ELEMENTS_PER_WARP * tile.warps:
                    continue
                programs = -(-m // tile.rows) * -(-n // tile.columns) * count
                for parts in range(1, self._max_parts(self._step) + 1):
                    if parts > 1 and programs * parts > max_programs:
                        break
                    a, b = min(tile.rows, max(16, power_of_two(m))), min(tile.columns, max(16, power_of_two(n)))
                    depth, stages, resident = self._pipeline(
                        (a, b), tile.warps, programs * parts, length // parts, boxes, machine
                    )
                    if stages == 1 and tile != tiles[-1]:
                        break
                    microseconds = self._microseconds(tile, programs, parts, resident, machine)
                    yield microseconds, parts, rank, Tiling(a, b, depth, tile.warps, stages, parts, boxes)

        found = [t for *_, t in sorted(options(), key=lambda found: found[:3])]
        return [t for t in found if self.admits(t, machine)] if self.bf16x6 else found

    @property
    def _sums(self) -> int:
        """The accumulators of an element."""
        return 2 if self.bf16x6 else 1

    @property
    def _step(self) -> int:
        """The k-step. 8-bit operands take as many bytes as 16-bit ones, except windows, which have fewer channels."""
        step = 32 if self.dtype.bits > 16 else F8_RUN_TERMS if self.dtype.bits == 8 and self.allows_boxes else 64
        return max(16 if self.dtype.bits > 8 else 32, min(step, power_of_two(estimate(self.depth))))

    def _pipeline(
        self, sides: tuple[int, int], warps: int, programs: int, length: int, boxes: int, machine: Machine
    ) -> tuple[int, int, int]:
        """(k-step, stages, programs resident on a multiprocessor) for `programs` programs of `length` terms each.
        Shared memory that a program does not need is left to others."""
        (a, b), step, shared = sides, self._step, machine.shared_bytes * 7 // 8
        waves, by_registers = -(-programs // machine.processors), 2 * machine.registers // (self._sums * a * b)
        max_resident = max(1, min(waves, by_registers, MAX_OVERLAPPING_PROGRAMS * max(1, 4 // warps)))
        step_bytes = (a + b) * step * self.dtype.nbytes
        fits = 2 * step * 4 <= length and 2 * step_bytes * 4 * max_resident <= shared
        if boxes and not self.bf16x6 and step * max(2, self.dtype.nbytes) == STEP_BYTES and a * b <= 64 * 128 and fits:
            step, step_bytes = 2 * step, 2 * step_bytes
        max_stages = 3 if self.dtype == f32 and not self.tf32 else MAX_STAGES
        resident = next((n for n in range(max_resident, 1, -1) if shared // n // step_bytes >= 3), 1)
        stages = max(1, min(shared // resident // step_bytes, max_stages, -(-length // step) + 1))
        return step, stages, max(1, min(max_resident, machine.shared_bytes // (stages * step_bytes)))

    def _microseconds(self, tile: _Tile, programs: int, parts: int, resident: int, machine: Machine) -> float:
        """The predicted time. 8-bit operands are taken as 16-bit ones: only the order of the tilings matters. resident:
        programs that share a multiprocessor."""
        m, n, count, length = map(estimate, (self.rows, self.columns, self.batch, self.depth))
        waves = -(-programs * parts // machine.processors)
        rate = min(tile.rate, waves * tile.exclusive_rate) * self.rate_ratio
        total = waves * tile.area * length / parts / rate
        total += programs * (tile.rows + tile.columns) * length * self.dtype.nbytes * COPY_US_PER_BYTE
        epilogue_us_per_element = EPILOGUE_US_PER_ELEMENT + COSTLY_OP_US_PER_ELEMENT * self.costly_ops
        overhead = START_US + tile.area / tile.warps * epilogue_us_per_element
        total += overhead * (1 + (waves - 1) / resident)
        if parts == 1:
            return total
        last_program = LAST_PROGRAM_START_US + tile.area * (parts + 1) * LAST_PROGRAM_US_PER_ELEMENT
        return total + m * n * count * parts * JOIN_US_PER_ELEMENT + last_program


__all__ = ["ProductShape"]
