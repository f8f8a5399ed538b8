"""How a contraction is cut into programs: by a model of the time of each tiling, with rates measured on an H100.

time = tiles of a multiprocessor * products of a tile / their rate + what does not overlap of starts and epilogues
     + joining of parts

A multiprocessor's copies take about a microsecond, so that it needs some 100 KB of them under way: programs that have
it to themselves take more turns ahead than programs that share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.ir.dims import DimLike, estimate, is_static
from ingot.ir.types import DType
from ingot.schedule.choice import Tiling
from ingot.schedule.gpu.blocks import power_of_two
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

PART = 4  # steps of a part of the reduction, at least
MOST_PARTS = 64
VECTOR = 64  # columns, and terms of a turn, where a single row is multiplied by columns that lie side by side
MOST_STAGES = 6
LINE = 4096  # elements of all B's in a turn where a single row is multiplied by columns that lie one behind the other
BOXED = 512  # rows from which on copies of boxes are worth their start
START = 1.2  # microseconds until a program's first operands are there
EPILOGUE = 4.5e-4  # and for an element of its tile, of each warp
FUNCTION = 1e-3  # and for each function in the epilogue that takes many instructions
COPIED = 2e-9  # microseconds for a byte of operands, of all programs together
OVERLAPPED = 3  # programs of a multiprocessor, up to which starts and epilogues of one run beside products of another
JOINED = 8 / 3e6  # microseconds for an element of a part, which all programs write and some read
ARRIVED = 4 / 1.1e5, 0.2  # and for an element that the last to arrive reads alone, after so long


@dataclass(frozen=True)
class _Tile:
    """rate: multiply-adds of a multiprocessor in a microsecond. alone: of a program that has it to itself, as each
    waits for its loads."""

    rows: int
    columns: int
    warps: int
    rate: float
    alone: float

    @property
    def area(self) -> int:
        return self.rows * self.columns


_TILES = (
    _Tile(128, 256, 8, 2.85e6, 2.85e6), _Tile(256, 128, 8, 2.7e6, 2.7e6), _Tile(128, 128, 8, 2.45e6, 2.45e6),
    _Tile(64, 256, 4, 2.65e6, 2.4e6), _Tile(64, 128, 4, 2.05e6, 1.7e6), _Tile(128, 64, 4, 1.9e6, 1.5e6),
    _Tile(64, 64, 4, 1.75e6, 1.3e6), _Tile(32, 64, 4, 0.95e6, 0.6e6), _Tile(64, 32, 4, 1.2e6, 0.7e6),
    _Tile(32, 32, 4, 0.5e6, 0.2e6),
)  # fmt: skip
# of f32, by plain multiply-adds: one program keeps a multiprocessor almost as busy as several do
_TILES_F32 = (
    _Tile(128, 64, 8, 1.7e5, 1.5e5), _Tile(64, 128, 8, 1.7e5, 1.5e5), _Tile(64, 64, 4, 1.7e5, 1.3e5),
    _Tile(32, 64, 4, 1.4e5, 1.05e5), _Tile(64, 32, 4, 1.15e5, 0.87e5), _Tile(32, 32, 4, 1.08e5, 0.63e5),
)  # fmt: skip
LARGEST = 128 * 256
LARGEST_F32 = 128 * 64  # what registers hold of sums and operands that are no tensor cores'
RUN = 128  # terms whose products of 8-bit floats are added up in fewer bits than f32 has (docs/precision.md)
RUNS = 128 * 16  # elements of a tile, for each warp, whose sums and those of a run fit in registers


@dataclass(frozen=True)
class Asked:
    """What a tiling is chosen for. dtype: of the operands. lines: the terms of B's columns lie side by side. turn:
    steps along the reduction where B's levels leave no choice, else 0. block: what they are a multiple of. halves:
    parts of them that share elements of B. together: products of one kernel. boxes: operands may be copied in boxes.
    functions: in the epilogue, that take many instructions."""

    rows: DimLike
    columns: DimLike
    depth: DimLike
    batch: DimLike
    dtype: DType
    lines: bool = False
    turn: int = 0
    block: int = 1
    halves: int = 1
    together: int = 1
    boxes: bool = False
    functions: int = 0

    @property
    def alone(self) -> bool:
        """Whether a single row is multiplied."""
        return self.rows == 1 and self.dtype.is_float

    @property
    def in_runs(self) -> bool:
        """Whether the sums of a run of terms have registers of their own beside those of all."""
        return self.dtype.is_float and self.dtype.bits == 8

    def ranked(self, machine: Machine) -> list[Tiling]:
        """Tilings, the one that is the fastest by the model first."""
        found = self._of_row(machine) if self.alone else self._of_tiles(machine)
        return [*dict.fromkeys(replace(t, depth=self.turn) if self.turn else t for t in found)]

    def near(self, choice: Tiling, machine: Machine) -> list[Tiling]:
        """Neighbours: other warps, stages, steps and parts, of all tiles or of those behind whole waves."""
        found = [replace(choice, warps=w) for w in (choice.warps // 2, choice.warps * 2)]
        found += [replace(choice, stages=n) for n in (choice.stages - 1, choice.stages + 1)]
        found += [replace(choice, depth=d) for d in (choice.depth // 2, choice.depth * 2) if not self.turn]
        found += [replace(choice, parts=n) for n in (choice.parts - 1, choice.parts + 1)]
        found += [replace(choice, boxes=1 - choice.boxes)]
        if choice.parts == 1 and (waves := self._tiles(choice) // machine.processors):
            found += [replace(choice, parts=n, waves=waves) for n in (2, 4)]
        return [t for t in found if self.admits(t, machine)]

    def admits(self, t: Tiling, machine: Machine) -> bool:
        """Whether a tiling gives a kernel: sides are powers of two, and operands fit in shared memory."""
        area, most = t.rows * t.columns, LARGEST if self.dtype.bits <= 16 else LARGEST_F32
        powers = all(n > 0 and n & n - 1 == 0 for n in (t.rows, t.columns, t.depth, t.warps))
        if not powers or t.warps > 8 or not 1 <= t.stages <= 6 or not 1 <= t.parts <= self._most_parts(t.depth):
            return False
        if t.waves and (t.parts == 1 or t.waves * machine.processors >= self._tiles(t)):
            return False
        if t.boxes > self.boxes or (self.turn and t.depth != self.turn):
            return False
        if self.alone:
            size = t.columns * t.depth * self.together // self.halves
            return t.rows == 1 and t.depth % self.block == 0 and size <= 4 * LINE
        least = 16 if self.dtype.bits > 8 else 32
        if self.in_runs and (t.depth > RUN or area > RUNS * t.warps):
            return False
        fits = t.stages * (t.rows + t.columns) * t.depth * self.dtype.nbytes <= machine.shared
        return min(t.rows, t.columns) >= 16 and t.depth >= least and fits and area <= most

    def _tiles(self, t: Tiling) -> int:
        """Of the result; 0 where that is not known."""
        if not is_static((self.rows, self.columns, self.batch)):
            return 0
        m, n, count = map(estimate, (self.rows, self.columns, self.batch))
        return -(-m // t.rows) * -(-n // t.columns) * count

    def _most_parts(self, step: int) -> int:
        fixed = is_static((self.rows, self.columns, self.depth, self.batch))
        turns = 2 if self.alone else PART
        return max(1, min(estimate(self.depth) // (turns * step), MOST_PARTS)) if fixed else 1

    def _of_row(self, machine: Machine) -> Iterator[Tiling]:
        n, count, length = map(estimate, (self.columns, self.batch, self.depth))
        first = VECTOR, min(VECTOR, power_of_two(length))
        sizes = [first, (VECTOR // 2, first[1]), (VECTOR, first[1] // 2), (VECTOR // 2, 2 * first[1])]
        if self.lines:
            wide, step = self._line(n * count * self.together, length, machine)
            sizes = [(wide, step), (2 * wide, step), (wide // 2, step), (wide, step // 2), (2 * wide, step // 2)]
        for number, (wide, step) in enumerate(sizes):
            if wide < 1 or step < 1 or step % self.block:
                continue
            programs = -(-n // wide) * count
            parts = max(1, min(machine.programs // programs, self._most_parts(step)))
            yield Tiling(1, wide, step, 4, 3, parts)
            if number == 0:
                yield from (Tiling(1, wide, step, 8, 3, parts), Tiling(1, wide, step, 4, 3, max(1, parts // 2)))

    def _line(self, columns: int, length: int, machine: Machine) -> tuple[int, int]:
        """Columns of a program and terms of a turn, where those of all `columns` lie side by side."""
        few = 4 if columns >= 4 * machine.programs else 2
        step = min(LINE // 4 * self.halves, max(self.block, power_of_two(length)))
        wide = max(few, min(LINE * self.halves // step, 4 * few, power_of_two(columns // machine.programs)))
        return max(1, wide // self.together), step

    def _of_tiles(self, machine: Machine) -> list[Tiling]:
        m, n, count, length = map(estimate, (self.rows, self.columns, self.batch, self.depth))
        room = 4 * machine.processors
        boxes = int(self.boxes and m >= BOXED)
        tiles = _TILES if self.dtype.bits <= 16 else _TILES_F32

        def options() -> Iterator[tuple[float, int, int, Tiling]]:
            for place, tile in enumerate(tiles):
                if self.in_runs and tile.area > RUNS * tile.warps:
                    continue
                programs = -(-m // tile.rows) * -(-n // tile.columns) * count
                for parts in range(1, self._most_parts(self._step) + 1):
                    if parts > 1 and programs * parts > room:
                        break
                    a, b = min(tile.rows, max(16, power_of_two(m))), min(tile.columns, max(16, power_of_two(n)))
                    depth, stages, resident = self._ahead(a, b, programs * parts, length // parts, boxes, machine)
                    if stages == 1 and tile != tiles[-1]:
                        break
                    taken = self._time(tile, programs, parts, resident, machine)
                    yield taken, parts, place, Tiling(a, b, depth, tile.warps, stages, parts, boxes)

        return [t for *_, t in sorted(options(), key=lambda found: found[:3])]

    @property
    def _step(self) -> int:
        """Terms of a turn: of 8 bits as many bytes as of 16, where they are no windows, which have fewer channels."""
        step = 32 if self.dtype.bits > 16 else RUN if self.dtype.bits == 8 and self.boxes else 64
        return max(16 if self.dtype.bits > 8 else 32, min(step, power_of_two(estimate(self.depth))))

    def _ahead(self, a: int, b: int, programs: int, length: int, boxes: int, machine: Machine) -> tuple[int, int, int]:
        """Terms of a turn, turns whose loads are under way, and programs that are then on one multiprocessor at once:
        programs of `length` terms. What is not needed is left to other programs."""
        step, shared = self._step, machine.shared * 7 // 8
        most = max(1, min(-(-programs // machine.processors), 2 * machine.registers // (a * b), OVERLAPPED))
        turn = (a + b) * step * self.dtype.nbytes
        if boxes and step == 64 and a * b <= 64 * 128 and 2 * step * 4 <= length and 2 * turn * 4 * most <= shared:
            step, turn = 2 * step, 2 * turn
        deepest = MOST_STAGES if self.dtype.bits <= 16 else 3
        beside = next((n for n in range(most, 1, -1) if shared // n // turn >= 3), 1)
        stages = max(1, min(shared // beside // turn, deepest, -(-length // step) + 1))
        return step, stages, max(1, min(most, machine.shared // (stages * turn)))

    def _time(self, tile: _Tile, programs: int, parts: int, resident: int, machine: Machine) -> float:
        """Microseconds; of 8 bits as of 16, which are alike in proportion. resident: programs of a multiprocessor at
        once."""
        m, n, count, length = map(estimate, (self.rows, self.columns, self.batch, self.depth))
        waves = -(-programs * parts // machine.processors)
        taken = waves * tile.area * length / parts / min(tile.rate, waves * tile.alone)
        taken += programs * (tile.rows + tile.columns) * length * self.dtype.nbytes * COPIED
        once = START + tile.area / tile.warps * (EPILOGUE + FUNCTION * self.functions)
        taken += once * (1 + (waves - 1) / resident)
        if parts == 1:
            return taken
        return taken + m * n * count * parts * JOINED + tile.area * (parts + 1) * ARRIVED[0] + ARRIVED[1]


__all__ = ["Asked"]
