"""How a contraction is cut into programs: by a model of the time of each tiling, with rates measured on an H100.

time = waves of tiles * (products of a tile / its rate + its epilogue) + joining of parts
"""

from __future__ import annotations

from collections.abc import Iterator

from ingot.ir.dims import DimLike, estimate
from ingot.ir.types import DType, f32
from ingot.schedule.gpu.blocks import power_of_two
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

PART = 4  # steps of a part of the reduction, at least
MOST_PARTS = 16
VECTOR = 64  # columns, and terms of a turn, where a single row is multiplied by columns that lie side by side
LINE = 4096  # elements of B in a turn where a single row is multiplied by columns that lie one behind the other
EPILOGUE = 7e-5  # microseconds for an element of a tile
JOINED = 8 / 3e6  # microseconds for an element of a part, which all programs write and some read
ARRIVED = 4 / 1.1e5, 1.0  # and for an element that the last to arrive reads alone, after so long


@dataclass(frozen=True)
class _Tile:
    """rate: multiply-adds of a multiprocessor in a microsecond, of 16-bit operands. together: programs that it takes
    to reach that, as each waits for its loads."""

    rows: int
    columns: int
    warps: int
    rate: float
    together: int


_TILES = (
    _Tile(128, 256, 8, 2.9e6, 1), _Tile(256, 128, 8, 2.65e6, 1), _Tile(128, 128, 8, 2.55e6, 1),
    _Tile(64, 256, 4, 2.4e6, 1), _Tile(64, 128, 4, 1.8e6, 2), _Tile(128, 64, 4, 1.6e6, 2), _Tile(64, 64, 4, 1.35e6, 2),
    _Tile(32, 64, 4, 0.6e6, 3), _Tile(64, 32, 4, 0.6e6, 3), _Tile(32, 32, 4, 0.2e6, 4),
)  # fmt: skip
_LARGEST_F32 = 128 * 64  # what registers hold of sums and operands that are no tensor cores'


@dataclass(frozen=True)
class Tiling:
    """A program's tile of the result, and its steps along the reduction. parts: of the reduction, each a program's own
    where the result has too few tiles for the GPU; the last of them to end joins the sums."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    parts: int = 1

    @staticmethod
    def of(
        rows: DimLike, columns: DimLike, depth: DimLike, batch: DimLike, dtype: DType, machine: Machine, *, lines: bool
    ) -> Tiling:
        """The fastest by the model. lines: the terms of B's columns lie side by side."""
        m, n, count, length = map(estimate, (rows, columns, batch, depth))
        fixed = all(isinstance(d, int) for d in (rows, columns, depth, batch))
        if rows == 1 and dtype.is_float:
            wide, step = _line(n * count, length, machine) if lines else (VECTOR, min(VECTOR, power_of_two(length)))
            programs = -(-n // wide) * count
            parts = min(machine.programs // programs, length // (2 * step), MOST_PARTS) if fixed else 1
            return Tiling(1, wide, step, 4, 3, max(1, parts))
        step = 64 if dtype.bits <= 16 else 32
        step = max(16 if dtype.bits > 8 else 32, min(step, power_of_two(length)))
        most_parts = max(1, min(length // (PART * step), MOST_PARTS)) if fixed else 1
        room = 4 * machine.processors

        def options() -> Iterator[tuple[float, int, int, _Tile, int]]:
            for place, tile in enumerate(_TILES):
                if dtype == f32 and tile.rows * tile.columns > _LARGEST_F32:
                    continue
                programs = -(-m // tile.rows) * -(-n // tile.columns) * count
                for parts in range(1, most_parts + 1):
                    if parts == 1 or programs * parts <= room:
                        yield _time(tile, programs, parts, m * n * count, length, machine), parts, place, tile, programs

        _, parts, _, tile, _ = min(options(), key=lambda found: found[:3])
        a, b = min(tile.rows, max(16, power_of_two(m))), min(tile.columns, max(16, power_of_two(n)))
        turn = (a + b) * step * dtype.nbytes
        return Tiling(a, b, step, tile.warps, min(4 if dtype.bits <= 16 else 3, machine.shared * 3 // 4 // turn), parts)


def _time(tile: _Tile, programs: int, parts: int, results: int, length: int, machine: Machine) -> float:
    """Microseconds, of operands of 16 bits; others' are alike in proportion."""
    waves = max(tile.together, -(-programs * parts // machine.processors))
    area = tile.rows * tile.columns
    taken = waves * area * (length / parts / tile.rate + EPILOGUE)
    return taken if parts == 1 else taken + results * parts * JOINED + area * (parts + 1) * ARRIVED[0] + ARRIVED[1]


def _line(columns: int, length: int, machine: Machine) -> tuple[int, int]:
    """Columns of a program and terms of a turn, where a single row is multiplied."""
    few = 4 if columns >= 4 * machine.programs else 2
    step = min(LINE // 4, power_of_two(length))
    return max(few, min(LINE // step, 4 * few, power_of_two(columns // machine.programs))), step


__all__ = ["Tiling"]
