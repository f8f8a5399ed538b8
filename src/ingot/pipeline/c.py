"""Portable C: the CPU's passes and schedules, printed as C99.

c            scalar code
c:vector16   vectors of 16 bytes (or vector32), with the extensions of GCC and Clang
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ingot.ir.kernel import Kernel
from ingot.pipeline.cpu import POLICY, cpu_passes
from ingot.pipeline.target import NamedPass, Options
from ingot.runtime.bind import Binding
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Buffer, Program, TensorSpec
from ingot.schedule.choice import Measured
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import Machine
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
    winograd=False,
)  # fmt: skip
MACHINES = {
    "": SCALAR,
    "vector16": replace(SCALAR, vector_bits=128, gflops=8.0, l1=32 << 10, l2=512 << 10),
    "vector32": replace(SCALAR, vector_bits=256, gflops=16.0, l1=32 << 10, l2=512 << 10),
}


class CTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "c"
    policy = POLICY
    forms = ("c",)
    lower = staticmethod(lower)
    beside = None

    def features(self, asked: str) -> Features:
        if asked not in MACHINES:
            raise InputError("target", expected=" or ".join(f"c:{m}" if m else "c" for m in MACHINES), got=f"c:{asked}")
        return Features("c99", (asked,) if asked else (), target="c")

    def prepare(self, nodes: int) -> None:
        pass

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        return _machine(features)

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        return cpu_passes(options, _machine(features))

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


def _machine(features: Features) -> Machine:
    return MACHINES["".join(features.features)]


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

    def location(buffer: Buffer) -> tuple[str, int]:
        if buffer.alias is not None:
            base, at = location(by_id[buffer.alias[0]])
            return base, at + evaluate(buffer.alias[1], {})
        match buffer.kind:
            case "arena":
                return "arena", binding.layout.offsets[buffer.id]
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
        if step.collective is not None:
            raise CompileError("C", expected="a program of one device", got=str(step.collective))
        args = tuple((base, at + evaluate(offset, {})) for i, offset in step.args for base, at in (location(by_id[i]),))
        dims = tuple(evaluate(d, {}) for d in step.dims)
        calls.append(Call(step.kernel, args, dims, chunks * rounds, step.target))
    layout = binding.layout
    return Plan(
        inputs, outputs, calls, -(-layout.nbytes // 64) * 64, program.scratch_bytes, layout.fills,
        program.weights.tobytes(), state,
        list(zip(_tensors(tuple(s.spec for s in program.state)), read_offsets, strict=True)),
        [(read_offsets[i], written_offsets[i], s.initial.nbytes) for i, s in enumerate(program.state) if s.copy_reason],
    )  # fmt: skip


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
