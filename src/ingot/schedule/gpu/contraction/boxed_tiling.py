"""The tilings of products whose operands the bulk copy engine loads, chosen by a model that was fitted to an H200.

time = tiles of a multiprocessor * (multiply-adds of a tile / rate + what nothing overlaps) + the addition of parts
rate = the tensor cores', or what the copies under way allow: those of (stages - 1) k-steps arrive within `COPY_US`;
       all programs together copy `COPIED_BYTES_PER_US` from the second-level cache

By measurement the tensor cores reach their rate with tiles of any shape, so what counts is how many tiles the busiest
multiprocessor has. Sides of 96 and 192 (see `pieces_of`) give more ways to come out even: 6304x384 are 132 tiles of
192x96, one for each multiprocessor.
"""

from __future__ import annotations

from collections.abc import Iterator

from ingot.schedule.choice import Tiling
from ingot.schedule.gpu.blocks import pieces_of, power_of_two
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

COPY_US = 0.57  # from the request of a tile to its arrival
START_US = 1.6  # of a program until it multiplies, and from its last product to its end
EPILOGUE_US_PER_BYTE = 2.2e-4  # that is read and written, of a warp's share of the tile
COSTLY_OP_US_PER_ELEMENT = 1e-3  # added for each op of the epilogue that takes many instructions
COPIED_BYTES_PER_US = 12e6
JOIN_START_US = 2.0  # of the kernel that adds parts
JOIN_US_PER_ELEMENT = 8 / 3e6  # of a part: written once and read once
NARROW_COLUMNS = 64  # of a piece, below which shared memory is slower than the tensor cores
MAX_RESIDENT = 3  # programs of a multiprocessor, whose beginnings and ends run beside another's products
MIN_STAGES, MAX_STAGES = 3, 6
MAX_PARTS = 128
MIN_STEPS_PER_PART = 4
SHAPES = (  # rows, columns, warps; of equal times, the first
    (128, 256, 8), (256, 128, 8), (128, 128, 8), (192, 128, 8), (128, 192, 8), (192, 192, 8), (192, 256, 8),
    (256, 192, 8), (64, 256, 4), (128, 128, 4), (64, 128, 4), (128, 64, 4), (64, 64, 4), (64, 192, 4), (192, 64, 4),
    (192, 96, 4), (128, 96, 4), (64, 96, 4), (128, 32, 4), (64, 32, 4),
)  # fmt: skip


@dataclass(frozen=True)
class BoxedProduct:
    """The sizes of a product. step: the terms of a short k-step. costly_ops, epilogue_bytes: as in `ProductShape`."""

    rows: int
    columns: int
    terms: int
    count: int
    nbytes: int
    step: int
    costly_ops: int
    epilogue_bytes: int

    def tilings(self, machine: Machine) -> list[Tiling]:
        """The fastest by the model first."""
        options = sorted(self._options(machine), key=lambda option: option[:3])
        return [*dict.fromkeys(tiling for *_, tiling in options)]

    def _options(self, machine: Machine) -> Iterator[tuple[float, int, int, Tiling]]:
        for rank, (rows, columns, warps) in enumerate(SHAPES):
            if rows > max(64, power_of_two(self.rows)) or columns > max(32, power_of_two(self.columns)):
                continue
            tiles = -(-self.rows // rows) * -(-self.columns // columns) * self.count
            for step in (self.step, 2 * self.step):
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

    def _stages(self, tile: tuple[int, int], step: int, parts: int, resident: int, machine: Machine) -> int | None:
        """The k-steps under way of each of `resident` programs; None if there are too few."""
        rows, columns = tile
        if resident > 1 and 2 * machine.registers // (rows * columns) < resident:
            return None
        most = machine.shared_bytes * 15 // 16 // resident // ((rows + columns) * step * self.nbytes)
        steps = -(-self.terms // parts // step)
        stages = min(most, MAX_STAGES, max(2, steps + 1))
        return stages if stages >= min(MIN_STAGES, max(2, steps + 1)) else None

    def _microseconds(self, t: Tiling, tiles: int, resident: int, machine: Machine) -> float:
        area, programs = t.rows * t.columns, tiles * t.parts
        waves = -(-programs // machine.processors)
        resident = min(resident, waves)
        # shared memory feeds narrow pieces more slowly
        columns = sum(max(n, (NARROW_COLUMNS + n) / 2) for n in pieces_of(t.columns))
        arriving = resident * (t.stages - 1) * area * t.depth / COPY_US
        terms = -(-self.terms // t.parts // t.depth) * t.depth
        total = waves * t.rows * terms * max(columns / machine.product_rate, t.columns / arriving)
        total = max(total, tiles * (t.rows + t.columns) * self.terms * self.nbytes / COPIED_BYTES_PER_US)
        per_element = EPILOGUE_US_PER_BYTE * self.epilogue_bytes + COSTLY_OP_US_PER_ELEMENT * self.costly_ops
        total += (START_US + area / t.warps * per_element) * (1 + (waves - 1) / resident)
        if t.parts == 1:
            return total
        return total + JOIN_START_US + self.rows * self.columns * self.count * t.parts * JOIN_US_PER_ELEMENT


__all__ = ["MAX_PARTS", "BoxedProduct"]
