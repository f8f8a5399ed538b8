"""Targets: what makes programs. A target compiles; the device of the same name runs what it made (`runtime.device`).

    "cpu:x86-64-v4"  ->  Features("x86_64", ("avx", ..., "avx512vl"), ...)  ->  passes, schedules, assembler

A target is a file of this package with a `TARGET` and a line in `NAMES`. See docs/targets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from ingot.ir.kernel import Kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ops.group import Group
from ingot.passes.fusion.policy import FusionPolicy
from ingot.plan.link import Assembler
from ingot.runtime.program import Program
from ingot.schedule.choice import Measured
from ingot.schedule.lowered import Lowered
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.native import Features

Pass: TypeAlias = Callable[[Graph], Graph]
NamedPass: TypeAlias = tuple[str, Pass]
M = TypeVar("M")

NAMES = (
    "cpu",
    "c",
    "cuda",
    "null",
)


@dataclass(frozen=True)
class Options:
    """What a caller chooses besides the machine. threads: of a call. precision: what weights are stored in."""

    threads: int = 1
    fast_math: bool = False
    precision: str = "float32"


PLAIN = Options()


class PartAssembler(Assembler, Protocol):
    """An assembler whose kernels can be shared with others for the same features."""

    def begin(self, kernel: Kernel) -> Any:
        """Begin with a kernel: what `include` takes."""
        ...

    def include(self, part: Any) -> None:
        """Add what `begin` gave, here or in another assembler."""
        ...


class Target(Protocol[M]):
    """The compile side of a kind of machine; M: what its schedules know of one such machine.

    name: what stands before the colon, and of the device that runs the code. forms: the texts that `source` makes of a
    kernel, from the first to the one nearest to the machine. policy: the numbers that fusion weighs.
    """

    name: str
    policy: FusionPolicy
    forms: tuple[str, ...]

    def features(self, asked: str) -> Features:
        """The machine that the text behind the colon names; "" is this machine, or the plainest.

        Raises InputError that lists the names there are.
        """
        ...

    def prepare(self, nodes: int) -> None:
        """What can begin before there is a program of so many nodes, 0 before the model is read: workers that start."""
        ...

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> M:
        """What schedules know of it. measured: what tuning found, by the key of what it decides."""
        ...

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        """From a MODEL graph to fused groups, in order."""
        ...

    def lower(
        self, group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: M
    ) -> Lowered:
        """Kernels for a group whose operands lie at `ins` and whose results go to `outs`; `constant` tells which
        operands are constants, which may be repacked at compile time. Raises CompileError."""
        ...

    @property
    def beside(self) -> Callable[[Sequence[Lowered], M], Lowered | None] | None:
        """Makes one launch of groups whose order does not matter, on operands of one; None where that is no gain. None
        itself, where a launch costs nothing."""
        ...

    def assembler(self, features: Features) -> PartAssembler:
        """What makes code of kernels."""
        ...

    @property
    def export(self) -> Callable[[Program, Path, Path | None], None] | None:
        """Writes a program to a path, and its weights to another if one is given; None where it is an artifact."""
        ...

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        """A kernel as text in one of `forms`."""
        ...


@cache
def _target(name: str) -> Target[Any]:
    return import_module(f"ingot.pipeline.{name}").TARGET


def target_of(features: Features) -> Target[Any]:
    """The target whose features these are. Raises InputError."""
    if features.target_name not in NAMES:
        raise InputError("target", expected=f"one of {', '.join(NAMES)}", got=repr(features.target))
    return _target(features.target_name)


def named(text: str) -> tuple[Target[Any], str]:
    """ "cpu:znver4" -> the target, and the features asked of it; "native": this machine's CPU. Raises InputError."""
    name, _, asked = ("cpu" if text == "native" else text).partition(":")
    if name not in NAMES:
        raise InputError("target", expected=f"native, or NAME[:FEATURES] of {', '.join(NAMES)}", got=repr(text))
    return _target(name), asked


def features_of(text: str) -> Features:
    """ "cpu:znver4" -> the features of that machine; "native": this machine's CPU with all that it has.

    Raises InputError that lists the names there are.
    """
    target, asked = named(text)
    return target.features(asked)
