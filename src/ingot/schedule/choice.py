"""What a schedule decides by a model of the machine and a tuner by measuring.

A strategy with something to decide describes it as a `Site`: the key it is filed under, the model's choice, and others
to try. `decide` is how strategies ask: what was measured for the key goes before the model, but only as long as the
model's choice is still the one that it was measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import ClassVar

from ingot.support.dataclass import dataclass

# Of the kernels that measured choices are about; goes up when kernels change so much that old measurements say nothing.
GENERATION = 1
_LARGEST = 1 << 24  # of any number in a choice


@dataclass(frozen=True)
class Choice:
    """Small whole numbers. `way` names the kind; only values of the same kind are equal."""

    way: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.way} " + " ".join(f"{name} {value:d}" for name, value in asdict(self).items())

    def record(self) -> dict[str, int | str]:
        """As plain data.   {"way": "direct", "lines": 1, ...}"""
        return {"way": self.way, **{name: int(value) for name, value in asdict(self).items()}}


@dataclass(frozen=True)
class Direct(Choice):
    """A contraction as one loop nest.

    lines, width, vectors: the register tile, as in `tile.Plan`. panels, tiles, entries: column panels, register tiles
    of one panel, and batch entries of a chunk. blocks: into which the outermost reduction loop is cut. prefetch: cache
    lines of B per turn of the innermost loop.
    """

    way: ClassVar[str] = "direct"
    lines: int
    width: int
    vectors: int
    panels: int
    tiles: int
    entries: int
    blocks: int
    prefetch: int

    def __str__(self) -> str:
        tile, chunk = (self.lines, self.width, self.vectors), (self.panels, self.tiles, self.entries)
        more = (f" {self.blocks} blocks" if self.blocks > 1 else "") + f" prefetch {self.prefetch}"
        return f"direct {'x'.join(map(str, tile))} chunk {'x'.join(map(str, chunk))}{more}"


@dataclass(frozen=True)
class Pieces(Choice):
    """A convolution by Winograd's algorithm. m: outputs of a tile along each dimension. tiles, columns: of a chunk,
    columns a multiple of the vector. split (0 or 1): the input is transformed by a step of its own. late: input
    channels whose weights a chunk transforms at a time, as it needs them (0: all were when the model was compiled)."""

    way: ClassVar[str] = "winograd"
    m: int
    tiles: int
    columns: int
    split: int = 0
    late: int = 0


@dataclass(frozen=True)
class Tiling(Choice):
    """A contraction as products of tiles: a program's tile of the result, its steps along the reduction, threads in
    warps, and turns whose loads are under way. parts: of the reduction, each a program's own where the result has too
    few tiles for the GPU; the last of them to end joins the sums. waves: so many times as many tiles as there are
    multiprocessors are computed whole, and only those that are left in parts. boxes (0 or 1): the hardware copies
    the operands' tiles by their places in matrices, in place of threads by addresses."""

    way: ClassVar[str] = "tiles"
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    parts: int = 1
    boxes: int = 0
    waves: int = 0


@dataclass(frozen=True)
class Flash(Choice):
    """Attention in tiles: queries of a program, keys of a turn; parts: of the keys, each a program's own."""

    way: ClassVar[str] = "flash"
    queries: int
    keys: int
    warps: int
    stages: int
    parts: int = 1


@dataclass(frozen=True)
class Patch(Choice):
    """A depthwise convolution: positions and channels of a program."""

    way: ClassVar[str] = "patch"
    rows: int
    columns: int
    warps: int


WAYS: Mapping[str, type[Choice]] = {kind.way: kind for kind in (Direct, Pieces, Tiling, Flash, Patch)}


def read_choice(record: object) -> Choice | None:
    """The choice that `record` tells, None if it is none: the record may come from anywhere."""
    if not isinstance(record, dict):
        return None
    kind = WAYS.get(str(record.get("way")))
    if kind is None or set(record) != {"way", *(f.name for f in fields(kind))}:
        return None
    values = {name: value for name, value in record.items() if name != "way"}
    if not all(type(value) is int and 0 <= value <= _LARGEST for value in values.values()):
        return None
    return kind(**values)


@dataclass(frozen=True)
class Measured:
    """`choice` was faster than `over`, the model's own, or both are the same: nothing faster was found."""

    choice: Choice
    over: Choice


@dataclass(frozen=True)
class Site:
    """A decision of one kernel. key: all that the best choice depends on besides the machine. untuned: the model's.
    others: what it ranks next, best first. refine: neighbours of a choice. admits: whether a choice gives a kernel here
    (a right one; how fast is another matter). The three are asked under the same `likely_sizes` as lowering."""

    key: str
    untuned: Choice
    others: Callable[[], list[Choice]]
    refine: Callable[[Choice], list[Choice]]
    admits: Callable[[Choice], bool]


def decide(site: Site, measured: Mapping[str, Measured]) -> Choice:
    """The measured choice where there is one that still means something, else the model's."""
    found = measured.get(site.key)
    if found is None or found.over != site.untuned or not site.admits(found.choice):
        return site.untuned
    return found.choice


__all__ = [
    "GENERATION", "Choice", "Direct", "Flash", "Measured", "Patch", "Pieces", "Site", "Tiling", "decide", "read_choice",
]  # fmt: skip
