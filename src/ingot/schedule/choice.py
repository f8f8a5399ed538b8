"""Choices that a schedule makes with a cost model, and a tuner by measurement.

A strategy describes each of its decisions as a `Site`: the key under which measurements are stored, the cost model's
choice, and other candidates. `decide` prefers a measured choice to the model's, as long as the model still makes the
choice that the measured one was compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from typing import ClassVar

from ingot.support.dataclass import dataclass

GENERATION = 1  # of kernels: raised when they change so much that old measurements are no longer valid
_MAX_VALUE = 1 << 24  # of any field of a choice


@dataclass(frozen=True)
class Choice:
    """Small nonnegative integers. `kind` names the algorithm; choices of different kinds are never equal."""

    kind: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.kind} " + " ".join(f"{name} {value:d}" for name, value in asdict(self).items())

    def record(self) -> dict[str, int | str]:
        """As plain data.   {"way": "direct", "lines": 1, ...}"""
        return {"way": self.kind, **{name: int(value) for name, value in asdict(self).items()}}


@dataclass(frozen=True)
class Direct(Choice):
    """A contraction as one loop nest.

    lines, width, vectors: the register tile, as in `tile.Plan`. panels, tiles, entries: column panels, register tiles
    per panel, and batch entries of a chunk. blocks: the number of blocks of the outermost reduction loop. prefetch:
    cache lines of B to prefetch per iteration of the innermost loop.
    """

    kind: ClassVar[str] = "direct"
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
        suffix = (f" {self.blocks} blocks" if self.blocks > 1 else "") + f" prefetch {self.prefetch}"
        return f"direct {'x'.join(map(str, tile))} chunk {'x'.join(map(str, chunk))}{suffix}"


@dataclass(frozen=True)
class Winograd(Choice):
    """A convolution by Winograd's algorithm.

    m: outputs of a tile along each dimension. tiles, columns: of a chunk; columns is a multiple of the vector length.
    split (0 or 1): whether a separate step transforms the input. late: the input channels whose weights a chunk
    transforms at a time, at run time (0: all weights are transformed at compile time).
    """

    kind: ClassVar[str] = "winograd"
    m: int
    tiles: int
    columns: int
    split: int = 0
    late: int = 0


@dataclass(frozen=True)
class Tiling(Choice):
    """A contraction as products of tiles on a GPU.

    rows, columns: a program's tile of the result. depth: the k-step. warps: of a program. stages: k-steps whose loads
    are in flight. parts: split-K parts, each computed by its own program if the result has too few tiles to fill the
    GPU; the last program to finish adds them up. waves: full waves of tiles that are not split; only the remaining
    tiles are computed in parts. boxes (0 or 1): whether the bulk copy engine loads the operands' tiles. persistent: the
    programs of a multiprocessor that compute one tile after another, copying for the next during the epilogue of the
    last; 0: each tile has a program of its own.
    """

    kind: ClassVar[str] = "tiles"
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    parts: int = 1
    boxes: int = 0
    waves: int = 0
    persistent: int = 0


@dataclass(frozen=True)
class Flash(Choice):
    """Attention in tiles. queries: of a program. keys: of an iteration. parts: of the keys, one program each."""

    kind: ClassVar[str] = "flash"
    queries: int
    keys: int
    warps: int
    stages: int
    parts: int = 1


@dataclass(frozen=True)
class Patch(Choice):
    """A depthwise convolution. rows: runs of positions of a program. columns: its channels. run: the positions of a
    run, which are neighbors along the innermost axis."""

    kind: ClassVar[str] = "patch"
    rows: int
    columns: int
    warps: int
    run: int = 1


KINDS: Mapping[str, type[Choice]] = {kind.kind: kind for kind in (Direct, Winograd, Tiling, Flash, Patch)}


def read_choice(record: object) -> Choice | None:
    """The choice that `record` holds, or None if it is invalid: records are not trusted."""
    if not isinstance(record, dict):
        return None
    kind = KINDS.get(str(record.get("way")))
    if kind is None:
        return None
    names = {"way", *(f.name for f in fields(kind))}
    required = {"way", *(f.name for f in fields(kind) if f.default is MISSING)}
    if not required <= set(record) <= names:
        return None
    values = {name: value for name, value in record.items() if name != "way"}
    if not all(type(value) is int and 0 <= value <= _MAX_VALUE for value in values.values()):
        return None
    return kind(**values)


@dataclass(frozen=True)
class Measured:
    """A measured choice. baseline: the model's choice at the time, which was slower, or is `choice` itself."""

    choice: Choice
    baseline: Choice


@dataclass(frozen=True)
class Site:
    """A decision about one kernel.

    key: everything that the best choice depends on except the machine. untuned: the cost model's choice. candidates:
    the model's next choices, best first. refine: the neighbors of a choice. admits: whether a choice gives a correct
    kernel here. Call these three under the same `likely_sizes` as the lowering.
    """

    key: str
    untuned: Choice
    candidates: Callable[[], list[Choice]]
    refine: Callable[[Choice], list[Choice]]
    admits: Callable[[Choice], bool]


def decide(site: Site, measured: Mapping[str, Measured]) -> Choice:
    """The measured choice if there is a valid one, else the model's."""
    entry = measured.get(site.key)
    if entry is None or entry.baseline != site.untuned or not site.admits(entry.choice):
        return site.untuned
    return entry.choice


__all__ = [
    "GENERATION",
    "Choice",
    "Direct",
    "Flash",
    "Measured",
    "Patch",
    "Site",
    "Tiling",
    "Winograd",
    "decide",
    "read_choice",
]  # fmt: skip
