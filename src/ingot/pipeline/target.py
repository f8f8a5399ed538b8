"""The interface of targets. A target compiles programs; the device of the same name runs them (`runtime.device`).

    "cpu:x86-64-v4"  ->  Features("x86_64", ("avx", ..., "avx512vl"), ...)  ->  passes, schedules, assembler

A target is a file of this package with a `TARGET` and a line in `NAMES`. See docs/reference/targets.md.
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
from ingot.passes.core.rewrites.rewrite import Rewrite
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
    "hip",
    "null",
    "wasm",
    "verilog",
)


@dataclass(frozen=True)
class Options:
    """Compile options other than the machine. threads: of a call. precision: the type that weights are stored in.
    activations: what weights of few bits are multiplied with, see `ingot.compile`. rewrites: what the tuning database
    has for this machine."""

    threads: int = 1
    fast_math: bool = False
    precision: str = "float32"
    activations: str = "float32"
    rewrites: tuple[Rewrite, ...] = ()


DEFAULT_OPTIONS = Options()


class PartAssembler(Assembler, Protocol):
    """An assembler whose compiled kernels can be reused by other assemblers for the same features."""

    def begin(self, kernel: Kernel) -> Any:
        """Begin to compile a kernel; return a handle for `include`."""
        ...

    def include(self, part: Any) -> None:
        """Add a kernel by its handle, from this or another assembler."""
        ...


class Target(Protocol[M]):
    """The compiler for one kind of machine. M: the machine description that its schedules use.

    name: the text before the colon, and the name of the device that runs the code. policy: parameters of fusion.
    forms: the texts of a kernel that `source` can print, the lowest level last. has_fixed_sizes: whether programs
    cannot leave sizes open, so that models take those that their files hold, too. overlaps_exchanges: whether kernels
    run while values travel between devices. has_paged_attention: whether attention of single rows to pages has a
    kernel, which reads lengths from memory (`ops.PagedAttention`).
    """

    name: str
    policy: FusionPolicy
    forms: tuple[str, ...]
    has_fixed_sizes: bool
    overlaps_exchanges: bool
    has_paged_attention: bool

    def features(self, variant: str) -> Features:
        """Return the machine that the text after the colon names; "" is this machine, or the target's default.

        Raises InputError that lists the valid names.
        """
        ...

    def prepare(self, nodes: int) -> None:
        """Start the workers and other resources for compiling a graph of `nodes` nodes; 0 before the model is read."""
        ...

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> M:
        """Return the description that schedules use. measured: tuned choices, by the key of their site."""
        ...

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        """Return the passes from a MODEL graph to fused groups, in order."""
        ...

    def lower(
        self, group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: M
    ) -> Lowered:
        """Lower a group to kernels. ins, outs: the layouts of operands and results. constant: which operands are
        constants, which may be repacked at compile time. Raises CompileError."""
        ...

    @property
    def merge_launches(self) -> Callable[[Sequence[Lowered], M], Lowered | None] | None:
        """A function that merges independent groups into one launch, or returns None if that is no gain. None for
        targets whose launches cost nothing."""
        ...

    @property
    def chain_kernels(self) -> Callable[[Sequence[Kernel], M], Kernel | None] | None:
        """A function that makes kernels that follow one another one kernel, with the params of all, or returns None if
        one of them must be a launch of its own. None for targets whose launches cost nothing."""
        ...

    def assembler(self, features: Features) -> PartAssembler:
        """Return a new assembler, which compiles kernels to code."""
        ...

    @property
    def export(self) -> Callable[[Program, Path, Path | None], None] | None:
        """Write a program to a path, and its weights to another if one is given; None if programs are saved as
        artifacts."""
        ...

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        """Print a kernel in one of `forms`."""
        ...


@cache
def _target(name: str) -> Target[Any]:
    return import_module(f"ingot.pipeline.{name}").TARGET


def target_of(features: Features) -> Target[Any]:
    """Return the target that these features belong to. Raises InputError."""
    if features.target_name not in NAMES:
        raise InputError("target", expected=f"one of {', '.join(NAMES)}", got=repr(features.target))
    return _target(features.target_name)


_FIXES = {
    **dict.fromkeys(("gpu", "nvidia", "triton"), "write cuda for this machine's GPU, cuda:sm_90a for another one's"),
    **dict.fromkeys(("host", "auto", "x86", "x64"), "write native for this machine's CPU"),
    **dict.fromkeys(("arm", "arm64"), "write cpu:aarch64; for microcontrollers c:cortex-m4 and others"),
    "tpu": "ingot export writes StableHLO, which XLA compiles for TPUs",
    **dict.fromkeys(("js", "web", "webassembly"), "write wasm"),
}


def _is_cpu(text: str) -> bool:
    try:
        features_of(f"cpu:{text}")
    except InputError:
        return False
    return True


def parse_target(text: str) -> tuple[Target[Any], str]:
    """ "cpu:znver4" -> the target and the text after the colon; "native" is this machine's CPU. Raises InputError."""
    name, _, variant = ("cpu" if text == "native" else text).partition(":")
    if name not in NAMES:
        fix = _FIXES.get(name.lower()) or (f"write cpu:{text}" if _is_cpu(text) else None)
        raise InputError(
            "target", expected=f"native, or NAME[:FEATURES] of {', '.join(NAMES)}", got=repr(text), fix=fix
        )
    return _target(name), variant


def features_of(text: str) -> Features:
    """ "cpu:znver4" -> the features of that machine; "native": all features of this machine's CPU.

    Raises InputError that lists the valid names.
    """
    target, features = parse_target(text)
    return target.features(features)
