"""What lowering a fused group gives: kernels with their operands, temporaries, and constants to repack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.kernel import Kernel
from ingot.ir.types import DType
from ingot.schedule.choice import Site
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Arg:
    """A kernel's buffer operand: the group's input or output, a temporary, or a repacked constant, by index; or its
    zeros."""

    kind: Literal["in", "out", "temp", "pack", "zeros"]
    index: int


@dataclass(frozen=True)
class Step:
    """One kernel launch. `args` are in the order of kernel.params; kernel.dims are symbols, taken by name."""

    kernel: Kernel
    args: tuple[Arg, ...]


@dataclass(frozen=True)
class Pack:
    """Input `index` of the group, a constant, is repacked at compile time; `key` names the transformation.

    `write(array, out)` fills `out`, `size` zeros of type `dtype` in a row.
    """

    index: int
    key: str
    dtype: DType
    size: int
    write: Callable[[np.ndarray, np.ndarray], None]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.nbytes

    def apply(self, array: np.ndarray) -> np.ndarray:
        out = np.zeros(self.size, self.dtype.numpy)
        self.write(array, out)
        return out


@dataclass(frozen=True)
class Lowered:
    """A lowered group: steps run in order; temps are sizes in bytes of memory that lives from first to last use. site:
    what was decided for it, if anything was. zeros: bytes of memory that is zero when a step begins, and again when it
    ends."""

    steps: tuple[Step, ...]
    temps: tuple[DimLike, ...] = ()
    packs: tuple[Pack, ...] = ()
    site: Site | None = None
    zeros: DimLike = 0

    def within(self, ins: Sequence[Arg], outs: Sequence[Arg], temps: int, packs: int = 0) -> Lowered:
        """The same as a part of another group, on operands of that. temps, packs: how many it has before these."""
        places = {
            "in": ins,
            "out": outs,
            "temp": [Arg("temp", temps + i) for i in range(len(self.temps))],
            "pack": [Arg("pack", packs + i) for i in range(len(self.packs))],
            "zeros": [Arg("zeros", 0)],
        }
        steps = tuple(Step(s.kernel, tuple(places[a.kind][a.index] for a in s.args)) for s in self.steps)
        return replace(self, steps=steps, packs=tuple(replace(p, index=ins[p.index].index) for p in self.packs))
