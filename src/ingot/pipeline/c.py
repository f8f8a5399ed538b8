"""Portable C: the CPU's passes and schedules, printed as C99.

c             scalar code
c:cortex-m4   the same for a core of `cores.MICROCONTROLLERS`
c:vector16    vectors of 16 bytes (or vector32), with the extensions of GCC and Clang
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ingot.ir.kernel import Kernel
from ingot.ir.types import i8, i32
from ingot.pipeline import firmware
from ingot.pipeline.cores import MICROCONTROLLERS
from ingot.pipeline.cpu import POLICY, cpu_passes
from ingot.pipeline.target import NamedPass, Options
from ingot.runtime.bind import Binding
from ingot.runtime.expr import evaluate
from ingot.runtime.placement import Request, place
from ingot.runtime.program import Buffer, Program, TensorSpec
from ingot.schedule.choice import Measured
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import Machine
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError, InputError
from ingot.support.files import atomic_write
from ingot.support.native import Features
from ingot.targets.c.printer import print_kernel
from ingot.targets.c.program import Call, Plan, Tensor, identifier, print_program
from ingot.targets.c.vectors import print_vectors
from ingot.targets.text import TextAssembler

# a small core without vectors: numbers of a microcontroller with a floating-point unit
SCALAR = Machine(
    vector_bits=8, registers=16, fma_per_cycle=1, loads_per_cycle=1, gflops=1.0, l1=16 << 10, l2=64 << 10, l3=256 << 10,
    winograd=False, in_order=True, int8_dot=i8, depthwise_sums=i32,
)  # fmt: skip
MACHINES = {
    "": SCALAR,
    "vector16": replace(SCALAR, in_order=False, int8_dot=None, vector_bits=128, gflops=8.0, l1=32 << 10, l2=512 << 10),
    "vector32": replace(SCALAR, in_order=False, int8_dot=None, vector_bits=256, gflops=16.0, l1=32 << 10, l2=512 << 10),
}
CORES = {"cortex-m55": replace(SCALAR, dot_bytes=16, registers=12)}  # vectors of bytes, summed in general registers


class CTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "c"
    policy = replace(POLICY, stores_narrow_results=True)
    forms = ("c",)
    lower = staticmethod(lower)
    beside = None
    has_fixed_sizes = True

    def features(self, asked: str) -> Features:
        if asked in MICROCONTROLLERS:
            return Features("c99", cpu=asked, target="c")
        if asked not in MACHINES:
            known = (f"c:{m}" if m else "c" for m in (*MACHINES, *MICROCONTROLLERS))
            raise InputError("target", expected=" or ".join(known), got=f"c:{asked}")
        return Features("c99", (asked,) if asked else (), target="c")

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
        """Write files beside `path` that run it on `inputs` and expect `outputs`."""
        firmware.write_example(program.features, _plan(program), path, inputs, outputs)


def _machine(features: Features) -> Machine:
    return CORES.get(features.cpu) or MACHINES["".join(features.features)]


def _printer(features: Features) -> Callable[[Kernel], str]:
    return print_vectors if features.features else print_kernel


def _plan(program: Program) -> Plan:
    """Return the offsets of all buffers and the calls. Raises CompileError for a program with symbolic sizes."""
    if program.symbols or program.sizes:
        names = ", ".join(s.name for s in (*program.symbols, *program.sizes))
        raise CompileError(
            "C for a model with symbolic sizes", expected="fixed sizes", got=names, fix="fix them: --dim NAME=SIZE"
        )
    inputs, outputs = map(_tensors, (program.inputs, program.outputs))
    binding = Binding(program, [*(t.shape for t in inputs), *(s.shape for s in program.state)])
    read_offsets, initial = _state_offsets(program, b"")
    written_offsets, state = _state_offsets(program, initial, copied=True)
    by_id = {b.id: b for b in program.buffers}
    arena = _Arena.of(program, binding)

    def location(buffer: Buffer) -> tuple[str, int]:
        if buffer.alias is not None:
            base, at = location(by_id[buffer.alias[0]])
            return base, at + evaluate(buffer.alias[1], {})
        match buffer.kind:
            case "arena":
                return "arena", arena.offsets[buffer.id]
            case "weight":
                return "weights", buffer.offset
        at = buffer.index - (len(inputs) if buffer.kind == "input" else 0)
        if buffer.kind == "input" and at >= 0:
            return "state", read_offsets[at]
        if buffer.kind == "output":
            at -= len(program.state)
            return ("state", written_offsets[buffer.index]) if at < 0 else (f"output{at}", 0)
        return f"{buffer.kind}{buffer.index}", 0

    calls: list[Call] = []
    for step, (chunks, rounds) in zip(program.steps, binding.counts, strict=True):
        args = tuple((base, at + evaluate(offset, {})) for i, offset in step.args for base, at in (location(by_id[i]),))
        dims = tuple(evaluate(d, {}) for d in step.dims)
        calls.append(Call(step.kernel, args, dims, chunks * rounds, step.target))
    return Plan(
        inputs, outputs, calls, -(-arena.nbytes // 64) * 64, program.scratch_bytes, arena.fills,
        program.weights.tobytes(), state,
        list(zip(_tensors(tuple(s.spec for s in program.state)), read_offsets, strict=True)),
        [(read_offsets[i], written_offsets[i], s.initial.nbytes) for i, s in enumerate(program.state) if s.copy_reason],
    )  # fmt: skip


@dataclass(frozen=True)
class _Arena:
    """offsets: of each arena buffer that is not an alias. fills: (step, offset, bytes, value) of ranges that are filled
    with a byte before a step."""

    offsets: Mapping[int, int]
    nbytes: int
    fills: Sequence[tuple[int, int, int, int]]

    @staticmethod
    def of(program: Program, binding: Binding) -> _Arena:
        """Buffers with a halo are filled before the first step that writes them, so that they share memory with others;
        where steps repeat, they have memory of their own and are filled once."""
        if any(step.target is not None for step in program.steps):
            layout = binding.layout
            return _Arena(layout.offsets, layout.nbytes, [(0, *fill) for fill in layout.fills])
        buffers = [b for b in program.buffers if b.kind == "arena" and b.alias is None]
        requests = [Request(evaluate(b.nbytes, {}), b.first_step, b.last_step) for b in buffers]
        offsets, nbytes = place(requests)
        fills = [
            (b.first_step, offset, r.nbytes, b.fill)
            for b, r, offset in zip(buffers, requests, offsets, strict=True)
            if b.halo is not None
        ]
        return _Arena({b.id: offset for b, offset in zip(buffers, offsets, strict=True)}, nbytes, fills)


def _state_offsets(program: Program, data: bytes, copied: bool = False) -> tuple[list[int], bytes]:
    """Append the initial values of the state's tensors to `data`; return their offsets and the extended bytes. copied:
    omit the values of tensors that are updated in place."""
    offsets: list[int] = []
    for s in program.state:
        offsets.append(len(data))
        data += b"" if copied and not s.copy_reason else s.initial.tobytes() + bytes(-s.initial.nbytes % 64)
    return offsets, data


def _tensors(specs: tuple[TensorSpec, ...]) -> list[Tensor]:
    return [Tensor(s.name, s.dtype, tuple(evaluate(d, {}) for d in s.shape)) for s in specs]


TARGET = CTarget()
