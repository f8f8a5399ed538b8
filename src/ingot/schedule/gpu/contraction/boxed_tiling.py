"""The tilings of products whose operands the bulk copy engine loads, chosen by a model that was fitted to an H200.

time = tiles of a multiprocessor * (k-steps * the longest part of a step + what nothing overlaps) + joining parts
step = products at the tensor cores' rate, or copies: `COPY_US` for all under way, `STEP_US` at least

By measurement tensor cores reach their rate with tiles of any shape, so what counts is how many tiles the busiest
multiprocessor has, and whether another program, or the copies for the next tile, run beside a tile's end. The sweep
that it was fitted to is in docs/appendix/performance-gpu.md; beyond its sizes, and for costly epilogues, `tiling.py`'s
own model holds. Of tiles with a side of 96 or 192 (see `pieces_of`) those
of 4 warps are as fast as their area says, and of those of 8 warps only 192x256.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.schedule.choice import Tiling
from ingot.schedule.gpu.blocks import pieces_of, power_of_two
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

COPY_US = 0.57  # from the request of a tile to its arrival
START_US = 1.6  # of a program until it multiplies, and from its last product to its end
EPILOGUE_US_PER_BYTE = 2.75e-5  # that is read and written
COPIED_BYTES_PER_US = 16e6
TURN_US = 0.5  # of a persistent program from tile to tile
STEP_US = 0.28  # of a k-step, at least, of a program that has a multiprocessor for itself
JOIN_START_US = 3.5  # of the kernel that adds parts
JOIN_US_PER_ELEMENT = 8 / 3e6  # of a part: written once and read once
NARROW_COLUMNS = 64  # of a piece, below which shared memory is slower than the tensor cores
MAX_RESIDENT = 3  # programs of a multiprocessor, whose beginnings and ends run beside another's products
MAX_LONG_STEP_AREA = 64 * 128  # of tiles whose k-steps may be twice as long
MAX_PERSISTENT_WARPS = 8  # of a multiprocessor
EPILOGUE_BYTES_PER_WARP = 4 << 10  # of shared memory at least, by which values reach the threads that store them
MIN_STAGES, MAX_STAGES = 3, 6
MAX_FITTED_RESULT, MAX_FITTED_TERMS = 1 << 25, 1 << 15  # elements and terms of the largest products of the sweep
MAX_PARTS = 128
MIN_STEPS_PER_PART = 4
SHAPES = (  # rows, columns, warps; of equal times, the first
    (128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4), (192, 256, 8), (64, 256, 4), (64, 128, 4),
    (128, 64, 4), (64, 64, 4), (64, 192, 4), (192, 64, 4), (128, 96, 4), (128, 32, 4), (64, 32, 4),
)  # fmt: skip


@dataclass(frozen=True)
class BoxedProduct:
    """The sizes of a product whose epilogue has no costly ops. step: the terms of a short k-step. epilogue_bytes: as in
    `ProductShape`. rate: multiply-adds of a multiprocessor in a microsecond. sums: accumulators of an element."""

    rows: int
    columns: int
    terms: int
    count: int
    nbytes: int
    step: int
    epilogue_bytes: int
    rate: float
    sums: int = 1

    @property
    def is_fitted(self) -> bool:
        """Whether the product is among the sizes that the model was fitted to."""
        return self.rows * self.columns * self.count <= MAX_FITTED_RESULT and self.terms <= MAX_FITTED_TERMS

    def tilings(self, machine: Machine) -> list[Tiling]:
        """Tilings, the fastest by the model first."""
        options = sorted(self._options(machine), key=lambda option: option[:3])
        return [*dict.fromkeys(tiling for *_, tiling in options)]

    def _options(self, machine: Machine) -> Iterator[tuple[float, int, int, Tiling]]:
        for rank, (rows, columns, warps) in enumerate(SHAPES):
            if rows > max(64, power_of_two(self.rows)) or columns > max(32, power_of_two(self.columns)):
                continue
            tiles = -(-self.rows // rows) * -(-self.columns // columns) * self.count
            steps = (self.step, 2 * self.step) if rows * columns <= MAX_LONG_STEP_AREA else (self.step,)
            for step in steps:
                max_parts = max(1, min(self.terms // (MIN_STEPS_PER_PART * step), MAX_PARTS))
                for parts in range(1, max_parts + 1):
                    if parts > 1 and tiles * parts > machine.target_programs:
                        break
                    for resident in range(1, MAX_RESIDENT + 1):
                        stages = self._stages((rows, columns), step, parts, resident, machine)
                        if stages is None:
                            break
                        tiling = Tiling(rows, columns, step, warps, stages, parts, boxes=1)
                        yield self._microseconds(tiling, tiles, resident, machine), parts, rank, tiling
                        most = min(self._most_stages((rows, columns), step, resident, machine), MAX_STAGES)
                        tiling = replace(tiling, stages=most, persistent=resident)
                        has_turns = parts == 1 and tiles > resident * machine.processors
                        if has_turns and self._persists(tiling, resident, machine):
                            yield self._microseconds(tiling, tiles, resident, machine), parts, rank, tiling

    def _stages(self, tile: tuple[int, int], step: int, parts: int, resident: int, machine: Machine) -> int | None:
        """The k-steps under way of each of `resident` programs; None if there are too few."""
        rows, columns = tile
        if resident > 1 and 2 * machine.registers // (self.sums * rows * columns) < resident:
            return None
        most = self._most_stages(tile, step, resident, machine)
        steps = -(-self.terms // parts // step)
        stages = min(most, MAX_STAGES, max(2, steps + 1))
        return stages if stages >= min(MIN_STAGES, max(2, steps + 1)) else None

    def _most_stages(self, tile: tuple[int, int], step: int, resident: int, machine: Machine) -> int:
        return machine.shared_bytes * 15 // 16 // resident // (sum(tile) * step * self.nbytes)

    def _persists(self, t: Tiling, resident: int, machine: Machine) -> bool:
        """Whether programs can be persistent: of one piece, with memory for the epilogue beside that for copies."""
        has_one_piece = (pieces_of(t.rows), pieces_of(t.columns)) == ((t.rows,), (t.columns,))
        epilogue_bytes = max(t.warps * EPILOGUE_BYTES_PER_WARP, t.rows * t.columns * self.nbytes // 2)
        nbytes = t.stages * (t.rows + t.columns) * t.depth * self.nbytes + epilogue_bytes
        return (
            has_one_piece and resident * t.warps <= MAX_PERSISTENT_WARPS and resident * nbytes <= machine.shared_bytes
        )

    def _microseconds(self, t: Tiling, tiles: int, resident: int, machine: Machine) -> float:
        area, programs = t.rows * t.columns, tiles * t.parts
        waves = -(-programs // machine.processors)
        resident = min(resident, waves)
        # shared memory feeds narrow pieces more slowly
        columns = sum(max(n, (NARROW_COLUMNS + n) / 2) for n in pieces_of(t.columns))
        steps = -(-self.terms // t.parts // t.depth)
        step_us = max(STEP_US, COPY_US / (t.stages - 1)) / resident  # if products took no time
        total = waves * steps * max(step_us, t.rows * columns * t.depth / self.rate)
        total = max(total, tiles * (t.rows + t.columns) * self.terms * self.nbytes / COPIED_BYTES_PER_US)
        start, end, turns = START_US, area * EPILOGUE_US_PER_BYTE * self.epilogue_bytes, 1 + (waves - 1) / resident
        total += start + (TURN_US + end) * turns if t.persistent else (start + end) * turns
        if t.parts == 1:
            return total
        return total + JOIN_START_US + self.rows * self.columns * self.count * t.parts * JOIN_US_PER_ELEMENT


__all__ = ["MAX_PARTS", "BoxedProduct"]
