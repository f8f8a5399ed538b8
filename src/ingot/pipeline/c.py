"""Portable C: the CPU's passes and schedules, printed as C99.

c             scalar code
c:cortex-m4   the same for a core of `cores.MICROCONTROLLERS`
c:vector16    vectors of 16 bytes (or vector32), with the extensions of GCC and Clang
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ingot.ir.kernel import Kernel
from ingot.ir.types import i8, i16, i32
from ingot.pipeline.cores import MICROCONTROLLERS
from ingot.pipeline.cpu import POLICY, cpu_passes
from ingot.pipeline.functions import firmware
from ingot.pipeline.functions.fixed_plan import fixed_plan
from ingot.pipeline.target import NamedPass, Options
from ingot.runtime.program import Program
from ingot.schedule.choice import Measured
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import PAIR_RATE, Machine
from ingot.support.errors import InputError
from ingot.support.files import atomic_write
from ingot.support.native import Features
from ingot.targets.c.printer import print_kernel
from ingot.targets.c.program import identifier, print_program
from ingot.targets.c.vectors import print_vectors
from ingot.targets.text import TextAssembler

# a small core without vectors: numbers of a microcontroller with a floating-point unit
SCALAR = Machine(
    vector_bits=8, registers=16, fma_per_cycle=1, loads_per_cycle=1, gflops=1.0, l1=16 << 10, l2=64 << 10, l3=256 << 10,
    winograd=False, in_order=True, int8_dot=i8, depthwise_sums=i32,
)  # fmt: skip
VECTORS = replace(SCALAR, in_order=False, int8_dot=i16, int8_rate=PAIR_RATE, l1=32 << 10, l2=512 << 10)
MACHINES = {
    "": SCALAR,
    "vector16": replace(VECTORS, vector_bits=128, gflops=8.0),
    "vector32": replace(VECTORS, vector_bits=256, gflops=16.0),
}
CORES = {"cortex-m55": replace(SCALAR, dot_bytes=16, registers=12)}  # vectors of bytes, summed in general registers


class CTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "c"
    policy = replace(POLICY, stores_narrow_results=True)
    forms = ("c",)
    lower = staticmethod(lower)
    merge_launches = None
    chain_kernels = None
    has_fixed_sizes = True
    overlaps_exchanges = False
    has_paged_attention = False

    def features(self, variant: str) -> Features:
        if variant in MICROCONTROLLERS:
            return Features("c99", cpu=variant, target="c")
        if variant not in MACHINES:
            targets = (f"c:{m}" if m else "c" for m in (*MACHINES, *MICROCONTROLLERS))
            raise InputError("target", expected=" or ".join(targets), got=f"c:{variant}")
        return Features("c99", (variant,) if variant else (), target="c")

    def prepare(self, nodes: int) -> None:
        pass

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        return _machine(features)

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        return cpu_passes(options, _machine(features), self.policy)

    def assembler(self, features: Features) -> TextAssembler:
        return TextAssembler(features, _printer(features))

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        return _printer(features)(kernel)

    @staticmethod
    def export(program: Program, path: Path, weights: Path | None = None) -> None:
        """Write the source to `path`, the header beside it, and the weights to their own file if one is given."""
        if path.suffix != ".c":
            raise InputError("a file for C", expected="a name that ends in .c", got=path.name)
        name, header = identifier(path.stem), path.with_suffix(".h")
        kernels = program.code["c"].blob.decode()
        source, declarations, blob = print_program(name, kernels, _plan(program), header.name, weights is not None)
        if weights is not None:
            atomic_write(weights, [blob or b""])
        atomic_write(header, [declarations.encode()])
        atomic_write(path, [source.encode()])

    @staticmethod
    def footprint(program: Program, path: Path, separate_weights: bool) -> firmware.Footprint:
        """What the program in `path` takes of a machine's memory."""
        return firmware.footprint(program.features, _plan(program), path, separate_weights)

    @staticmethod
    def write_example(
        program: Program, path: Path, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        """Write files next to `path` that run it on `inputs` and expect `outputs`."""
        firmware.write_example(program.features, _plan(program), path, inputs, outputs)


_plan = partial(fixed_plan, shares_halos=True)  # memory is scarcer than time


def _machine(features: Features) -> Machine:
    return CORES.get(features.cpu) or MACHINES["".join(features.features)]


def _printer(features: Features) -> Callable[[Kernel], str]:
    return print_vectors if features.features else print_kernel


TARGET = CTarget()
