"""The result of lowering a fused group: kernels with their operands, temporaries, and constants to repack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ingot.ir.array import Rows
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Kernel
from ingot.ir.types import DType
from ingot.schedule.choice import Site
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Arg:
    """A kernel's buffer operand: an input, output, temporary or repacked constant of the group, by index, or its
    zeroed memory."""

    kind: Literal["in", "out", "temp", "pack", "zeros"]
    index: int


@dataclass(frozen=True)
class Step:
    """One kernel launch. `args` are in the order of kernel.params; kernel.dims are symbols, bound by name."""

    kernel: Kernel
    args: tuple[Arg, ...]


@dataclass(frozen=True)
class Pack:
    """A constant input of the group that is repacked at compile time.

    index: of the input. key: names the transformation. write(array, out): fills `out`, which is a zeroed vector of
    `size` elements of type `dtype`. panel: the columns of panels that other kernels can choose to read; 0: of others.
    write_rows(rows, out): the same of an array of which rows(start, stop) gives some rows; None: the array is needed as
    a whole. keeps_order: the elements are the array's first, in their order.
    """

    index: int
    key: str
    dtype: DType
    size: int
    write: Callable[[np.ndarray, np.ndarray], None]
    panel: int = 0
    write_rows: Callable[[Rows, np.ndarray], None] | None = None
    keeps_order: bool = False

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.nbytes

    def apply(self, array: np.ndarray) -> np.ndarray:
        out = np.zeros(self.size, self.dtype.numpy)
        self.write(array, out)
        return out


@dataclass(frozen=True)
class Lowered:
    """A lowered group.

    steps: run in order. temps: bytes of each temporary, which lives from its first use to its last. packs: constants to
    repack. site: the schedule's decision about the group, if any. zeros: bytes of memory that is zero when a step
    begins and zero again when it ends.
    """

    steps: tuple[Step, ...]
    temps: tuple[DimLike, ...] = ()
    packs: tuple[Pack, ...] = ()
    site: Site | None = None
    zeros: DimLike = 0

    def inlined(self, ins: Sequence[Arg], outs: Sequence[Arg], temps: int, packs: int = 0) -> Lowered:
        """This group inlined in another one.

        ins, outs: operands of the other group. temps, packs: the number of temporaries and packs it already has.
        """
        mapping = {
            "in": ins,
            "out": outs,
            "temp": [Arg("temp", temps + i) for i in range(len(self.temps))],
            "pack": [Arg("pack", packs + i) for i in range(len(self.packs))],
            "zeros": [Arg("zeros", 0)],
        }
        steps = tuple(Step(s.kernel, tuple(mapping[a.kind][a.index] for a in s.args)) for s in self.steps)
        return replace(self, steps=steps, packs=tuple(replace(p, index=ins[p.index].index) for p in self.packs))
